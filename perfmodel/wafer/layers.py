"""What the layers of a model do on a mesh of cores: columns of parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.errors import ModelError
from perfmodel.kernels.wafer.columns import (
    DECODE,
    PRODUCT,
    SCORES,
    SUM,
    VALUES,
    MeshParts,
)
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec
from perfmodel.model.pieces import Piece
from perfmodel.model.spec import ModelSpec

HEAD = "head"
CLEAR, NORM, ROTATION, SOFTMAX, GATE = 1.0, 5.0, 3.0, 10.0, 8.0
"""Elementwise operations on one number, counted in the decode kernel of He et al. (OSDI 2025;
Decode/WSE-2/src/decode.csl of MeshInfra/WaferLLM). A product clears its result. A norm squares,
adds up, multiplies by weight and scale, and its residual is added. Rotary positions take six
operations on half of the numbers. Scores are cleared, scaled, compared, reduced by the largest,
exponentiated (a division, an addition, two products), added up and divided. A gate takes an
exponential, three more operations and the product with the other half."""


class Part(NamedTuple):
    """One part of a layer; see `perfmodel.kernels.wafer.columns.MeshParts`."""

    name: str
    kind: int
    k: float
    n: float
    copies: float = 1.0
    visited: float = 1.0
    joined: int = 0
    merged: int = 0
    window: float = 0.0
    passes: float = 0.0


class WaferParts(NamedTuple):
    """Parts of a model in one phase.

    Attributes
    ----------
    columns : MeshParts
    names : tuple of str
        Of every part.
    layer_names : tuple of str
        Of every kind of layer; the last is what follows all layers.
    counts : array, shape (kinds of layers,)
        Layers of every kind.
    """

    columns: MeshParts
    names: tuple[str, ...]
    layer_names: tuple[str, ...]
    counts: Floats


def wafer_parts(model: ModelSpec, phase: int) -> WaferParts:
    """Return what the layers of a model do in a phase.

    Parameters
    ----------
    model : ModelSpec
    phase : int
        `perfmodel.kernels.wafer.columns.DECODE` (latent attention in latent space) or `PREFILL`
        (keys and values of all heads).

    Returns
    -------
    WaferParts
        Projections of queries, keys and values share one sum over cores, and so do both inner
        products of a gated network; norms and softmax are sums of one number per token, as in
        the kernels of He et al. (OSDI 2025). Elementwise work is counted with the part before it.

    Raises
    ------
    ModelError
        Layers that have no rule here: recurrences, sparse or cross attention, encoders.
    """
    if model.encoders:
        raise ModelError(f"{model.name}: key 'towers': encoders have no mapping on a mesh yet")
    kinds, index = model.layer_kinds()
    listed = [list(_layer_parts(model, layer, phase)) for layer in kinds]
    listed.append(
        [
            Part("norm", SUM, model.hidden_size, 1.0, passes=NORM),
            Part(HEAD, PRODUCT, model.table_width, model.vocab_size, passes=CLEAR),
        ]
    )
    parts = [part for one in listed for part in one]

    def column(name: str, kind: type = np.float64) -> np.ndarray:
        return np.array([getattr(part, name) for part in parts], kind)

    return WaferParts(
        MeshParts(
            kind=column("kind", np.int64),
            k=column("k"),
            n=column("n"),
            copies=column("copies"),
            visited=column("visited"),
            joined=column("joined", np.int64),
            merged=column("merged", np.int64),
            passes=column("passes"),
            window=column("window"),
            first=np.cumsum([0, *map(len, listed)]),
            cache=np.array([_cache_widths(layer) for layer in kinds], np.float64),
            layers=np.array(index, np.int64),
            hidden=float(model.hidden_size * model.streams),
            beside=float(
                model.embedding_parameters() + model.output_parameters() + model.edge_parameters()
            ),
        ),
        tuple(part.name for part in parts),
        (*_names(kinds), HEAD),
        np.bincount(index).astype(np.float64),
    )


def _names(kinds: Sequence[LayerSpec]) -> list[str]:
    """Name kinds of layers by what they hold: ``dense``, ``experts``, numbered where alike."""
    words = []
    for layer in kinds:
        word = "experts" if layer.experts else "dense"
        if any(part.kind in ("sliding", "chunked") for part in layer.attentions):
            word += "_window"
        words.append(word)
    return [
        f"{word}{words[:place].count(word)}" if words.count(word) > 1 else word
        for place, word in enumerate(words)
    ]


def _layer_parts(model: ModelSpec, layer: LayerSpec, phase: int) -> Iterator[Part]:
    others = [mixer for mixer in layer.mixers if not isinstance(mixer, AttentionSpec)]
    if others:
        raise ModelError(
            f"{model.name}: key 'mixers': layers with a state ({type(others[0]).__name__}) have no "
            "mapping on a mesh yet; attention has"
        )
    norms = max(layer.norms, 1)
    for mixer in layer.attentions:
        for word, wrong in (("sparse", mixer.sparse), ("cross", mixer.cross)):
            if wrong:
                raise ModelError(
                    f"{model.name}: key 'attention': {word} attention has no mapping on a mesh yet"
                )
        yield Part("attention_norm", SUM, model.hidden_size, 1.0, passes=NORM)
        yield from _attention_parts(mixer, model.hidden_size, phase)
    for place in range(norms - len(layer.attentions)):
        name = "mlp_norm" if not place else "further_norm"
        yield Part(name, SUM, model.hidden_size, 1.0, passes=NORM)
    for mlp in layer.mlps:
        for piece in mlp.pieces(model.hidden_size):
            if piece.kind != "matrix":
                continue
            if mlp.gated and piece.name.endswith("up") and piece.split == "columns":
                # Gate and up are one matrix in the model, and two products of one sum here.
                yield _product(piece, piece.name + "_gate", outputs=piece.outputs // 2, joined=1)
                yield _product(piece, piece.name, outputs=piece.outputs // 2, passes=GATE)
            else:
                yield _product(piece, piece.name, passes=GATE if piece.name == "up" else 0.0)
    for piece in layer.extra:
        if piece.kind == "matrix":
            yield _product(piece, piece.name)


def _product(
    piece: Piece, name: str, *, outputs: int = 0, joined: int = 0, passes: float = 0.0
) -> Part:
    return Part(
        name,
        PRODUCT,
        piece.inputs,
        outputs or piece.outputs,
        piece.copies,
        piece.visited,
        joined,
        int(piece.split == "rows" and piece.copies > 1),
        passes=CLEAR + passes,
    )


def _attention_parts(mixer: AttentionSpec, hidden: int, phase: int) -> Iterator[Part]:
    pieces = [piece for piece in mixer.pieces(hidden) if piece.kind == "matrix"]
    into = [piece for piece in pieces if not piece.name.startswith("output")]
    out = [piece for piece in pieces if piece.name.startswith("output")]
    # Products of the same input are summed together: those of the hidden state come first.
    into.sort(key=lambda piece: piece.inputs != hidden)
    for place, piece in enumerate(into):
        last = place + 1 == len(into) or into[place + 1].inputs != piece.inputs
        turned = mixer.kind != "mla" and piece.name in ("query", "key")
        passes = ROTATION if turned else 0.0
        yield _product(piece, piece.name, joined=0 if last else 1, passes=passes)
    keys, values = mixer.head_dim, mixer.value_head_dim
    if mixer.kind == "mla" and phase == DECODE:
        keys = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        values = mixer.kv_lora_rank
    window = float(mixer.window)
    yield Part("scores", SCORES, mixer.heads * keys, 0.0, window=window, passes=SOFTMAX)
    yield Part("softmax_max", SUM, 0.0, 1.0)
    yield Part("softmax_sum", SUM, 0.0, 1.0)
    yield Part("values", VALUES, 0.0, mixer.heads * values, window=window, passes=CLEAR)
    for piece in out:
        yield _product(piece, piece.name)


def _cache_widths(layer: LayerSpec) -> tuple[float, float]:
    """Numbers that a token leaves in the cache: keys, values."""
    keys = values = 0.0
    for mixer in layer.attentions:
        if mixer.shared_keys:
            continue
        if mixer.kind == "mla":
            keys += mixer.kv_lora_rank + mixer.qk_rope_head_dim
        else:
            keys += mixer.key_value_heads * mixer.head_dim
            values += 0 if mixer.key_is_value else mixer.key_value_heads * mixer.value_head_dim
    return keys, values
