"""What a sequence keeps while it is generated: cached keys and values, recurrent states.

Serving holds this beside the weights; a training step keeps none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.base.precisions import CACHE_FORMATS, FORMATS
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, Mixer
from perfmodel.model.pieces import check_choice, check_size
from perfmodel.model.recurrence import RecurrenceSpec

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec

# States are kept in single precision (flash-linear-attention's chunk kernels; mamba_ssm_dtype of
# Nemotron-H's config.json).
STATE_BYTES = 4.0
# Keys of an indexer are kept in fp8 with a scale per 128 (DeepGEMM's fp8_mqa_logits).
INDEX_FORMAT = "fp8_block"


@dataclass(frozen=True, slots=True)
class CachePart:
    """Entries that one layer keeps of one kind.

    Attributes
    ----------
    bytes_each : float
        One entry [B].
    tokens_each : int
        Tokens of an entry: 1, or those that are compressed into one.
    most : int
        Tokens that are kept at most; 0 for all.
    heads : int
        Heads over which tensor parallelism cuts it: 1 where every rank keeps all.
    """

    bytes_each: float
    tokens_each: int = 1
    most: int = 0
    heads: int = 1

    def bytes_at(self, tokens: int) -> float:
        """Bytes for a sequence of so many tokens."""
        kept = min(tokens, self.most) if self.most else tokens
        return kept // self.tokens_each * self.bytes_each

    @property
    def per_token(self) -> float:
        """Bytes that a token adds, as long as all are kept."""
        return self.bytes_each / self.tokens_each


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Memory of one sequence, of all layers together.

    Attributes
    ----------
    tokens : int
        Length of the sequence.
    precision : str
        Format of cached keys and values.
    per_token : float
        Bytes that one of the first tokens adds to the caches [B].
    per_token_beyond_windows : float
        Bytes that a token adds when all windows and chunks are full [B].
    cache : float
        Caches of `tokens` tokens [B].
    recurrent : float
        States and windows of convolutions, whatever the length [B].
    """

    tokens: int
    precision: str
    per_token: float
    per_token_beyond_windows: float
    cache: float
    recurrent: float

    @property
    def total(self) -> float:
        """Caches and states [B]."""
        return self.cache + self.recurrent


def sequence_state(model: ModelSpec, tokens: int, precision: str = "bf16") -> SequenceState:
    """Return what one sequence keeps.

    Parameters
    ----------
    model : ModelSpec
        Prediction modules that it has keep caches too.
    tokens : int
        Length of the sequence; of an encoder-decoder that of both.
    precision : str
        Format of cached keys and values, one of
        `perfmodel.base.precisions.CACHE_FORMATS`.

    Raises
    ------
    ModelError
        No such format, or no length.

    Examples
    --------
    >>> from perfmodel import load_model
    >>> sequence_state(load_model("llama-3.1-8b"), 8192).per_token
    131072.0
    """
    check_choice("precision", precision, CACHE_FORMATS)
    check_size("tokens", tokens)
    element = FORMATS[precision].bytes
    first = beyond = cache = recurrent = 0.0
    layers = (*model.layers, *model.mtp_layers)
    for layer in dict.fromkeys(layers):
        count = layers.count(layer)
        for part in cache_parts(layer, element):
            first += count * part.per_token
            beyond += 0.0 if part.most else count * part.per_token
            cache += count * part.bytes_at(tokens)
        recurrent += count * sum(recurrent_bytes(mixer, element) for mixer in layer.mixers)
    return SequenceState(tokens, precision, first, beyond, cache, recurrent)


def cache_parts(layer: LayerSpec, element: float) -> Iterator[CachePart]:
    """Yield what a layer caches.

    Parameters
    ----------
    layer : LayerSpec
    element : float
        One number of a key or value [B].

    Notes
    -----
    Grouped-query attention keeps g (d + v) numbers per token, latent attention the latent and
    the rotated part of the key, r_kv + d_rope (arXiv:2405.04434, section 2.1.2). Keys that are
    an earlier layer's are kept there. DeepSeek-V4 turns what comes out back, so that one entry
    is key and value; Gemma 4 rotates its keys only and keeps both.
    """
    for spec in layer.attentions:
        if spec.shared_keys:
            continue
        heads = 1 if spec.kind == "mla" else spec.key_value_heads
        yield CachePart(_entry(spec) * element, most=spec.window, heads=heads)
        if spec.compression is not None:
            yield CachePart(spec.head_dim * element, spec.compression.ratio)
        if spec.indexer is not None and not spec.indexer.shared:
            each = 1
            if spec.indexer.compressed and spec.compression is not None:
                each = spec.compression.ratio
            yield CachePart(spec.indexer.head_dim * FORMATS[INDEX_FORMAT].bytes, each)


def _entry(spec: AttentionSpec) -> int:
    """Numbers that attention keeps of a token."""
    if spec.kind == "mla":
        return spec.kv_lora_rank + spec.qk_rope_head_dim
    key, value = spec.head_dim, spec.value_head_dim
    if spec.key_is_value and spec.output_groups:
        value = 0
    return spec.key_value_heads * (key + value)


def recurrent_bytes(mixer: Mixer, element: float, number: float = STATE_BYTES) -> float:
    """Bytes of a mixer's state for one sequence; 0 for attention [B].

    Parameters
    ----------
    mixer : AttentionSpec, RecurrenceSpec or ShortConvolutionSpec
    element : float
        One input that a convolution keeps [B].
    number : float
        One number of a state whose format the model does not state [B].

    Notes
    -----
    A recurrence keeps ``heads x key_dim x value_dim`` numbers, a convolution of K taps the last
    K - 1 inputs of every channel.
    """
    if isinstance(mixer, AttentionSpec):
        return 0.0
    if isinstance(mixer, RecurrenceSpec):
        state = (mixer.state_bytes or number) * mixer.heads * mixer.key_dim * mixer.value_dim
        return state + element * max(mixer.conv_kernel - 1, 0) * mixer.conv_channels
    return element * (mixer.kernel - 1) * mixer.channels
