"""perfmodel's parameter counts beside transformers'."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oracle import meta

STATES = ("exact", "wrong", "refused", "crashed", "no oracle")


@dataclass(frozen=True)
class Verdict:
    """How a description is read.

    Attributes
    ----------
    name : str
        Class or file.
    state : str
        One of `STATES`.
    note : str
        Numbers that differ, the refusal, or why transformers cannot build the model.
    """

    name: str
    state: str
    note: str = ""


def differing(model: Any, expected: meta.Count) -> list[str]:
    """Return what of a `ModelSpec` differs from an oracle's count, in words."""
    from perfmodel.model.layers import layer_parameters

    found = []
    numbers = [("total", model.parameter_count(), expected.text)]
    if expected.active is not None:
        numbers.append(("active", model.active_parameter_count(), expected.active))
    for what, ours, theirs in numbers:
        if ours != theirs:
            found.append(f"{what} {ours:,} should be {theirs:,} ({ours - theirs:+,})")
    towers = sum(tower.parameter_count() for tower in model.towers if tower.name == "vision")
    if towers not in (0, expected.towers) and expected.towers:
        found.append(f"towers {towers:,} should be {expected.towers:,}")
    layers = [
        layer_parameters(layer, stack.hidden_size).total
        for stack in (*model.encoders, model)
        for layer in stack.layers
    ]
    if len(layers) != len(expected.layers):
        found.append(f"{len(layers)} layers should be {len(expected.layers)}")
    else:
        pairs = enumerate(zip(layers, expected.layers, strict=True))
        wrong = [index for index, (ours, theirs) in pairs if ours != theirs]
        if wrong:
            first = wrong[0]
            found.append(
                f"{len(wrong)} of {len(layers)} layers, the first {first}: "
                f"{layers[first]:,} should be {expected.layers[first]:,}"
            )
    return found


def verdict(name: str, document: Mapping[str, Any], config: Any) -> Verdict:
    """Return how perfmodel reads a ``config.json`` that transformers reads as `config`."""
    from perfmodel.base.errors import ModelError
    from perfmodel.model.presets import load_model

    try:
        expected = meta.count(config)
    except meta.NoOracleError as error:
        return Verdict(name, "no oracle", str(error))
    try:
        model = load_model(document)
        found = differing(model, expected)
    except ModelError as error:
        return Verdict(name, "refused", str(error))
    except Exception as error:  # a fault of ours, to be listed and not to end the listing
        return Verdict(name, "crashed", f"{type(error).__name__}: {error}")
    return Verdict(name, "wrong" if found else "exact", "; ".join(found))


def report(verdicts: Iterable[Verdict], as_json: bool) -> int:
    """Print verdicts and how many there are of each; exit code 1 where one is wrong."""
    found = []
    for one in verdicts:
        found.append(one)
        if not as_json:
            print(f"{one.name}: {one.state}{': ' if one.note else ''}{one.note}", flush=True)
    counts = collections.Counter(one.state for one in found)
    totals = {state: counts[state] for state in STATES}
    if as_json:
        print(json.dumps({"counts": totals, "verdicts": [vars(one) for one in found]}, indent=1))
    else:
        print(", ".join(f"{number} {state}" for state, number in totals.items()))
    return int(bool(counts["wrong"] or counts["crashed"]))
