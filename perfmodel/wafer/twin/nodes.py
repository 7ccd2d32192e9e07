"""What is asked of the generator's first stage: iterations, their nodes and their experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.system import WaferSystem
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
