"""Stores that scan a part of the rows, compared with the exact one."""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import forced

from unlimiformer.datastore import ExactStore, Hits, build, restore
from unlimiformer.datastore.cells import BLOCK
from unlimiformer.datastore.faiss import FaissStore
from unlimiformer.datastore.ivf import IVFStore, SearchDepth, fastest_ivf
from unlimiformer.datastore.kernels import dispatch, native
from unlimiformer.datastore.recall import exact_hits, mass_recall, measure
from unlimiformer.errors import MemoryMismatchError

ROWS, WIDTH, K = 20000, 48, 64


def _states(seed: int = 0) -> torch.Tensor:
    """Rows in clusters of different sizes, far from the origin, with directions of very different variance."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(300, WIDTH, generator=generator) * torch.linspace(2, 0.1, WIDTH)
    cluster = (torch.rand(ROWS, generator=generator) ** 2 * 300).long()
    return centres[cluster] + 0.3 * torch.randn(ROWS, WIDTH, generator=generator) + 1.5


def _queries(count: int = 1200, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)) * torch.linspace(0.1, 1.5, WIDTH)


def _store(dtype: torch.dtype = torch.int8) -> ExactStore:
    store = ExactStore.empty(ROWS, WIDTH, dtype)
    store.put(0, _states())
    return store


def _arrays(store: ExactStore) -> dict[str, torch.Tensor]:
    return {"states": store.states, "scales": store.scales}


@pytest.fixture(scope="module")
def ivf(kernels):
    return fastest_ivf(_store(), _queries(), K, 0.995)


def test_recall_on_queries_that_it_was_not_built_with(ivf):
    queries = _queries(300, seed=9)
    stats = measure(ivf, queries, exact_hits(ivf, queries, K), K, 0)
    assert stats.mass_recall > 0.985
    assert ivf.measured.mass_recall >= 0.995
    assert 0 < ivf.scanned_share(queries, K) < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_scanning_all_cells_gives_the_exact_hits(ivf, dtype):
    store = _store(dtype)
    unlimited = IVFStore(store, ivf.cells, SearchDepth(reach=1e6, candidates=ROWS / K), ivf.measured)
    queries = _queries(30)
    hits, exact = unlimited.search(queries, K), store.search(queries, K)
    assert all(len(set(row.tolist())) == K for row in hits.index), "a row was retrieved twice"
    is_exact = (hits.index[:, :, None] == exact.index[:, None, :]).any(dim=2)
    lowest = exact.score.amin(dim=1, keepdim=True)
    tied = (hits.score - lowest).abs() <= 1e-5 * lowest.abs()  # the two kernels may round a tie differently
    assert (is_exact | tied).all()
    assert torch.allclose(hits.score.sort(dim=1).values, exact.score.sort(dim=1).values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_every_instruction_set_finds_the_same_hits(ivf, count):
    queries, found = _queries(count, seed=count), []
    for instructions in dispatch.available():
        with forced(instructions):
            hits = ivf.search(queries, K)
        order = hits.index.argsort(dim=1)
        found.append((hits.index.gather(1, order), hits.score.gather(1, order)))
    for index, score in found[1:]:
        assert torch.equal(index, found[0][0])
        assert torch.equal(score, found[0][1])


def test_scores_are_those_of_the_states(ivf):
    queries = _queries(12)
    hits = ivf.search(queries, K)
    states = ivf.rows_at(hits.index.flatten()).unflatten(0, hits.index.shape)
    assert torch.allclose(torch.einsum("nd,nkd->nk", queries, states), hits.score, rtol=1e-3, atol=1e-3)
    assert all(len(set(row.tolist())) == K for row in hits.index), "a row was retrieved twice"


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12, 31])
def test_a_batch_agrees_with_single_queries(ivf, count):
    queries = _queries(count)
    batch = ivf.search(queries, K)
    for i in range(count):
        row = slice(i, i + 1)
        of_batch = Hits(batch.index[row], batch.score[row], batch.valid[row])
        assert mass_recall(ivf.search(queries[row], K), of_batch) > 0.98


def test_a_restored_store_gives_the_same_hits(ivf):
    description, arrays = ivf.state_dict()
    restored = restore(description, {**_arrays(ivf), **arrays}, lambda name: None)
    assert isinstance(restored, IVFStore) and restored.measured.state_dict() == ivf.measured.state_dict()
    queries = _queries(20)
    assert torch.equal(restored.search(queries, K).index, ivf.search(queries, K).index)


def test_names_on_disk_stay(ivf):
    """Memories of earlier versions have these names."""
    description, arrays = ivf.state_dict()
    assert description["store"] == "cells"
    assert set(description) == {"store", "reach", "candidates", "measured"}
    assert set(description["measured"]) == {"recall", "mass_recall", "looked_at", "k"}
    names = ("codes", "start", "size", "row", "centres", "spread", "step", "projection")
    assert set(arrays) == {f"cell_{name}" for name in names}


def test_cells_of_other_states_are_refused(ivf):
    description, arrays = ivf.state_dict()
    fewer = {"states": ivf.states[:-1], "scales": ivf.scales[:-1]}
    with pytest.raises(MemoryMismatchError, match="index the text again with --store ivf"):
        restore(description, {**fewer, **arrays}, lambda name: None)


def test_every_row_is_in_one_cell(ivf):
    rows = []
    for cell in range(ivf.cells.count):
        first = int(ivf.cells.start[cell]) * BLOCK
        rows += ivf.cells.row[first : first + int(ivf.cells.size[cell])].tolist()
    assert sorted(rows) == list(range(ROWS))


@pytest.mark.parametrize("name", ["ivf", "cells"])
def test_the_old_name_is_an_alias(name, monkeypatch):
    exact, ivf = ExactStore(_states()), object()
    monkeypatch.setattr("unlimiformer.datastore.ivf.build_ivf", lambda store, *_: ivf if store is exact else None)
    assert build(name, exact, _queries(), K, 0.99) is ivf


@pytest.mark.parametrize("name", ["ivf", "cells"])
def test_the_exact_store_is_returned_where_ivf_is_no_use(name, monkeypatch):
    short = ExactStore(_states()[:500])
    assert build(name, short, _queries(), K, 0.99) is short
    monkeypatch.setattr(native, "serves", lambda states: False)
    store = _store()
    assert build(name, store, _queries(), K, 0.99) is store


def test_a_large_k_is_searched_exactly(ivf):
    queries = _queries(2)
    assert torch.equal(ivf.search(queries, ROWS).index, ExactStore.search(ivf, queries, ROWS).index)


def test_without_kernels_an_ivf_store_searches_exactly(ivf, monkeypatch):
    monkeypatch.setattr(native, "serves", lambda states: False)
    queries = _queries(5)
    expected = (queries @ ivf.all_states().T).topk(K).values
    assert torch.allclose(ivf.search(queries, K).score.sort(descending=True).values, expected, atol=1e-4)


def test_faiss_reaches_its_recall_or_is_not_used(tmp_path):
    store = _store()
    faiss = build("faiss", store, _queries(), K, 0.95)
    assert isinstance(faiss, FaissStore) and faiss.measured.mass_recall >= 0.95
    description, arrays = faiss.state_dict()
    path = tmp_path / "index.bin"
    path.write_bytes(arrays["faiss_index"].numpy().tobytes())
    restored = restore(description, _arrays(store), lambda name: path)
    queries = _queries(10)
    assert torch.equal(restored.search(queries, K).index.sort().values, faiss.search(queries, K).index.sort().values)
    assert build("faiss", store, _queries(), K, recall=1.1) is store, "no store reaches more than 1"
    assert "mass recall" in faiss.describe()
