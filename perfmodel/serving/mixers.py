"""Mixers of served passes: decoding sequences, and chunks of prompts behind what is cached.

Shape letters: b sequences, s queries of each, L keys, q tokens of a chunk, d before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import FORMATS, WIDE_BYTES, cache_rule
from perfmodel.compute.attention import attention_times
from perfmodel.compute.attention_device import check_cache
from perfmodel.compute.gemm import weight_only_times
from perfmodel.compute.recurrence import recurrence_times
from perfmodel.compute.sparse_attention import indexer_times, sparse_attention_times
from perfmodel.compute.stream import stream_times
from perfmodel.model.attention import AttentionSpec, IndexerSpec
from perfmodel.model.layers import Mixer
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.priced import distinct_rows
from perfmodel.operations.sparse_block import absorbs_keys
from perfmodel.serving.layouts import ProductFormat
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


class Calls(NamedTuple):
    """Sequences alike in one pass; columns of equal length.

    Attributes
    ----------
    tensor_parallel : ndarray
        Devices of the attention rank.
    batch : ndarray
        Sequences.
    queries, keys : ndarray
        Tokens that each runs, and those up to its end, its own included.
    """

    tensor_parallel: Floats
    batch: Floats
    queries: Floats
    keys: Floats


class MixerFormats(NamedTuple):
    """Number formats of a mixer.

    Attributes
    ----------
    wide : str
        Format of 16 bits that the device has.
    products, cache : str
        Of attention's products, and of cached keys and values.
    library : str
        `perfmodel.compute.attention.attention_times`.
    weights : ProductFormat
        Of projections.
    """

    wide: str
    products: str
    cache: str
    library: str
    weights: ProductFormat


def check_served(model: ModelSpec) -> None:
    """Refuse models whose passes need more than the tokens that they run.

    Raises
    ------
    StrategyError
        Attention to an encoder.
    """
    for layer in model.layer_kinds()[0]:
        if any(item.cross for item in layer.attentions):
            raise StrategyError(
                f"model {model.name} attends to an encoder's tokens; serving takes decoders only"
            )


def check_cached(model: ModelSpec, hardware: Hardware, engine: Engine, cache: str) -> None:
    """Refuse a cache that an engine, a device or a model's attention has no kernels for.

    Raises
    ------
    StrategyError
        The format has no rule for its time, or the engine no such cache.
    HardwareError
        As of `perfmodel.compute.attention_device.check_cache`.
    """
    rule = cache_rule(cache)
    if rule.engines and engine.engine not in rule.engines:
        raise StrategyError(
            f"engine {engine.name} has no cache in {cache}; possible with "
            f"{' or '.join(rule.engines)}"
        )
    specs = [spec for layer in model.layer_kinds()[0] for spec in layer.attentions]
    kinds = {"sparse" if x.sparse else "latent" if x.kind == "mla" else "grouped" for x in specs}
    check_cache(hardware, cache, sorted(kinds))


def mixer_formats(
    hardware: Hardware, engine: Engine, cache: str, weights: ProductFormat, *, prefill: bool
) -> MixerFormats:
    """Return in which formats an engine runs mixers over a cache of a format."""
    rates = hardware.device.peak_flops
    wide = "bf16" if "bf16" in rates else "fp16"
    rule = cache_rule(cache)
    narrow = rule.products in rates
    if FORMATS[cache].bytes >= WIDE_BYTES:
        cache = wide
    elif prefill and engine.wide_prefill and not rule.own_products:
        cache = wide if narrow else cache
        narrow = False
    library = engine.engine if engine.engine == "trtllm" else ""
    return MixerFormats(wide, rule.products if narrow else wide, cache, library, weights)


def decode_times(hardware: Hardware, mixer: Mixer, formats: MixerFormats, calls: Calls) -> Floats:
    """Time a mixer of one layer over decoding sequences, its append to the cache left out.

    Parameters
    ----------
    hardware : Hardware
    mixer : AttentionSpec, RecurrenceSpec or ShortConvolutionSpec
    formats : MixerFormats
    calls : Calls

    Returns
    -------
    ndarray, shape (calls,)
        [s].
    """
    if isinstance(mixer, RecurrenceSpec):
        # Tokens to be verified pass through the state one after the other.
        sequences = calls._replace(batch=calls.batch * calls.queries)
        return _recurrence(hardware, mixer, formats, sequences, "decode")
    if not isinstance(mixer, AttentionSpec):
        return np.zeros(calls.batch.size)
    if mixer.sparse:
        return _sparse(hardware, mixer, formats, calls, "decode")
    if mixer.kind != "mla":
        return _grouped(hardware, mixer, formats, calls)
    heads = np.maximum(mixer.heads / calls.tensor_parallel, 1.0)
    rank = float(mixer.kv_lora_rank)
    ones = np.ones(heads.size)
    # Queries of a sequence share its latent as heads do, and stand beside them in a tile's rows
    # (FlashMLA's q_seq_per_hk).
    found = _attention(
        hardware,
        formats,
        batch=calls.batch,
        query_length=ones,
        key_length=calls.keys,
        heads=heads * calls.queries,
        key_value_heads=ones,
        head_dim_qk=(rank + mixer.qk_rope_head_dim) * ones,
        head_dim_v=rank * ones,
        latent=True,
    )
    rows = calls.batch * calls.queries
    ahead = _product(hardware, formats.wide, rows, rank, float(mixer.qk_nope_head_dim), heads)
    behind = _product(hardware, formats.wide, rows, float(mixer.value_head_dim), rank, heads)
    return found + ahead + behind


def prefill_times(
    hardware: Hardware, engine: Engine, mixer: Mixer, formats: MixerFormats, calls: Calls
) -> Floats:
    """Time a mixer of one layer over chunks of prompts; see `decode_times`."""
    if isinstance(mixer, RecurrenceSpec):
        return _recurrence(hardware, mixer, formats, calls, "prefill")
    if not isinstance(mixer, AttentionSpec):
        return np.zeros(calls.batch.size)
    if mixer.sparse:
        return _sparse(hardware, mixer, formats, calls, "forward")
    if mixer.kind != "mla":
        return _grouped(hardware, mixer, formats, calls) + _prefill_passes(
            hardware, engine, mixer, calls
        )
    # All cached latents become keys and values of every head again, in 16 bits: over an fp8 cache
    # rows of SGLang and TensorRT-LLM take 0.96 to 1.2 of the time (mla.csv of 095f58a).
    formats = formats._replace(products=formats.wide, cache=formats.wide)
    heads = np.maximum(mixer.heads / calls.tensor_parallel, 1.0)
    width = heads * (mixer.qk_nope_head_dim + mixer.value_head_dim)
    tokens = calls.batch * calls.keys
    ones = np.ones(heads.size)
    up = _product(
        hardware, formats.weights.products, tokens, width, float(mixer.kv_lora_rank), ones,
        formats.weights.weight_bytes,
    )  # fmt: skip
    moved = 2.0 * tokens * heads * mixer.head_dim
    assembled = _moved(hardware, moved, moved, ones)
    core = _attention(
        hardware,
        formats,
        batch=calls.batch,
        query_length=calls.queries,
        key_length=calls.keys,
        heads=heads,
        key_value_heads=heads,
        head_dim_qk=float(mixer.head_dim) * ones,
        head_dim_v=float(mixer.value_head_dim) * ones,
        prefill=True,
    )
    return up + assembled + core


def _grouped(
    hardware: Hardware, spec: AttentionSpec, formats: MixerFormats, calls: Calls
) -> Floats:
    """Attention with keys and values of its own; chunks end the keys where they begin."""
    ones = np.ones(calls.batch.size)
    window = float(spec.window) * ones
    keys = calls.keys
    if spec.kind == "chunked":
        keys, window = np.minimum(keys, np.maximum(window, calls.queries)), 0.0 * ones
    return _attention(
        hardware,
        formats,
        batch=calls.batch,
        query_length=calls.queries,
        key_length=keys,
        heads=np.maximum(spec.heads / calls.tensor_parallel, 1.0),
        key_value_heads=np.maximum(spec.key_value_heads / calls.tensor_parallel, 1.0),
        head_dim_qk=float(spec.head_dim) * ones,
        head_dim_v=float(spec.value_head_dim) * ones,
        window=window,
    )


def _attention(
    hardware: Hardware, formats: MixerFormats, latent: bool = False, prefill: bool = False,
    **columns: Any,
) -> Floats:  # fmt: skip
    names = list(columns)
    groups = np.ceil(columns["key_value_heads"] - 1e-9)
    columns |= {"key_value_heads": groups, "heads": np.ceil(columns["heads"] / groups) * groups}
    whole = [np.ceil(columns[name] - 1e-9) for name in names]
    distinct, inverse = distinct_rows(whole)
    shapes: dict[str, Any] = dict(zip(names, distinct, strict=True))
    found = attention_times(
        hardware,
        formats.products,
        **shapes,
        kv_precision=formats.cache,
        library=formats.library,
        latent=latent,
        prefill=prefill,
    )
    return found.time[inverse]


def _sparse(
    hardware: Hardware, spec: AttentionSpec, formats: MixerFormats, calls: Calls, phase: str
) -> Floats:
    """Attention to chosen or compressed keys, and the choice."""
    heads = np.maximum(spec.heads / calls.tensor_parallel, 1.0)
    latent = absorbs_keys(spec)
    groups = np.maximum(spec.key_value_heads / calls.tensor_parallel, 1.0)
    width, values = float(spec.head_dim), float(spec.value_head_dim)
    if latent:
        width, values = float(spec.kv_lora_rank + spec.qk_rope_head_dim), float(spec.kv_lora_rank)
        groups = np.ones(heads.size)
    indexer, compression = spec.indexer, spec.compression
    ratio = 0.0 if indexer is None else 1.0
    if compression is not None:
        ratio = float(compression.ratio)
    lengths: dict[str, Any] = {
        "batch": np.ceil(calls.batch),
        "query_length": np.ceil(calls.queries),
        "key_length": np.maximum(np.ceil(calls.keys), np.ceil(calls.queries)),
    }
    found = sparse_attention_times(
        hardware,
        formats.products,
        **lengths,
        heads=np.ceil(heads / groups) * np.ceil(groups),
        key_value_heads=np.ceil(groups),
        head_dim_qk=width,
        head_dim_v=values,
        selected=0 if indexer is None else _whole_blocks(indexer),
        window=spec.window,
        compression=ratio,
        block=1 if indexer is None else indexer.block,
        shared_key_value=latent or spec.key_is_value,
        phase=phase,
        kv_precision=formats.cache,
    ).time
    if indexer is not None and not indexer.shared:
        found = (
            found
            + indexer_times(
                hardware,
                **lengths,
                heads=indexer.heads,
                head_dim=indexer.head_dim,
                top_k=_whole_blocks(indexer),
                compression=max(ratio, 1.0),
                block=indexer.block,
                phase=phase,
            ).time
        )
    return found


def _whole_blocks(indexer: IndexerSpec) -> float:
    return float(-(-indexer.top_k // indexer.block) * indexer.block)


def _recurrence(
    hardware: Hardware, spec: RecurrenceSpec, formats: MixerFormats, calls: Calls, phase: str
) -> Floats:
    heads = np.maximum(np.ceil(spec.heads / calls.tensor_parallel), 1.0)
    key_heads = np.maximum(np.ceil(spec.key_heads / calls.tensor_parallel), 1.0)
    columns = [calls.batch, calls.queries, np.ceil(heads / key_heads) * key_heads, key_heads]
    distinct, inverse = distinct_rows([np.ceil(x) for x in columns])
    batch, length, all_heads, groups = distinct
    return recurrence_times(
        hardware,
        formats.wide,
        kind=spec.kind,
        batch=batch,
        length=length if phase != "decode" else 1,
        heads=all_heads,
        key_heads=groups,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        chunk=spec.chunk,
        phase=phase,
    ).time[inverse]


def _prefill_passes(
    hardware: Hardware, engine: Engine, spec: AttentionSpec, calls: Calls
) -> Floats:
    """Passes over queries, keys and values ahead of an engine's prefill kernel."""
    newer = "fp4" in hardware.device.peak_flops
    passes = engine.prefill_qkv_passes_blackwell if newer else engine.prefill_qkv_passes
    if not passes:
        return np.zeros(calls.batch.size)
    heads = np.maximum(spec.heads / calls.tensor_parallel, 1.0)
    groups = np.maximum(spec.key_value_heads / calls.tensor_parallel, 1.0)
    numbers = heads * spec.head_dim + groups * (spec.head_dim + spec.value_head_dim)
    moved = 2.0 * calls.batch * calls.queries * numbers
    return passes * _moved(hardware, moved, moved, np.ones(moved.size))


def _moved(hardware: Hardware, read: Floats, written: Floats, launches: Floats) -> Floats:
    distinct, inverse = distinct_rows([read, written, launches])
    return stream_times(hardware, distinct[0], distinct[1], launches=distinct[2]).time[inverse]


def _product(
    hardware: Hardware, precision: str, m: Floats, n: Any, k: float, batch: Floats,
    weight_bytes: float = 2.0,
) -> Floats:  # fmt: skip
    columns = [np.broadcast_to(np.asarray(x, np.float64), m.shape) for x in (m, n, k, batch)]
    distinct, inverse = distinct_rows([np.ceil(np.maximum(x, 1.0) - 1e-9) for x in columns])
    return weight_only_times(hardware, precision, weight_bytes, *distinct)[inverse]
