"""The exact store: the compiled and the plain path against brute force, for every dtype and awkward size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unlimiformer.datastore import DTYPES, ExactStore
from unlimiformer.datastore.kernels import native


def _filled(rows: int, width: int, dtype: str, seed: int = 0) -> ExactStore:
    store = ExactStore.empty(rows, width, DTYPES[dtype])
    states = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    cut = rows // 3
    store.put(0, states[:cut])
    store.put(cut, states[cut:])
    return store


def _plain(store: ExactStore) -> torch.Tensor:
    return torch.cat(list(store.blocks()))


@pytest.fixture(params=["compiled", "plain"])
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(native, "serves", lambda states: False)
    elif native.library() is None:
        pytest.fail("no C compiler: install one (cc) to test the compiled path")
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "queries", "k"), [(5000, 48, 12, 100), (37, 19, 5, 7), (1, 8, 1, 1), (9, 768, 2, 9)]
)
def test_search_finds_the_best(path, dtype, rows, width, queries, k):
    store = _filled(rows, width, dtype)
    asked = torch.randn(queries, width, generator=torch.Generator().manual_seed(1))
    hits = store.search(asked, k)
    scores = asked @ _plain(store).T
    expected = scores.topk(k).values
    norms = float(asked.norm(dim=1).max() * _plain(store).norm(dim=1).max())
    tolerance = (1e-5 if dtype == "int8" else 1e-6) * norms  # int8 rows are scanned with 15-bit queries
    assert torch.allclose(hits.score.sort(descending=True).values, expected, atol=tolerance)
    assert torch.allclose(scores.gather(1, hits.index), hits.score, atol=tolerance)
    assert hits.valid.all()
    assert all(len(set(row.tolist())) == k for row in hits.index)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mix_is_a_weighted_sum(path, dtype):
    store = _filled(300, 40, dtype)
    index = torch.randint(300, (6, 33), generator=torch.Generator().manual_seed(2))
    weights = torch.rand(6, 33, generator=torch.Generator().manual_seed(3))
    expected = torch.einsum("nk,nkd->nd", weights, _plain(store)[index])
    assert torch.allclose(store.mix(index, weights), expected, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 700),
    st.integers(8, 70),
    st.integers(1, 9),
    st.integers(1, 900),
    st.sampled_from(list(DTYPES)),
    st.booleans(),
)
def test_compiled_and_plain_paths_agree(rows, width, queries, k, dtype, bunched):
    store = _filled(rows, width, dtype, seed=rows)
    if bunched:  # many equal scores and one far out: the histogram's hard case
        store.put(0, torch.ones(rows, width))
        store.put(rows // 2, torch.full((1, width), 1000.0))
    asked = torch.randn(queries, width, generator=torch.Generator().manual_seed(k))
    fast = store.search(asked, k)
    slow = store.search_by(lambda block: asked @ block.T, queries, k)
    assert fast.score.shape == slow.score.shape == (queries, min(k, rows))
    norms = _plain(store).norm(dim=1)
    (found, at), (expected, expected_at) = fast.score.sort(), slow.score.sort()
    rows_norm = torch.maximum(norms[fast.index.gather(1, at)], norms[slow.index.gather(1, expected_at)])
    allowed = 3e-5 * asked.norm(dim=1, keepdim=True) * rows_norm  # queries are rounded to 16 bits where rows are int8
    assert ((found - expected).abs() <= allowed).all()


def test_many_parts_give_the_same(monkeypatch):
    if native.library() is None:
        pytest.fail("no C compiler: install one (cc) to test the compiled path")
    store = _filled(10_000, 32, "bfloat16")
    asked = torch.randn(7, 32, generator=torch.Generator().manual_seed(4))
    found = []
    for parts in (1, 2, 5):
        monkeypatch.setattr(native, "_parts_for", lambda work, parts=parts: parts)
        found.append(store.search(asked, 300).index.sort().values)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_score_that_is_not_a_number_is_a_miss_not_token_zero(path):
    store = ExactStore(torch.ones(6, 8))
    store.states[2:] = float("nan")
    hits = store.search(torch.ones(1, 8), 5)
    assert hits.valid.sum() == 2
    assert set(hits.index[hits.valid].tolist()) == {0, 1}
    assert (hits.score[~hits.valid] == float("-inf")).all()


def test_one_vector_a_token_and_little_more():
    for dtype, torch_dtype in DTYPES.items():
        store = ExactStore.empty(1000, 768, torch_dtype)
        assert store.nbytes <= 1.1 * 768 * torch_dtype.itemsize * 1000, dtype


def test_int8_keeps_a_scale_a_row():
    store = ExactStore.empty(2, 8, torch.int8)
    store.put(0, torch.stack((torch.linspace(-1, 1, 8), torch.linspace(-1000, 1000, 8))))
    assert torch.allclose(_plain(store)[0], torch.linspace(-1, 1, 8), atol=1 / 254)
    assert torch.allclose(_plain(store)[1], torch.linspace(-1000, 1000, 8), atol=1000 / 254)


def test_without_a_compiler_the_store_still_works(monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_NATIVE", "0")
    native.library.cache_clear()
    try:
        assert native.library() is None
        store = _filled(50, 16, "int8")
        assert store.search(torch.ones(1, 16), 3).valid.all()
    finally:
        native.library.cache_clear()
