"""The exact store: the compiled and the torch implementation against brute force, for every dtype and odd sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_helpers import IMPLEMENTATIONS, forced

from unlimiformer.datastore import DTYPES, ExactStore
from unlimiformer.datastore.kernels import dispatch, native
from unlimiformer.errors import InputError


def _random_store(rows: int, width: int, dtype: str, seed: int = 0) -> ExactStore:
    store = ExactStore.empty(rows, width, DTYPES[dtype])
    states = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    middle = rows // 3
    store.put(0, states[:middle])
    store.put(middle, states[middle:])
    return store


def _random_queries(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "count", "k"), [(5000, 48, 12, 100), (37, 19, 5, 7), (1, 8, 1, 1), (9, 768, 2, 9)]
)
def test_search_finds_the_best_rows(implementation, dtype, rows, width, count, k):
    store = _random_store(rows, width, dtype)
    queries = _random_queries(count, width, seed=1)
    hits = store.search(queries, k)
    states = store.all_states()
    scores = queries @ states.T
    expected = scores.topk(k).values
    norms = float(queries.norm(dim=1).max() * states.norm(dim=1).max())
    tolerance = (1e-5 if dtype == "int8" else 1e-6) * norms  # int8 rows are scanned with 15-bit queries
    assert torch.allclose(hits.score.sort(descending=True).values, expected, atol=tolerance)
    assert torch.allclose(scores.gather(1, hits.index), hits.score, atol=tolerance)
    assert hits.valid.all()
    assert all(len(set(row.tolist())) == k for row in hits.index)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mix_is_a_weighted_sum(implementation, dtype):
    store = _random_store(300, 40, dtype)
    index = torch.randint(300, (6, 33), generator=torch.Generator().manual_seed(2))
    weights = torch.rand(6, 33, generator=torch.Generator().manual_seed(3))
    expected = torch.einsum("nk,nkd->nd", weights, store.all_states()[index])
    assert torch.allclose(store.mix(index, weights), expected, atol=1e-4)


@pytest.mark.parametrize("implementation", [name for name in IMPLEMENTATIONS if name != "torch"])
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 700),
    st.integers(8, 70),
    st.integers(1, 9),
    st.integers(1, 900),
    st.sampled_from(list(DTYPES)),
    st.booleans(),
)
def test_implementations_agree_with_torch(kernels, implementation, rows, width, count, k, dtype, equal_scores):
    store = _random_store(rows, width, dtype, seed=rows)
    if equal_scores:  # many equal scores and one far away: the hard case of the histogram
        store.put(0, torch.ones(rows, width))
        store.put(rows // 2, torch.full((1, width), 1000.0))
    queries = _random_queries(count, width, seed=k)
    with forced(implementation):
        compiled = store.search(queries, k)
    plain = store.search_by(lambda block: queries @ block.T, count, k)
    assert compiled.score.shape == plain.score.shape == (count, min(k, rows))
    norms = store.all_states().norm(dim=1)
    (scores, order), (expected, expected_order) = compiled.score.sort(), plain.score.sort()
    row_norms = torch.maximum(norms[compiled.index.gather(1, order)], norms[plain.index.gather(1, expected_order)])
    tolerance = 3e-5 * queries.norm(dim=1, keepdim=True) * row_norms  # queries have 16 bits if rows are int8
    assert ((scores - expected).abs() <= tolerance).all()


@pytest.mark.parametrize("width", [64, 100, 3000])
@pytest.mark.parametrize("outlier", [1, 300])
def test_int8_hits_and_scores_are_the_same_bits_on_every_instruction_set(kernels, width, outlier):
    store = _random_store(8000, width, "int8")  # too few for a guessed floor, which hides misses
    queries = _random_queries(6, width, seed=5)
    queries[:, 0] *= outlier  # leaves few bits for the other numbers
    k = 150
    expected = queries @ store.all_states().T
    for instructions in dispatch.available():
        with forced(instructions):
            hits = store.search(queries, k)
        order = hits.index.argsort(dim=1)
        found = hits.index.gather(1, order), hits.score.gather(1, order)
        if instructions == dispatch.available()[0]:
            first = found
        assert torch.equal(first[0], found[0]) and torch.equal(first[1], found[1]), instructions
    error = (first[1] - expected.gather(1, first[0])).abs().amax()
    assert error <= 3e-2 * expected.abs().amax()
    assert (first[1].amin(dim=1) >= expected.topk(k).values[:, -1] - 2 * error).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_first_floor_guessed_too_high_loses_no_row(implementation, dtype):
    store = _random_store(20_000, 16, dtype)
    states = torch.randn(20_000, 16, generator=torch.Generator().manual_seed(6))
    states[::32] *= 100  # the rows of the sample are far above all others
    store.put(0, states)
    queries = _random_queries(5, 16, seed=7)
    hits = store.search(queries, 400)
    expected = (queries @ store.all_states().T).topk(400).values
    assert hits.valid.all()
    assert torch.allclose(hits.score.sort(descending=True).values, expected, rtol=1e-3, atol=1e-3)


def test_the_number_of_threads_does_not_change_the_hits(kernels):
    store = _random_store(10_000, 32, "bfloat16")
    queries = _random_queries(7, 32, seed=4)
    before, indices = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            indices.append(store.search(queries, 300).index.sort().values)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(indices[0], indices[1])
    assert torch.equal(indices[0], indices[2])


def test_a_nan_score_is_an_invalid_hit_not_token_zero(implementation):
    store = ExactStore(torch.ones(6, 8))
    store.states[2:] = float("nan")
    hits = store.search(torch.ones(1, 8), 5)
    assert hits.valid.sum() == 2
    assert set(hits.index[hits.valid].tolist()) == {0, 1}
    assert (hits.score[~hits.valid] == float("-inf")).all()


def test_size_is_about_one_vector_per_token():
    for dtype, torch_dtype in DTYPES.items():
        store = ExactStore.empty(1000, 768, torch_dtype)
        assert store.nbytes <= 1.1 * 768 * torch_dtype.itemsize * 1000, dtype


def test_int8_has_one_scale_per_row():
    store = ExactStore.empty(2, 8, torch.int8)
    store.put(0, torch.stack((torch.linspace(-1, 1, 8), torch.linspace(-1000, 1000, 8))))
    assert torch.allclose(store.all_states()[0], torch.linspace(-1, 1, 8), atol=1 / 254)
    assert torch.allclose(store.all_states()[1], torch.linspace(-1000, 1000, 8), atol=1000 / 254)


def test_search_without_kernels(monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_NATIVE", "0")
    native.library.cache_clear()
    dispatch.available.cache_clear()
    try:
        assert native.library() is None and dispatch.chosen() is None
        store = _random_store(50, 16, "int8")
        assert store.search(torch.ones(1, 16), 3).valid.all()
    finally:
        native.library.cache_clear()
        dispatch.available.cache_clear()


@pytest.mark.parametrize("asked", ["avx1024", "AVX2 "])
def test_an_instruction_set_that_this_machine_does_not_have_is_an_error(kernels, monkeypatch, asked):
    monkeypatch.setenv("UNLIMIFORMER_KERNELS", asked)
    with pytest.raises(InputError, match=rf"UNLIMIFORMER_KERNELS is '{asked}'; expected one of .*scalar"):
        _random_store(50, 16, "int8").search(torch.ones(1, 16), 3)


def test_the_best_kernels_are_chosen_unless_one_is_named(kernels, monkeypatch):
    monkeypatch.delenv("UNLIMIFORMER_KERNELS", raising=False)
    assert dispatch.chosen() == dispatch.available()[0]
    monkeypatch.setenv("UNLIMIFORMER_KERNELS", "scalar")
    assert dispatch.chosen() == "scalar"
