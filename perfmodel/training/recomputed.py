"""Which layers of a pipeline's chunks are recomputed, where not all are, or several as one.

Layers that are kept, and layers recomputed in groups, are parts of a model of their own: a stage
holds some number of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from perfmodel.model.build import ModelSpec
from perfmodel.operations.parts import Part, model_parts
from perfmodel.strategy.fields import RECOMPUTE_METHODS
from perfmodel.training.layout import Layout


class Recomputed(NamedTuple):
    """Which layers are recomputed whole.

    Attributes
    ----------
    method : str
        Of `perfmodel.strategy.fields.RECOMPUTE_METHODS`: ``single``, all one by one; ``uniform``,
        so many together; ``block``, the first so many of every chunk; ``every``, every
        so many-th.
    layers : int
        How many.
    """

    method: str = "single"
    layers: int = 0


ALL = Recomputed()


def recomputed_of(method: int = 0, layers: int = 0) -> Recomputed:
    """Return the choice of a strategy, from its columns; one layer a group is all of them."""
    name = RECOMPUTE_METHODS[method]
    if name == "single" or (name in ("uniform", "every") and layers == 1):
        return ALL
    return Recomputed(name, layers)


def chunk_parts(
    model: ModelSpec, layout: Layout, stages: Sequence[int], chosen: Recomputed = ALL
) -> list[list[Part]]:
    """Return what every chunk holds, as layers run: layers first, then what stands beside them.

    ``every`` counts the layers of a rank through its chunks (torchtitan,
    distributed/activation_checkpoint.py, ``_apply_layer_sac``: one counter of its process).

    Parameters
    ----------
    model : ModelSpec
    layout : Layout
    stages : sequence of int
        Stage of every chunk.
    chosen : Recomputed
    """
    parts = model_parts(model)
    kinds = {part.layer: part for part in parts if part.layer is not None}
    # By object, as hashes of layers take their time.
    objects = {id(layer): layer for layer in (*model.layers, *model.mtp_layers)}
    of_layer = {key: kinds[layer] for key, layer in objects.items()}
    kept = {id(part): kept_part(part) for part in kinds.values()}
    edges = {part.kind: part for part in parts if part.layer is None}
    passed = [0] * (max(stages) + 1)  # layers of a rank so far
    chunks, first = [], 0
    for stage, size in zip(stages, layout.layers, strict=True):
        own = [of_layer[id(layer)] for layer in model.layers[first : first + size]]
        chunks.append(_treated(own, [kept[id(part)] for part in own], passed[stage], chosen))
        passed[stage] += size
        first += size
    chunks[layout.embedding].append(edges["embedding"])
    chunks[layout.output].append(edges["output"])
    for layer in model.mtp_layers:
        module = [edges["mtp"], of_layer[id(layer)]]
        if chosen.method == "block":
            # Megatron-Core recomputes them whole or, where it goes by blocks, not at all
            # (multi_token_prediction.py, ``_checkpointed_forward``).
            module = [kept_part(part) for part in module]
        chunks[layout.modules] += [*module, edges["output"]]
    return chunks


def _treated(
    layers: Sequence[Part], kept: Sequence[Part], passed: int, chosen: Recomputed
) -> list[Part]:
    """Return the layers of one chunk as they are treated, ahead of which a rank has `passed`.

    `kept` are the same layers without recomputation.
    """
    if chosen.method == "block":
        first = chosen.layers
        return [*layers[:first], *kept[first:]]
    if chosen.method == "every":
        numbered = enumerate(zip(layers, kept, strict=True), passed + 1)
        return [again if n % chosen.layers == 0 else once for n, (again, once) in numbered]
    if chosen.method == "uniform":
        starts = range(0, len(layers), chosen.layers)
        parts = {id(part): part for part in layers}
        grouped = {
            key: replace(part, name=f"{part.name}.grouped", grouped=True)
            for key, part in parts.items()
        }
        return [
            *(grouped[id(part)] for part in layers),
            *(_group(layers[start : start + chosen.layers]) for start in starts),
        ]
    return list(layers)


def kept_part(part: Part) -> Part:
    """Return the same part without recomputation."""
    return replace(part, name=f"{part.name}.kept", kept=True)


def _group(layers: Sequence[Part]) -> Part:
    members = tuple(part.layer for part in layers if part.layer is not None)
    return Part("+".join(part.name for part in layers), "group", members=members)


def parts_with(model: ModelSpec, chunks: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """Return the parts of a model, and behind them what else these chunks hold."""
    held = (part for chunk in chunks for part in chunk)
    return tuple(dict.fromkeys((*model_parts(model), *held)))
