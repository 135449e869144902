"""Stores that look into a part of the rows, against the exact one."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.datastore import ExactStore, build, restore
from unlimiformer.datastore.faiss import FaissStore
from unlimiformer.datastore.ivf import IVFStore, fastest_ivf
from unlimiformer.datastore.kernels import native
from unlimiformer.datastore.recall import exact_hits, mass_recall, measure

ROWS, WIDTH, K = 20000, 48, 64


def _states(seed: int = 0) -> torch.Tensor:
    """Rows in uneven clumps, far from the origin, with directions of very different spread."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(300, WIDTH, generator=generator) * torch.linspace(2, 0.1, WIDTH)
    clump = (torch.rand(ROWS, generator=generator) ** 2 * 300).long()
    return centres[clump] + 0.3 * torch.randn(ROWS, WIDTH, generator=generator) + 1.5


def _queries(count: int = 1200) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 1.5, WIDTH)


def _store(dtype: torch.dtype = torch.int8) -> ExactStore:
    store = ExactStore.empty(ROWS, WIDTH, dtype)
    store.put(0, _states())
    return store


@pytest.fixture(scope="module")
def built():
    if native.library() is None:
        pytest.fail("there is no C compiler here; the cell store's loops cannot be tested")
    return fastest_ivf(_store(), _queries(), K, 0.99)


def test_it_meets_its_recall_on_queries_it_never_saw(built):
    asked = torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(9)) * torch.linspace(0.1, 1.5, WIDTH)
    seen = measure(built, asked, exact_hits(built, asked, K), K, 0)
    assert seen.mass_recall > 0.985
    assert built.measured.mass_recall >= 0.99
    assert 0 < built.looked_at(asked, K) < 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_looking_everywhere_finds_what_the_exact_store_finds(built, dtype):
    store = _store(dtype)
    far = IVFStore(store.states, store.scales, built.cells, 1e6, ROWS / K, built.measured)
    queries = _queries(30)
    found, exact = far.search(queries, K), store.search(queries, K)
    assert torch.equal(found.index.sort(dim=1).values, exact.index.sort(dim=1).values)
    assert torch.allclose(found.score.sort(dim=1).values, exact.score.sort(dim=1).values, rtol=1e-4, atol=1e-4)


def test_scores_are_those_of_the_states(built):
    queries = _queries(12)
    found = built.search(queries, K)
    rows = built.rows_at(found.index.flatten()).unflatten(0, found.index.shape)
    assert torch.allclose(torch.einsum("nd,nkd->nk", queries, rows), found.score, rtol=1e-3, atol=1e-3)
    assert all(len(set(row.tolist())) == K for row in found.index), "no row twice"


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12, 31])
def test_queries_do_not_depend_on_their_company(built, count):
    queries = _queries(count)
    together = built.search(queries, K)
    for i in range(count):
        alone = built.search(queries[i : i + 1], K)
        assert mass_recall(alone, together.__class__(*(v[i : i + 1] for v in vars(together).values()))) > 0.98


def test_it_is_the_same_after_a_while_on_disk(built):
    told, arrays = built.state_dict()
    again = restore(told, {"states": built.states, "scales": built.scales, **arrays}, lambda name: None)
    assert isinstance(again, IVFStore) and again.measured.state_dict() == built.measured.state_dict()
    queries = _queries(20)
    assert torch.equal(again.search(queries, K).index, built.search(queries, K).index)


def test_every_row_is_in_one_cell(built):
    real = []
    for cell in range(built.cells["size"].shape[0]):
        first = int(built.cells["start"][cell]) * 8
        real += built.cells["row"][first : first + int(built.cells["size"][cell])].tolist()
    assert sorted(real) == list(range(ROWS))


def test_where_cells_cannot_serve_the_exact_store_does(monkeypatch):
    few = ExactStore(_states()[:500])
    assert build("cells", few, _queries(), K, 0.99) is few
    monkeypatch.setattr(native, "serves", lambda states: False)
    store = _store()
    assert build("cells", store, _queries(), K, 0.99) is store


def test_a_large_k_is_searched_exactly(built):
    queries = _queries(2)
    assert torch.equal(built.search(queries, ROWS).index, ExactStore.search(built, queries, ROWS).index)


def test_faiss_meets_its_recall_or_is_not_used(tmp_path):
    store = _store()
    made = build("faiss", store, _queries(), K, 0.95)
    assert isinstance(made, FaissStore) and made.measured.mass_recall >= 0.95
    told, arrays = made.state_dict()
    path = tmp_path / "index.bin"
    path.write_bytes(arrays["faiss_index"].numpy().tobytes())
    again = restore(told, {"states": store.states, "scales": store.scales}, lambda name: path)
    queries = _queries(10)
    assert torch.equal(again.search(queries, K).index.sort().values, made.search(queries, K).index.sort().values)
    assert build("faiss", store, _queries(), K, 0.99999999) is store
    assert "mass recall" in made.describe()
