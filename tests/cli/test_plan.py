"""`unlimiformer plan`."""

from __future__ import annotations

import json

from warm_cli import run


def test_the_plan_is_what_generate_then_needs(t5_folder, book_file):
    plan = json.loads(run("plan", book_file, "--model", t5_folder, "--json").stdout)
    figures = json.loads(run("generate", book_file, "--model", t5_folder, "--dtype", "int8", "--json").stdout)
    assert (plan["tokens"], plan["windows"]) == (figures["source_tokens"], figures["windows"])
    stores = {store["dtype"]: store for store in plan["stores"]}
    assert stores["int8"]["memory_bytes"] == figures["memory_bytes"]
    assert set(stores) == {"float32", "bfloat16", "int8"} and plan["encode_seconds"] > 0
    assert b"202 tokens in" in run("plan", book_file, "--model", t5_folder).stdout


def test_a_decoder_only_model(llama_folder, book_file):
    options = ("--window", "64", "--top-k", "64", "--json")
    plan = json.loads(run("plan", book_file, "--model", llama_folder, *options).stdout)
    assert plan["tokens"] >= 200 and [store["dtype"] for store in plan["stores"]] == ["float32", "bfloat16"]
