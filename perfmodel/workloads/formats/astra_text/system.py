"""System files of ASTRA-sim 1.0, and what they say.

A file is a text of ``key: value`` lines. Errors name the file, the line and the key.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``parse_var``, ``post_process_inputs``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import FormatError, HardwareError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.formats.astra.records import (
    COLLECTIVE_OPTIMIZATIONS,
    check_implementation,
    check_name,
    check_whole,
)

SCHEDULING_POLICIES = ("LIFO", "FIFO")
# In either list, the position of a rule is its number in the kernels; then other spellings.
INTRA_DIMENSION = ("FIFO", "SCF", "RG", "lessRemainingPhaseFirst")
INTER_DIMENSION = ("baseline", "roundRobin", "themis", "themisFlex")
SPELLINGS = {
    "smallestFirst": "SCF",
    "ascending": "baseline",
    "offlineGreedy": "themis",
    "offlineGreedyFlex": "themisFlex",
}

SYSTEM_WORDS = {
    "scheduling-policy": ("scheduling_policy", SCHEDULING_POLICIES),
    "collective-optimization": ("collective_optimization", COLLECTIVE_OPTIMIZATIONS),
    "intra-dimension-scheduling": ("intra_dimension_scheduling", INTRA_DIMENSION),
    "inter-dimension-scheduling": ("inter_dimension_scheduling", INTER_DIMENSION),
}
SYSTEM_WHOLES = {
    "endpoint-delay": ("endpoint_delay_nanoseconds", 0),
    "active-chunks-per-dimension": ("active_chunks_per_dimension", 1),
    "preferred-dataset-splits": ("preferred_dataset_splits", 1),
}
IMPLEMENTATION_KEYS = {f"{name.replace('_', '-')}-implementation": name for name in SIMULATED}
# Read by the simulator, and without effect on times.
IDLE_KEYS = ("boost-mode", "local-reduction-delay", "L", "o", "g", "G", "seprate-log",
             "gap-denominator", "model-shared-bus")  # fmt: skip
SYSTEM_KEYS = (*SYSTEM_WORDS, *SYSTEM_WHOLES, *IMPLEMENTATION_KEYS, *IDLE_KEYS)
REQUIRED = (
    "scheduling-policy",
    "collective-optimization",
    "preferred-dataset-splits",
    *IMPLEMENTATION_KEYS,
)

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class NativeSystem:
    """The system layer of ASTRA-sim 1.0.

    Attributes
    ----------
    all_reduce_implementation, all_gather_implementation : tuple of str
        Algorithm per dimension: ``ring``, ``direct``, ``halvingDoubling``, …
    reduce_scatter_implementation, all_to_all_implementation : tuple of str
        Likewise.
    preferred_dataset_splits : int
        Chunks that a collective is cut into, the remainder being one more.
    active_chunks_per_dimension : int
        Chunks that a dimension works on at once, shared by its queues.
    endpoint_delay_nanoseconds : int
        Before each message a device handles [ns].
    scheduling_policy : {"LIFO", "FIFO"}
        Which of several waiting collectives goes first.
    collective_optimization : {"localBWAware", "baseline"}
        All-reduce in parts there and back, or whole on each dimension in turn.
    intra_dimension_scheduling : {"FIFO", "SCF", "RG", "lessRemainingPhaseFirst"}
        Which chunk a queue takes next.
    inter_dimension_scheduling : {"baseline", "roundRobin", "themis", "themisFlex"}
        Which dimension a chunk takes first.

    Raises
    ------
    HardwareError
        A name is unknown or a number not usable.
    """

    all_reduce_implementation: tuple[str, ...]
    all_gather_implementation: tuple[str, ...]
    reduce_scatter_implementation: tuple[str, ...]
    all_to_all_implementation: tuple[str, ...]
    preferred_dataset_splits: int = 1
    active_chunks_per_dimension: int = 1
    endpoint_delay_nanoseconds: int = 10
    scheduling_policy: str = "LIFO"
    collective_optimization: str = "localBWAware"
    intra_dimension_scheduling: str = "FIFO"
    inter_dimension_scheduling: str = "baseline"

    def __post_init__(self) -> None:
        """Check every value."""
        for collective in SIMULATED:
            if not self.implementation(collective):
                raise HardwareError(f"{collective} has no implementation; one per dimension is due")
            for name in self.implementation(collective):
                check_implementation(name)
        for key, (field, known) in SYSTEM_WORDS.items():
            check_name(key, getattr(self, field), known)
        for key, (field, least) in SYSTEM_WHOLES.items():
            check_whole(key, getattr(self, field), least)

    def implementation(self, collective: str) -> tuple[str, ...]:
        """Return the algorithms of a collective (one of ``SIMULATED``), one per dimension."""
        check_name("collective", collective, SIMULATED)
        algorithms: tuple[str, ...] = getattr(self, f"{collective}_implementation")
        return algorithms


def read_native_system(path: FilePath) -> NativeSystem:
    """Read a system's ``key: value`` text.

    Raises
    ------
    FormatError
        The file cannot be read, lacks or repeats a key, or holds a value that the simulator
        cannot use; names file, line and key.
    """
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    text = read_text(path, "a system of ASTRA-sim 1.0")
    for at, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        words = line.split()
        if not words:
            continue
        key = words[0].removesuffix(":")
        if len(words) != 2 or key == words[0]:
            raise FormatError(
                f"{path}:{at}: '{shortened(line.strip())}' should be a key, a colon and one "
                "value, as 'endpoint-delay: 10'"
            )
        if key not in SYSTEM_KEYS:
            raise FormatError(
                f"{path}:{at}: unknown key '{shortened(key)}'"
                f"{did_you_mean(shortened(key), SYSTEM_KEYS)}"
            )
        if key in lines:
            raise FormatError(
                f"{path}:{at}: key '{key}' is given twice (first on line {lines[key]})"
            )
        lines[key] = at
        try:
            values |= _system_value(key, words[1])
        except HardwareError as error:
            raise FormatError(f"{path}:{at}: {error}") from None
    for key in REQUIRED:
        if key not in lines:
            raise FormatError(f"{path}:1: key '{key}' is missing")
    return NativeSystem(**values)


def _system_value(key: str, word: str) -> Mapping[str, Any]:
    """Return the field that a line of a system file sets."""
    if key in SYSTEM_WORDS:
        field, known = SYSTEM_WORDS[key]
        value = SPELLINGS.get(word, word)
        check_name(key, value, known)
        return {field: value}
    if key in IMPLEMENTATION_KEYS:
        names = tuple(word.split("_"))
        for name in names:
            check_implementation(name)
        return {f"{IMPLEMENTATION_KEYS[key]}_implementation": names}
    number: int | str = int(word) if re.fullmatch(r"[0-9]{1,18}", word) else word
    if key in SYSTEM_WHOLES:
        field, least = SYSTEM_WHOLES[key]
        check_whole(key, number, least)
        return {field: number}
    if key == "model-shared-bus" and word != "0":
        raise HardwareError("model-shared-bus is on; only 0 is covered")
    return {}
