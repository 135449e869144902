"""The positions that retrieved tokens get."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.engines.causal.positions import POSITIONS
from unlimiformer.text.windows import WindowSpec, plan_windows

SPEC = WindowSpec(window=10, overlap=0.25, causal=True)


@pytest.mark.parametrize("name", POSITIONS)
def test_one_window_has_the_plain_models_positions(name):
    policy = POSITIONS[name](8, SPEC)
    assert policy.place(torch.arange(8)).tolist() == list(range(8))
    assert policy.end(8) == 8


def test_consecutive_closes_gaps():
    policy = POSITIONS["consecutive"](100, SPEC)
    assert policy.place(torch.tensor([3, 40, 41])).tolist() == [0, 1, 2]
    assert policy.end(3) == 3


def test_as_encoded_is_the_position_in_the_window():
    policy = POSITIONS["as-encoded"](40, SPEC)
    windows = plan_windows(40, 10, 0.25, causal=True)
    for window in windows:
        for token in range(window.keep_start, window.keep_end):
            assert int(policy.place(torch.tensor([token]))) == token - window.start
    assert policy.end(3) == 10


def test_rescaled_shrinks_the_document_into_a_window():
    policy = POSITIONS["rescaled"](100, SPEC)
    assert policy.place(torch.tensor([0, 50, 99])).tolist() == [0, 5, 9]
    assert policy.end(3) == 10
