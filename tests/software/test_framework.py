"""Framework presets: what they declare, and how bad names are answered."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.facts import Run, release_key
from perfmodel.base.fields import facts_of
from perfmodel.base.files import read_toml
from perfmodel.software.framework import (
    AS_STATED,
    FOLDER,
    FRAMEWORKS,
    IDENTITY,
    SOURCES,
    WHEN,
    Framework,
    as_run,
    find_framework,
    framework_names,
    framework_of_record,
    load_framework,
    releases_of,
)
from tests.data import table_of


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_presets_are_consistent(name):
    framework = load_framework(name)
    assert framework.name == name
    assert framework.overlap_tensor_parallel in ("none", "backward", "full")
    assert framework.gradient_bytes in (2.0, 4.0)
    assert framework.gradient_reduce_bytes <= framework.gradient_bytes
    # fp32 master copy and two moments: 3 x 4; moments in bf16: arXiv:2412.19437, section 3.3.3
    assert framework.optimizer_bytes == (8.0 if name == "hai-llm" else 12.0)
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
        match="field 'scaling' must be one of delayed, current, rows, not 'now'",
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
    stated = {key for key in IDENTITY if getattr(FRAMEWORKS[name], key)}
    assert set(SOURCES[name]) - set(IDENTITY) == set(facts_of(Framework)) - set(IDENTITY)
    assert set(SOURCES[name]) >= stated
    assert all(entry.source for entry in WHEN[name])
    assert all(len(text) > 5 for text in SOURCES[name].values())


def test_presets_differ_from_what_they_refine_where_their_software_does():
    base, tuned = load_framework("megatron"), load_framework("megatron-tuned")
    assert (base.overlap_tensor_parallel, tuned.overlap_tensor_parallel) == ("backward", "full")
    assert tuned.gradient_bytes == base.gradient_bytes  # inherited
    assert SOURCES["megatron-tuned"]["dropout"] == SOURCES["megatron"]["dropout"]
    assert SOURCES["megatron-tuned"]["scaling"] != SOURCES["megatron"]["scaling"]


def test_what_runs_mean_that_do_not_say():
    stages = {name: framework.zero_stage for name, framework in FRAMEWORKS.items()}
    fully = {"fsdp", "torchtitan", "maxtext", "llm-foundry", "fms-fsdp", "automodel", "colossal-ai"}
    assert {name for name, stage in stages.items() if stage == 3} == fully | {
        "plain-2022",
        "plain-2023",
        "plain-2024",
        "plain-2025",
        "plain-jax",
        "torchtitan@0.1",
        "fsdp@1.11",
        "fsdp@2.0",
        "llm-foundry@0.2",
        "fms-fsdp@2024-02",
    }
    assert {name for name, stage in stages.items() if stage == 0} == {
        "megatron-2021",
        "megatron-2022",
        "nanotron",
        "nemo@22.09",
        "plain-2020",
        "plain-megatron-2021",
        "plain-megatron-2022",
        "plain-parallel-2021",
    }
    assert not load_framework("maxtext").accumulates_gradients


@pytest.mark.parametrize(
    ("name", "preset"),
    table_of(__file__, "a_release_is_the_newest_that_is_not_later"),
)
def test_a_release_is_the_newest_that_is_not_later(name: str, preset: str) -> None:
    assert find_framework(name) == preset
    assert load_framework(name).name == preset


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("megatron@x", "megatron is known since 2021-04, 2022-05, 0.2, 0.9"),
        ("megatron-tuned@2.0", "framework 'megatron-tuned' has no releases; leave '@2.0' out"),
        ("nemo@new", "nemo is known since 22.09, 23.04, 23.08, 24.09, 25.02"),
        ("nemmo@24.07", "unknown framework 'nemmo@24.07'; did you mean nemo"),
    ],
)
def test_what_is_no_release_is_refused(name: str, words: str) -> None:
    with pytest.raises(StrategyError, match=re.escape(words)):
        load_framework(name)


def test_releases_are_dated_in_order() -> None:
    for software in {item.software for item in FRAMEWORKS.values()} - {""}:
        releases = [FRAMEWORKS[name] for name in releases_of(software)]
        assert all(re.fullmatch(r"20\d\d-\d\d", item.released) for item in releases)
        numbered = [release_key(item.since) for item in releases if item.since]
        assert numbered == sorted(numbered)


def run(framework: Framework, *facts: Any, **more: Any) -> Framework:
    return as_run(framework, Run(*facts, **more))


def test_facts_of_some_runs_hold_for_those_alone() -> None:
    """Whole-iteration graphs came with Megatron-Bridge 0.5, for mxfp8 experts on NVL72."""
    newer, older = load_framework("megatron-bridge@0.5"), load_framework("megatron-bridge@0.4")
    assert run(newer, "mxfp8", True, 72).overlap_expert_parallel
    for precision, experts, domain in (
        ("bf16", True, 72),
        ("mxfp8", False, 72),
        ("mxfp8", True, 8),
    ):
        assert not run(newer, precision, experts, domain).overlap_expert_parallel
    assert not run(newer, "mxfp8", True, 72, recurrent=True).overlap_expert_parallel
    assert not run(older, "mxfp8", True, 72).overlap_expert_parallel
    assert run(older, "mxfp8", True, 72).expert_dispatch == "hybrid_ep"
    assert run(newer, "bf16", False, 8) == newer
    assert newer.overlap_update_gather
    assert not run(newer, "mxfp8", False, 8).overlap_update_gather
    older = load_framework("torchtitan@0.1")
    generations = [run(older, "bf16", False, 8, name).attention_generation for name in DEVICES]
    assert generations == [2, 0]


DEVICES = ("H100 SXM5 80GB", "B200 180GB")


def test_bf16_of_deepspeed_and_parameters_of_nvfp4() -> None:
    """DeepSpeed adds bf16 gradients in fp32 until 2022; nvfp4 parameters stay 16-bit."""
    older, newer = load_framework("megatron-deepspeed-2021"), load_framework("megatron-deepspeed")
    assert (run(older, "bf16", False, 8).gradient_bytes, older.gradient_bytes) == (4.0, 4.0)
    assert run(newer, "bf16", False, 8).gradient_bytes == 2.0
    tuned = load_framework("megatron-bridge@0.5")
    stored = [run(tuned, name, False, 8).low_precision_parameters for name in ("mxfp8", "nvfp4")]
    assert stored == [True, False]


def test_facts_of_stored_results_are_what_was_swept() -> None:
    for name, changes in (
        ("megatron-bridge@0.5", {}),
        ("megatron-bridge@0.5", {"graph_launch": False}),
        ("fsdp", {"bucket_bytes": 8.0}),
    ):
        framework = load_framework(name, **changes)
        assert framework_of_record(asdict(framework)) == framework


def test_a_name_alone_is_the_newest_release() -> None:
    for name in framework_names():
        if software := FRAMEWORKS[find_framework(name)].software:
            held = releases_of(software)
            assert find_framework(software) == held[-1]


def test_what_a_run_states_stays_however_often_it_is_loaded() -> None:
    stated = replace(load_framework("megatron-bridge@0.3"), name=f"megatron-bridge@0.3{AS_STATED}")
    loaded = load_framework(stated)
    assert run(loaded, "fp8", True, 8) == stated
    assert run(load_framework(stated, dropout=True), "fp8", True, 8).dropout


def test_what_a_user_set_holds_for_every_run() -> None:
    base = load_framework("megatron-bridge@0.5")
    set_anyway = load_framework(base, graph_launch=False)  # as it is without a condition
    assert set_anyway.name == "megatron-bridge@0.5[graph_launch=false]"
    assert not run(set_anyway, "mxfp8", True, 72).graph_launch
    assert run(base, "mxfp8", True, 72).graph_launch


@pytest.mark.parametrize(
    ("device", "hidden"),
    [
        ("Google TPU v5e", False),
        ("Google TPU v6e", False),
        ("Google TPU7x (Ironwood)", True),
        ("Google TPU v5x", True),
        ("NVIDIA H100", True),
    ],
)
def test_gradients_of_maxtext_hide_where_no_tensor_core_moves_them(device, hidden):
    run = Run("bf16", False, 256, device)
    framework = as_run(load_framework("maxtext"), run)
    assert framework.overlap_gradient_reduce is hidden
    assert framework.overlap_parameter_gather


@pytest.mark.parametrize(
    ("name", "fused", "generation"),
    [
        ("megatron", True, 0),
        ("torchtitan", True, 2),
        ("primus-turbo", True, 2),
        ("primus", False, 0),
        ("fsdp", False, 2),
        ("plain-2025", False, 2),
    ],
)
def test_sinks_are_more_than_some_kernels_take(name, fused, generation):
    preset = load_framework(name)
    plain = as_run(preset, Run("bf16", True, 8))
    assert plain.flash_attention
    sinks = as_run(preset, Run("bf16", True, 8, sinks=True))
    assert (sinks.flash_attention, sinks.attention_generation) == (fused, generation)


OPTIMISTIC = ("overlap_", "fused_", "gathers_quantised", "grouped_gemm", "graph_launch")
NAMED = re.compile(
    r"arXiv|\.py|\.md|\.yaml|--|[Ss]ection|\b20\d\d|\d\.\d|PR |pull request|_|[A-Z]\w+ \w+"
)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_software_fuses_or_hides_names_a_dated_document(name: str):
    page = read_toml(FOLDER / f"{name}.toml", StrategyError)
    for fact, source in page.get("source", {}).items():
        if fact.startswith(OPTIMISTIC) and page[fact] not in (False, "none"):
            assert NAMED.search(source), (fact, source)
            assert not source.startswith("prior"), (fact, source)
            assert FRAMEWORKS[name].released or not FRAMEWORKS[name].software, fact
