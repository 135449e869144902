"""Which kernels search an array, and those for accelerators as far as they can be checked without one."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from kernel_helpers import forced

from unlimiformer.datastore.exact import ExactStore, encode_rows
from unlimiformer.datastore.kernels import choice, native, torch_kernels, triton_kernels

CPU = torch.device("cpu")


@pytest.fixture
def on_gpu(monkeypatch):
    """Arrays that say that they are on a GPU; Triton's interpreter runs the kernels on the CPU."""
    monkeypatch.setattr(native, "serves", lambda states: False)
    monkeypatch.delenv("UNLIMIFORMER_NATIVE", raising=False)
    choice._triton_kernels.cache_clear()
    yield lambda dtype: SimpleNamespace(is_cuda=True, dtype=dtype, is_contiguous=lambda: True, device=CPU)
    choice._triton_kernels.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_gpu_has_the_triton_kernels(on_gpu, dtype):
    assert choice.kernels_for(on_gpu(dtype)) is triton_kernels


def test_other_arrays_have_those_of_torch(on_gpu, monkeypatch):
    assert choice.kernels_for(on_gpu(torch.float16)) is torch_kernels
    assert choice.kernels_for(torch.ones(4, 4)) is torch_kernels
    monkeypatch.setenv("UNLIMIFORMER_NATIVE", "0")
    assert choice.kernels_for(on_gpu(torch.float32)) is torch_kernels


def test_a_gpu_that_triton_cannot_compile_for_has_those_of_torch(on_gpu, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(triton_kernels, "scan", fail)
    with pytest.warns(UserWarning, match="torch searches instead: Failed to find C compiler"):
        assert choice.kernels_for(on_gpu(torch.float32)) is torch_kernels
    assert choice.kernels_for(on_gpu(torch.float32)) is torch_kernels  # and warns once


_COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from unlimiformer.datastore.kernels import triton_kernels as kernels

def compile_for(kernel, capability, types, constants):
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=values)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    print(len(compiled.asm["cubin"]), compiled.asm["ptx"].count("mma."), compiled.metadata.shared)

for capability in (80, 90):
    for state in ("*bf16", "*i8", "*fp32"):
        query = "*fp32" if state == "*fp32" else "*bf16"
        shape = dict(rows="i32", count="i32", groups="i32", hits="i32")
        arrays = dict(queries=query, rest_of_queries=query, states=state)
        arrays |= dict(scales="*fp32", scores="*fp32", highest="*fp32")
        product = tl.float32 if state == "*fp32" else tl.bfloat16
        for queries, group in ((16, 1), (kernels._MOST_QUERIES, 64)):
            compile_for(kernels._scan_kernel, capability, {**shape, **arrays}, dict(
                WIDTH=100, QUERIES=queries, ROWS=kernels._ROWS, STEP=kernels._WIDTH, GROUP=group, PRODUCT=product,
                HAS_REST=state != "*fp32", HAS_SCALES=state == "*i8"))
        arrays = dict(states=state, scales="*fp32", index="*i64", weights="*fp32", mixed="*fp32")
        compile_for(kernels._mix_kernel, capability, {**shape, **arrays}, dict(
            WIDTH=100, ROWS=32, STEP=64, HAS_SCALES=state == "*i8"))
"""


def test_the_triton_kernels_compile_for_nvidia_gpus(tmp_path):
    """To machine code, without a GPU; scans of bfloat16 and int8 use its matrix units, and all fit its memory."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    compiled = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(compiled) == 18 and all(size > 1000 and memory < 100_000 for size, _, memory in compiled)
    assert [products > 0 for _, products, _ in compiled] == ([True, True, False] * 2 + [False] * 3) * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_device_that_sums_bfloat16_in_float32_never_converts_the_states_to_float32(monkeypatch, dtype):
    generator = torch.Generator().manual_seed(0)
    states, scales = encode_rows(torch.randn(900, 24, generator=generator), dtype)
    queries = torch.randn(5, 24, generator=generator)
    multiplied = []

    def multiply(parts, rows):
        multiplied.append((parts.dtype, rows.dtype))
        return parts.float() @ rows.float().T  # as such a device does

    with forced("torch"):
        expected = ExactStore(states, scales).search(queries, 20)
        monkeypatch.setattr(torch_kernels, "_sums_in_float32", lambda device: True)
        monkeypatch.setattr(torch_kernels, "multiply_bfloat16", multiply)
        hits = ExactStore(states, scales).search(queries, 20)
    assert set(multiplied) == {(torch.bfloat16, torch.bfloat16)}
    assert torch.allclose(hits.score.sort().values, expected.score.sort().values, rtol=1e-4, atol=1e-3)
    assert torch.equal(hits.index.sort().values, expected.index.sort().values)


def test_large_arrays_are_scored_in_blocks(monkeypatch):
    states, queries = torch.randn(500, 8), torch.randn(3, 8)
    whole = torch_kernels.scan(states, None, queries, 30)
    monkeypatch.setattr(torch_kernels, "_BLOCK_NUMBERS", 8 * 100)
    in_blocks = torch_kernels.scan(states, None, queries, 30)
    assert torch.allclose(whole[1].sort().values, in_blocks[1].sort().values)
    assert torch.equal(whole[0].sort().values, in_blocks[0].sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_triton_never_names_a_row_that_does_not_exist(dtype):
    states, scales = encode_rows(torch.randn(23, 8), dtype)
    rows, scores = triton_kernels.scan(states, scales, torch.full((2, 8), float("nan")), 6)
    assert (rows < 23).all() and (scores == float("-inf")).all()
    assert triton_kernels.mix(states, scales, rows, torch.zeros(2, 6)).abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count", [1, 70])
def test_triton_reads_queries_in_any_layout(dtype, count):
    generator = torch.Generator().manual_seed(0)
    states, scales = encode_rows(torch.randn(300, 24, generator=generator), dtype)
    queries = torch.randn(24, count, generator=generator).T
    rows, scores = triton_kernels.scan(states, scales, queries, 10)
    expected = torch_kernels.scan(states, scales, queries, 10)
    assert torch.equal(rows.sort().values, expected[0].sort().values)
    assert torch.allclose(scores.sort().values, expected[1].sort().values, atol=1e-3)
