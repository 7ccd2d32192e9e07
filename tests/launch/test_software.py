"""The programs by name: which one a file is for, what is written for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.software import (
    LARGEST,
    MODULES,
    format_launch,
    keys_of,
    parse_launch,
    prepared,
    read_launch,
    recognise,
    software_module,
    software_of,
    software_title,
)
from perfmodel.software.framework import FRAMEWORKS
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
    module = software_module(name)
    assert module.PRESET in module.PRESETS
    assert set(module.PRESETS) <= set(FRAMEWORKS)
    assert software_title(name) == module.TITLE


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
