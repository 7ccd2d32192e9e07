"""A small model in Megatron, by its arguments."""

from __future__ import annotations

from perfmodel.workloads.twins.aicb.arguments import AicbArguments

SMALL = {
    "module": "generate_megatron_workload",
    "num_layers": 1,
    "hidden_size": 4,
    "vocab_size": 256,
    "num_attention_heads": 2,
    "seq_length": 2,
    "world_size": 4,
    "tensor_model_parallel_size": 2,
    "global_batch": 2,
}


def small(**changes):
    return AicbArguments(**{**SMALL, **changes})


def total(events, kind, stage):
    return sum(e.message_size for e in events if e.comm_type == kind and e.stage == stage)


# One layer with an MLP, one with experts; widths of attention: 2 heads, queries of 2 · 3.
DEEPSEEK = {
    "frame": "DeepSeek", "num_layers": 2, "n_dense_layers": 1, "n_shared_expert": 1,
    "qk_rope_dim": 1, "qk_nope_dim": 2, "q_lora_rank": 3, "kv_lora_rank": 5, "v_head_dim": 4,
    "num_experts": 4, "expert_model_parallel_size": 2, "moe_router_topk": 3, "global_batch": 2,
    "micro_batch": 1, "seq_length": 3, "ffn_hidden_size": 8,
}  # fmt: skip
