"""Network and system files of ASTRA-sim 1.0, and what they say.

A network of its analytical backend is a JSON object with one list entry per dimension, innermost
first. Units are the simulator's: GiB/s for links, GB/s for memory, nanoseconds. A system is a text
of ``key: value`` lines. Errors name the file, the line and the key.

Sources: astra-network-analytical d27635b (``NetworkConfigParser``); astra-sim 07d5d19,
``system/Sys.cc`` (``parse_var``, ``post_process_inputs``).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import FormatError, HardwareError, did_you_mean
from perfmodel.base.files import Located, json_object, key_line, read_text, shortened
from perfmodel.workloads.formats.astra_machine import (
    UNAWARE_TOPOLOGIES,
    check_implementation,
    check_name,
    check_number,
    check_whole,
)
from perfmodel.workloads.formats.words import words_of

_WORDS = words_of("astra_text_machine")
SYSTEM_WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    key: (field, tuple(known)) for key, (field, *known) in _WORDS["system_words"].items()
}
INTRA_DIMENSION, INTER_DIMENSION = (known for _, known in list(SYSTEM_WORDS.values())[-2:])
SPELLINGS: dict[str, str] = _WORDS["spellings"]
SYSTEM_WHOLES: dict[str, tuple[str, int]] = _WORDS["system_wholes"]
IMPLEMENTATION_KEYS = {f"{name.replace('_', '-')}-implementation": name for name in SIMULATED}
IDLE_KEYS: tuple[str, ...] = _WORDS["system_other"]["idle"]
SYSTEM_KEYS = (*SYSTEM_WORDS, *SYSTEM_WHOLES, *IMPLEMENTATION_KEYS, *IDLE_KEYS)
REQUIRED = (*_WORDS["system_other"]["required"], *IMPLEMENTATION_KEYS)

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
    found = Located(path)
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
        try:
            found.put(key, _system_value(key, words[1]), at, advice="")
        except HardwareError as error:
            raise FormatError(f"{path}:{at}: {error}") from None
    for key in REQUIRED:
        if key not in found:
            raise FormatError(f"{path}:1: key '{key}' is missing")
    fields = {name: value for entry in found.values() for name, value in entry.value.items()}
    return NativeSystem(**fields)


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


DIMENSION_TYPES = ("T", "N", "P", "PP")  # tile, node, pod, between pods; changes no time
MOST_DIMENSIONS = 9  # the simulator's lists of dimensions have ten entries; one may be split

NETWORK_KEYS: dict[str, tuple[str, bool, int]] = _WORDS["network_keys"]
POSITIVE = ("link-bandwidth", "hbm-bandwidth")
LEAST_BANDWIDTH = 1e-9  # about a byte per second; quotients of bandwidths stay numbers
OTHER_NETWORK_KEYS = ("topology-name", "dimensions-count", "topologies-per-dim", "dimension-type")
HIERARCHICAL = "Hierarchical"


@dataclass(frozen=True, slots=True)
class NativeNetwork:
    """A network of ASTRA-sim 1.0, innermost dimension first; one entry per dimension.

    Attributes
    ----------
    topology : tuple of {"Ring", "FullyConnected", "Switch"}
    npus_count : tuple of int
        Devices along each dimension.
    links_count : tuple of int
        Links of a device in the dimension. Of a ring, an even number of them carries a
        message, of a full connection what falls to each peer, of a switch all.
    link_bandwidth_gib_per_second : tuple of float
        Of one link [GiB/s].
    link_latency_nanoseconds : tuple of float
        Of one hop [ns].
    nic_latency_nanoseconds, router_latency_nanoseconds : tuple of float
        At either end; of a switch [ns].
    memory_latency_nanoseconds : tuple of float
        [ns].
    memory_bandwidth_gb_per_second : tuple of float
        [GB/s].
    memory_scale : tuple of float
        Accesses per message; 0: memory takes no time.

    Raises
    ------
    HardwareError
        A name is unknown, a number not usable, or the tuples differ in length.
    """

    topology: tuple[str, ...]
    npus_count: tuple[int, ...]
    links_count: tuple[int, ...]
    link_bandwidth_gib_per_second: tuple[float, ...]
    link_latency_nanoseconds: tuple[float, ...]
    nic_latency_nanoseconds: tuple[float, ...]
    router_latency_nanoseconds: tuple[float, ...]
    memory_latency_nanoseconds: tuple[float, ...]
    memory_bandwidth_gb_per_second: tuple[float, ...]
    memory_scale: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check every value."""
        if not 1 <= len(self.topology) <= MOST_DIMENSIONS:
            raise HardwareError(
                f"a network of {len(self.topology)} dimensions; it should have 1 to "
                f"{MOST_DIMENSIONS}"
            )
        for name in self.topology:
            check_name("topology", name, UNAWARE_TOPOLOGIES)
        for key, (field, whole, least) in NETWORK_KEYS.items():
            values = getattr(self, field)
            if len(values) != len(self.topology):
                raise HardwareError(
                    f"{key} has {len(values)} entries for {len(self.topology)} topologies; "
                    "there should be one per dimension"
                )
            for dimension, value in enumerate(values):
                where = f"{key} of dimension {dimension}"
                if whole:
                    check_whole(where, value, least)
                else:
                    check_number(where, value, positive=key in POSITIVE)
                    if key in POSITIVE and value < LEAST_BANDWIDTH:
                        raise HardwareError(
                            f"{where} is {value}; it should be at least {LEAST_BANDWIDTH:g}"
                        )
        for dimension in range(len(self.topology)):
            if self.npus_count[dimension] > 1 and self.links(dimension) == 0:
                raise HardwareError(
                    f"links-count of dimension {dimension} is {self.links_count[dimension]}; "
                    f"{self.topology[dimension]} of {self.npus_count[dimension]} needs at least "
                    + ("2" if self.topology[dimension] == "Ring" else "one link per peer")
                )

    @property
    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.topology)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.npus_count)

    def links(self, dimension: int) -> int:
        """Return the links that one message of a dimension uses together."""
        count = self.links_count[dimension]
        if self.topology[dimension] == "Ring":
            return count - count % 2
        if self.topology[dimension] == "FullyConnected":
            return count // max(self.npus_count[dimension] - 1, 1)
        return count


def read_native_network(path: FilePath) -> NativeNetwork:
    """Read a network's JSON.

    Raises
    ------
    FormatError
        The file cannot be read, is no JSON, lacks or repeats a key, or holds a value that
        the simulator cannot use; names file, line and key.
    """
    text = read_text(path, "a network of ASTRA-sim 1.0 in JSON")
    document = json_object(path, text, "topology-name")
    known = (*OTHER_NETWORK_KEYS, *NETWORK_KEYS)

    def where(key: str) -> str:
        return f"{path}:{key_line(text, key)}"

    for key in document:
        if key not in known:
            raise FormatError(
                f"{where(key)}: unknown key '{shortened(key)}'{did_you_mean(shortened(key), known)}"
            )
        if _is_nested(document[key]):
            raise FormatError(
                f"{where(key)}: {key} holds lists or objects in one another; it should be a "
                "value or a plain list of values"
            )
    for key in known:
        if key not in document:
            raise FormatError(
                f"{path}:1: key '{key}' is missing; all are needed: {', '.join(known)}"
            )
    if document["topology-name"] != HIERARCHICAL:
        raise FormatError(
            f"{where('topology-name')}: topology-name is "
            f"{shortened(repr(document['topology-name']))}; it should be '{HIERARCHICAL}'"
        )
    count = document["dimensions-count"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_DIMENSIONS:
        raise FormatError(
            f"{where('dimensions-count')}: dimensions-count is {shortened(repr(count))}; it "
            f"should be a whole number from 1 to {MOST_DIMENSIONS}"
        )
    for key in ("topologies-per-dim", "dimension-type", *NETWORK_KEYS):
        if not isinstance(document[key], list) or len(document[key]) != count:
            raise FormatError(
                f"{where(key)}: {key} should be a list with {count} entries, one per "
                "dimension (dimensions-count)"
            )
    try:
        for kind in document["dimension-type"]:
            check_name("dimension-type", kind, DIMENSION_TYPES)
        columns = {field: tuple(document[key]) for key, (field, _, _) in NETWORK_KEYS.items()}
        return NativeNetwork(topology=tuple(document["topologies-per-dim"]), **columns)
    except HardwareError as error:
        key = next((key for key in known if str(error).startswith((key, f"unknown {key}"))), "")
        at = where(key or "topologies-per-dim")
        raise FormatError(f"{at}: {error}") from None


def _is_nested(value: Any) -> bool:
    """Tell whether a value of the object is more than a list of plain values."""
    inner = value if isinstance(value, list) else [value]
    return any(isinstance(item, (list, dict)) for item in inner)
