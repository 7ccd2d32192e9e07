"""Softmax attention of one layer: what it is made of, and its pieces.

Shape letters: h hidden size, a query heads, g key-value heads, d head dimension
of queries and keys, v head dimension of values.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import (
    Piece,
    Pieces,
    check_choice,
    check_flag,
    check_multiple,
    check_pieces,
    check_size,
    matrix,
    vector,
)

ATTENTION_KINDS = ("full", "sliding", "chunked", "mla")
QK_NORM_SCOPES = ("head", "whole", "keys", "none")
OUTPUT_GATES = ("none", "channel", "head")


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """A light scorer that selects the keys which attention then sees.

    Attributes
    ----------
    heads, head_dim : int
        Heads of the index queries (all share one index key) and their length.
    top_k : int
        Keys that a token keeps at most; where `compressed` entries are scored, entries.
    block : int
        Keys are kept or dropped in blocks of so many (MiniMax-M3: 128; DSA: 1).
    shared : bool
        An earlier layer's choice is used: no indexer stands here, keys are selected all the
        same (GLM-5.2).
    query_inputs : int
        Features that lead to the index queries: the query's low rank; 0 for the hidden size.
    head_weights : bool
        A learned weight per head and token, h -> heads (DeepSeek-V3.2).
    compressed : bool
        Index keys are compressed as those of the attention are (DeepSeek-V4).

    Notes
    -----
    DeepSeek-V3.2, arXiv:2512.02556, section 2.1.
    """

    heads: int
    head_dim: int
    top_k: int
    block: int = 1
    shared: bool = False
    query_inputs: int = 0
    head_weights: bool = True
    compressed: bool = False

    def __post_init__(self) -> None:
        for key in ("heads", "head_dim", "top_k", "block"):
            check_size(key, getattr(self, key))
        check_size("query_inputs", self.query_inputs, minimum=0)
        for key in ("shared", "head_weights", "compressed"):
            check_flag(key, getattr(self, key))

    def pieces(self, hidden_size: int, compression: CompressionSpec | None) -> Pieces:
        """Return the indexer's pieces; every tensor-parallel rank holds all of them."""
        if self.shared:
            return ()
        h, heads, d = hidden_size, self.heads, self.head_dim
        found = [matrix("index_query", self.query_inputs or h, heads * d, "whole")]
        if self.compressed and compression is not None:
            found += compression.pieces(h, d, "index_")
        else:
            # The norm of the index key is a layer norm with weight and bias, or two norms.
            found += [matrix("index_key", h, d, "whole"), vector("index_key_norm", 2 * d)]
        if self.head_weights:
            found.append(matrix("index_weights", h, heads, "whole"))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CompressionSpec:
    """Keys far away are seen compressed: one entry for `ratio` tokens (DeepSeek-V4).

    Attributes
    ----------
    ratio : int
        Tokens of one entry: 4 with an indexer (CSA), 128 without (HCA).
    overlap : bool
        Entries are made of two neighbouring groups of tokens, by twice as wide projections.
    """

    ratio: int
    overlap: bool = False

    def __post_init__(self) -> None:
        check_size("ratio", self.ratio, minimum=2)
        check_flag("overlap", self.overlap)

    def pieces(self, hidden_size: int, head_dim: int, prefix: str = "") -> Pieces:
        """Return projections of keys and their gates, learned positions and the norm."""
        width = head_dim * (2 if self.overlap else 1)
        return (
            matrix(f"{prefix}compress_key", hidden_size, width, "whole"),
            matrix(f"{prefix}compress_gate", hidden_size, width, "whole"),
            vector(f"{prefix}compress_positions", self.ratio * width),
            vector(f"{prefix}compress_norm", head_dim),
        )


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention block of one layer.

    Attributes
    ----------
    kind : {"full", "sliding", "chunked", "mla"}
        Attention to all keys, to the last `window` keys, to those of its own chunk of
        `window` keys (Llama 4), or multi-head latent attention (DeepSeek-V2,
        arXiv:2405.04434, section 2.1).
    heads, key_value_heads : int
        Query heads, and the heads of keys and values that they share.
    head_dim : int
        Length of one query and of one key; with "mla" the sum of
        `qk_nope_head_dim` and `qk_rope_head_dim`.
    value_head_dim : int
        Length of one value; 0 when given means `head_dim`, and is replaced by it.
    window : int
        Keys seen by a query of "sliding" attention, itself included, or those of a chunk of
        "chunked" attention; 0 otherwise.
    qkv_bias, output_bias : bool
        Biases on the query, key and value projections, and on the output projection.
    qk_norm : bool
        Queries and keys are normalised (RMS) before they meet.
    qk_norm_scope : {"head", "whole", "keys", "none"}
        One weight of length `head_dim` shared by all heads (Qwen 3, Gemma 3), one
        over all heads together (MiniMax-M2), as the first for keys but without weights
        for queries (DeepSeek-V4), or norms without weights (Llama 4).
    qk_norm_bias : bool
        The norms of queries and keys have a bias too.
    sinks : bool
        One learned logit per query head joins the softmax (GPT-OSS).
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim : int
        Dimensions of "mla", 0 otherwise, but that any queries may come by a low rank;
        `q_lora_rank` 0 projects queries directly.
    causal : bool
        A token sees only itself and what came before.
    output_gate : {"none", "channel", "head"}
        What comes out is scaled by a gate: one number per channel, projected with the
        queries (Qwen3-Next), or one per head.
    key_is_value : bool
        Values are the keys: they have no projection of their own (Gemma 4, DeepSeek-V4).
    shared_keys : bool
        Keys and values are those of an earlier layer (Gemma 4): no projections, no cache.
    cross : bool
        Keys and values come from an encoder.
    indexer : IndexerSpec or None
        Sparse attention: only selected keys are seen.
    compression : CompressionSpec or None
        Keys beyond the window are seen compressed.
    output_groups, output_lora_rank : int
        The output projection goes through a low rank, in groups of heads (DeepSeek-V4);
        0 for a plain one.
    fused_projection : bool
        Queries, keys and values are slices of one projection, of which values stay a view
        (transformers, `GPTNeoXAttention`: `query_key_value`, then chunk).
    partial_rotary : bool
        Only a part of each head is rotated and joined with the rest again, so that queries lie
        head by head in memory, and what attention makes of them as well (the same class:
        `rotary_pct`).
    extra : tuple of Piece
        What else stands in the block.

    Notes
    -----
    How projections lie in memory (`fused_projection`, `partial_rotary`) is that of the class in
    transformers; only code that keeps what lies between its kernels depends on it.
    """

    kind: str
    heads: int
    key_value_heads: int
    head_dim: int
    value_head_dim: int = 0
    window: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_scope: str = "head"
    sinks: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    causal: bool = True
    output_gate: str = "none"
    key_is_value: bool = False
    shared_keys: bool = False
    cross: bool = False
    indexer: IndexerSpec | None = None
    compression: CompressionSpec | None = None
    output_groups: int = 0
    output_lora_rank: int = 0
    qk_norm_bias: bool = False
    fused_projection: bool = False
    partial_rotary: bool = False
    extra: Pieces = ()

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ATTENTION_KINDS)
        for key in ("heads", "key_value_heads", "head_dim"):
            check_size(key, getattr(self, key))
        for key in (
            "value_head_dim",
            "window",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "output_groups",
            "output_lora_rank",
        ):
            check_size(key, getattr(self, key), minimum=0)
        for key in (
            "qkv_bias",
            "output_bias",
            "qk_norm",
            "qk_norm_bias",
            "sinks",
            "causal",
            "key_is_value",
            "shared_keys",
            "cross",
            "fused_projection",
            "partial_rotary",
        ):
            check_flag(key, getattr(self, key))
        check_choice("output_gate", self.output_gate, OUTPUT_GATES)
        check_pieces("extra", self.extra)
        check_choice("qk_norm_scope", self.qk_norm_scope, QK_NORM_SCOPES)
        check_multiple("heads", self.heads, "key_value_heads", self.key_value_heads)
        if self.value_head_dim == 0:
            object.__setattr__(self, "value_head_dim", self.head_dim)
        if (self.kind in ("sliding", "chunked")) != (self.window > 0):
            raise ModelError(
                f"key 'window': {self.window} should be positive for kinds 'sliding' and "
                "'chunked', and 0 otherwise"
            )
        if (self.output_groups > 0) != (self.output_lora_rank > 0):
            raise ModelError(
                "keys 'output_groups' and 'output_lora_rank': should both be given, or neither"
            )
        if self.output_groups:
            check_multiple("heads", self.heads, "output_groups", self.output_groups)
        self._check_latent()

    def _check_latent(self) -> None:
        """Check the dimensions that only multi-head latent attention has."""
        if self.kind != "mla":
            if self.kv_lora_rank or self.qk_nope_head_dim or self.qk_rope_head_dim:
                raise ModelError(
                    "keys 'kv_lora_rank', 'qk_nope_head_dim' and 'qk_rope_head_dim' "
                    f"should be 0 for kind {self.kind!r}"
                )
            return
        check_size("kv_lora_rank", self.kv_lora_rank)
        if self.qk_nope_head_dim + self.qk_rope_head_dim != self.head_dim:
            raise ModelError(
                f"key 'head_dim': {self.head_dim} should be the sum of 'qk_nope_head_dim' "
                f"{self.qk_nope_head_dim} and 'qk_rope_head_dim' {self.qk_rope_head_dim}"
            )
        if self.key_value_heads != self.heads:
            raise ModelError(
                f"key 'key_value_heads': {self.key_value_heads} should be 'heads' {self.heads} "
                "for kind 'mla', which gives every query head its own key and value"
            )
        if self.qk_norm:
            raise ModelError(
                "key 'qk_norm': should be false for kind 'mla', whose latent norms are implied"
            )

    @property
    def sparse(self) -> bool:
        """Queries gather lists of keys: chosen or compressed ones, or a window of both in one.

        Such layers run on kernels of their own.
        """
        window_of_one = self.key_is_value and self.kind == "sliding"
        return self.indexer is not None or self.compression is not None or window_of_one

    def pieces(self, hidden_size: int) -> Pieces:
        """Return the pieces of the block, without the norms over the hidden size.

        Grouped-query attention: ``h (a d + g d + g v) + a v h``. Multi-head latent
        attention: ``h r_q + r_q + r_q a d`` for queries (``h a d`` without low rank),
        ``h (r_kv + d_rope) + r_kv + r_kv a (d_nope + v)`` for keys and values, and
        ``a v h`` for the output (arXiv:2405.04434, section 2.1 and appendix C); the
        lone ``r`` terms are the latent norms.
        """
        found = [*self._queries(hidden_size)]
        found += self._latent(hidden_size) if self.kind == "mla" else self._grouped(hidden_size)
        found += self._output(hidden_size)
        if self.output_gate == "head":
            found.append(matrix("gate", hidden_size, self.heads, "columns"))
        if self.sinks:
            found.append(vector("sinks", self.heads, "columns"))
        if self.compression is not None:
            found += self.compression.pieces(hidden_size, self.head_dim)
        if self.indexer is not None:
            found += self.indexer.pieces(hidden_size, self.compression)
        return (*found, *self.extra)

    def _queries(self, h: int) -> Pieces:
        """Projection of the queries, with the gate of the output where it has one per channel."""
        width = self.heads * self.head_dim
        if self.output_gate == "channel":
            width += self.heads * self.value_head_dim
        # Of latent attention only the projections into latent space carry biases
        # (modeling_deepseek.py).
        bias = self.qkv_bias and self.kind != "mla"
        if not self.q_lora_rank:
            return (matrix("query", h, width, "columns", bias),)
        rank = self.q_lora_rank
        return (
            matrix("query_down", h, rank, "whole", self.qkv_bias and self.kind == "mla"),
            vector("query_norm", rank),
            matrix("query_up", rank, width, "columns", bias),
        )

    def _grouped(self, h: int) -> Pieces:
        """Projections of keys and values that groups of heads share, and norms of queries."""
        g, d, v = self.key_value_heads, self.head_dim, self.value_head_dim
        found = []
        if not self.shared_keys:
            found.append(matrix("key", h, g * d, "columns", self.qkv_bias))
            if not self.key_is_value:
                found.append(matrix("value", h, g * v, "columns", self.qkv_bias))
        normed = {
            "head": (d, d),
            "whole": (self.heads * d, g * d),
            "keys": (0, d),
            "none": (0, 0),
        }[self.qk_norm_scope]
        if self.qk_norm:
            sizes = normed[0], 0 if self.shared_keys else normed[1]
            factor = 2 if self.qk_norm_bias else 1
            names = ("query_head_norm", "key_head_norm")
            found += [vector(n, factor * x) for n, x in zip(names, sizes, strict=True) if x]
        return tuple(found)

    def _latent(self, h: int) -> Pieces:
        """Keys and values by way of their latent."""
        rank, latent = self.kv_lora_rank, self.kv_lora_rank + self.qk_rope_head_dim
        width = self.heads * (self.qk_nope_head_dim + self.value_head_dim)
        return (
            matrix("key_value_down", h, latent, "whole", self.qkv_bias),
            vector("key_value_norm", rank),
            matrix("key_value_up", rank, width, "columns"),
        )

    def _output(self, h: int) -> Pieces:
        """The output projection, perhaps through a low rank in groups of heads."""
        width = self.heads * self.value_head_dim
        if not self.output_groups:
            return (matrix("output", width, h, "rows", self.output_bias),)
        groups, rank = self.output_groups, self.output_lora_rank
        return (
            Piece("output_down", "matrix", width // groups, rank, split="columns", copies=groups),
            matrix("output_up", groups * rank, h, "rows", self.output_bias),
        )
