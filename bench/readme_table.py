"""Writes the results of benchmarks into the tables of the README and of the docs.

Run `python bench/readme_table.py` after a benchmark has written to bench/results. A table follows a comment that names
its file: `<!-- table: bench/results/decode.json -->`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA_NAMES = {
    "fairytaleqa-val": "stories",
    "fairytaleqa-val-one-book": "all stories as one book",
    "squality-dev": "science fiction, whole answers",
    "qmsum-val": "meetings",
    "novels": "two novels",
}
METHOD_NAMES = {
    "unlimiformer": "**ours**",
    "bm25": "BM25, the same model",
    "full": "plain model, everything",
    "truncate": "plain model, first window",
    "infini-retri": "InfiniRetri",
}
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
DOLLARS_PER_CORE_HOUR = 0.05


def answers_table(results: dict) -> str:
    """Files and methods down; quality and time of answers to real questions across."""
    lines = []
    for row in results["rows"]:
        score = f"{row['f1']:.1f}" if row["metric"] == "f1" else f"{row['rouge1']:.1f} (ROUGE-1)"
        lines.append(
            (
                f"{DATA_NAMES[row['data']]}, {row['questions']} questions",
                METHOD_NAMES[row["method"]],
                f"**{score}**" if row["method"] == "unlimiformer" else score,
                "–" if row["p"] is None else f"{-row['difference']:+.1f} ({_p_value(row['p'])})",
                "–" if row["evidence"] is None else f"{row['evidence']:.0f} %",
                "–" if row["read_seconds"] is None else f"{row['read_seconds']:.1f} s",
                f"{row['answer_seconds']:.1f} s",
            )
        )
    head = ("", "method", "F1", "ours is better by", "evidence seen", "reading 1,000 tokens", "an answer")
    return _table(head, lines)


def _p_value(p: float) -> str:
    return f"p {p:.3f}" if p >= 0.001 else "p < 0.001"


def decode_table(results: dict) -> str:
    """Methods down, lengths across; each cell has milliseconds and the ratio to the truncated model."""
    rows = results["rows"]
    lengths = sorted({row["tokens"] for row in rows})
    lines = []
    for method, dtype in dict.fromkeys((row["method"], row["dtype"]) for row in rows):
        by_length = {row["tokens"]: row for row in rows if (row["method"], row["dtype"]) == (method, dtype)}
        size = f"{list(by_length.values())[-1]['bytes_per_source_token']:,.0f}"
        name = "truncated to 1,024" if method == "truncated" else _bold_if_ours(_store_name(method))
        lines.append((name, dtype, size, *(_milliseconds(by_length.get(n)) for n in lengths)))
    return _table(("method", "store", "bytes a source token", *map(_tokens, lengths)), lines)


def needle_table(results: dict) -> str:
    """Methods down, lengths across; each cell has the share of right answers."""
    rows = results["accuracy"]
    lengths = sorted({row["tokens"] for row in rows})
    truncated = f"plain model, truncated to its {results.get('plain_window', 8192):,}"
    names = {"truncated": truncated, "SLED": "all tokens (SLED)", "ours": "**ours**"}
    lines = []
    for method, name in names.items():
        by_length = {row["tokens"]: row["accuracy"] for row in rows if row["method"] == method}
        if by_length:
            lines.append((name, *(f"{by_length[n]:.0%}" for n in lengths)))
    return _table(("right answers", *map(_tokens, lengths)), lines)


def key_value_table(results: dict) -> str:
    """Methods down, windows across; each cell has the share of right answers, the mean of the seeds."""
    rows = results["rows"]
    windows = sorted({row["windows"] for row in rows})
    lines = []
    for method in results["methods"]:
        by_windows = [
            [row["accuracy"] for row in rows if (row["method"], row["windows"]) == (method, n)] for n in windows
        ]
        lines.append((method, *(f"{sum(seeds) / len(seeds):.0%}" for seeds in by_windows)))
    return _table(("trained by", *(f"{n} window{'s' if n > 1 else ''}" for n in windows)), lines)


def compare_table(results: dict) -> str:
    """Runs down; means with their confidence bounds across, and the p-value of the difference from the first run."""
    lines = []
    for index, (run, means) in enumerate(zip(results["names"], results["means"], strict=True)):
        cells = [f"{means[name]['value']:.1f} ({means[name]['low']:.1f}–{means[name]['high']:.1f})" for name in ROUGE]
        p = f"{results['differences'][index - 1]['rouge1']['p']:.4f}" if index else "–"
        lines.append((Path(run).name, *cells, p))
    return _table(("", *ROUGE.values(), "p of ROUGE-1"), lines)


def train_step_table(results: dict) -> str:
    """Methods down; time and memory of a training step across."""
    lines = []
    for row in results["rows"]:
        ratios = [
            "–" if row[name] is None else f"{row[name]:.2f} ×" for name in ("ratio_to_standard", "ratio_to_parts")
        ]
        lines.append((row["method"], f"{row['seconds']:.1f} s", *ratios, f"{row['peak_bytes'] / 1e9:.1f} GB"))
    return _table(("method", "a step", "of standard", "of encoding and a decoder step", "beyond the model"), lines)


def throughput_table(results: dict) -> str:
    """Methods down; documents per hour, and their ratio to the plain loop, across."""
    lines = [
        (
            row["method"],
            f"{row['documents_per_hour']:,.0f}",
            f"{row['of_loop']:.2f} ×",
            "–" if row["waiting"] is None else f"{row['waiting']:.2%}",
        )
        for row in results["rows"]
    ]
    return _table(("", "documents an hour", "of the loop", "time that the worker waited"), lines)


def scale_table(results: dict) -> str:
    """Lengths and stores down; time and memory of indexing and answering across."""
    lines = []
    for row in results["rows"]:
        search = re.search(r"([\d.]+)% of the rows, mass recall ([\d.]+)", row["search"])
        lines.append(
            (
                f"{row['tokens']:,}",
                _store_name(row["store"]),
                f"{row['index_seconds']:,.0f} s" + ("" if row["windows_encoded"] else " (search alone)"),
                _size(row["disk_bytes"]),
                _size(row["index_peak_bytes"]),
                f"{row['answer_seconds']:.1f} s",
                _size(row["answer_peak_bytes"]),
                "all" if search is None else f"{search[1]} %, for {search[2]} of the attention",
            )
        )
    names = ("tokens", "store", "reading", "on disk", "RAM, reading", "an answer", "RAM, answering", "looks at")
    return _table(names, lines)


class Rates:
    """Rates for one core, from the measurements of the exact store at the smallest and at the largest length."""

    def __init__(self, results: dict) -> None:
        exact = [row for row in results["rows"] if row["store"] == "exact"]
        small, large = self.small, self.large = exact[0], exact[-1]
        self.tokens_per_second = large["tokens"] / large["index_seconds"]
        difference = large["tokens"] - small["tokens"]
        self.bytes_per_token = (large["disk_bytes"] - small["disk_bytes"]) / difference
        self.answer_seconds = small["answer_seconds"]
        self.answer_seconds_per_token = max(0.0, large["answer_seconds"] - small["answer_seconds"]) / difference
        self.peak_bytes = large["index_peak_bytes"]
        self.runner = results["runner"]


def rates_table(results: dict) -> str:
    """The rates, and the measurements that they are calculated from."""
    rates = Rates(results)
    small, large, runner = rates.small, rates.large, rates.runner
    difference = f"({large['tokens']:,} − {small['tokens']:,})"
    runs = f"{runner['documents']:,} documents in {runner['seconds']:.1f} s; in {runner['again_seconds']:.1f} s when"
    lines = [
        (
            "reading",
            f"{rates.tokens_per_second:,.0f} tokens a second",
            f"{large['tokens']:,} tokens / {large['index_seconds']:,.0f} s",
        ),
        (
            "disk",
            f"{rates.bytes_per_token:,.0f} bytes a token",
            f"({large['disk_bytes']:,} − {small['disk_bytes']:,}) bytes / {difference}",
        ),
        (
            "an answer, exact",
            f"{rates.answer_seconds:.1f} s and {rates.answer_seconds_per_token * 1e6:.2f} µs a token",
            f"({large['answer_seconds']:.1f} − {small['answer_seconds']:.1f}) s / {difference}",
        ),
        (
            "the runner",
            f"{runner['documents'] / runner['seconds']:,.0f} documents a second",
            f"{runs} all are done; {_size(runner['peak_bytes'])} of RAM",
        ),
    ]
    return _table(("rate, one core", "", "measured"), lines)


def one_document_table(results: dict) -> str:
    """Time, space and cost of one document, by its length."""
    rates = Rates(results)
    lines = []
    for tokens in (10_000, 1_000_000, 100_000_000):
        hours = tokens / rates.tokens_per_second / 3600
        answer = rates.answer_seconds + tokens * rates.answer_seconds_per_token
        disk, memory = _size(tokens * rates.bytes_per_token), _size(rates.peak_bytes)
        lines.append((f"{tokens:,}", _hours(hours), disk, memory, f"{answer:,.1f} s", _cost(hours)))
    return _table(("tokens", "reading, one core", "disk", "RAM, reading", "an answer, exact", "cost of reading"), lines)


def many_documents_table(results: dict, tokens: int = 10_000) -> str:
    """Time, space and cost of many documents of ten thousand tokens, by their number."""
    rates = Rates(results)
    lines = []
    for documents in (1, 1_000, 1_000_000):
        hours = documents * tokens / rates.tokens_per_second / 3600
        answer_hours = documents * rates.answer_seconds / 3600
        runner_seconds = rates.runner["seconds"] * documents / rates.runner["documents"]
        lines.append(
            (
                f"{documents:,}",
                _hours(hours),
                _hours(hours / 100) if documents >= 100 else "–",
                _hours(answer_hours),
                _size(documents * tokens * rates.bytes_per_token),
                f"{runner_seconds:,.2f} s",
                _cost(hours),
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


def _cost(hours: float) -> str:
    dollars = hours * DOLLARS_PER_CORE_HOUR
    return f"${dollars:,.2f}" if dollars >= 0.01 else "< $0.01"


TABLES = {
    "decode": decode_table,
    "answers": answers_table,
    "needle": needle_table,
    "needle_answers": needle_table,
    "qmsum_answers": compare_table,
    "key_value_recall": key_value_table,
    "train": train_step_table,
    "run": throughput_table,
    "scale": scale_table,
    "scale#rates": rates_table,
    "scale#one": one_document_table,
    "scale#many": many_documents_table,
}
DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/comparison.md", "docs/scale.md")


def tables() -> dict[str, str]:
    """Return every table by its source: the results file and, where a file has several tables, # and a name."""
    by_source = {}
    for name, make_table in TABLES.items():
        file, separator, part = name.partition("#")
        results = json.loads((ROOT / f"bench/results/{file}.json").read_text())
        by_source[f"bench/results/{file}.json{separator}{part}"] = make_table(results)
    return by_source


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, *lines]
    text = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((text[0], "|" + "---|" * len(head), *text[1:])) + "\n"


def _tokens(count: int) -> str:
    return f"{count:,} tokens"


def _store_name(name: str) -> str:
    """Name the ivf store in results that still call it `cells`."""
    return name.replace("cells", "ivf")


def _bold_if_ours(method: str) -> str:
    return f"**{method}**" if "ours" in method else method


def _milliseconds(row: dict | None) -> str:
    if row is None:
        return "–"
    recall = "" if row["mass_recall"] == 1 else f", {row['mass_recall']:.3f} of the mass"
    share = "" if row.get("reading_share") is None else f", {row['reading_share']:.0%}"
    return f"{row['ms_per_token']:.0f} ms ({row['ratio_to_truncated']:.2f} ×{share}{recall})"


def main() -> None:
    """Rewrite the tables of all documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        for source, table in tables().items():
            block = re.compile(rf"(<!-- table: {re.escape(source)} -->\n)(\|.*\n)*")
            text = block.sub(lambda match, table=table: match[1] + table, text)
        path.write_text(text)


if __name__ == "__main__":
    main()
