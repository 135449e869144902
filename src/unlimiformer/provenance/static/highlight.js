// Where an answer came from: its words light the passages of the source, and a strip shows where in it they lie.
// Texts are only ever set as text, never as HTML.

export function make(tag, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

// A text in a frame that scrolls, and its strip. Offsets are counted in characters, a browser counts in units of UTF-16.
export class Source {
  constructor(element, strip) {
    Object.assign(this, { element, strip, text: "", pairs: [], blocks: [] });
  }

  show(text) {
    this.text = text;
    this.pairs = [];
    if (/[\ud800-\udbff]/.test(text)) {
      let points = 0;
      for (const character of text) { if (character.length === 2) this.pairs.push(points); points += 1; }
    }
    this.blocks = [];
    for (let start = 0; start < text.length;) {
      let end = Math.min(text.length, start + 2000);
      const line = text.indexOf("\n", end);
      if (end < text.length) end = line < 0 ? text.length : line + 1;
      this.blocks.push(Object.assign(make("p", { textContent: text.slice(start, end) }), { start }));
      start = end;
    }
    this.element.replaceChildren(...this.blocks);
    this.strip.replaceChildren();
  }

  // Bars of the whole document; the darker, the more attention.
  draw(histogram) {
    const most = Math.max(...histogram, 1e-9);
    this.strip.replaceChildren(...histogram.map((share, number) => {
      const place = Math.round(100 * number / histogram.length);
      const bar = make("i", { title: `${place} % into the document: ${(100 * share).toFixed(1)} % of the attention` });
      bar.style.opacity = share ? 0.08 + 0.92 * share / most : 0;
      bar.onclick = () => this.blocks[Math.floor(number / histogram.length * this.blocks.length)]?.scrollIntoView();
      return bar;
    }));
  }

  light(passages, jump = false) {
    const found = this.blocks.length ? passages.map((passage) => this.#range(passage)) : [];
    if (globalThis.Highlight) CSS.highlights.set("looked", new Highlight(...found));
    const bars = [...this.strip.children];
    bars.forEach((bar) => bar.classList.remove("lit"));
    for (const { start } of passages) {
      const place = Math.floor(this.#units(start) / this.text.length * bars.length);
      bars[Math.min(bars.length - 1, place)]?.classList.add("lit");
    }
    if (!jump || !found.length) return;
    for (let pass = 0; pass < 2; pass += 1) { // what was not drawn yet may have another height
      const box = found[0].getBoundingClientRect(), frame = this.element.getBoundingClientRect();
      if (box.top < frame.top || box.bottom > frame.bottom) this.element.scrollBy(0, box.top - frame.top - frame.height / 3);
    }
  }

  #range({ start, end }) {
    const range = new Range();
    range.setStart(...this.#place(this.#units(start)));
    range.setEnd(...this.#place(this.#units(end)));
    return range;
  }

  #units(offset) {
    return offset + last(this.pairs.length, (number) => this.pairs[number] < offset) + 1;
  }

  #place(offset) {
    const block = this.blocks[Math.max(0, last(this.blocks.length, (number) => this.blocks[number].start <= offset))];
    return [block.firstChild, offset - block.start];
  }
}

// The last of so many numbers for which something is true, which is true up to some number; -1 if for none.
function last(count, isTrue) {
  let low = -1, high = count - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (isTrue(middle)) low = middle; else high = middle - 1; }
  return low;
}

// The words of an answer: pointed at they light their passages, tapped they go there; sentences by the keyboard.
export function spoken(looked, light) {
  return looked.sentences.map((sentence) => {
    const words = looked.tokens.filter((token) => token.start >= sentence.start && token.start < sentence.end);
    const element = make("span", { className: "sentence", tabIndex: 0 }, ...words.map((token) => {
      const word = make("span", { className: "word", textContent: token.text });
      word.onpointerenter = () => light(token.passages, false);
      word.onclick = (event) => { event.stopPropagation(); light(token.passages, true); };
      return word;
    }));
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", `${sentence.text.trim()} – show where this came from`);
    element.onfocus = () => { if (element.matches(":focus-visible")) light(sentence.passages, false); };
    element.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      light(sentence.passages, true);
    };
    return element;
  });
}

// The best passages of the whole answer, as a list to go to.
export function listed(looked, light) {
  return make("ul", { className: "passages" }, ...looked.passages.map((passage) => {
    const place = Math.round(100 * passage.start / looked.characters), share = Math.round(100 * passage.weight);
    const quote = passage.text.replace(/\s+/g, " ").slice(0, 160);
    const textContent = `${place} % in, ${share} % of the attention: ${quote}`;
    return make("li", {}, make("button", { type: "button", textContent, onclick: () => light([passage], true) }));
  }));
}
