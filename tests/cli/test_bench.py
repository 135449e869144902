"""`unlimiformer bench`: the shape of the results, on inputs that take seconds."""

from __future__ import annotations

import json

import pytest
from warm_cli import error_line, run


def test_search_measures_every_store(t5_folder, book_file, tmp_path):
    output = tmp_path / "search.json"
    run("bench", "search", "--sample-model", t5_folder, "--text", book_file, "--top-k", "8", "-o", str(output))
    rows = json.loads(output.read_text())["rows"]
    assert [row["store"].split(",")[0] for row in rows] == ["exact", "exact", "exact", "ivf", "faiss"]
    assert rows[0]["recall"] == 1 and rows[0]["mass_recall"] == pytest.approx(1)
    assert all(row["mass_recall"] > 0.9 for row in rows) and all(row["reading_share"] > 0 for row in rows[:3])


def test_decode_writes_rows_and_a_plot(t5_folder, book_file, tmp_path):
    output = tmp_path / "decode.json"
    sizes = ("--lengths", "64,300", "--max-new-tokens", "2", "--repeats", "1", "--top-k", "32")
    run("bench", "decode", *sizes, "--sample-model", t5_folder, "--text", book_file, "-o", str(output))
    rows = json.loads(output.read_text())["rows"]
    figures = {"ms_per_token", "ratio_to_truncated", "bytes_per_source_token", "mass_recall", "reading_share"}
    assert set(rows[0]) == {"method", "dtype", "tokens"} | figures
    methods = {(row["method"], row["dtype"]) for row in rows if row["tokens"] == 300}
    baselines = {("truncated", "float32"), ("retrieve-then-project", "float32"), ("all-layers-kv", "float32")}
    assert methods == baselines | {("ours", dtype) for dtype in ("float32", "bfloat16", "int8")}
    assert all(row["bytes_per_source_token"] <= 1.1 * 768 * 4 for row in rows if row["method"] == "ours")
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "--lengths" in error_line("bench", "decode", "--lengths", "0")
