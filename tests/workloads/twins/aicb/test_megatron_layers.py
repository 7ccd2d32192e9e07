"""Messages of Megatron's layers in AICB's CSV."""

from __future__ import annotations

from perfmodel.workloads.twins.aicb.megatron_csv import (
    megatron_csv,
    megatron_events,
    stage_parameters,
)
from tests.workloads.twins.aicb.small_megatron import DEEPSEEK, small, total


def test_sequence_parallelism_splits_every_all_reduce_of_a_layer():
    plain = megatron_events(small())
    split = megatron_events(small(enable_sequence_parallel=True))
    forward = "forward.MegatronRowLinear"
    assert total(plain, "all_reduce", forward) == total(split, "reduce_scatter", forward) == 2 * 16
    assert total(split, "all_gather", "forward.MegatronColumnLinear") == 2 * 16
    assert total(split, "reduce_scatter", "backward.MegatronColumnLinear") == 2 * 16
    assert total(split, "all_reduce", forward) == 0


def test_biases_count():
    # qkv 12 / 2, attention output 4, MLP 16 / 2 and 4, LM head 256 / 2.
    assert stage_parameters(small(add_bias_linear=True)) == 2676 + 6 + 4 + 8 + 4 + 128


def test_experts_exchange_messages_in_the_forward_pass_only():
    arguments = small(
        moe_enable=True, enable_sequence_parallel=True, num_experts=4, moe_router_topk=2,
        expert_model_parallel_size=2, world_size=8, global_batch=4,
    )  # fmt: skip
    events = [event for event in megatron_events(arguments) if "MoE" in event.stage]
    assert [(e.comm_type, e.comm_group, e.message_size, e.stage) for e in events] == [
        ("all_gather", "ep_group", 2 * 2 * 4 * 2, "forward.MoE.preprocess"),
        ("all_to_all", "ep_group", 16, "forward.MoE.dispatch"),
        ("all_gather", "tp_group", 32, "forward.MoE.permutation"),
        ("reduce_scatter", "tp_group", 32, "forward.MoE.unpermutation"),
        ("all_to_all", "ep_group", 16, "forward.MoE.combine"),
    ]
    assert {event.comm_group_size for event in events} == {None}
    # 2 matrices of 2 local experts with an inner width of 16 in place of the MLP's two.
    assert stage_parameters(arguments) == 2676 - 64 + 2 * 4 * 16 * 2 // 2


def test_deepseek_has_its_own_layers():
    events = megatron_events(small(**DEEPSEEK, computation_enable=True))
    passes = [e for e in events if e.stage.startswith(("forward.", "backward."))]
    assert [(e.comm_type, e.message_size, e.stage) for e in passes] == [
        ("all_reduce", 24, "forward.MegatronEmbedding"),
        *[*_deepseek_attention_forward(), *_deepseek_mlp_forward()],
        *_deepseek_attention_forward(),
        # 3 · 4 · 3 elements to half of the ranks: 36 bytes, in FP8 with scales 33/64 of them.
        ("all_to_all", 36 * 33 / 64, "forward.MoE.dispatch"),
        ("all_gather", 72, "forward.MoE.permutation"),
        ("reduce_scatter", 72, "forward.MoE.unpermutation"),
        ("all_to_all", 36, "forward.MoE.combine"),
        *_deepseek_mlp_forward(),
        *[*_deepseek_attention_backward(), *_deepseek_mlp_backward()] * 2,
        ("all_reduce", 24, "backward.MegatronEmbedding"),
    ]
    text = megatron_csv(small(**DEEPSEEK))
    assert "all_to_all,CommGroup.ep_group,None,18.5625,forward.MoE.dispatch,None" in text
    assert "all_to_all,CommGroup.ep_group,None,36,forward.MoE.combine,None" in text


def _deepseek_attention_forward():
    row, column = "forward.MegatronRowLinear", "forward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 3)), "forward.Linear.attention_linear_q_lora"),
        ("computation", ((3, 1, 3), (3, 3)), f"{column}.attention_q_column"),
        ("computation", ((3, 1, 4), (4, 6)), "forward.Linear.attention_linear_kv_lora"),
        ("computation", ((3, 1, 5), (5, 6)), f"{column}.attention_kv_column"),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}.attention_o_row"),
        ("all_reduce", 24, row),
    ]


def _deepseek_mlp_forward():
    row, column = "forward.MegatronRowLinear", "forward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 4)), f"{column}.mlp_column"),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}.mlp_row"),
        ("all_reduce", 24, row),
    ]


def _deepseek_attention_backward():
    row, column = "backward.MegatronRowLinear", "backward.MegatronColumnLinear"
    return [
        ("computation", ((3, 3), (3, 4)), "backward.Linear.attention_linear_q_lora"),
        ("computation", ((3, 1, 3), (3, 3)), f"{column}.attention_q_column"),
        ("computation", ((3, 3), (3, 3)), f"{column}.attention_q_column"),
        ("all_reduce", 2 * 3 * 3, column),
        ("computation", ((6, 3), (3, 4)), "backward.Linear.attention_linear_kv_lora"),
        ("computation", ((3, 1, 6), (6, 5)), f"{column}.attention_kv_column"),
        ("computation", ((6, 3), (3, 5)), f"{column}.attention_kv_column"),
        ("all_reduce", 2 * 3 * 5, column),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}attention_o_row"),
        ("computation", ((4, 3), (3, 4)), f"{row}attention_o_row"),
    ]


def _deepseek_mlp_backward():
    row, column = "backward.MegatronRowLinear", "backward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 4)), f"{column}.mlp_column"),
        ("computation", ((4, 3), (3, 4)), f"{column}.mlp_column"),
        ("all_reduce", 24, column),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}mlp_row"),
        ("computation", ((4, 3), (3, 4)), f"{row}mlp_row"),
    ]
