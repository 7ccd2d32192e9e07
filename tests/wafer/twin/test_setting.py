"""What the generator knows of models, and which it does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import ModelError, PerfModelError, StrategyError
from perfmodel.model.config import model_from_config
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.setting import (
    PREFILL,
    check_model,
    iterations,
)
from tests.data import table_of
from tests.wafer.twin.examples import CLUSTERS, ITERATIONS, LATENT, LLAMA, iteration, system


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3-70b"])
def test_the_two_models_it_has(name):
    check_model(load_model(name))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b", "gpt3-175b"])
def test_others_are_refused_in_a_line(name):
    with pytest.raises(ModelError, match="has DeepSeek-V3 and Llama 3 only"):
        check_model(load_model(name))


def test_heads_have_to_share_the_hidden_size():
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
    with pytest.raises(ModelError, match="attention 'full' of 4 x 32"):
        check_model(model_from_config(config))


def test_layers_by_name():
    every = ITERATIONS["prefill"]
    assert every.layers == ("decode0", "decode1", "decode2", "lm_head")
    assert [every.has_experts(name) for name in every.layers] == [False, True, True, False]
    assert (every.expert_layers, every.moe.shared_intermediate_size) == ((1, 2), 10)
    some = replace(every, layers=("lm_head", "decode1"))
    assert some.layers == ("decode1", "lm_head")
    assert some.routes
    assert not replace(every, layers=("decode0",)).routes
    for wrong in ("decode3", "decode", "", "all"):
        with pytest.raises(StrategyError, match="key 'layers': model has no"):
            replace(every, layers=("decode0", wrong))


def test_shares_of_the_batch():
    iteration = ITERATIONS["clusters"]  # 7 sequences, two clusters of four nodes
    assert iteration.starts.tolist() == [0, 4, 7]
    assert iteration.local_batch.tolist() == [4, 4, 4, 4, 3, 3, 3, 3]
    assert iteration.owners.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert iteration.own_batch.tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    assert iteration.shared_nodes.tolist() == [0, 0, 0, 0, 4, 4, 4]
    assert iteration.expert_nodes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_groups():
    iteration = ITERATIONS["clusters"]
    groups = {axis: iteration.group(6, axis) for axis in ("tensor", "sequence", "cluster", "data")}
    assert groups == {
        "tensor": (6, 7),
        "sequence": (4, 6),
        "cluster": (4, 5, 6, 7),
        "data": (2, 6),
    }
    assert iteration.group(6, "stage") == tuple(range(8))


@pytest.mark.parametrize(
    ("fields", "said"),
    table_of(__file__, "what_the_generator_asserts_away"),
)
def test_what_the_generator_asserts_away(fields, said):
    with pytest.raises(StrategyError, match=said):
        iteration(LATENT, system(4, **fields), 8, 1, 9)


def test_more_nodes_than_experts():
    with pytest.raises(StrategyError, match="key 'ep': 16 exceeds the 12 experts"):
        iteration(LATENT, system(16, data_parallel=16), 8, 1, 9)
    assert iteration(LLAMA, system(16, data_parallel=16), 8, 1, 9).batch == 8


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 9), "key 'batch': a whole number of at least 1"),
        ((8, -1, 9), "key 'speculative': a whole number of at least 0"),
        ((8, 1, -9), "key 'input_length': a whole number of at least 1"),
        ((8, 1, float("nan")), "key 'input_length'"),
        ((2**20, 2**20, 9), "1048576 x 1048576 tokens exceed"),
        ((2, 2**30), "more multiply-accumulates than 63 bits count"),
        ((8, 1, 9, "bf16"), "key 'precision': unknown 'bf16'; did you mean fp16"),
    ],
)
def test_wrong_sizes(sizes, said):
    with pytest.raises(PerfModelError, match=said):
        iteration(LATENT, CLUSTERS, *sizes)


DEEPSEEK = load_model("deepseek-v3")
SYSTEMS = {
    "prefill": system(4, tensor_parallel=4),
    "decode": system(4, data_parallel=2, tensor_parallel=2),
}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"layers": "decode61"}, StrategyError, "deepseek-v3 has no 'decode61'"),
        ({"prompt": 0}, StrategyError, "key 'input_length'"),
        ({"prompt": 163840}, StrategyError, "key 'osl': 163844 tokens exceed the 163840 positions"),
        ({"speculative": -1}, StrategyError, "key 'speculative'"),
        ({"batch": 0}, StrategyError, "key 'batch'"),
        (
            {"steps": (PREFILL,), "systems": {"decode": SYSTEMS["decode"]}},
            StrategyError,
            "no block",
        ),
        ({"model": load_model("mixtral-8x7b")}, ModelError, "DeepSeek-V3 and Llama 3 only"),
    ],
)
def test_wrong_questions(changes, error, said):
    asked = {"model": DEEPSEEK, "systems": SYSTEMS, "batch": 3, "prompt": 5, "steps": (0, 4)}
    with pytest.raises(error, match=said):
        iterations(**asked | changes)
