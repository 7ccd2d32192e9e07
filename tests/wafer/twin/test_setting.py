"""What the generator knows of models, and which it does not have."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, ModelError, StrategyError
from perfmodel.model.config import model_from_config
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.setting import (
    PREFILL,
    Iteration,
    decode_steps,
    generator_model,
    iterations,
)
from tests.wafer.twin.examples import CLUSTERS, ITERATIONS, LATENT, LLAMA, system


def test_the_two_models_it_has():
    deepseek = generator_model(load_model("deepseek-v3"))
    assert (deepseek.dense_layers, deepseek.experts, deepseek.shared_intermediate) == (3, 256, 2048)
    assert deepseek.latent
    assert (deepseek.kv_rank, deepseek.rope) == (512, 64)
    llama = generator_model(load_model("llama-3-70b"))
    assert not llama.latent
    assert (llama.dense_layers, llama.kv_heads, llama.head_dim) == (80, 8, 128)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b", "gpt3-175b"])
def test_others_are_refused_in_a_line(name):
    with pytest.raises(ModelError, match="has DeepSeek-V3 and Llama 3 only"):
        generator_model(load_model(name))


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
        generator_model(model_from_config(config))


def test_layers_by_name():
    assert LATENT.layer_names() == ("decode0", "decode1", "decode2", "lm_head")
    assert LATENT.layer_names("lm_head, decode1") == ("decode1", "lm_head")
    assert [LATENT.has_experts(name) for name in LATENT.layer_names()] == [False, True, True, False]
    for wrong in ("decode3", "decode", "", "all,decode0"):
        with pytest.raises(ModelError, match="key 'layers': there is no layer"):
            LATENT.layer_names(wrong)


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
    [
        ({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2}, "key 'pp': 2 stages"),
        ({"data_parallel": 4, "ffn_data_parallel": 2, "expert_parallel": 2}, "key 'dp_ffn': 2"),
        (
            {"data_parallel": 4, "ffn_tensor_parallel": 2, "expert_parallel": 2},
            "keys 'ep' and 'tp_ffn': 2 x 2; the generator asserts that one of them is num_nodes, 4",
        ),
        (
            {
                "data_parallel": 4,
                "ffn_tensor_parallel": 4,
                "expert_parallel": 1,
                "shared_copies": 2,
            },
            "key 'n_redundant_shared_exp': 2; the generator asserts 1",
        ),
    ],
)
def test_what_the_generator_asserts_away(fields, said):
    with pytest.raises(StrategyError, match=said):
        Iteration(LATENT, system(4, **fields), 8, 1, 9)


def test_more_nodes_than_experts():
    with pytest.raises(StrategyError, match="key 'ep': 16 exceeds the 12 experts"):
        Iteration(LATENT, system(16, data_parallel=16), 8, 1, 9)
    assert Iteration(LLAMA, system(16, data_parallel=16), 8, 1, 9).batch == 8


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 9), "key 'batch': a whole number of 1 to"),
        ((8, -1, 9), "key 'length': a whole number of 1 to"),
        ((8, 1, -9), "key 'context': a whole number of 0 to"),
        ((8, 1, float("nan")), "key 'context'"),
        ((2**20, 2**20, 9), "1048576 x 1048576 tokens exceed"),
        ((2, 2**30), "more multiply-accumulates than 63 bits count"),
        ((8, 1, 9, "bf16"), "key 'precision': unknown 'bf16'; did you mean fp16"),
    ],
)
def test_wrong_sizes(sizes, said):
    with pytest.raises(DataError, match=said):
        Iteration(LATENT, CLUSTERS, *sizes)


DEEPSEEK = load_model("deepseek-v3")
SYSTEMS = {
    "prefill": system(4, tensor_parallel=4),
    "decode": system(4, data_parallel=2, tensor_parallel=2),
}


def test_steps():
    assert decode_steps(10) == (0, 9)
    assert decode_steps(1) == (0,)
    assert decode_steps(3, "all") == (0, 1, 2)
    for wrong in (0, -1, 2.0, 2**40):
        with pytest.raises(DataError, match="key 'osl'"):
            decode_steps(wrong)
    with pytest.raises(DataError, match="unknown 'some'; known: ends, all"):
        decode_steps(3, "some")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"layers": "decode61"}, ModelError, "there is no layer 'decode61'; known: decode0 to"),
        ({"prompt": 0}, DataError, "key 'isl'"),
        ({"prompt": 163840}, DataError, "163840 tokens and 4 steps exceed the 163840 positions"),
        ({"speculative": -1}, DataError, "key 'speculative'"),
        ({"batch": 0}, DataError, "key 'batch'"),
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
