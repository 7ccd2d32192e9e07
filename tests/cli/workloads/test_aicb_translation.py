"""Models and strategies of ours from AICB's arguments."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.cli.workloads.aicb_translation import model_of, strategy_of
from perfmodel.workloads.twins.aicb.arguments import parse_arguments

GPT_175B = (
    "--model_name gpt_175B --world_size 1024 --tensor_model_parallel_size 8 "
    "--pipeline_model_parallel 8 --global_batch 1536 --num_layers 96 --hidden_size 12288 "
    "--num_attention_heads 96 --seq_length 2048 --max_position_embeddings 2048 "
    "--vocab_size 50257 --enable_sequence_parallel --use-distributed-optimizer"
)
DEEPSEEK = (
    "--frame DeepSeek --world_size 1024 --tensor_model_parallel_size 4 --num_layers 61 "
    "--hidden_size 7168 --ffn_hidden_size 2048 --num_attention_heads 128 --vocab_size 129280 "
    "--moe_enable --num_experts 256 --moe_router_topk 8 --expert_model_parallel_size 16 "
    "--n_shared_expert 1 --enable_sequence_parallel --global_batch 1024 --swiglu"
)


def arguments(text):
    return parse_arguments(text.split())


def test_gpt_175b_has_the_published_count_of_parameters():
    """12 L h^2 (1 + 13/(12 h)) + (V + s) h, Narayanan et al. 2021, eq. 2, without biases."""
    a = arguments(GPT_175B)
    model = model_of(a)
    biases_and_norms = 2 * 12288 * 2 * 96 + 2 * 12288
    tables = (51200 + 2048) * 12288
    assert a.padded_vocab_size == 51200
    assert model.parameter_count() == 12 * 96 * 12288**2 + biases_and_norms + tables
    row = strategy_of(a, model).row(0)
    assert (row["data_parallel"], row["zero_stage"], row["sequence_parallel"]) == (16, 1, True)


def test_swiglu_adds_the_third_matrix_that_aicb_leaves_out():
    plain = model_of(arguments("--num_layers 2 --hidden_size 512 --ffn_hidden_size 1024"))
    gated = model_of(arguments("--num_layers 2 --hidden_size 512 --ffn_hidden_size 1024 --swiglu"))
    assert gated.layers[0].mlp.gated
    assert not plain.layers[0].mlp.gated
    assert plain.tied_embeddings
    assert not gated.tied_embeddings


def test_grouped_queries_are_given_beside_aicbs_arguments():
    model = model_of(arguments("--num_layers 2 --hidden_size 512 --num_attention_heads 8"), 2)
    assert model.layers[0].attention.key_value_heads == 2


def test_deepseek_has_dense_layers_first_latent_attention_and_a_shared_expert():
    model = model_of(arguments(DEEPSEEK))
    assert [layer.mlp.kind for layer in model.layers] == ["dense"] * 3 + ["moe"] * 58
    assert model.layers[0].attention.kind == "mla"
    assert model.layers[-1].mlp.shared_intermediate_size == 2048
    # 671 B (arXiv:2412.19437) has dense layers of 18432, which AICB cannot state
    assert model.parameter_count() == pytest.approx(670e9, rel=0.01)


def test_sequence_parallelism_without_tensor_parallelism_is_none():
    a = arguments(
        "--world_size 8 --enable_sequence_parallel --num_attention_heads 16 --global_batch 8"
    )
    assert not strategy_of(a, model_of(a)).row(0)["sequence_parallel"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--world_size 8 --num_attention_heads 16 --global_batch 4", "global_batch_size"),
        ("--hidden_size 1000 --num_attention_heads 3", "no multiple"),
        ("--frame DeepSpeed", "training workload"),
        ("--num_attention_heads 16 --dtype float32", "--dtype=float32"),
    ],
)
def test_what_is_no_model_or_strategy_is_refused(text, message):
    a = arguments(text)
    with pytest.raises(StrategyError, match=message):
        strategy_of(a, model_of(a))
