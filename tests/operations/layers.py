"""One layer of every kind, of a small model with h = 2048, for tests of operations."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.pieces import Piece, matrix, vector
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec

HIDDEN, VOCABULARY = 2048, 32768

DENSE = MlpSpec("dense", 4096)
PLAIN = MlpSpec("dense", 4096, gated=False, activation="relu2")


def experts(**changes) -> MlpSpec:
    sizes = {"experts": 64, "experts_per_token": 8, "expert_intermediate_size": 512}
    return MlpSpec("moe", **{**sizes, **changes})


GATED_DELTA = RecurrenceSpec("gated_delta", 32, 16, 128, 128, conv_kernel=4)
KIMI_DELTA = RecurrenceSpec("kimi_delta", 32, 32, 128, 128, conv_kernel=4, gate_rank=128)
MAMBA2 = RecurrenceSpec("mamba2", 64, 8, 128, 64, conv_kernel=4, chunk=128)
MAMBA1 = RecurrenceSpec("mamba1", 4096, 1, 16, 1, conv_kernel=4, time_step_rank=128)
LIGHTNING = RecurrenceSpec("lightning", 32, 32, 128, 128, chunk=256)
SHORT_CONVOLUTION = ShortConvolutionSpec(2048, 3)

FULL = AttentionSpec("full", 16, 8, 128, qk_norm=True)
CHUNKED = AttentionSpec("chunked", 16, 8, 128, window=1024)
SLIDING = AttentionSpec("sliding", 16, 8, 128, window=512)
LATENT = AttentionSpec(
    "mla",
    16,
    16,
    192,
    128,
    q_lora_rank=512,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
)
SPARSE_LATENT = replace(LATENT, indexer=IndexerSpec(32, 128, 1024, query_inputs=512))
SHARED_CHOICE = replace(LATENT, indexer=IndexerSpec(32, 128, 1024, query_inputs=512, shared=True))
BLOCK_SPARSE = AttentionSpec(
    "full", 16, 8, 128, indexer=IndexerSpec(4, 128, 1024, block=128, head_weights=False)
)
WINDOW_OF_ONE = AttentionSpec(
    "sliding",
    16,
    1,
    512,
    window=128,
    key_is_value=True,
    q_lora_rank=512,
    output_groups=8,
    output_lora_rank=256,
)
HEAVILY_COMPRESSED = replace(WINDOW_OF_ONE, compression=CompressionSpec(128))
COMPRESSED = replace(
    WINDOW_OF_ONE,
    compression=CompressionSpec(4, True),
    indexer=IndexerSpec(32, 128, 256, query_inputs=512, compressed=True),
)
CROSS = AttentionSpec("full", 16, 16, 128, cross=True, causal=False)
EXTRA = (
    matrix("per_layer_gate", HIDDEN, 256, "whole"),
    matrix("per_layer_projection", 256, HIDDEN, "whole"),
    vector("per_layer_norm", HIDDEN),
)

LAYERS = {
    "gated delta": LayerSpec(
        (GATED_DELTA,), (experts(shared_intermediate_size=512, shared_expert_gate=True),)
    ),
    "kimi delta": LayerSpec((KIMI_DELTA,), (DENSE,)),
    "mamba2": LayerSpec((MAMBA2,), norms=1),
    "mamba1": LayerSpec((MAMBA1,), norms=1),
    "lightning": LayerSpec((LIGHTNING,), (DENSE,)),
    "short convolution": LayerSpec((SHORT_CONVOLUTION,), (DENSE,)),
    "attention alone": LayerSpec((FULL,), norms=1),
    "mlp alone": LayerSpec((), (PLAIN,), norms=1),
    "latent experts": LayerSpec(
        (),
        (experts(latent_size=512, gated=False, activation="relu2", shared_intermediate_size=1024),),
        norms=1,
    ),
    "hash routing": LayerSpec((FULL,), (experts(hash_routing=True),)),
    "side by side": LayerSpec((FULL, MAMBA2), (DENSE,)),
    "dense beside experts": LayerSpec(
        (AttentionSpec("full", 16, 8, 512, key_is_value=True, qk_norm=True),),
        (DENSE, experts()),
        norms=7,
        extra=EXTRA,
    ),
    "shared keys": LayerSpec(
        (AttentionSpec("sliding", 16, 8, 256, window=512, shared_keys=True, qk_norm=True),),
        (DENSE,),
        norms=4,
    ),
    "gate per channel": LayerSpec(
        (AttentionSpec("full", 16, 8, 256, output_gate="channel"),), (DENSE,)
    ),
    "gate per head": LayerSpec((AttentionSpec("full", 16, 8, 256, output_gate="head"),), (DENSE,)),
    "chunked": LayerSpec((CHUNKED,), (experts(experts_per_token=1),)),
    "sliding": LayerSpec((SLIDING,), (DENSE,)),
    "latent": LayerSpec((LATENT,), (DENSE,)),
    "sparse latent": LayerSpec((SPARSE_LATENT,), (DENSE,)),
    "shared choice": LayerSpec((SHARED_CHOICE,), (DENSE,)),
    "block sparse": LayerSpec((BLOCK_SPARSE,), (DENSE,)),
    "window of one": LayerSpec((WINDOW_OF_ONE,), (experts(hash_routing=True),), streams=4),
    "gated streams": LayerSpec(
        (GATED_DELTA,),
        (DENSE,),
        norms=0,
        streams=4,
        stream_rank=64,
        extra=(
            Piece("ngram_table", "table", 1000, 256),
            Piece("ngram_convolution", "convolution", 4, 4 * HIDDEN),
        ),
    ),
    "heavily compressed": LayerSpec((HEAVILY_COMPRESSED,), (experts(),), streams=4),
    "compressed": LayerSpec((COMPRESSED,), (experts(),), streams=4),
    "other values": LayerSpec((AttentionSpec("full", 16, 8, 192, 128),), (DENSE,)),
    "encoder-decoder": LayerSpec((FULL, CROSS), (DENSE,), norms=3),
    "parallel, one norm": LayerSpec((FULL,), (DENSE,), norms=1, parallel_block=True),
    "parallel, two norms": LayerSpec((FULL,), (DENSE,), norms=2, parallel_block=True),
}


def model_of(*names: str, **changes) -> ModelSpec:
    """Return a model of these layers, one each."""
    return ModelSpec(
        "layers", "test", HIDDEN, VOCABULARY, tuple(LAYERS[x] for x in names), **changes
    )
