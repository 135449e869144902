"""On an accelerator every call of an operator costs a launch: a layer and step of retrieval makes few of them."""

from __future__ import annotations

import pytest
from kernel_helpers import forced
from tiny_models import WINDOW, make, random_ids
from torch.profiler import ProfilerActivity, profile

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import hooks

_VIEWS = {f"aten::{name}" for name in ("unflatten", "transpose", "numpy_T", "flatten", "view", "slice", "unsqueeze")}
MOST_CALLS = 25


def _computes(event):
    """Whether a call that Python made computes or copies something."""
    changes_nothing = event.name == "aten::to" and not event.cpu_children
    return event.cpu_parent is None and event.name not in _VIEWS and not changes_nothing


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_layer_and_step_makes_few_operator_calls(monkeypatch, family, dtype):
    calls = []
    attend = hooks.attend

    def profiled(*arguments):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            outputs = attend(*arguments)
        calls.append([event.name for event in profiler.events() if _computes(event)])
        return outputs

    with forced("torch"), Unlimiformer(make(family), window=WINDOW, top_k=64, dtype=dtype) as u:
        memory = u.index(random_ids(3000))
        monkeypatch.setattr(hooks, "attend", profiled)
        u.generate(memory, max_new_tokens=3, min_new_tokens=3)
    assert len(calls) >= 2 * 3, "every layer, every step"
    assert all("aten::topk" in names and len(names) <= MOST_CALLS for names in calls), max(calls, key=len)
