"""How far a device's constants are to be trusted, by kernel class.

A class is ``calibrated`` where most of the constants that decide about it were fitted to the
device, ``transferred`` where they come from measured relatives of its family or instruction
class, else ``prior``. ``trust.toml`` says how far kernels spread under constants of other
families and priors: half the 10-90 % band of measured over predicted times, found by leaving
measured devices out (benchmarks/accuracy/left_out.py).

Constants of devices that nobody measured come from those of measured relatives, by rule.

A family that says ``measured_on`` holds constants that were fitted to that chip. What they are
worth elsewhere depends on what they are (``transfer`` in ``constants.toml``): a share of a
fact and what no clock of the chip sets stay as they are, a latency inside the chip takes as many
clocks, and an operation at a higher clock needs a higher voltage.

1. Another chip of a family takes its constants, latencies and energies by the clock.
2. An entry that says ``"transferred"``, and everything fitted that a file with
   ``transferred = true`` inherits, is the mean over the measured families of the device's
   instruction class: latencies in clocks, what one unit draws from memory in bytes per second
   (what kernels of the class keep under way, over a latency that no bandwidth of a board
   changes). Only what was measured there counts.
   A variant (of a number format, a library) that none of them states is as their plain one.
   What a library of collectives takes (``network``) and what streaming operations take
   (``stream``) does not depend on matrix units: all measured families of the maker count, for
   collectives then those of the other maker of GPUs, whose library is made of the same code.
3. A class without a measurement borrows from the classes beside it in `NEIGHBOURS`, the
   and those equally near together, but not from two generations away. What physics or literature says before any
   fit (`Constant.estimated`) counts as one more of them: a single neighbour may be odd. Such a
   value is a prior.
4. With none at all, it is the prior of ``constants.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError
from perfmodel.base.files import read_toml
from perfmodel.base.precisions import FORMATS
from perfmodel.base.provenance import LEVELS
from perfmodel.hwprofiles.constants import PRIOR, TRANSFERRED, Constant, known, plain

if TYPE_CHECKING:
    from perfmodel.hwprofiles.schema import Calibrated

NEIGHBOURS = (("mma.sync", "wgmma", "tcgen05"), ("mfma",), ("systolic",))
"""Instruction classes of a maker in the order in which they came."""
HANDED = ("share", "unit", "clocks", "seconds", "energy")
"""What is handed on; facts are not."""
PRIOR_CLOCK = 1.7e9
"""Clock [Hz] that a prior's latency counts for among relatives: A100's is 1.41e9, B200's 1.86e9."""
CLOCKED = {"clocks": "as many clocks as on", "energy": "at the voltage of its clock, as on"}
"""What depends on the clock, and how a source says so before the chip's name."""
CARRIED = {"clocks": ", in clocks", "energy": ", at its clock"}
"""How the source of a mean says so behind the names."""


@dataclass(frozen=True)
class Relative:
    """A family whose constants were measured.

    Attributes
    ----------
    name, instruction_class : str
    clock : float
        Boost clock of the chip that they were measured on [Hz].
    calibration : mapping of str to mapping of str to object
        Entries as in its files, by group and key.
    unit_bandwidth : float
        Memory bandwidth over units of that chip [B/s]; 0 where it is not stated.
    """

    name: str
    instruction_class: str
    clock: float
    calibration: Mapping[str, Mapping[str, object]]
    unit_bandwidth: float = 0.0


@dataclass(frozen=True)
class Handed:
    """A constant as it comes from relatives.

    Attributes
    ----------
    value : float
        At the clock that was asked for.
    trust : {"transferred", "prior"}
    source : str
    """

    value: float
    trust: str
    source: str


def measured_value(entry: object) -> float:
    """Return the number of an entry that some measurement is behind, else NaN."""
    if not isinstance(entry, Mapping) or "value" not in entry:
        return math.nan
    if entry.get("fit"):
        return float(entry["value"])
    text = str(entry.get("source", PRIOR))
    return math.nan if text.startswith((PRIOR, "as ")) else float(entry["value"])


def at_clock(constant: Constant, value: float, stated: float, clock: float) -> float:
    """Return a constant of one clock at another one, within its physical bounds.

    Parameters
    ----------
    constant : Constant
    value : float
        At the clock `stated` [Hz].
    stated, clock : float
        Boost clocks [Hz]; 0 where there is none: the value stays as it is.
    """
    if constant.transfer not in CLOCKED or not stated or not clock or stated == clock:
        return value
    power = known("gemm")["power_exponent"].prior
    return _within(constant, value * clock_factor(constant.transfer, clock / stated, power))


def clock_factor(transfer: str, clock: float, power_exponent: float) -> float:
    """Return by what a constant that depends on the clock changes with it.

    Parameters
    ----------
    transfer : str
        One of `CLOCKED`.
    clock : float
        New clock over the former one [1].
    power_exponent : float
        The rate goes as power to this exponent (``gemm.power_exponent``).

    Notes
    -----
    Where the rate goes as power to the exponent p, power goes as the clock to 1 / p, and the
    energy of an operation as the clock to 1 / p - 1. So what a board can sustain of a chip does
    not depend on the clock that its maker calls the boost (derived here).
    """
    return clock ** (1.0 / power_exponent - 1.0 if transfer == "energy" else -1.0)


def _at_unit(constant: Constant, value: float, stated: float, own: float) -> float:
    """Return a share of what units have on average as the same bytes per second elsewhere."""
    return _within(constant, value * stated / own) if stated and own else value


def _within(constant: Constant, value: float) -> float:
    return min(max(value, constant.low), constant.high)


def handed(
    group: str,
    key: str,
    instruction_class: str,
    clock: float,
    relatives: Iterable[Relative],
    unit_bandwidth: float = 0.0,
) -> Handed:
    """Return a constant by the rules of this module.

    Parameters
    ----------
    group, key : str
        As in ``[calibration.<group>]``.
    instruction_class : str
        Of the device.
    clock : float
        Boost clock of the device [Hz]; 0 for latencies at the relatives' own clocks.
    relatives : iterable of Relative
        Those that may hand it on.
    unit_bandwidth : float
        Memory bandwidth over units of the device [B/s]; 0: what one unit draws stays a share.
    """
    constant = known(group)[key]
    relatives = tuple(relatives)
    for distance, classes in enumerate(_by_distance(group, instruction_class)):
        near = [relative for relative in relatives if relative.instruction_class in classes]
        for name in (key, plain(group, key)):  # what no one states of a variant is as the plain one
            values = []
            for relative in near:
                value = measured_value(relative.calibration.get(group, {}).get(name))
                if not math.isnan(value):
                    value = at_clock(constant, value, relative.clock, clock)
                    if constant.transfer == "unit" and not distance:
                        value = _at_unit(constant, value, relative.unit_bandwidth, unit_bandwidth)
                    values.append((relative.name, value))
            if values and distance and group != "network" and constant.estimated:
                prior = at_clock(constant, constant.prior, PRIOR_CLOCK, clock)
                values.append(("the prior", prior))
            if values:
                return _mean(constant, values, distance)
    text = f"prior: no relative is measured; {constant.source or 'a rule of libraries'}"
    return Handed(constant.prior, PRIOR, text)


def _by_distance(group: str, instruction_class: str) -> list[tuple[str, ...]]:
    """Return the classes that may hand on, the own one first, those equally near together."""
    for line in NEIGHBOURS:
        if instruction_class in line:
            if group == "stream":
                return [line]
            if group == "network":
                others = tuple(name for other in NEIGHBOURS[:2] for name in other)
                return [line, others] if line in NEIGHBOURS[:2] else [line]
            place = line.index(instruction_class)
            return [
                tuple(name for i, name in enumerate(line) if abs(i - place) == distance)
                for distance in range(2)
            ]
    return []


def _mean(constant: Constant, values: list[tuple[str, float]], distance: int) -> Handed:
    mean = sum(value for _, value in values) / len(values)
    names = " and ".join(name for name, _ in values)
    carried = CARRIED.get(constant.transfer, "")
    if distance:
        return Handed(mean, PRIOR, f"prior: borrowed from the nearest class, {names}{carried}")
    if constant.transfer == "unit":
        carried = ", in bytes per second"
    return Handed(mean, TRANSFERRED, f"transferred from {names}{carried}")


def inherits_measurement(group: str, key: str, entry: Any) -> bool:
    """Return whether an inherited entry is one that ``transferred = true`` replaces."""
    constant = known(group).get(key)
    return (
        constant is not None
        and constant.transfer in HANDED
        and group in ("gemm", "attention", "moe", "stream")
        and not math.isnan(measured_value(entry))
    )


UNSTATED = "inherited from "
"""How a note begins that names facts which a profile should have stated itself."""

OF_ITS_UNITS = (
    *("boost_clock", "vector_flops", "special_function_rate", "tdp", "peak_flops"),
    *(f"memory.{name}" for name in ("capacity", "bandwidth", "l2_capacity", "l2_bandwidth")),
)
"""Facts of ``[device]`` that belong to a chip with its number of compute units."""


def unstated(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes about facts that a chip took from a relative with other compute units.

    Parameters
    ----------
    documents : sequence of mapping
        What a profile extends, the oldest first, and the profile. A file lists under
        ``inherited`` what it means to take over (``device.boost_clock``).

    Returns
    -------
    list of str
        One for each relative; none where every fact is stated or meant.
    """
    stated: dict[str, str] = {}
    foreign: dict[str, str] = {}
    units: object = None
    change = ""
    for document in documents:
        device = document.get("device", {})
        facts = dict(leaves(device)) if isinstance(device, Mapping) else {}
        own = facts.get("compute_units", units)
        if units is not None and own != units:
            foreign = {key: it for key, it in stated.items() if key.startswith(OF_ITS_UNITS)}
            change = f"({units} compute units, not {own})"
        units = own
        stated |= dict.fromkeys(facts, str(document["name"]))
        meant = {str(key).removeprefix("device.") for key in document.get("inherited", ())}
        foreign = {key: it for key, it in foreign.items() if key not in meant | facts.keys()}
    by_relative: dict[str, list[str]] = {}
    for key, relative in foreign.items():
        by_relative.setdefault(relative, []).append(key)
    return [
        f"{UNSTATED}{relative} {change}: {', '.join(keys)}; state them in [device], or list them "
        "under 'inherited'"
        for relative, keys in by_relative.items()
    ]


def leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


FILE = Path(__file__).with_name("trust.toml")

KERNELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gemm": ("gemm", ("issue_efficiency", "memory_efficiency", "launch_latency")),
    "attention": ("attention", ("matrix_efficiency", "memory_efficiency", "block_latency")),
    "attention_backward": ("attention", ("backward_matrix_efficiency", "backward_overlap")),
    "decode": ("attention", ("memory_efficiency", "decode_latency")),
    "moe": ("moe", ("main_loop_efficiency", "memory_efficiency", "kernel_latency")),
    "stream": ("stream", ("memory_efficiency", "launch_latency")),
    "collective": ("network", ("scale_up_efficiency", "simple_latency")),
}
"""Kernel class of `perfmodel.base.regimes` -> group of its constants, and those that decide its
time: what it reaches of the matrix units and of memory or links, and its start."""
FROM_CLASS = "transferred from"
"""How the source of a constant begins that comes from other families."""


def trust(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> str:
    """Return how most of the constants that decide about a kernel class came about.

    Of a constant and its variants for number formats the most trusted one counts; what is
    stated as exact needs no measurement.

    Returns
    -------
    str
        One of `LEVELS`.
    """
    found = [
        min((LEVELS.index(LEVELS[0] if it.trust == "fact" else it.trust) for it in its), default=2)
        for its in _deciding(calibration, kernel_class)
    ]
    return LEVELS[sorted(found)[len(found) // 2]] if found else LEVELS[-1]


def from_class(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> bool:
    """Return whether constants of a kernel class come from other families than the device's."""
    return any(
        entry.source.startswith(FROM_CLASS)
        for entries in _deciding(calibration, kernel_class)
        for entry in entries
    )


def _deciding(
    calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str
) -> list[list[Calibrated]]:
    group, keys = KERNELS.get(kernel_class, ("", ()))
    entries = calibration.get(group, {})
    return [
        [entry for name, entry in entries.items() if name == key or _varies(name, key)]
        for key in keys
    ]


@cache
def _varies(name: str, key: str) -> bool:
    """Return whether a constant is a variant of another for a format: ``<key>_<format>``."""
    return name.startswith(f"{key}_") and name.removeprefix(f"{key}_") in FORMATS


@cache
def _bands() -> Mapping[str, Mapping[str, float]]:
    return read_toml(FILE, HardwareError)


def band(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> float:
    """Return half the 10-90 % band of a kernel class whose constants came so.

    Returns
    -------
    float
        Relative; 0 for those of the device and of its own family, whose residuals say it, and
        where no device could be left out.
    """
    level = trust(calibration, kernel_class)
    if level == "calibrated" or (
        level == "transferred" and not from_class(calibration, kernel_class)
    ):
        return 0.0
    found = _bands().get(level, {}).get(kernel_class, 0.0)
    return max(found, _bands().get("transferred", {}).get(kernel_class, 0.0))


def quoted(bands: Mapping[str, Mapping[str, float]]) -> str:
    """Return bands as ``trust.toml`` holds them."""
    lines = [
        "# Half the 10-90 % band of ln(measured / predicted) of kernels under constants that were",
        "# fitted to other devices: every measured device left out in turn, the mean over them.",
        "# Written by benchmarks/accuracy/left_out.py --write. transferred: a device of the same",
        "# instruction class was there; prior: only those of the classes beside it.",
    ]
    for level, classes in bands.items():
        lines += ["", f"[{level}]", *(f"{name} = {value:g}" for name, value in classes.items())]
    return "\n".join(lines) + "\n"
