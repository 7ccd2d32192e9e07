"""Parameters as AICB counts them."""

from __future__ import annotations

import pytest

from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.parameters import Role, layers_of_stage, total_parameters


def counted(arguments):
    return [(layer.name, layer.parameters) for layer in layers_of_stage(arguments)]


def test_the_gates_matrix_is_not_counted():
    sizes = {"hidden_size": 4096, "ffn_hidden_size": 8192}
    gated, plain = (AicbArguments(**sizes, swiglu=swiglu) for swiglu in (True, False))
    assert layers_of_stage(gated) == layers_of_stage(plain)
    assert counted(gated)[2] == ("mlp_layer", 2 * 4096 * 8192)


def test_parameters_counted_by_hand():
    # h 4, 2 heads, f 6, tp 2, s 8, V' 256: every count small enough for the head.
    sizes = {
        "hidden_size": 4,
        "num_attention_heads": 2,
        "ffn_hidden_size": 6,
        "num_layers": 1,
        "seq_length": 8,
        "vocab_size": 3,
        "tensor_model_parallel_size": 2,
        "world_size": 2,
    }
    assert counted(AicbArguments(**sizes)) == [
        ("embedding_layer", 4 * 128 * 4 + 8 * 4),
        ("attention_layer", 4 * 6 + 2 * 4),
        ("mlp_layer", 4 * 3 + 3 * 4),
    ]
    biased = AicbArguments(**sizes, add_bias_linear=True, enable_sequence_parallel=True)
    assert counted(biased) == [
        ("embedding_layer", 4 * 128 * 4 + 8 * 4),
        ("attention_column", 4 * 6 + 6),
        ("attention_row", 2 * 4 + 4),
        ("fused", 8),
        ("mlp_column", 4 * 3 + 3),
        ("mlp_row", 3 * 4 + 4),
        ("final_column", 4 * 128 + 128),
    ]
    whole = sum(count for _, count in counted(biased))
    assert total_parameters(layers_of_stage(biased)) == (whole, 0)


def test_shared_experts_of_deepseek_are_counted_twice():
    sizes = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "ffn_hidden_size": 6,
        "num_layers": 2,
        "seq_length": 4,
        "vocab_size": 3,
        "num_experts": 4,
        "n_dense_layers": 1,
        "expert_model_parallel_size": 2,
        "world_size": 2,
        "q_lora_rank": 3,
        "kv_lora_rank": 5,
        "qk_nope_dim": 2,
        "qk_rope_dim": 1,
        "v_head_dim": 2,
    }
    sharded = {"frame": "DeepSeek", "moe_enable": True, "enable_sequence_parallel": True}
    apart = AicbArguments(**sizes, **sharded)
    attention = [
        ("attention_linear_q_lora", 8 * 3), ("fused", 6), ("attention_q_column", 3 * 6),
        ("attention_linear_kv_lora", 8 * 6), ("fused", 10), ("attention_kv_column", 5 * 8),
        ("attention_o_row", 4 * 8), ("fused", 16),
    ]  # fmt: skip
    mlp = [("mlp_column", 48), ("mlp_row", 48)]
    experts = ("mlp_moelayer", 3 * 8 * 6 * 2 + 96)
    assert counted(apart)[1:-1] == [*attention, *mlp, *attention, experts, *mlp]
    assert total_parameters(layers_of_stage(apart))[1] == experts[1]
    mla = ("attention_layer_mla", sum(count for _, count in attention[:-1]))
    joined = counted(AicbArguments(**sizes, frame="DeepSeek"))
    assert joined[1:] == [mla, ("mlp_layer", 96), mla, experts, ("mlp_layer", 96)]


# AICB finds what a layer is in its name (training generator, lines 106-145 and 290-530).
TEXTS = (
    ("embedding", Role.EMBEDDING),
    ("moelayer", Role.EXPERTS),
    ("attention_linear", Role.WHOLE),
    ("row", Role.ROW),
    ("column", Role.COLUMN),
    ("fused", Role.NORM),
    ("layer", Role.JOINED),
)


@pytest.mark.parametrize("frame", ["Megatron", "DeepSeek"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_roles_are_what_aicb_reads_from_names(frame, sequence_parallel):
    sizes = {"num_layers": 4, "num_experts": 4, "n_dense_layers": 1, "world_size": 8}
    sizes["enable_sequence_parallel"] = sequence_parallel
    for moe in {False, sequence_parallel}:
        layers = layers_of_stage(AicbArguments(**sizes, frame=frame, moe_enable=moe))
        for layer in layers:
            assert layer.role == next(role for text, role in TEXTS if text in layer.name)
            assert layer.block == layer.name.split("_")[0]
