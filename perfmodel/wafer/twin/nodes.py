"""Node level of the generator's twin in closed form: iterations and their table.

Rows one by one, as the generator writes them, are `perfmodel.wafer.twin.tree`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.table import Column, Table, flags
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.components import layer_components
from perfmodel.wafer.twin.exchange import exchange_counts
from perfmodel.wafer.twin.facts import GeneratorModel, generator_model, layer_number
from perfmodel.wafer.twin.setting import Iteration

Routed = Callable[[int], RoutedTokens]
"""Step of decoding, or -1 for the prefill -> experts of its tokens."""
PREFILL = -1
STEPS = ("ends", "all")


def decode_steps(count: int, which: str = "ends") -> tuple[int, ...]:
    """Return the steps of decoding that are looked at.

    Between the first and the last step all counts but those of experts are linear in the
    context (in whole tokens per node), so that the generator skips them.

    Parameters
    ----------
    count : int
        Steps.
    which : {"ends", "all"}

    Raises
    ------
    DataError
        Another word, or no step.
    """
    if type(count) is not int or not 1 <= count <= 2**20:
        raise DataError(f"key 'osl': a whole number of 1 to {2**20} steps, not {count}")
    if which not in STEPS:
        raise DataError(f"key 'steps': unknown '{which}'; known: {', '.join(STEPS)}")
    return tuple(range(count)) if which == "all" else tuple(dict.fromkeys((0, count - 1)))


def iterations(
    model: ModelSpec,
    systems: dict[str, WaferSystem],
    batch: int,
    prompt: int,
    steps: Sequence[int],
    *,
    precision: str = "fp16",
    speculative: int = 0,
    layers: str = "all",
) -> dict[int, Iteration]:
    """Return iterations by step.

    Parameters
    ----------
    model : ModelSpec
    systems : dict of str to WaferSystem
        For ``prefill`` and ``decode``, as far as the steps need them.
    batch, prompt : int
        Sequences, and tokens of each that are read.
    steps : sequence of int
        `PREFILL`, and numbers of steps of decoding: step i sees prompt + i tokens.
    precision : {"fp16", "fp8"}
    speculative : int
        Tokens that are guessed beside the next one.
    layers : str
        Names such as ``decode5,lm_head``, or ``all``.

    Raises
    ------
    ModelError, StrategyError, DataError
        A model, system, layer or size that the generator does not have.
    """
    facts = generator_model(model)
    names = facts.layer_names(layers)
    if type(prompt) is not int or prompt < 1:
        raise DataError(f"key 'isl': a whole number above 0, not {prompt}")
    if type(speculative) is not int or not 0 <= speculative < 2**20:
        raise DataError(f"key 'speculative': a whole number of at least 0, not {speculative}")
    if model.max_positions and prompt + max(steps) > model.max_positions:
        raise DataError(
            f"key 'isl': {prompt} tokens and {max(steps)} steps exceed the {model.max_positions} "
            f"positions of {model.name}"
        )
    found = {}
    for step in steps:
        phase = "prefill" if step == PREFILL else "decode"
        if phase not in systems:
            raise StrategyError(f"system: no block '{phase}'")
        found[step] = Iteration(
            facts,
            systems[phase],
            batch,
            prompt if step == PREFILL else 1 + speculative,
            0 if step == PREFILL else prompt + step,
            precision,
            names,
        )
    return found


def expert_layer(facts: GeneratorModel, layer: str) -> int:
    """Return which of the layers with experts a layer is, from 0."""
    return layer_number(layer) - facts.dense_layers


def experts_of(iteration: Iteration, routed: RoutedTokens | None, layer: str) -> Integers:
    """Return the experts of a layer's tokens: shape (batch, length, top_k).

    Raises
    ------
    DataError
        There is no routing, or it lacks the layer or has another number of experts.
    """
    facts = iteration.model
    if routed is None:
        raise DataError(f"routing: layer '{layer}' has experts; state which its tokens go to")
    at, known = expert_layer(facts, layer), len(routed.experts)
    if routed.num_experts != facts.experts:
        raise DataError(
            f"routing: {routed.num_experts} experts; the model has {facts.experts} a layer"
        )
    if known > 1 and at >= known:
        raise DataError(
            f"routing: {known} layers; '{layer}' is the model's layer {at} with experts, from 0"
        )
    return routed.of_layer(at)


def compat_nodes(
    model: ModelSpec,
    systems: dict[str, WaferSystem],
    batch: int,
    prompt: int,
    steps: Sequence[int],
    routed: Routed | None = None,
    *,
    nodes: Sequence[int] | None = None,
    **options: Any,
) -> Table:
    """Return what the generator counts, summed over rows that do the same.

    Parameters
    ----------
    model, systems, batch, prompt, steps
        As of `iterations`.
    routed : callable, optional
        Step -> `RoutedTokens`; one layer stands for all where it has one only.
    nodes : sequence of int, optional
        All of them where not stated.
    **options
        ``precision``, ``speculative`` and ``layers`` of `iterations`.

    Returns
    -------
    Table
        Over ``row``: ``step`` (-1: prefill), ``node``, ``layer`` (number; that of layers for
        the LM head), ``component``, ``operation``, ``rows``, ``macs``, ``footprint`` [B],
        ``reads`` [B] and ``sent`` [B].

    Raises
    ------
    ModelError, StrategyError, DataError
        As of `iterations`; a routing that does not fit, a node that there is not.
    """
    parts: list[list[Any]] = []
    for step, iteration in iterations(model, systems, batch, prompt, steps, **options).items():
        chosen = chosen_nodes(iteration.system, nodes)
        tokens = (
            routed(step)
            if routed and any(map(iteration.model.has_experts, iteration.layers))
            else None
        )
        for layer, components in iteration_components(iteration, tokens):
            number = layer_number(layer) if layer.startswith("decode") else iteration.model.layers
            for part in components:
                columns = [
                    np.broadcast_to(np.asarray(value, np.int64), iteration.system.nodes)[chosen]
                    for value in (part.rows, part.macs, part.weights, part.weights, part.sent)
                ]
                there = columns[0] > 0
                size = int(there.sum())
                parts.append(
                    [
                        np.full(size, step),
                        chosen[there],
                        np.full(size, number),
                        part.name,
                        part.operation,
                        *(column[there] for column in columns),
                    ]
                )
    return _table(parts)


def iteration_components(
    iteration: Iteration, routed: RoutedTokens | None
) -> Iterator[tuple[str, list[Any]]]:
    """Yield each layer's name and its components; equal layers are counted once."""
    plain: dict[bool, list[Any]] = {}
    for layer in iteration.layers:
        if iteration.model.has_experts(layer):
            counts = exchange_counts(iteration, experts_of(iteration, routed, layer))
            yield layer, list(layer_components(iteration, layer, counts))
            continue
        head = not layer.startswith("decode")
        if head not in plain:
            plain[head] = list(layer_components(iteration, layer))
        yield layer, plain[head]


def chosen_nodes(system: WaferSystem, nodes: Sequence[int] | None) -> Integers:
    """Return the nodes asked for, all where none are.

    Raises
    ------
    DataError
        A node that there is not.
    """
    if nodes is None:
        return np.arange(system.nodes)
    for node in nodes:
        if not 0 <= node < system.nodes:
            raise DataError(f"key 'nodes': there is no node {node}; known: 0 to {system.nodes - 1}")
    return np.array(list(dict.fromkeys(nodes)), np.int64)


_COLUMNS = (
    ("step", "step of decoding, -1 for the prefill", ""),
    ("node", "node", ""),
    ("layer", "layer, the number of layers for the LM head", ""),
    ("component", "part of the layer", ""),
    ("operation", "operation", ""),
    ("rows", "rows of the generator's table", ""),
    ("macs", "multiply-accumulates", ""),
    ("footprint", "weights and cache that are needed", "B"),
    ("reads", "weights and cache that are read", "B"),
    ("sent", "messages, each counted as one vector", "B"),
)


def _table(parts: list[list[Any]]) -> Table:
    found = {}
    for at, (name, meaning, unit) in enumerate(_COLUMNS):
        attrs = {"long_name": meaning} | ({"units": unit} if unit else {})
        if name in ("component", "operation"):
            labels = list(dict.fromkeys(part[at] for part in parts))
            codes = np.array([labels.index(part[at]) for part in parts], np.int8)
            sizes = [len(part[0]) for part in parts]
            found[name] = Column(("row",), np.repeat(codes, sizes), attrs | flags(labels))
        else:
            found[name] = Column(("row",), np.concatenate([part[at] for part in parts]), attrs)
    return Table(found, {})
