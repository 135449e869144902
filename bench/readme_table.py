"""Puts kept results into the tables of the README and of the docs: `python bench/readme_table.py`."""

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


def shelves(told: dict) -> str:
    """Methods down; documents an hour, and the loop's share, across."""
    lines = [
        (
            row["method"],
            f"{row['documents_per_hour']:,.0f}",
            f"{row['of_loop']:.2f} ×",
            "–" if row["waiting"] is None else f"{row['waiting']:.2%}",
        )
        for row in told["rows"]
    ]
    return _table(("", "documents an hour", "of the loop", "time that the worker waited"), lines)


def measured(told: dict) -> str:
    """Lengths and stores down; what reading and answering took across."""
    lines = []
    for row in told["rows"]:
        looks = re.search(r"looks at ([\d.]+)%.*mass recall ([\d.]+)", row["search"])
        found = "all" if looks is None else f"{looks[1]} %, for {looks[2]} of the attention"
        lines.append(
            (
                f"{row['tokens']:,}",
                row["store"],
                f"{row['index_seconds']:,.0f} s" + ("" if row["windows_encoded"] else " (search alone)"),
                _size(row["disk_bytes"]),
                _size(row["index_peak_bytes"]),
                f"{row['answer_seconds']:.1f} s",
                _size(row["answer_peak_bytes"]),
                found,
            )
        )
    names = ("tokens", "store", "reading", "on disk", "RAM, reading", "an answer", "RAM, answering", "looks at")
    return _table(names, lines)


class Rates:
    """What the measured rows come to, for one core."""

    def __init__(self, told: dict) -> None:
        exact = [row for row in told["rows"] if row["store"] == "exact"]
        small, large = self.small, self.large = exact[0], exact[-1]
        self.tokens_per_second = large["tokens"] / large["index_seconds"]
        more = large["tokens"] - small["tokens"]
        self.bytes_per_token = (large["disk_bytes"] - small["disk_bytes"]) / more
        self.answer = small["answer_seconds"]
        self.answer_per_token = max(0.0, large["answer_seconds"] - small["answer_seconds"]) / more
        self.ram = large["index_peak_bytes"]
        self.runner = told["runner"]


def rates(told: dict) -> str:
    """The rates that are reckoned with, and where they come from."""
    found = Rates(told)
    small, large, runner = found.small, found.large, found.runner
    between = f"({large['tokens']:,} − {small['tokens']:,})"
    runs = f"{runner['documents']:,} documents in {runner['seconds']:.1f} s; in {runner['again_seconds']:.1f} s when"
    lines = [
        (
            "reading",
            f"{found.tokens_per_second:,.0f} tokens a second",
            f"{large['tokens']:,} tokens / {large['index_seconds']:,.0f} s",
        ),
        (
            "disk",
            f"{found.bytes_per_token:,.0f} bytes a token",
            f"({large['disk_bytes']:,} − {small['disk_bytes']:,}) bytes / {between}",
        ),
        (
            "an answer, exact",
            f"{found.answer:.1f} s and {found.answer_per_token * 1e6:.2f} µs a token",
            f"({large['answer_seconds']:.1f} − {small['answer_seconds']:.1f}) s / {between}",
        ),
        (
            "the runner",
            f"{runner['documents'] / runner['seconds']:,.0f} documents a second",
            f"{runs} all are done; {_size(runner['peak_bytes'])} of RAM",
        ),
    ]
    return _table(("rate, one core", "", "measured"), lines)


def one_document(told: dict) -> str:
    """What one document of so many tokens takes."""
    rates = Rates(told)
    lines = []
    for tokens in (10_000, 1_000_000, 100_000_000):
        hours = tokens / rates.tokens_per_second / 3600
        answer = rates.answer + tokens * rates.answer_per_token
        disk = tokens * rates.bytes_per_token
        lines.append((f"{tokens:,}", _hours(hours), _size(disk), _size(rates.ram), f"{answer:,.1f} s", _money(hours)))
    return _table(("tokens", "reading, one core", "disk", "RAM, reading", "an answer, exact", "cost of reading"), lines)


def many_documents(told: dict, tokens: int = 10_000) -> str:
    """What so many documents of ten thousand tokens take."""
    rates = Rates(told)
    lines = []
    for documents in (1, 1_000, 1_000_000):
        hours = documents * tokens / rates.tokens_per_second / 3600
        asking = documents * rates.answer / 3600
        disk = documents * tokens * rates.bytes_per_token
        itself = rates.runner["seconds"] * documents / rates.runner["documents"]
        lines.append(
            (
                f"{documents:,}",
                _hours(hours),
                _hours(hours / 100) if documents >= 100 else "–",
                _hours(asking),
                _size(disk),
                f"{itself:,.2f} s",
                _money(hours),
            )
        )
    names = (
        "documents",
        "reading, one core",
        "100 cores",
        "a question to each, one core",
        "disk",
        "the runner",
        "cost",
    )
    return _table(names, lines)


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return f"{hours * 3600:,.1f} s"
    return f"{hours * 60:,.0f} min" if hours < 2 else f"{hours:,.0f} h"


def _size(count: float) -> str:
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} TB"


PRICE = 0.05  # dollars for an hour of a core


def _money(hours: float) -> str:
    return f"${hours * PRICE:,.2f}" if hours * PRICE >= 0.01 else "< $0.01"


TABLES = {
    "decode": decoding,
    "needle": needles,
    "needle_answers": needles,
    "qmsum_answers": compared,
    "qmsum_table": scores,
    "key_value_recall": recall,
    "train": steps,
    "run": shelves,
    "scale": measured,
    "scale#rates": rates,
    "scale#one": one_document,
    "scale#many": many_documents,
}
DOCUMENTS = ("README.md", "docs/scale.md")


def tables() -> dict[str, str]:
    """Every table by the file that it is made of (and, behind #, what of it is told)."""
    made = {}
    for name, make in TABLES.items():
        file, sign, part = name.partition("#")
        made[f"bench/results/{file}.json{sign}{part}"] = make(
            json.loads((ROOT / f"bench/results/{file}.json").read_text())
        )
    return made


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
    """Rewrites the documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        for source, table in tables().items():
            block = re.compile(rf"(<!-- table: {re.escape(source)} -->\n)(\|.*\n)*")
            text = block.sub(lambda found, table=table: found[1] + table, text)
        path.write_text(text)


if __name__ == "__main__":
    main()
