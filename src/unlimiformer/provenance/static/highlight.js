// Shows which passages of the source an answer came from: highlights them in the text, and draws a strip with the
// attention over the whole document. Texts are only ever set as text, never as HTML.

export function createElement(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// The text of a document in a frame that scrolls, and its strip. Offsets in passages count characters (code points);
// strings of the browser count UTF-16 units, so characters outside the basic plane ("pairs") count twice there.
export class SourceView {
  constructor(frame, strip) {
    Object.assign(this, { frame, strip, text: "", pairs: [], blocks: [] });
  }

  setText(text) {
    this.text = text;
    this.pairs = [];
    if (/[\ud800-\udbff]/.test(text)) {
      let offset = 0;
      for (const character of text) { if (character.length === 2) this.pairs.push(offset); offset += 1; }
    }
    this.blocks = [];
    for (let start = 0; start < text.length;) {
      let end = Math.min(text.length, start + 2000);
      const lineEnd = text.indexOf("\n", end);
      if (end < text.length) end = lineEnd < 0 ? text.length : lineEnd + 1;
      this.blocks.push(Object.assign(createElement("p", { textContent: text.slice(start, end) }), { start }));
      start = end;
    }
    this.frame.replaceChildren(...this.blocks);
    this.strip.replaceChildren();
  }

  // One bar for each part of the document; more attention makes it darker.
  drawHistogram(histogram) {
    const maximum = Math.max(...histogram, 1e-9);
    this.strip.replaceChildren(...histogram.map((share, index) => {
      const percent = Math.round(100 * index / histogram.length);
      const bar = createElement("i", { title: `${percent} % into the document: ${(100 * share).toFixed(1)} % of the attention` });
      bar.style.opacity = share ? 0.08 + 0.92 * share / maximum : 0;
      bar.onclick = () => this.blocks[Math.floor(index / histogram.length * this.blocks.length)]?.scrollIntoView();
      return bar;
    }));
  }

  // Highlights passages, instead of those before; `jump` scrolls to the first.
  highlight(passages, jump = false) {
    const ranges = this.blocks.length ? passages.map((passage) => this.#range(passage)) : [];
    if (globalThis.Highlight) CSS.highlights.set("passages", new Highlight(...ranges));
    const bars = [...this.strip.children];
    bars.forEach((bar) => bar.classList.remove("active"));
    for (const { start } of passages) {
      const index = Math.floor(this.#toUnits(start) / this.text.length * bars.length);
      bars[Math.min(bars.length - 1, index)]?.classList.add("active");
    }
    if (!jump || !ranges.length) return;
    for (let pass = 0; pass < 2; pass += 1) { // twice: blocks that were not drawn yet may change their height
      const box = ranges[0].getBoundingClientRect(), frame = this.frame.getBoundingClientRect();
      if (box.top < frame.top || box.bottom > frame.bottom) this.frame.scrollBy(0, box.top - frame.top - frame.height / 3);
    }
  }

  #range({ start, end }) {
    const range = new Range();
    range.setStart(...this.#nodeAndOffset(this.#toUnits(start)));
    range.setEnd(...this.#nodeAndOffset(this.#toUnits(end)));
    return range;
  }

  #toUnits(offset) {
    return offset + findLast(this.pairs.length, (index) => this.pairs[index] < offset) + 1;
  }

  #nodeAndOffset(units) {
    const block = this.blocks[Math.max(0, findLast(this.blocks.length, (index) => this.blocks[index].start <= units))];
    return [block.firstChild, units - block.start];
  }
}

// Binary search: the last index below `count` with a true condition, or -1; the condition turns false only once.
function findLast(count, condition) {
  let low = -1, high = count - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (condition(middle)) low = middle; else high = middle - 1; }
  return low;
}

// The sentences and words of an answer. Pointing at a word highlights its passages, a click also scrolls there;
// sentences can be reached with the keyboard. `highlight(passages, jump)` is called for each.
export function renderAnswer(provenance, highlight) {
  return provenance.sentences.map((sentence) => {
    const tokens = provenance.tokens.filter((token) => token.start >= sentence.start && token.start < sentence.end);
    const element = createElement("span", { className: "sentence", tabIndex: 0 }, ...tokens.map((token) => {
      const word = createElement("span", { className: "word", textContent: token.text });
      word.onpointerenter = () => highlight(token.passages, false);
      word.onclick = (event) => { event.stopPropagation(); highlight(token.passages, true); };
      return word;
    }));
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", `${sentence.text.trim()} – show where this came from`);
    element.onfocus = () => { if (element.matches(":focus-visible")) highlight(sentence.passages, false); };
    element.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      highlight(sentence.passages, true);
    };
    return element;
  });
}

// The best passages of the whole answer, as a list of buttons.
export function renderPassages(provenance, highlight) {
  return createElement("ul", { className: "passages" }, ...provenance.passages.map((passage) => {
    const percent = Math.round(100 * passage.start / provenance.characters), share = Math.round(100 * passage.weight);
    const quote = passage.text.replace(/\s+/g, " ").slice(0, 160);
    const place = passage.location ?? `${percent} % into the document`;
    const textContent = `${place}, ${share} % of the attention: ${quote}`;
    return createElement("li", {}, createElement("button", { type: "button", textContent, onclick: () => highlight([passage], true) }));
  }));
}
