"""Windows cover every token once and give it context on both sides; invalid settings are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlimiformer.errors import InputError
from unlimiformer.text.windows import Window, plan_windows


@given(st.integers(1, 3000), st.integers(1, 300), st.floats(0, 0.999))
def test_kept_parts_cover_all_tokens_once_in_order(length, window, overlap):
    windows = plan_windows(length, window, overlap)
    covered = [i for w in windows for i in range(w.keep_start, w.keep_end)]
    assert covered == list(range(length))
    for w in windows:
        assert 0 <= w.start <= w.keep_start < w.keep_end <= w.end <= length
        assert w.end - w.start == min(window, length)


def test_overlap_one_half_keeps_the_middle_half():
    windows = plan_windows(4096, 1024, 0.5)
    assert windows[0] == Window(0, 1024, 0, 768)
    assert windows[1] == Window(512, 1536, 768, 1280)
    assert windows[-1] == Window(3072, 4096, 3328, 4096)
    for w in windows[1:-1]:
        assert (w.keep_start - w.start, w.end - w.keep_end) == (256, 256)


@given(st.integers(2, 3000), st.integers(2, 300), st.floats(0, 0.9))
def test_every_inner_token_has_context_on_both_sides(length, window, overlap):
    margin = int(window * overlap / 2)
    for w in plan_windows(length, window, overlap):
        assert w.start == 0 or w.keep_start - w.start >= min(margin, (window - 1) // 2)
        assert w.end == length or w.end - w.keep_end >= min(margin, (window - 1) // 2)


@pytest.mark.parametrize(
    ("length", "window", "overlap", "message"),
    [
        (0, 8, 0.5, "0 tokens"),
        (5, 0, 0.5, "window is 0"),
        (5, 8, 1.0, "overlap is 1.0"),
        (5, 8, -0.1, "overlap is -0.1"),
    ],
)
def test_invalid_settings_are_refused(length, window, overlap, message):
    with pytest.raises(InputError, match=message):
        plan_windows(length, window, overlap)


@pytest.mark.parametrize(("length", "window", "overlap"), [(5, 8, 0.25), (100, 8, 0.25), (101, 10, 0.5), (64, 7, 0.0)])
def test_causal_windows_keep_their_later_part(length, window, overlap):
    """Every token is kept once, with at least the overlap as context before it, or all tokens before it."""
    context = int(window * overlap)
    covered = []
    for w in plan_windows(length, window, overlap, causal=True):
        assert w.end - w.start == min(window, length)
        assert w.keep_end == w.end
        assert w.keep_start == 0 or w.keep_start - w.start >= context
        covered += range(w.keep_start, w.keep_end)
    assert covered == list(range(length))
