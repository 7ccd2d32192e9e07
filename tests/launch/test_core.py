"""Megatron-Core's words: architectures both ways, patterns, and facts of the software."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import Entry
from perfmodel.launch.core import (
    CoreWords,
    core_facts,
    core_model,
    core_software,
    pattern_text,
    read_pattern,
)
from perfmodel.launch.settings import Settings
from perfmodel.launch.software import parse_launch
from perfmodel.model.presets import load_model, preset_names
from tests.launch.launches import plain_model
from tests.operations import layers


def words(facts: dict[str, object]) -> CoreWords:
    entries = {f"model.{key}": Entry(value) for key, value in facts.items() if value is not None}
    return CoreWords(Settings("file", entries), "model.")


def test_every_preset_comes_back_or_is_refused_by_name() -> None:
    refused = {}
    for name in preset_names():
        model = load_model(name)
        try:
            facts = core_facts(model, "Megatron-LM", 1)
        except StrategyError as error:
            refused[name] = str(error)
            continue
        assert plain_model(core_model(words(facts), "again")) == plain_model(model), name
    for name, text in refused.items():
        assert text.startswith(f"Megatron-LM cannot do {name}: ")
        assert "; it offers " in text
    # Gemma's four norms, GPT-J's and NeoX's side-by-side blocks, ALiBi, ReLU, whole QK norms.
    families = {load_model(name).family for name in refused}
    assert len(preset_names()) - len(refused) >= 80, refused
    assert "kimi-k2.5" not in refused  # its vision tower is not run
    assert "llama" not in families


@pytest.mark.parametrize(
    ("pattern", "text"),
    [([0, 0, 0, 1, 1], "([0]*3+[1]*2)"), ([1], "([1]*1)"), ([1, 0, 1], "([1]*1+[0]*1+[1]*1)")],
)
def test_patterns_are_written_in_runs(pattern: list[int], text: str) -> None:
    assert pattern_text(pattern) == text


@pytest.mark.parametrize(
    ("value", "sliding", "expected"),
    [
        ("([0]*1+[1]*3)", False, [False, True, True, True]),
        ("([1,0])*2", True, [True, False, True, False]),
        (2, False, [True, False, True, False]),
        ("2", True, [True, False, True, False]),
        ([0, 1, 1, 1], False, [False, True, True, True]),
        (None, False, [True] * 4),
    ],
)
def test_patterns_are_read_as_megatron_reads_them(
    value: object, sliding: bool, expected: list[bool]
) -> None:
    settings = Settings("file", {} if value is None else {"freq": Entry(value)})
    assert read_pattern(settings, "freq", 4, sliding=sliding) == expected


@pytest.mark.parametrize(
    "value",
    ["__import__('os')", "[1]*3", "[2,1,1,1]", "(" * 100 + "[1]*4" + ")" * 100, "[1]**4",
     "[1]*99999999999", "-1", 0, True, "[", "[1]+", "[1]*4+[" + "1," * 9000 + "1]"],
)  # fmt: skip
def test_other_patterns_are_refused(value: object) -> None:
    settings = Settings("file", {"freq": Entry(value)})
    with pytest.raises(FormatError, match=r"file: freq '.*': should be a number, or a list of 4"):
        read_pattern(settings, "freq", 4, sliding=False)


def test_learned_positions_reach_as_far_as_the_sequence_where_nothing_is_said() -> None:
    facts = core_facts(load_model("gpt3-6.7b"), "Megatron-LM", 2048)
    del facts["max_position_embeddings"]
    assert core_model(words(facts), "again", 4096).max_positions == 4096


@pytest.mark.parametrize("name", layers.LAYERS)
def test_layers_without_words_are_refused_in_one_line(name: str) -> None:
    model = layers.model_of(name)
    if name in ("sliding", "latent"):
        assert core_facts(model, "Megatron-LM", 1)["num_layers"] == 1
        return
    with pytest.raises(StrategyError, match="Megatron-LM cannot do layers: ") as error:
        core_facts(model, "Megatron-LM", 1)
    assert "\n" not in str(error.value)


def read(**words: object) -> dict[str, object]:
    settings = Settings("x", {key: Entry(value, 1) for key, value in words.items()})
    return core_software(settings, str)


@pytest.mark.parametrize(
    ("words", "launch", "scope"),
    [
        ({"cuda_graph_impl": "local"}, True, "none"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, True, "none"),
        ({"cuda_graph_impl": "full_iteration"}, True, "none"),
        ({"external_cuda_graph": True, "cuda_graph_scope": "attn"}, False, "attention"),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "['attn', 'moe_router']"},
            False,
            "attention_router",
        ),
    ],
)
def test_what_graphs_hold(words: dict[str, object], launch: bool, scope: str) -> None:
    found = read(**words)
    layers = launch and "full_iteration" not in str(words)
    assert found == {"graph_launch": launch, "graph_scope": scope, "layer_graphs": layers}


def test_nothing_said_is_no_fact() -> None:
    assert read() == {}
    assert read(cuda_graph_impl="none", moe_expert_capacity_factor=2.0) == {}


def test_padded_experts_take_their_capacity() -> None:
    words = {"moe_pad_expert_input_to_capacity": True, "moe_expert_capacity_factor": 1.25}
    assert read(**words) == {"capacity_factor": 1.25}
    with pytest.raises(FormatError, match="moe_expert_capacity_factor"):
        read(**{**words, "moe_expert_capacity_factor": -1.0})


def test_a_recipe_with_graphs_and_shared_experts_beside_the_exchange() -> None:
    _, launch = parse_launch(
        "model:\n"
        "  tensor_model_parallel_size: 1\n"
        "  num_moe_experts: 8\n"
        "  cuda_graph_impl: transformer_engine\n"
        "  cuda_graph_scope: [attn, moe_router]\n"
        "  moe_shared_expert_overlap: true\n",
        "x.yaml",
    )
    assert launch.framework.graph_scope == "attention_router"
    assert launch.framework.overlap_shared_experts
