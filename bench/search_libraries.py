"""Two search libraries beside our scan: `pip install turbovec rabitqlib`, then `python bench/search_libraries.py`.

turbovec and RaBitQ learn nothing from queries, but scan short codes. They return more rows than are needed, whose
scores are computed again from the states: otherwise their rounded scores would be attention weights. What is measured
is the share of the attention mass of the exact k best, on real states and queries; the library's search alone is timed.
Writes bench/results/search_libraries.json.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import rabitqlib
import torch
import turbovec

from unlimiformer import Unlimiformer
from unlimiformer.benchmarks.machine import Machine
from unlimiformer.cli.loading import read_texts
from unlimiformer.datastore import ExactStore
from unlimiformer.datastore.base import Hits
from unlimiformer.datastore.exact import encode_rows
from unlimiformer.datastore.recall import BATCH, exact_hits, mass_recall, overlap, split_queries
from unlimiformer.engines.seq2seq.sample_queries import pool_queries

RESULTS = Path(__file__).with_name("results") / "search_libraries.json"
MODEL, TEXT, K = "flan-t5-small", "shakespeare/hamlet", 1024
CANDIDATES = (1.0, 1.5)  # of k; turbovec needs seconds for more than 2,000 rows
CLUSTERS, PROBED = 128, (8, 32, 128)

Find = Callable[[np.ndarray], np.ndarray]
"""Row indices (N, n) for queries (N, D); -1 where there is none."""


def main() -> None:
    """Measure our int8 scan and both libraries."""
    machine = Machine.measure()
    print(machine)
    with Unlimiformer.from_pretrained(MODEL, dtype="float32") as u:
        memory = u.index("\n\n".join(read_texts(TEXT)))
        _, queries = split_queries(pool_queries(u.engine.sample_queries(memory)))
    store = memory.store
    exact = exact_hits(store, queries, K)
    int8 = ExactStore(*encode_rows(store.states, torch.int8))
    rows = []
    for name, find in searches(store.all_states().contiguous().numpy(), int8):
        rows.append({"search": name, **measure(store, queries, exact, find)})
        print(rows[-1], flush=True)
    about = {"machine": asdict(machine), "model": MODEL, "text": TEXT, "tokens": len(memory), "top_k": K}
    RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def searches(states: np.ndarray, int8: ExactStore) -> list[tuple[str, Find]]:
    """Names and functions of all searches in states (S, D)."""
    width, found = states.shape[1], []
    found.append(("ours, int8 scan", lambda q: int8.search(torch.from_numpy(q), K).index.numpy()))
    for bits in (2, 4):
        index = turbovec.TurboQuantIndex(width, bits)
        index.add(states)
        index.prepare()
        for factor in CANDIDATES:
            name = f"turbovec, {bits} bits, {factor:g} k rows"
            found.append((name, lambda q, i=index, n=int(K * factor): i.search(q, n)[1]))
    threads = torch.get_num_threads()
    clustering = rabitqlib.RaBitQKMeans(
        width, CLUSTERS, num_threads=threads, final_assignment=rabitqlib.FinalAssignmentMode.Exact
    )
    clustering.train(states)
    for bits in (1, 5):
        index = rabitqlib.IvfIndex(dim=width, max_elements=len(states), num_clusters=CLUSTERS, nbits=bits, metric="ip")
        index.build(states, clustering.centroids, clustering.assignments)
        for probed in PROBED:
            name = f"RaBitQ, {bits} bits, {probed} of {CLUSTERS} lists, {CANDIDATES[-1]:g} k rows"
            found.append((name, lambda q, i=index, p=probed: i.search(q, k=int(K * CANDIDATES[-1]), nprobe=p)[0]))
    return found


def measure(store: ExactStore, queries: torch.Tensor, exact: list[Hits], find: Find) -> dict[str, float]:
    """Time of a search for a batch of queries, and what it finds of the exact k best."""
    seconds, recalls, masses = [], [], []
    for batch, expected in zip(queries.split(BATCH), exact, strict=True):
        array = np.ascontiguousarray(batch.numpy())
        started = time.perf_counter()
        index = torch.from_numpy(np.asarray(find(array)).astype(np.int64))
        seconds.append(time.perf_counter() - started)
        hits = rescore(store, batch, index)
        recalls.append(overlap(hits, expected, store.rows))
        masses.append(mass_recall(hits, expected))
    recall, mass = (float(torch.cat(values).mean()) for values in (recalls, masses))
    return {"ms": 1000 * statistics.median(seconds), "recall": recall, "mass_recall": mass}


def rescore(store: ExactStore, queries: torch.Tensor, index: torch.Tensor) -> Hits:
    """The k best of some rows (N, n), by their exact scores."""
    scores = torch.stack([store.rows_at(rows.clamp_min(0)) @ q for rows, q in zip(index, queries, strict=True)])
    score, selected = scores.masked_fill(index < 0, float("-inf")).topk(min(K, index.shape[1]), dim=1)
    return Hits(index.gather(1, selected).clamp_min(0), score, score > float("-inf"))


if __name__ == "__main__":
    main()
