"""The programs by name: which one a file is for, what is written for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel import strategy_grid, sweep
from perfmodel.base.errors import DataError, FormatError, StrategyError
from perfmodel.base.table import Table
from perfmodel.launch.software import (
    LARGEST,
    MODULES,
    chosen_by,
    filled_nodes,
    format_launch,
    keys_of,
    launch_of_row,
    not_held,
    parse_launch,
    prepared,
    read_launch,
    recognise,
    software_module,
    software_of,
    software_title,
)
from perfmodel.software.framework import FRAMEWORKS, load_framework
from perfmodel.store.results import as_table, best
from tests.launch.launches import one_launch

AXES = {"global_batch_size": 64, "sequence_length": 4096}


@pytest.mark.parametrize("name", MODULES)
def test_every_software_recognises_what_is_written_for_it(name: str, tmp_path: Path) -> None:
    launch = one_launch("llama-3.1-8b", devices=8, zero_stage=3, recompute="full", **AXES)
    text = format_launch(name, launch, ["first", "second\nline"])
    assert "first" in text
    assert recognise(text) == name
    file = tmp_path / "launch"
    file.write_text(text, encoding="utf-8")
    found, read = read_launch(file)
    assert found == name
    assert read["global_batch_size"] == 64
    assert keys_of(name, launch)
    assert not [line for line in text.splitlines() if line.startswith("line")]


@pytest.mark.parametrize("name", MODULES)
def test_presets_of_a_software_exist(name: str) -> None:
    program = software_module(name).PROGRAM
    assert program.preset in program.presets
    assert set(program.presets) <= set(FRAMEWORKS)
    assert software_title(name) == program.title


def test_releases_of_a_software_are_that_software() -> None:
    assert software_of("torchtitan@0.1") == "torchtitan"
    assert software_of("megatron-bridge@0.4[dropout=true]") == "megatron-bridge"
    assert software_of("megatron@0.2") == "megatron"


def test_another_framework_is_said() -> None:
    launch = one_launch("llama-3.1-8b", "maxtext", devices=8, **AXES)
    ready, notes = prepared("megatron", launch)
    assert ready.framework.name == "megatron"
    assert any("projected as maxtext; Megatron-LM overlaps and fuses otherwise" in x for x in notes)


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("megatron", "megatron"),
        ("megatron-tuned[gradient_bytes=2]", "megatron"),
        ("torchtitan", "torchtitan"),
        ("maxtext", "maxtext"),
        ("megatron-deepspeed", "deepspeed"),
        ("megatron-2022", "megatron"),
        ("primus-turbo", "primus"),
        ("fsdp", "megatron"),
    ],
)
def test_frameworks_have_a_software(framework: str, name: str) -> None:
    assert software_of(framework) == name


def test_a_model_is_named_as_its_preset() -> None:
    launch = one_launch("llama-3.1-8b", devices=8, **AXES)
    for name in ("megatron", "megatron-bridge"):
        _, read = parse_launch(format_launch(name, launch), "file")
        assert read.model is not None
        assert read.model.name == "llama-3.1-8b"


def test_unknown_software_and_files_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match="unknown software 'megatrn'; did you mean megatron"):
        software_module("megatrn")
    file = tmp_path / "large"
    file.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(FormatError, match="more than 4194304 B; a launch file is needed"):
        read_launch(file)


@pytest.fixture(scope="module")
def swept() -> Table:
    run = {"sequence_length": 2048, "global_batch_size": 32, "tensor_parallel": [2, 4]}
    return as_table(sweep("llama-3.1-8b", strategy_grid("llama-3.1-8b", 16, **run), "dgx-h100"))


def test_a_row_is_a_launch_of_its_strategy(swept):
    (row,) = best(swept, 1)
    launch, lines = launch_of_row(swept, row, "s.nc", chosen_by(1, "s.nc", "step_time", "tp > 1"))
    assert launch.strategy["tensor_parallel"] == row["tensor_parallel"]
    assert launch.model.name == "llama-3.1-8b"
    assert (launch.devices, launch.devices_per_node) == (16, 8)
    assert lines[0] == (
        "llama-3.1-8b on 16 devices of dgx-h100: number 1 of s.nc by step_time where tp > 1"
    )
    assert lines[1].startswith("projected as megatron: ")


def test_results_that_do_not_say_what_was_swept_are_refused(swept):
    (row,) = best(swept, 1)
    bare = Table(swept.data_vars, swept.coords, {"provenance": "{}"}, swept.sizes)
    with pytest.raises(DataError, match=r"'s\.nc' does not say what was swept"):
        launch_of_row(bare, row, "s.nc", "")


@pytest.mark.parametrize(
    ("devices", "each", "filled"), [(16, 8, 8), (12, 8, 12), (4, 8, 4), (4, 0, 4)]
)
def test_nodes_are_those_of_the_profile_where_they_are_filled(devices, each, filled):
    assert filled_nodes(devices, each) == filled


@pytest.mark.parametrize(
    ("program", "framework"),
    [
        (it, name)
        for name in FRAMEWORKS
        if (it := software_of(name)) in ("megatron-bridge", "primus")
    ],
)
def test_the_release_comes_back(program: str, framework: str) -> None:
    launch = one_launch("llama-3.1-8b", framework, devices=8, **AXES)
    _, read = parse_launch(format_launch(program, launch), "file", typed={"devices": 8})
    assert read.framework.name.partition("[")[0] == framework


def test_what_a_file_cannot_hold_is_remarked() -> None:
    launch = one_launch("llama-3.1-8b", "torchtitan", devices=8, zero_stage=3, **AXES)
    ready, _ = prepared("torchtitan", launch)
    assert not_held("torchtitan", ready) == []
    changed = replace(ready, framework=load_framework("torchtitan", bucket_bytes=1e6))
    (remark,) = not_held("torchtitan", changed)
    assert remark.startswith("the file does not say software.bucket_bytes=1e+06")


def test_a_model_without_a_flavor_is_read_from_the_comment() -> None:
    launch = one_launch("qwen2.5-7b", "torchtitan", devices=8, zero_stage=3, **AXES)
    _, read = parse_launch(format_launch("torchtitan", launch), "file")
    assert read.model is not None
    assert read.model.name == "qwen2.5-7b"


def test_keys_of_megatron_outside_a_model_section_are_no_bridge_file() -> None:
    """LLaMA-Factory writes them at the top level, beside keys of its own."""
    assert recognise("model_name_or_path: a/b\ntensor_model_parallel_size: 4\n") == ""
    assert recognise("model:\n  tensor_model_parallel_size: 4\n") == "megatron-bridge"
