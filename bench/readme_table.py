"""Puts the rows of kept results into the README's tables: `python bench/readme_table.py`."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def decoding(told: dict) -> str:
    """Methods down, lengths across; each cell has milliseconds and the ratio to the truncated model."""
    rows = told["rows"]
    lengths = sorted({row["tokens"] for row in rows})
    lines = []
    for method, dtype in dict.fromkeys((row["method"], row["dtype"]) for row in rows):
        cells = {row["tokens"]: row for row in rows if (row["method"], row["dtype"]) == (method, dtype)}
        size = f"{list(cells.values())[-1]['bytes_per_source_token']:,.0f}"
        name = "truncated to 1,024" if method == "truncated" else _bold_if_ours(method)
        lines.append((name, dtype, size, *(_milliseconds(cells.get(n)) for n in lengths)))
    return _table(("method", "store", "bytes a source token", *map(_tokens, lengths)), lines)


def needles(told: dict) -> str:
    """Methods down, lengths across; each cell has the share of right answers."""
    shares = told["accuracy"]
    lengths = sorted({row["tokens"] for row in shares})
    truncated = f"plain model, truncated to its {told.get('plain_window', 8192):,}"
    names = {"truncated": truncated, "SLED": "all tokens (SLED)", "ours": "**ours**"}
    lines = []
    for method, name in names.items():
        found = {row["tokens"]: row["accuracy"] for row in shares if row["method"] == method}
        if found:
            lines.append((name, *(f"{found[n]:.0%}" for n in lengths)))
    return _table(("right answers", *map(_tokens, lengths)), lines)


def recall(told: dict) -> str:
    """Methods down, windows across; each cell has the share of right answers, the mean of the seeds."""
    windows = sorted({row["windows"] for row in told["rows"]})
    lines = []
    for method in told["methods"]:
        shares = {
            n: [r["accuracy"] for r in told["rows"] if (r["method"], r["windows"]) == (method, n)] for n in windows
        }
        lines.append((method, *(f"{sum(each) / len(each):.0%}" for each in shares.values())))
    return _table(("trained by", *(f"{n} window{'s' if n > 1 else ''}" for n in windows)), lines)


def scores(told: dict) -> str:
    """Methods down; ROUGE across."""
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    lines = [(row["method"], *(f"{row[name]:.1f}" for name in names)) for row in told["rows"]]
    return _table(("", *names.values()), lines)


def compared(told: dict) -> str:
    """Runs down; means with their bounds across, and how likely the difference from the first is by chance."""
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    lines = []
    for number, (run, means) in enumerate(zip(told["names"], told["means"], strict=True)):
        cells = [f"{means[name]['value']:.1f} ({means[name]['low']:.1f}–{means[name]['high']:.1f})" for name in names]
        p = f"{told['differences'][number - 1]['rouge1']['p']:.4f}" if number else "–"
        lines.append((Path(run).name, *cells, p))
    return _table(("", *names.values(), "p of ROUGE-1"), lines)


def steps(told: dict) -> str:
    """Methods down; time and memory of a training step across."""
    lines = []
    for row in told["rows"]:
        ratios = [
            "–" if row[name] is None else f"{row[name]:.2f} ×" for name in ("ratio_to_standard", "ratio_to_parts")
        ]
        lines.append((row["method"], f"{row['seconds']:.1f} s", *ratios, f"{row['peak_bytes'] / 1e9:.1f} GB"))
    return _table(("method", "a step", "of standard", "of encoding and a decoder step", "beyond the model"), lines)


TABLES = {
    "decode": decoding,
    "needle": needles,
    "needle_answers": needles,
    "qmsum_answers": compared,
    "qmsum_table": scores,
    "key_value_recall": recall,
    "train": steps,
}


def tables() -> dict[str, str]:
    """Every table by the file that it is made of; without those whose results are not kept yet."""
    found = {f"bench/results/{name}.json": make for name, make in TABLES.items()}
    return {path: make(json.loads((ROOT / path).read_text())) for path, make in found.items() if (ROOT / path).exists()}


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, *lines]
    text = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((text[0], "|" + "---|" * len(head), *text[1:])) + "\n"


def _tokens(count: int) -> str:
    return f"{count:,} tokens"


def _bold_if_ours(method: str) -> str:
    return f"**{method}**" if "ours" in method else method


def _milliseconds(row: dict | None) -> str:
    if row is None:
        return "–"
    recall = "" if row["mass_recall"] == 1 else f", {row['mass_recall']:.3f} of the mass"
    return f"{row['ms_per_token']:.0f} ms ({row['ratio_to_truncated']:.2f} ×{recall})"


def main() -> None:
    """Rewrites the README."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    for source, table in tables().items():
        block = re.compile(rf"(<!-- table: {source} -->\n)(\|.*\n)*")
        text = block.sub(lambda found, table=table: found[1] + table, text)
    readme.write_text(text)


if __name__ == "__main__":
    main()
