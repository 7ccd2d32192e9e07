"""What autograd keeps of a layer from its forward to its backward, and what recomputation drops.

The rules are those of every product and kernel: a product keeps its input, a norm its input, a
fused kernel what its own autograd function saves. Code that is not fused keeps what lies
between its kernels, too. Layers are the sum of their parts: norms (here), mixers
(`perfmodel.training.block_activations`, `perfmodel.training.block_activations`) and
feed-forward blocks (`perfmodel.training.block_activations`).

Activation bytes follow Korthikanti et al. 2022 (arXiv:2205.05198, section 4 and appendix),
generalised to gated and grouped-query models, experts, latent attention, and fused attention,
which keeps one statistic per query instead of the attention matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.precisions import OPERAND_BYTES, QUANTISED
from perfmodel.model.layers import LayerSpec
from perfmodel.model.pieces import Piece
from perfmodel.operations.layer_block import SINKHORN_STEPS, Block, blocks_of, norm_modules
from perfmodel.operations.operations import LayerKeys, Role, Size
from perfmodel.software.framework import Framework
from perfmodel.software.modules import Policy, policy_of

SINGLE = 4.0
"""Bytes of a number in single precision."""

UNFUSED_NORM_BYTES = {"rms": SINGLE, "no_weight": SINGLE}
"""Norms that unfused code writes out in single precision: the input that they keep [B].

``x.float()`` keeps a copy for its square and its scaling (transformers, `LlamaRMSNorm`); layer
norms are one kernel of PyTorch, which keeps the input as it is (``native_layer_norm``)."""


Modules = tuple[str, ...]
Inputs = Mapping[tuple[str, Modules], Size]


Key = TypeVar("Key")


def _added(one: Mapping[Key, Size], other: Mapping[Key, Size]) -> dict[Key, Size]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in (*one, *other)}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a part of a layer keeps; fields are columns of shape (keys,) or numbers.

    Attributes
    ----------
    everything : ndarray or float
        Bytes from forward to backward without recomputation [B].
    modules : mapping
        Those of them that recomputation drops, by the modules in which they lie, one in the other
        (`perfmodel.software.modules.MODULES`) [B].
    widest : ndarray or float
        The part's largest tensor, whose gradient backward holds [B].
    alternate : ndarray or float
        Outputs of attention and of every second product, which alone are kept where selective
        recomputation is by operation [B].
    outputs : mapping
        Outputs that a policy may save, by its words (`perfmodel.software.modules.SAVED`) [B].
    inputs : mapping
        Those of them that may wait elsewhere, by the module whose input they are
        (`perfmodel.software.modules.INPUTS`) and the modules whose recomputation drops them [B].
    """

    everything: Size = 0.0
    modules: Mapping[Modules, Size] = field(default_factory=dict)
    widest: Size = 0.0
    alternate: Size = 0.0
    outputs: Mapping[str, Size] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            self.everything + other.everything,
            _added(self.modules, other.modules),
            np.maximum(self.widest, other.widest),
            self.alternate + other.alternate,
            _added(self.outputs, other.outputs),
            _added(self.inputs, other.inputs),
        )

    def inside(self, module: str) -> Kept:
        """Return the same in a module that may be repeated whole."""
        rest = self.everything - sum(self.modules.values())
        inner = {(module, *place): size for place, size in self.modules.items()}
        inputs = {(word, (module, *at)): size for (word, at), size in self.inputs.items()}
        return replace(self, modules={(module,): rest, **inner}, inputs=inputs)

    def selective(self, policy: Policy, boundary: Size) -> Size:
        """Return what is kept where recomputation is selective [B].

        Parameters
        ----------
        policy : Policy
            What is repeated.
        boundary : float or ndarray
            The layer's input, beside which nothing is kept but what a policy saves [B].
        """
        kept = self.everything
        if policy.alternate:
            kept = np.minimum(kept, boundary + self.alternate)
        if policy.saved:
            saved = sum(self.outputs.get(word, 0.0) for word in policy.saved)
            kept = np.minimum(kept, boundary + saved)
        repeated = [size for place, size in self.modules.items() if policy.repeats(place)]
        return np.maximum(kept - sum(repeated), np.minimum(kept, boundary)) if repeated else kept

    def waiting(self, words: frozenset[str], policy: Policy | None = None) -> Size:
        """Return what waits elsewhere of what is kept: the inputs of some modules [B]."""
        return sum(
            size
            for (word, place), size in self.inputs.items()
            if word in words and not (policy and policy.repeats(place))
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """Where activations are counted: one device under every key, in one framework."""

    keys: LayerKeys
    framework: Framework

    @property
    def stored(self) -> float:
        """Bytes of a stored activation."""
        return self.framework.activation_bytes

    @property
    def inputs(self) -> Column:
        """Bytes of one stored input of a product: only the column-wise copy is kept.

        torchao keeps the 16-bit input and casts it again (float8_linear.py, matmul of hp tensors).
        """
        if self.framework.fp8_library == "torchao":
            return np.full(len(self.keys), self.stored)
        cast = {name: OPERAND_BYTES[name] for name in QUANTISED}
        return self.keys.by_precision(cast, self.stored)

    @property
    def gate_inputs(self) -> float:
        """Bytes of a stored input of a gated activation."""
        return self.framework.activation_input_bytes or self.stored

    @property
    def attention_outputs(self) -> Column:
        """Bytes of attention's stored output: one tensor for its own backward and what follows."""
        shared = self.framework.attention_output_bytes or self.stored
        return np.where(self.keys.low_precision > 0, shared, self.stored)

    @property
    def fused(self) -> bool:
        """Of norms and activations only inputs are kept, as by fused kernels."""
        return not self.framework.keeps_intermediates

    @property
    def policy(self) -> Policy:
        """What selective recomputation repeats."""
        return policy_of(self.framework.selective_recompute, self.framework.flash_attention)

    @property
    def tokens(self) -> Column:
        """Tokens inside a block."""
        return self.keys.tokens

    @property
    def own(self) -> Column:
        """Tokens of the residual stream."""
        return self.keys.stream_tokens

    @property
    def gathered(self) -> Column:
        """Tokens of the input that a product keeps behind its gather."""
        return self.tokens if self.framework.keeps_gathered_inputs else self.own

    def shard(self, size: float) -> Column:
        """Heads or groups on one device: at least one."""
        return np.maximum(size / self.keys.tensor_parallel, 1.0)

    def norm_input(self, elements: Size, norm: str = "rms") -> Size:
        """Bytes that a norm keeps for its own gradient.

        Fused ones keep their input. Unfused ones keep it in single precision, and a copy
        that is normalised but not scaled, for the gradient of the weights.
        """
        fused = self.fused or self.framework.fused_norm_and_rotary
        if fused or norm not in UNFUSED_NORM_BYTES:
            return elements * self.stored
        copy = 0.0 if norm == "no_weight" else self.stored
        return elements * (UNFUSED_NORM_BYTES[norm] + copy)

    def products(self, pieces: Iterable[Piece]) -> Size:
        """Bytes of the inputs and outputs of matrices that stand by themselves."""
        kept: Size = 0.0
        for piece in pieces:
            if piece.kind != "matrix":
                continue
            read: Size = float(piece.inputs)
            written: Size = float(piece.outputs)
            if piece.split == "rows":
                read = read / self.keys.tensor_parallel
            if piece.split == "columns":
                written = written / self.keys.tensor_parallel
            kept = kept + self.own * piece.visited * (read * self.inputs + written * self.stored)
        return kept


def norms_kept(at: Scope, layer: LayerSpec, hidden: float) -> Kept:
    """Return what the norms over the hidden size keep, and the inputs of the blocks.

    A block reads the residual stream through its norm, whose output its products keep
    (column-wise and cast, where they are quantised). Norms that stand in parallel read one
    and the same stream. Each further norm, behind a block, keeps what the block puts out
    (Gemma 2 and 3); where all norms are there (OLMo 2), the bytes are the same.
    """
    elements = at.own * hidden
    product_input = at.gathered * hidden * at.inputs
    blocks = 1 if layer.parallel_block else len(blocks_of(layer))
    ahead = layer.norms if layer.parallel_block else min(layer.norms, blocks)
    own = at.norm_input(elements, layer.norm)
    streams = min(blocks, ahead)
    # Of parallel norms the stream is shared, what unfused ones write for themselves is not.
    kept = streams * own + (ahead - streams) * (own - elements * at.stored)
    kept = kept + max(ahead, blocks) * product_input + (layer.norms - ahead) * own
    inputs: dict[tuple[str, Modules], Size] = {}
    if layer.mixers and ahead:
        inputs["attn_norm", ()] = elements * at.stored
        inputs["qkv_linear", norm_modules(blocks_of(layer)[0])] = product_input
    if layer.mlps and streams > 1:
        inputs["mlp_norm", ()] = elements * at.stored
    found = Kept(kept, inputs=inputs)
    for block in blocks_of(layer)[:ahead]:
        found = found + Kept(0.0, _norm_dropped(block, elements * at.stored, own, product_input))
    return found


def _norm_dropped(
    block: Block, stream: Size, own: Size, product_input: Size
) -> dict[Modules, Size]:
    """Return what recomputation drops of a norm: all it keeps but the stream, and its output.

    A block of experts that is repeated whole keeps its input, the norm's output in 16 bits.
    """
    places = norm_modules(block)
    dropped = product_input + own - stream
    if block.role is not Role.EXPERTS:
        return {places: dropped}
    return {places: dropped - (product_input - stream), ("moe", *places): product_input - stream}


def streams_kept(at: Scope, layer: LayerSpec, hidden: float) -> Kept:
    """Return what hyper-connections keep: nothing with one residual stream.

    Around every part: all m streams, the normalised streams in single precision, from which
    the weights of the mix are projected, and what the part puts out, for the gradient of
    the weights that spread it (arXiv:2409.19606; transformers, `DeepseekV4HyperConnection`).
    Unfused code keeps the streams in single precision too, and every round of the
    normalisation of the m x m mixing weights.
    """
    m = layer.streams
    if m == 1:
        return Kept()
    parts = len(layer.mixers) + len(layer.mlps)
    streams = at.own * hidden * m
    mix = at.own * SINGLE * m * m
    kept = streams * (at.stored + SINGLE) + at.own * hidden * at.stored + mix
    if not at.fused:
        # Of each of two normalisations a round keeps the matrix and its sums.
        kept = kept + streams * SINGLE
        kept = kept + at.own * 2 * SINKHORN_STEPS * SINGLE * (m * m + m)
    return Kept(parts * kept)


def masks_kept(at: Scope, layer: LayerSpec, hidden: float) -> Kept:
    """Return the masks of the dropout behind every block, a byte an element."""
    if not at.framework.dropout:
        return Kept()
    return Kept(len(blocks_of(layer)) * at.own * hidden)
