"""What a machine can do at best, and the share of it that a measurement reached."""

from __future__ import annotations

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from unlimiformer.benchmarks import machine
from unlimiformer.benchmarks.encode import encoder_operations
from unlimiformer.benchmarks.machine import Machine


def test_the_machine_is_measured(monkeypatch):
    monkeypatch.setattr(machine, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "_PRODUCT", (32, 64, 64))
    measured = Machine.measure()
    assert min(measured.bytes_per_second, measured.float32_per_second, measured.bfloat16_per_second) > 0
    assert measured.processor in str(measured) and "GB/s" in str(measured)


def test_shares_of_the_rates():
    best = Machine("x", 2, "scalar", bytes_per_second=10e9, float32_per_second=100e9, bfloat16_per_second=400e9)
    assert best.reading_share(5e9, seconds=1) == pytest.approx(0.5)
    assert best.product_share(10e9, seconds=0.2) == pytest.approx(0.5)
    assert best.product_share(10e9, seconds=0.1, dtype=torch.bfloat16) == pytest.approx(0.25)


def test_operations_of_an_encoder():
    """One layer of width 8 with an inner width of 16, and one window of 1,024 tokens."""
    config = BartConfig(
        d_model=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, decoder_attention_heads=2
    )
    model = BartForConditionalGeneration(config)
    weights = 4 * 8 * 8 + 2 * 8 * 16
    assert encoder_operations(model, 1024) == 2 * weights * 1024 + 4 * 8 * 1024**2
