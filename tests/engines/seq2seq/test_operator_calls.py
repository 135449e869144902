"""On an accelerator every call of an operator costs a launch: a layer and step of retrieval makes few of them."""

from __future__ import annotations

import pytest
from kernel_helpers import IMPLEMENTATIONS, forced
from tiny_models import WINDOW, make, random_ids
from torch.profiler import ProfilerActivity, profile

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import hooks

_NO_LAUNCH = {
    f"aten::{name}" for name in ("unflatten", "transpose", "numpy_T", "view", "slice", "unsqueeze", "expand", "empty")
}
_MAY_COPY = {f"aten::{name}" for name in ("to", "flatten", "reshape", "contiguous")}
_COPIES = {f"aten::{name}" for name in ("copy_", "clone", "_to_copy")}
MOST_CALLS = 25


def _computes(event):
    """Whether a call that Python made computes or copies something."""
    changes_nothing = event.name in _MAY_COPY and not any(child.name in _COPIES for child in event.cpu_children)
    return event.cpu_parent is None and event.name not in _NO_LAUNCH and not changes_nothing


class _Kernel:
    """A kernel that only takes note of its launches."""

    def __init__(self, name, launched):
        self._name, self._launched = name, launched

    def __getitem__(self, grid):
        return lambda *arguments, **options: self._launched.append(self._name)


@pytest.fixture
def launches(monkeypatch):
    """Count the launches of Triton's kernels, and leave them out: its interpreter calls operators of its own."""
    launched = []
    if "triton" in IMPLEMENTATIONS:
        from unlimiformer.datastore.kernels import triton_kernels

        for name in ("_scan_kernel", "_mix_kernel"):
            monkeypatch.setattr(triton_kernels, name, _Kernel(name, launched))
    return launched


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("implementation", [name for name in IMPLEMENTATIONS if name in ("torch", "triton")])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_layer_and_step_makes_few_operator_calls(monkeypatch, launches, family, dtype, implementation, beams):
    calls = []
    attend = hooks.attend

    def profiled(*arguments):
        launches.clear()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            outputs = attend(*arguments)
        calls.append([event.name for event in profiler.events() if _computes(event)] + launches)
        return outputs

    with forced(implementation), Unlimiformer(make(family), window=WINDOW, top_k=64, dtype=dtype) as u:
        memory = u.index(random_ids(3000))
        monkeypatch.setattr(hooks, "attend", profiled)
        u.generate(memory, max_new_tokens=3, min_new_tokens=3, num_beams=beams)
    assert len(calls) >= 2, "every layer"
    assert all("aten::topk" in names and len(names) <= MOST_CALLS for names in calls), max(calls, key=len)
    assert all(("_scan_kernel" in names) is (implementation == "triton") for names in calls)
