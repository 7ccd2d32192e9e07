"""One run of the generator's first stage: questions in its terms, its tree as the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.compute.routing_counts import read_counts
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.nodes import PREFILL, Routed, decode_steps, iterations
from perfmodel.wafer.twin.routing import MODELS, GeneratorRouting
from perfmodel.wafer.twin.setting import Iteration
from perfmodel.wafer.twin.tree import write_tree

PHASES = ("decode", "prefill", "both")
ALIKE = {"balanced": "identical"}
"""What is dealt out evenly has another name there."""


def run_nodes(
    folder: str | Path,
    model: ModelSpec,
    systems: dict[str, WaferSystem],
    batch: int,
    prompt: int,
    generated: int = 10,
    *,
    phase: str = "decode",
    steps: str | Sequence[int] = "ends",
    routing: str | Routed = "",
    nodes: Sequence[int] | None = None,
    layers: str = "all",
    speculative: int = 0,
    precision: str = "fp16",
) -> int:
    """Write the tree that the generator writes: ``nodes/``, ``graph/``, ``footprint.json``.

    Parameters
    ----------
    folder : str or path
        Made where it does not exist; an earlier tree in it is replaced.
    model : ModelSpec
        Of DeepSeek-V3's or Llama's shape.
    systems : dict of str to WaferSystem
        By phase, as of `perfmodel.wafer.formats.system.read_systems`.
    batch, prompt, generated : int
        Sequences, tokens that each reads, and tokens that each makes.
    phase : {"decode", "prefill", "both"}
    steps : {"ends", "all"} or sequence of int
        First and last step of decoding, all, or these.
    routing : str or callable, optional
        ``identical``, ``uniform`` or ``empirical:FILE``, drawn as the generator does, or
        step (-1 for the prefill) -> `RoutedTokens`. Not stated: what the system says.
    nodes : sequence of int, optional
    layers : str
        Names such as ``decode5,lm_head``, or ``all``.
    speculative : int
        Tokens that are guessed beside the next one.
    precision : {"fp16", "fp8"}

    Returns
    -------
    int
        Rows of tables.

    Raises
    ------
    ModelError, StrategyError, DataError
        What the generator does not have, a routing that does not fit, a folder that cannot be
        written.
    """
    if phase not in PHASES:
        raise DataError(f"key 'phase': unknown '{phase}'; known: {', '.join(PHASES)}")
    decoded: tuple[int, ...] = ()
    if phase != "prefill":
        known = decode_steps(generated, steps if isinstance(steps, str) else "all")
        decoded = known if isinstance(steps, str) else tuple(sorted(set(steps)))
        if not set(decoded) <= set(known):
            raise DataError(f"key 'steps': {max(decoded)} is not among steps 0 to {known[-1]}")
    asked = iterations(
        model,
        systems,
        batch,
        prompt,
        ((PREFILL,) if phase != "decode" else ()) + decoded,
        precision=precision,
        speculative=speculative,
        layers=layers,
    )
    routed: Routed | None
    if callable(routing):
        routed = routing
    else:
        routed = _drawn(asked, routing or next(iter(asked.values())).system.routing)
    kept = prompt + (generated if decoded else 0)
    return write_tree(folder, asked, routed, kept=kept, nodes=nodes)


def _drawn(asked: Mapping[int, Iteration], words: str) -> Routed | None:
    """Return the routing that words name; None where no layer needs one."""
    first = next(iter(asked.values()))
    if not any(map(first.model.has_experts, first.layers)):
        return None
    name, _, file = words.partition(":")
    name = ALIKE.get(name, name)
    if name not in MODELS or (name == "empirical") != bool(file):
        raise DataError(
            f"routing: the generator does not draw '{words}'; it has identical, uniform "
            "and empirical:FILE with counts per expert, as its bincounts.json"
        )
    counts = np.array(read_counts(file)) if file else None
    return GeneratorRouting(asked, name, counts)
