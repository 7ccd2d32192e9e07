"""Formats of the products and weights of a served model."""

from __future__ import annotations

import pytest

from perfmodel import load_model
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.weights import place_formats


def test_a_device_multiplies_what_it_can_and_reads_weights_as_they_lie():
    model = load_model("gpt-oss-120b")
    experts = place_formats(model, 0, "stated", "stated", load_hardware("dgx-h100"))["experts"]
    assert experts.products == "bf16"
    assert experts.weight_bytes == pytest.approx(0.5 + 1 / 32)


def test_what_is_not_quantised_stays_in_16_bits(h100):
    model = load_model("deepseek-r1")
    found = place_formats(model, 4, "stated", "stated", h100)
    assert found["experts"].products == "fp8_block"
    assert found["router"] == found["output"] == ("bf16", 2.0)
