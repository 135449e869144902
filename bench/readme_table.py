"""Puts the rows of kept results into the README's tables: `python bench/readme_table.py`."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def decoding() -> str:
    """Methods down, lengths across; each cell has milliseconds and the ratio to the truncated model."""
    rows = json.loads((ROOT / "bench/results/decode.json").read_text())["rows"]
    lengths = sorted({row["tokens"] for row in rows})
    lines = ["| method | store | bytes a source token | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |"]
    lines.append("|" + "---|" * (3 + len(lengths)))
    seen = dict.fromkeys((row["method"], row["dtype"]) for row in rows)
    for method, dtype in seen:
        cells = {row["tokens"]: row for row in rows if (row["method"], row["dtype"]) == (method, dtype)}
        size = f"{list(cells.values())[-1]['bytes_per_source_token']:,.0f}"
        text = [_cell(cells.get(n)) for n in lengths]
        name = "truncated to 1,024" if method == "truncated" else f"**{method}**" if "ours" in method else method
        lines.append(f"| {name} | {dtype} | {size} | " + " | ".join(text) + " |")
    return "\n".join(lines) + "\n"


def needles() -> str:
    """Methods down, lengths across; each cell has the share of right answers."""
    shares = json.loads((ROOT / "bench/results/needle.json").read_text())["accuracy"]
    lengths = sorted({row["tokens"] for row in shares})
    lines = ["| right answers | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |"]
    lines.append("|" + "---|" * (1 + len(lengths)))
    for method, name in (("truncated", "plain model, truncated to its 8,192"), ("ours", "**ours**")):
        found = {row["tokens"]: row["accuracy"] for row in shares if row["method"] == method}
        lines.append(f"| {name} | " + " | ".join(f"{found[n]:.0%}" for n in lengths) + " |")
    return "\n".join(lines) + "\n"


TABLES = {"bench/results/decode.json": decoding, "bench/results/needle.json": needles}


def _cell(row: dict | None) -> str:
    if row is None:
        return "–"
    recall = "" if row["mass_recall"] == 1 else f", {row['mass_recall']:.3f} of the mass"
    return f"{row['ms_per_token']:.0f} ms ({row['ratio_to_truncated']:.2f} ×{recall})"


def main() -> None:
    """Rewrites the README."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    for source, table in TABLES.items():
        block = re.compile(rf"(<!-- table: {source} -->\n)(\|.*\n)*")
        text = block.sub(lambda found, table=table: found[1] + table(), text)
    readme.write_text(text)


if __name__ == "__main__":
    main()
