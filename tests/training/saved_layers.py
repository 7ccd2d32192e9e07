"""Layers of public models, and the bytes per token that torch keeps of each.

Bytes are those of ``benchmarks/oracle_transformers.py saved`` (torch 2.15, transformers 5.23,
1,024 tokens, bf16): as eager autograd saves them, and as torch.compile's min-cut partition does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.model.attention import AttentionSpec, CompressionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope
from perfmodel.training.memory import layer_kept
from tests.training.gpt import keys_of

TOKENS = 1024


def one_layer(layer, hidden):
    return ModelSpec("one", "one", hidden, 1000, (layer,))


def per_token(layer, hidden, framework, **fields):
    at = Scope(keys_of(sequence_length=TOKENS, **fields), load_framework(framework))
    kept = layer_kept(at, layer, float(hidden))
    return float(np.asarray(kept.everything).reshape(-1)[0]) / TOKENS


def attention(heads, key_value_heads, head_dim, **changes):
    fields = {"kind": "full", "heads": heads, "key_value_heads": key_value_heads}
    return AttentionSpec(**{**fields, "head_dim": head_dim, **changes})


def dense(width, **changes):
    return MlpSpec("dense", width, **changes)


def experts(number, per_token, width, **changes):
    fields = {"experts": number, "experts_per_token": per_token, "expert_intermediate_size": width}
    return MlpSpec("moe", **fields, **changes)


LATENT = attention(
    128,
    128,
    192,
    kind="mla",
    value_head_dim=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
)
DELTA = RecurrenceSpec("gated_delta", 32, 16, 128, 128, conv_kernel=4)
COMPRESSED = attention(
    64,
    1,
    512,
    q_lora_rank=1024,
    window=0,
    key_is_value=True,
    qk_norm=True,
    qk_norm_scope="head",
    compression=CompressionSpec(128),
    output_groups=8,
    output_lora_rank=1024,
)


class Saved(NamedTuple):
    """A layer, its hidden size, and bytes per token.

    The last two are those that only the classes of transformers keep, with their causes below.
    """

    layer: LayerSpec
    hidden: int
    eager: float
    compiled: float
    eager_alone: float = 0.0
    compiled_alone: float = 0.0


def wide_norms(norms, hidden, heads=0, head_dim=0):
    """Norms that scale in single precision: their normalised copy has 4 bytes, not 2."""
    return 2 * (norms * hidden + heads * head_dim)


# The router's input and matrix in single precision (256 experts, over 1,024 tokens).
WIDE_ROUTER = 4 * 7168 + 4 * 7168 * 256 / 1024

SAVED = {
    "Llama-3.1-8B": Saved(
        LayerSpec((attention(32, 8, 128),), (dense(14336),)), 4096, 200840, 139400
    ),
    "Qwen3-8B": Saved(
        LayerSpec((attention(32, 8, 128, qk_norm=True),), (dense(12288),)), 4096, 215336, 137512
    ),
    "Mixtral-8x7B": Saved(
        LayerSpec((attention(32, 8, 128),), (experts(8, 2, 14336),)), 4096, 348412, 258288
    ),
    "Qwen3-30B-A3B": Saved(
        LayerSpec((attention(32, 4, 128, qk_norm=True),), (experts(128, 8, 768),)),
        2048,
        194600,
        147248,
    ),
    "GPT-NeoX-20B": Saved(
        LayerSpec(
            (attention(64, 64, 96, fused_projection=True),),
            (dense(24576, gated=False),),
            "layer",
            parallel_block=True,
        ),
        6144,
        209160,
        184580,
    ),
    "Command-R": Saved(
        LayerSpec(
            (attention(64, 8, 128),), (dense(22528),), "layer_no_bias", 1, parallel_block=True
        ),
        8192,
        332068,
        205064,
        eager_alone=(3 * 4 - 2) * 8192,  # a layer norm written out in single precision
    ),
    "Gemma-2-9B": Saved(
        LayerSpec((attention(16, 8, 256),), (dense(14336),), norms=4),
        3584,
        268424,
        153680,
        eager_alone=wide_norms(4, 3584),
    ),
    "Gemma-3-12B": Saved(
        LayerSpec((attention(16, 8, 256, qk_norm=True),), (dense(15360),), norms=4),
        3840,
        335086,
        175280,
        eager_alone=wide_norms(4, 3840, 16 + 8, 256),
    ),
    "OLMo-2-7B": Saved(
        LayerSpec((attention(32, 32, 128, qk_norm=True, qk_norm_scope="whole"),), (dense(11008),)),
        4096,
        268432,
        148112,
        eager_alone=wide_norms(2, 4096, 32 + 32, 128),
    ),
    "DeepSeek-V3 dense": Saved(LayerSpec((LATENT,), (dense(18432),)), 7168, 475664, 340496),
    "DeepSeek-V3 experts": Saved(
        LayerSpec((LATENT,), (experts(256, 8, 2048, shared_intermediate_size=2048),)),
        7168,
        742645,
        607029,
        eager_alone=WIDE_ROUTER,
        compiled_alone=WIDE_ROUTER,
    ),
    "Qwen3.5-27B attention": Saved(
        LayerSpec((attention(24, 4, 256, qk_norm=True, output_gate="channel"),), (dense(17408),)),
        5120,
        352514,
        213208,
        eager_alone=wide_norms(2, 5120, 24 + 4, 256),
    ),
    "Qwen3-Next-80B delta rule": Saved(
        LayerSpec(
            (DELTA,),
            (experts(512, 10, 512, shared_intermediate_size=512, shared_expert_gate=True),),
        ),
        2048,
        285788,
        199552,
        eager_alone=wide_norms(2, 2048),
    ),
    "LFM2-1.2B convolution": Saved(
        LayerSpec((ShortConvolutionSpec(2048, 3),), (dense(8192),)), 2048, 122896, 90128
    ),
    "Mamba-2-2.7B": Saved(
        LayerSpec((RecurrenceSpec("mamba2", 80, 1, 128, 64, conv_kernel=4),), norms=1),
        2560,
        51881,
        41640,
    ),
    "DeepSeek-V4-Flash": Saved(
        LayerSpec((COMPRESSED,), (experts(8, 6, 2048, shared_intermediate_size=2048),), streams=4),
        4096,
        1136908,
        720887,
        # Norms of the streams, of the layer and of the compressed entries in single precision.
        eager_alone=wide_norms(2, 4096) + 4 * 2 * 4096,
    ),
}
