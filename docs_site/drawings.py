"""Draws the pictures of docs/how_it_works.md. Run `python docs_site/drawings.py`; it writes SVG files to docs/figures.

The windows are those that `plan_windows` makes; the marked tokens are an example, not a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from unlimiformer.text.windows import Window, plan_windows

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
WIDTH, LEFT, CELL = 760, 150, 14
COLOURS = ("#4c78c8", "#d9822b", "#3d9a6c", "#a05195")
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #222 }
.small { font-size: 12px; fill: #666 }
.line { stroke: #888; fill: none }
.empty { fill: #8884 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .small { fill: #aaa } }
"""


def main() -> None:
    """Write all drawings."""
    for name, svg in drawings().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


def drawings() -> dict[str, str]:
    """The names of the files, and what they contain."""
    return {
        "how_windows.svg": draw_windows(),
        "how_folding.svg": draw_folding(),
        "how_heads.svg": draw_heads(),
        "how_decoder_only.svg": draw_decoder_only(),
    }


# --- Shapes -----------------------------------------------------------------------------------------------------------


def picture(height: int, title: str, shapes: Sequence[str]) -> str:
    """An SVG document with a title for screen readers."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    arrow = '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    defs = f'<defs>{arrow}<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>'
    return "\n".join([head, f"<style>{STYLE}</style>", defs, *shapes, "</svg>\n"])


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Words, beginning, centred or ending (anchor) at x."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{words}</text>'


def box(x: float, y: float, width: float, words: str, colour: str = "", height: float = 32) -> str:
    """A box with words in it."""
    fill = f'fill="{colour}" fill-opacity="0.25"' if colour else 'fill="none"'
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" stroke="#888" {fill}/>'
    return shape + text(x + width / 2, y + height / 2 + 5, words, "middle")


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """An arrow from one point to another."""
    return f'<path class="line" marker-end="url(#a)" d="M{x:g} {y:g} L{to_x:g} {to_y:g}"/>'


def cells(y: float, colours: Sequence[str], opacities: Sequence[float], size: float = CELL, x: float = LEFT) -> str:
    """A row of cells, one for each token; a cell without a colour is grey."""
    shapes = []
    for number, (colour, opacity) in enumerate(zip(colours, opacities, strict=True)):
        fill = f'fill="{colour}" fill-opacity="{opacity:g}"' if colour else 'class="empty"'
        at = f'x="{x + number * size:g}" y="{y:g}" width="{size - 2:g}" height="{size:g}"'
        shapes.append(f"<rect {at} {fill}/>")
    return "".join(shapes)


def window_rows(y: float, windows: Sequence[Window]) -> list[str]:
    """A row for each window: what it encodes in grey, what is kept of it in its colour."""
    shapes = []
    for number, window in enumerate(windows):
        kept = range(window.keep_start, window.keep_end)
        colours = [COLOURS[number] if token in kept else "" for token in range(window.start, window.end)]
        row = y + number * (CELL + 8)
        shapes.append(text(LEFT - 12, row + 12, f"window {number + 1}", "end"))
        shapes.append(cells(row, colours, [1] * len(colours), x=LEFT + window.start * CELL))
    return shapes


def kept_colours(windows: Sequence[Window]) -> list[str]:
    """The colour of each token of the input: that of the window that keeps it."""
    return [COLOURS[number] for number, window in enumerate(windows) for _ in range(window.keep_start, window.keep_end)]


# --- Drawings ---------------------------------------------------------------------------------------------------------


def draw_windows() -> str:
    """The windows of an input of 40 tokens, and the memory that they fill."""
    windows = plan_windows(40, window=16, overlap=0.5)
    shapes = [text(LEFT - 12, 32, "input, 40 tokens", "end"), cells(20, [""] * 40, [1] * 40)]
    shapes += window_rows(52, windows)
    bottom = 52 + len(windows) * (CELL + 8) + 14
    shapes += [text(LEFT - 12, bottom + 12, "memory", "end"), cells(bottom, kept_colours(windows), [1] * 40)]
    shapes.append(text(LEFT, bottom + 36, "Coloured: kept. Grey: encoded for its context only.", kind="small"))
    return picture(bottom + 50, "Overlapping windows; the kept parts fill one memory", shapes)


def draw_folding() -> str:
    """The same score in two orders: keys of all tokens, or one folded query."""
    shapes = [text(20, 28, "Usual order: keys of every token, for every layer and head")]
    shapes += [box(20, 44, 60, "h_d"), arrow(80, 60, 128, 60), text(104, 52, "W_q", "middle", "small")]
    shapes += [box(130, 44, 90, "query"), arrow(220, 60, 298, 60), box(300, 44, 90, "scores", COLOURS[0])]
    shapes += [arrow(470, 60, 392, 60), box(472, 44, 90, "keys", COLOURS[1]), arrow(640, 60, 564, 60)]
    shapes += [text(602, 52, "W_k", "middle", "small"), box(642, 44, 98, "h_e, all")]
    shapes += [text(20, 122, "Here: the query goes through the key projection; the states stay as they are")]
    shapes += [box(20, 138, 60, "h_d"), arrow(80, 154, 128, 154), text(104, 146, "W_q", "middle", "small")]
    shapes += [box(130, 138, 90, "query"), arrow(220, 154, 298, 154), text(260, 146, "W_kᵀ", "middle", "small")]
    shapes += [box(300, 138, 120, "folded query", COLOURS[1]), arrow(420, 154, 508, 154)]
    shapes += [box(510, 138, 90, "scores", COLOURS[0]), arrow(640, 154, 602, 154), box(642, 138, 98, "h_e, all")]
    return picture(190, "Two orders of computing the same scores", shapes)


def draw_heads() -> str:
    """Four heads in two layers, each with its own top 5 of the same 34 stored tokens."""
    random, count, k = Random(3), 34, 5
    colours = kept_colours(plan_windows(count, window=16, overlap=0.5))
    shapes = [text(LEFT - 12, 32, "memory", "end"), cells(20, colours, [1] * count)]
    shapes.append(text(LEFT + count * CELL + 12, 32, "one h_e a token", kind="small"))
    for row, (layer, head) in enumerate((layer, head) for layer in (1, 2) for head in (1, 2)):
        y = 58 + row * 30
        best = dict(zip(random.sample(range(count), k), (1, 0.85, 0.7, 0.55, 0.4), strict=True))
        marked = [colours[token] if token in best else "" for token in range(count)]
        shapes.append(text(LEFT - 12, y + 12, f"layer {layer}, head {head}", "end"))
        shapes.append(cells(y, marked, [best.get(token, 1) for token in range(count)]))
        shapes.append(text(LEFT + count * CELL + 12, y + 12, "Σ p h_e, then W_v", kind="small"))
    note = "Coloured: the top 5 of each head at one step; the stronger, the more attention."
    shapes.append(text(LEFT, 196, note, kind="small"))
    return picture(212, "Every head of every layer retrieves its own tokens from one memory", shapes)


def draw_decoder_only() -> str:
    """From the windows of a document to one answer."""
    windows = plan_windows(40, window=16, overlap=0.25, causal=True)
    shapes = [text(LEFT - 12, 32, "document", "end"), cells(20, [""] * 40, [1] * 40), *window_rows(48, windows)]
    y = 48 + len(windows) * (CELL + 8) + 4
    memory = cells(y, kept_colours(windows), [1] * 40)
    shapes += [text(LEFT - 12, y + 12, "memory", "end"), memory, arrow(430, y + 18, 430, y + 42)]
    shapes.append(text(LEFT, y + 32, "keys of a few retrieval heads", kind="small"))
    shapes += [box(20, y + 44, 110, "question", COLOURS[3]), arrow(130, y + 60, 168, y + 60)]
    shapes.append(box(170, y + 44, 540, "score of a passage: attention + ½ shared words + neighbours"))
    for number, (tokens, x) in enumerate(((128, 170), (256, 356), (512, 542))):
        shapes += [arrow(x + 84, y + 76, x + 84, y + 96), box(x, y + 98, 168, f"best {tokens} tokens", COLOURS[number])]
        shapes += [arrow(x + 84, y + 130, x + 84, y + 150), box(x, y + 152, 168, "answer, its likelihood")]
        shapes.append(arrow(x + 84, y + 184, 440, y + 212))
    shapes.append(box(220, y + 214, 440, "the first that the model is sure of, or else the likeliest"))
    return picture(y + 262, "A question selects passages; three contexts give three answers", shapes)


if __name__ == "__main__":
    main()
