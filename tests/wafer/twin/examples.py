"""A model small enough to be looked at, systems of every kind, and routings for them."""

from __future__ import annotations

import numpy as np

from perfmodel.model.config import model_from_config
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.setting import Iteration, element_bytes


def latent(layers=3):
    """DeepSeek-V3 in small: a dense layer, then layers of twelve experts and a shared one."""
    config = {
        "model_type": "deepseek_v3", "hidden_size": 16, "num_hidden_layers": layers,
        "vocab_size": 50, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 24, "q_lora_rank": 8, "kv_lora_rank": 6, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2, "v_head_dim": 4, "first_k_dense_replace": 1,
        "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "moe_intermediate_size": 10,
    }  # fmt: skip
    return model_from_config(config)


LATENT = latent()
LLAMA = model_from_config(
    {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 51,
        "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 40,
    }
)  # fmt: skip


def system(nodes, **fields):
    """A wafer of one row of nodes."""
    given = {"nodes": nodes, "node_grid": (1, nodes), "expert_parallel": nodes}
    return WaferSystem(**(given | fields))


def iteration(model, system, batch, length, context=0, precision="fp16", layers=()):
    """A prefill of so many tokens, or a step of decoding that sees a context."""
    sizes = ("decode", batch, context, length - 1) if context else ("prefill", batch, length, 0)
    return Iteration(model, system, *sizes, *element_bytes(precision), layers=layers)


def routed(asked, seed=1):
    """Different experts for every token."""
    spec, layers = asked.moe, len(asked.expert_layers)
    shape = (layers, asked.batch, asked.length, spec.experts)
    chance = np.random.default_rng(seed).random(shape)
    chosen = np.argsort(chance, axis=-1)[..., : spec.experts_per_token]
    return RoutedTokens(chosen, spec.experts)


CLUSTERS = system(8, data_parallel=2, tensor_parallel=2, sequence_parallel=2, shared_copies=2)
ITERATIONS = {
    "one node": iteration(LATENT, system(1), 3, 1, 5),
    "clusters": iteration(LATENT, CLUSTERS, 7, 1, 9),
    "guessed": iteration(LATENT, CLUSTERS, 5, 3, 9, "fp8"),
    "prefill": iteration(LATENT, CLUSTERS, 5, 4),
    "multicast": iteration(
        LATENT, system(4, data_parallel=4, expert_exchange="multicast"), 6, 2, 9
    ),
    "multicast, tensor": iteration(
        LATENT, system(4, tensor_parallel=4, expert_exchange="multicast"), 3, 1, 9
    ),
    "allgather": iteration(
        LATENT,
        system(6, data_parallel=3, sequence_parallel=2, expert_exchange="allgather"),
        8,
        2,
        9,
    ),
    "split experts": iteration(
        LATENT,
        system(4, data_parallel=2, tensor_parallel=2, expert_parallel=1, ffn_tensor_parallel=4),
        5,
        2,
        9,
    ),
    "fewer sequences than clusters": iteration(LATENT, system(4, data_parallel=4), 2, 1, 9),
    "llama": iteration(LLAMA, system(6, tensor_parallel=3, sequence_parallel=2), 4, 1, 11),
    "llama, prefill": iteration(LLAMA, system(4, sequence_parallel=2, data_parallel=2), 4, 7),
}
