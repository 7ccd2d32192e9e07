"""What the controls of the page ask: read from JSON, checked control by control."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import DataError, PerfModelError, did_you_mean
from perfmodel.base.precisions import ACTIVATION_FORMATS, PRECISIONS, WEIGHT_FORMATS
from perfmodel.hwprofiles import list_hardware
from perfmodel.model.presets import preset_names
from perfmodel.software.engine import ENGINES
from perfmodel.software.framework import framework_names

TRAINING, SERVING = "training", "serving"
MOST_LISTED = 8
"""Machines or precisions that stand side by side at most."""
LONGEST = 2000
"""Letters of a text that a control takes."""
MOST = 2**40
DEFAULTS: Mapping[str, Any] = {
    "kind": TRAINING,
    "model": "llama-3.1-70b",
    "hardware": ["dgx-h100"],
    "devices": 512,
    "sequence_length": 8192,
    "global_batch_size": 1024,
    "precision": ["bf16"],
    "framework": "megatron",
    "engine": "vllm",
    "served_precision": "stated",
    "input_length": 2048,
    "output_length": 512,
    "concurrency": 256,
    "memory": None,
    "where": "",
}
"""What is asked at first. Lengths are tokens, batches sequences, memory bytes of a device."""


class ControlError(DataError):
    """A control holds what it cannot: `control` is its name."""

    def __init__(self, control: str, message: str) -> None:
        super().__init__(message)
        self.control = control


@contextlib.contextmanager
def blamed_on(control: str) -> Iterator[None]:
    """Say of a failure which control has to change."""
    try:
        yield
    except ControlError:
        raise
    except PerfModelError as error:
        raise ControlError(control, str(error)) from None


@dataclass(frozen=True)
class Offer:
    """What may be chosen: presets, and files that the server was started with.

    Attributes
    ----------
    models, hardware : tuple of str
        Names or paths beside the presets.
    """

    models: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()

    @functools.cached_property
    def choices(self) -> dict[str, list[str]]:
        """Names by control."""
        return {
            "model": [*self.models, *preset_names()],
            "hardware": [*self.hardware, *list_hardware()],
            "precision": list(PRECISIONS),
            "served_precision": [it for it in ACTIVATION_FORMATS if it in WEIGHT_FORMATS],
            "framework": framework_names(),
            "engine": list(ENGINES),
        }


@dataclass(frozen=True)
class Question:
    """What is projected; fields as in `DEFAULTS`, lists as tuples."""

    kind: str
    model: str
    hardware: tuple[str, ...]
    devices: int
    sequence_length: int
    global_batch_size: int
    precision: tuple[str, ...]
    framework: str
    engine: str
    served_precision: str
    input_length: int
    output_length: int
    concurrency: int
    memory: float | None
    where: str
    filter: str | None = field(init=False)

    def __post_init__(self) -> None:
        found = self.where.strip() or None
        if self.memory is not None:
            limit = f"memory_total <= {self.memory!r}"
            found = f"({found}) and {limit}" if found else limit
        object.__setattr__(self, "filter", found)


def read_question(given: Any, offer: Offer) -> Question:
    """Return what a page asks.

    Parameters
    ----------
    given : mapping
        Keys of `DEFAULTS`; what is absent is as there.
    offer : Offer

    Raises
    ------
    ControlError
        A value that its control cannot have, or a control that there is none of.
    """
    if not isinstance(given, Mapping):
        raise ControlError("", "the question should be a JSON object")
    if unknown := set(given) - set(DEFAULTS):
        name = str(min(unknown))
        raise ControlError("", f"no control '{name[:40]}'{did_you_mean(name, DEFAULTS)}")
    found = {**DEFAULTS, **given}
    choices = offer.choices
    kind = _one("kind", found["kind"], (TRAINING, SERVING))
    memory = found["memory"]
    if memory is not None and (not _is_number(memory) or not 0 < memory < 1e15):
        raise ControlError("memory", "should be a size in bytes, or nothing")
    where = found["where"]
    if not isinstance(where, str) or len(where) > LONGEST:
        raise ControlError("where", "should be a short condition, as in tp <= 8")
    counts = ("devices", "sequence_length", "global_batch_size", "input_length", "output_length")
    return Question(
        kind=kind,
        model=_one("model", found["model"], choices["model"]),
        hardware=_some("hardware", found["hardware"], choices["hardware"]),
        precision=_some("precision", found["precision"], choices["precision"]),
        framework=_one("framework", found["framework"], choices["framework"]),
        engine=_one("engine", found["engine"], choices["engine"]),
        served_precision=_one(
            "served_precision", found["served_precision"], choices["served_precision"]
        ),
        **{name: _count(name, found[name]) for name in (*counts, "concurrency")},
        memory=None if memory is None else float(memory),
        where=where,
    )


def parse_question(text: str, offer: Offer) -> Question:
    """Return what a link asks, as JSON; errors as of `read_question`."""
    try:
        return read_question(json.loads(text), offer)
    except (RecursionError, ValueError):
        raise ControlError("", "the question is not JSON") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(name: str, value: Any) -> int:
    whole = _is_number(value) and value == value and abs(value) < MOST and value == int(value)
    if not whole or value < 1:
        raise ControlError(name, f"should be a whole number from 1 to {MOST:,}")
    return int(value)


def _one(name: str, value: Any, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        shown = value if isinstance(value, str) else json.dumps(value)
        if not shown.strip():
            raise ControlError(name, "choose one")
        raise ControlError(name, f"no '{shown[:60]}'{did_you_mean(shown[:60], known)}")
    return value


def _some(name: str, value: Any, known: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ControlError(name, "choose one or more")
    if len(value) > MOST_LISTED:
        raise ControlError(name, f"{len(value)} are too many to stand side by side: {MOST_LISTED}")
    return tuple(dict.fromkeys(_one(name, it, known) for it in value))
