"""Framework presets: what they declare, and how bad names are answered."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.software.facts import facts_of
from perfmodel.software.framework import FRAMEWORKS, SOURCES, Framework, load_framework


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_presets_are_consistent(name):
    framework = load_framework(name)
    assert framework.name == name
    assert framework.overlap_tensor_parallel in ("none", "backward", "full")
    assert framework.gradient_bytes in (2.0, 4.0)
    assert framework.gradient_reduce_bytes <= framework.gradient_bytes
    assert framework.optimizer_bytes == 12.0  # fp32 master copy and two moments: 3 × 4
    assert framework.bucket_bytes > 0
    assert framework.pads_vocabulary_to >= 1


def test_megatron_bucket_is_forty_million_fp32_elements():
    assert (
        load_framework("megatron").bucket_bytes == 40e6 * 4
    )  # Megatron-Core ddp_config bucket_size default


def test_old_frameworks_have_no_flash_attention():
    # Narayanan et al. 2021 and Korthikanti et al. 2022 predate its use in Megatron.
    assert not load_framework("megatron-2021").flash_attention
    assert not load_framework("megatron-2022").flash_attention
    assert load_framework("megatron").flash_attention


def test_single_fields_can_be_changed():
    changed = load_framework("fsdp", dropout=True)
    assert changed.dropout
    assert changed.name == "fsdp[dropout=true]"
    assert not FRAMEWORKS["fsdp"].dropout
    assert load_framework(changed) is not None
    assert load_framework(changed, dropout=False) == FRAMEWORKS["fsdp"]
    assert load_framework(changed, bucket_bytes=8).name == "fsdp[bucket_bytes=8,dropout=true]"
    assert load_framework("fsdp", dropout=False).name == "fsdp"
    near = {load_framework("fsdp", bucket_bytes=1e9 + i).name for i in range(3)}
    assert near == {"fsdp", "fsdp[bucket_bytes=1000000001.0]", "fsdp[bucket_bytes=1000000002.0]"}


def test_unknown_names_get_a_suggestion():
    with pytest.raises(StrategyError, match="unknown framework 'megatrn'; did you mean megatron"):
        load_framework("megatrn")
    with pytest.raises(StrategyError, match="unknown framework field 'drop_out'; did you mean"):
        load_framework("megatron", drop_out=True)
    with pytest.raises(
        StrategyError,
        match="field 'scaling' must be one of delayed, current, not 'now'",
    ):
        load_framework("megatron", scaling="now")
    with pytest.raises(
        StrategyError, match=r"'bucket_bytes' must be a finite number above 0 \[B\]"
    ):
        load_framework("megatron", bucket_bytes=0)


def test_a_framework_cannot_be_altered():
    with pytest.raises(AttributeError):
        load_framework("megatron").dropout = True  # type: ignore[misc]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_value_says_where_it_is_from(name):
    assert set(SOURCES[name]) == set(facts_of(Framework))
    assert all(len(text) > 5 for text in SOURCES[name].values())


def test_presets_differ_from_what_they_refine_where_their_software_does():
    base, tuned = load_framework("megatron"), load_framework("megatron-tuned")
    assert (base.overlap_tensor_parallel, tuned.overlap_tensor_parallel) == ("backward", "full")
    assert tuned.gradient_bytes == base.gradient_bytes  # inherited
    assert SOURCES["megatron-tuned"]["dropout"] == SOURCES["megatron"]["dropout"]
    assert SOURCES["megatron-tuned"]["scaling"] != SOURCES["megatron"]["scaling"]


def test_what_runs_mean_that_do_not_say():
    stages = {name: framework.zero_stage for name, framework in FRAMEWORKS.items()}
    assert {name for name, stage in stages.items() if stage == 3} == {
        "fsdp",
        "torchtitan",
        "maxtext",
    }
    assert {name for name, stage in stages.items() if stage == 0} == {
        "megatron-2021",
        "megatron-2022",
    }
    assert not load_framework("maxtext").accumulates_gradients
