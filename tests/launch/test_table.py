"""Tables of settings: one table writes and reads; conditions, and what a program takes over."""

from __future__ import annotations

import itertools
import tomllib

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import Entry
from perfmodel.launch.settings import Settings, Words
from perfmodel.launch.table import FOLDER, Choice, Spelling, holds, load_program
from tests.launch.launches import one_launch

FORMAT = Choice(
    "precision",
    (
        Spelling("bf16", {"bf16": True}),
        Spelling("fp8", {"bf16": True, "fp8": "hybrid"}, {"history": 16}),
        Spelling("fp8", {"bf16": True, "fp8": "e4m3"}),
    ),
    {"fp8": None},
)


AXES = {
    "tensor_parallel": 2,
    "pipeline_parallel": 4,
    "global_batch_size": 64,
    "sequence_length": 4096,
}


def settings(**values: object) -> Settings:
    return Settings("file", {key: Entry(value, 7) for key, value in values.items()})


def test_the_first_spelling_is_written_and_all_are_read() -> None:
    assert FORMAT.write("fp8", None) == {"bf16": True, "fp8": "hybrid", "history": 16}
    assert FORMAT.write("fp16", None) == {}
    assert FORMAT.values == ["bf16", "fp8"]
    assert FORMAT.find(settings(bf16=True)).value == "bf16"
    assert FORMAT.find(settings(bf16=True, fp8="e4m3")).value == "fp8"


def test_null_false_and_absent_are_the_same() -> None:
    for nothing in (None, False, "None", "null", "false"):
        assert FORMAT.find(settings(bf16=Words(), fp8=nothing)).value == "bf16"


def test_another_value_beside_a_spelling_is_remarked() -> None:
    stated = settings(bf16=True, fp8="hybrid", history=1)
    assert FORMAT.find(stated).value == "fp8"
    assert stated.remarks == ["history 1: projected as 16"]
    same = settings(bf16=True, fp8="hybrid", history="16.0")
    FORMAT.find(same)
    assert same.remarks == []


def test_an_unknown_word_is_named_with_those_that_are_known() -> None:
    with pytest.raises(FormatError) as caught:
        FORMAT.find(settings(bf16=True, fp8="int8"))
    assert str(caught.value) == (
        "file:7: fp8 'int8': should be one of hybrid, e4m3 (others are not modelled)"
    )


def test_conditions_name_fields_facts_and_what_follows_of_a_launch() -> None:
    launch = one_launch("llama-3.1-8b", devices=16, **AXES)
    assert holds("pipeline_parallel > 1 and model_layers % (2 * pipeline_parallel) == 0", launch)
    assert holds("replicas == 2 and even_stages and not experts", launch)
    assert not holds("v_shaped or deterministic_attention", launch)


def test_a_program_takes_over_parts_of_another() -> None:
    parent, own = load_program("megatron"), load_program("primus")
    assert own.choices == parent.choices
    assert own.software[: len(parent.software)] == parent.software
    assert [item.fields for item in own.limits[:2]] == [item.fields for item in parent.limits[:2]]
    assert "zb_v" in own.limits[0].offers
    assert set(parent.watched) < set(own.watched)


FLEX = Choice(
    "expert_dispatch",
    (
        Spelling("all_to_all", {"type": "alltoall"}),
        Spelling("deepep", {"type": "flex"}, {"deepep": True}),
        Spelling("hybrid_ep", {"type": "flex"}, {"backend": "hybridep"}),
        Spelling("deepep", {"type": "flex"}, {"backend": "deepep"}),
    ),
)


@pytest.mark.parametrize(
    ("beside", "value"),
    [
        ({"backend": "hybridep"}, "hybrid_ep"),
        ({"backend": "deepep"}, "deepep"),
        ({"deepep": Words()}, "deepep"),
        ({}, "deepep"),
    ],
)
def test_spellings_of_equal_keys_are_told_apart_by_what_stands_beside(beside, value) -> None:
    assert FLEX.find(settings(type="flex", **beside)).value == value


def test_what_stands_beside_has_to_be_of_one_of_them() -> None:
    with pytest.raises(FormatError, match="file:7: backend 'ucx': should be one of hybridep, deep"):
        FLEX.find(settings(type="flex", backend="ucx"))
    assert FLEX.find(settings(type="alltoall", backend="ucx")).value == "all_to_all"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_values_of_equal_keys_can_be_told_apart(name: str) -> None:
    document = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    for item in document.get("software", ()):
        spellings = [Spelling(**words) for words in item.get("spellings", ())]
        for one, other in itertools.combinations(spellings, 2):
            keys = [item.get("defaults", {}) | dict(it.keys) for it in (one, other)]
            if keys[0] == keys[1] and one.value != other.value:
                assert one.also != other.also, (name, item["field"], one.value, other.value)


def test_typed_fields_stand_in_place_of_the_keys_of_a_file() -> None:
    program = load_program("megatron")
    stated = {"micro-batch-size": 3, "global-batch-size": 64, "seq-length": 8, "bf16": True}
    file = settings(**stated, **{"use-distributed-optimizer": True, "cp-comm-type": "nonsense"})
    file.typed = {"micro_batch_size": 2, "zero_stage": 0, "context_parallel_kind": "ring"}
    strategy, _ = program.read(file)
    assert strategy["micro_batch_size"] == 2
    assert strategy["zero_stage"] == 0
    assert strategy["context_parallel_kind"] == "ring"
