"""Formats of served products follow the checkpoint, the layout and what the device can do."""

from __future__ import annotations

import pytest

from perfmodel import load_hardware, load_model
from perfmodel.base.precisions import FORMATS
from perfmodel.serving.layouts import ProductFormat, place_formats

WIDE = ProductFormat("bf16", 2.0)


def formats(model: str, hardware: str, weights: str = "stated", activations: str = "stated"):
    return place_formats(load_model(model), 5, weights, activations, load_hardware(hardware))


def test_stated_formats_hold_where_the_checkpoint_has_them() -> None:
    found = formats("deepseek-r1", "dgx-h200")
    assert found["experts"].products == "fp8_block"
    assert found["experts"].weight_bytes == pytest.approx(1 + 4 / 128**2)
    assert found["router"] == found["output"] == found["embedding"] == WIDE
    assert formats("llama-3.1-8b", "dgx-h100")["mlp"] == WIDE


def test_a_format_that_the_checkpoint_has_is_the_checkpoint_s() -> None:
    assert formats("gpt-oss-120b", "dgx-b200", "mxfp4") == formats("gpt-oss-120b", "dgx-b200")
    assert formats("gpt-oss-120b", "dgx-b200", "mxfp4")["attention"] == WIDE
    assert formats("deepseek-r1", "dgx-h200", "fp8") == formats("deepseek-r1", "dgx-h200")


def test_devices_without_a_rate_multiply_in_16_bits_and_read_narrow() -> None:
    assert formats("gpt-oss-120b", "dgx-h100")["experts"] == ProductFormat("bf16", 0.5 + 1 / 32)
    assert formats("llama-3.1-8b", "dgx-a100", "fp8")["mlp"] == ProductFormat("bf16", 1.0)
    assert formats("llama-3.1-8b", "v100-pcie", "fp8")["mlp"] == ProductFormat("fp16", 1.0)


def test_given_formats() -> None:
    assert formats("llama-3.1-8b", "dgx-h100", "fp8")["attention"] == ProductFormat("fp8", 1.0)
    assert formats("llama-3.1-8b", "dgx-h100", "fp8")["output"] == WIDE
    four = formats("llama-3.1-8b", "dgx-h100", "int4")["mlp"]
    assert four.products == "bf16"
    assert 0.5 < four.weight_bytes < 0.53
    narrow = FORMATS["nvfp4"].bytes
    assert formats("llama-3.1-8b", "dgx-b200", "nvfp4")["mlp"] == ProductFormat("nvfp4", narrow)
    mixed = formats("llama-3.1-8b", "dgx-b200", "nvfp4", "fp8")["mlp"]
    assert mixed == ProductFormat("fp8", narrow)


def test_latent_attention_stays_wide_beside_4_bit_weights() -> None:
    found = formats("deepseek-r1", "dgx-b200", "nvfp4")
    assert found["attention"] == WIDE
    assert found["experts"].products == "nvfp4"
