"""Number formats: bytes by the published layouts, codes that stored results keep."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import (
    ALIASES,
    ATTENTION_PRECISIONS,
    CACHE_FORMATS,
    FORMATS,
    MATRIX_RATES,
    OPERAND_BYTES,
    PRECISIONS,
    QUANTISED,
    STREAM_PRECISIONS,
    attention_rule,
    cache_rule,
    format_name,
    rate_format,
    wide_format,
)

# A block of a format in bits: elements, bits of one, bits of its scale.
BLOCKS = [
    ("mxfp8", 32, 8, 8),  # OCP Microscaling Formats 1.0, table 1
    ("mxfp4", 32, 4, 8),  # the same
    ("nvfp4", 16, 4, 8),  # NVIDIA, "Introducing NVFP4" (2025): an e4m3 scale per 16 values
    ("fp8_block", 128, 8, 32),  # DeepSeek-V3 (arXiv:2412.19437), section 3.3.2: 1 x 128
]


@pytest.mark.parametrize(("name", "group", "bits", "scale"), BLOCKS)
def test_a_block_holds_its_elements_and_one_scale(name, group, bits, scale):
    assert OPERAND_BYTES[name] * group == (group * bits + scale) / 8
    assert FORMATS[name].group == group


def test_stored_positions_of_a_strategys_precision_never_change():
    assert PRECISIONS == ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    assert CACHE_FORMATS[:4] == ("bf16", "fp16", "fp8", "nvfp4")


def test_every_list_names_formats_that_have_a_size():
    for names in (
        PRECISIONS,
        ATTENTION_PRECISIONS,
        CACHE_FORMATS,
        STREAM_PRECISIONS,
        ALIASES.values(),
    ):
        assert set(names) <= set(FORMATS)
    assert {item.rate for item in FORMATS.values()} <= set(MATRIX_RATES)


def test_an_alias_is_no_name_of_a_format():
    assert not set(ALIASES) & set(FORMATS)
    assert format_name("bf16_r") == "bf16"
    assert format_name("nvfp4") == "nvfp4"
    assert format_name("posit8") == "posit8"


def test_formats_below_16_bits_are_cast_and_run_at_the_rate_of_their_element():
    assert {"fp8", "fp8_block", "mxfp8", "int8", "nvfp4", "mxfp4"} == set(QUANTISED)
    assert [rate_format(name) for name in ("mxfp8", "nvfp4", "tf32")] == ["fp8", "fp4", "tf32"]
    assert [wide_format(name) for name in PRECISIONS] == ["bf16", "fp16", "bf16", "bf16", "bf16"]


def test_every_format_of_attention_and_of_caches_has_a_rule_for_its_time():
    for name in ATTENTION_PRECISIONS:
        assert isinstance(attention_rule(name), str)
    for name in CACHE_FORMATS:
        assert cache_rule(name).products in ("", *ATTENTION_PRECISIONS)


@pytest.mark.parametrize("name", ["mxfp4", "int8", "posit8"])
def test_a_format_without_a_rule_is_refused_with_the_place_to_state_one(name):
    with pytest.raises(StrategyError, match=rf"a cache in '{name}' has no rule .*precisions\.py"):
        cache_rule(name)
    with pytest.raises(StrategyError, match=rf"attention in '{name}' has no rule"):
        attention_rule(name)
