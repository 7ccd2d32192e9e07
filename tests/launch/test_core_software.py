"""Graphs and capacities, in the words of Megatron-LM and of Megatron Bridge."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.launch.core_software import core_software
from perfmodel.launch.settings import Entry, Settings
from perfmodel.launch.software import parse_launch


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
