"""The hardware that a projection runs on: one device type inside one system.

Single values are read and replaced by dotted path. A path follows the tables of the file:
``device.memory.bandwidth``, ``device.peak_flops.fp8``, ``system.network.1.latency`` (a level by
index or by its name), ``calibration.gemm.launch_latency`` (its value).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.fields import Field
from perfmodel.base.units import facts_html, format_gib, format_si
from perfmodel.hwprofiles import clocks, schema
from perfmodel.hwprofiles.build import Where, check_value, checked_profile
from perfmodel.hwprofiles.constants import Lookup
from perfmodel.hwprofiles.schema import LEAST, Calibrated, Device, Scalar, System
from perfmodel.hwprofiles.trust import band, trust

Made = TypeVar("Made")
MOST_MADE = 256
OVERRIDE = "override; the profile says: "
FOLLOWS = "follows the clock and units that were set; the profile says: "
"""How sources of changed values begin."""
FAR = 100.0
"""Factor from which a value is more likely in another unit (GB/s for B/s) than meant."""


def known_paths(hardware: Hardware) -> dict[str, Field]:
    """Return every dotted path that can be read or replaced, with its field."""
    fields = {f"device.{key}": field for key, field in schema.DEVICE.items()}
    fields |= {
        f"device.peak_flops.{key}": schema.PEAK_FLOPS[key] for key in hardware.device.peak_flops
    }
    fields |= {f"device.memory.{key}": field for key, field in schema.MEMORY.items()}
    fields |= {f"system.{key}": field for key, field in schema.SYSTEM.items()}
    fields |= {f"system.host.{key}": field for key, field in schema.HOST.items()}
    for index in range(len(hardware.system.network)):
        for key, field in schema.NETWORK.items():
            fields[f"system.network.{index}.{key}"] = field
    for group, entries in hardware.calibration.items():
        for key in entries:
            fields[f"calibration.{group}.{key}"] = schema.CALIBRATED["value"]
    return fields


def canonical_path(hardware: Hardware, path: str) -> str:
    """Return the path with network levels by index, or say which paths are near.

    Raises
    ------
    HardwareError
        The profile has no value there.
    """
    parts = path.strip().split(".")
    if parts[:2] == ["system", "network"] and len(parts) > 2:
        for index, level in enumerate(hardware.system.network):
            if parts[2].lower() == level.name.lower():
                parts[2] = str(index)
    if parts[0] == "calibration" and len(parts) == 4 and parts[3] == "value":
        parts.pop()
    known = known_paths(hardware)
    if ".".join(parts) in known:
        return ".".join(parts)
    raise HardwareError(
        f"hardware profile '{hardware.name}' has no value at '{path}'{_nearest(path, list(known))}"
    )


def _nearest(path: str, known: list[str]) -> str:
    leaf = path.rsplit(".", 1)[-1]
    near = [candidate for candidate in known if candidate.rsplit(".", 1)[-1] == leaf]
    near += difflib.get_close_matches(path, known, n=3, cutoff=0.5)
    if not near:
        near = [candidate for candidate in known if candidate.startswith(path.split(".")[0] + ".")]
    near = list(dict.fromkeys(near))[:4]
    return (
        "; nearest: " + ", ".join(near)
        if near
        else "; paths begin with device, system, calibration"
    )


def get_value(hardware: Hardware, path: str) -> Scalar:
    """Return the value at a dotted path; see `Hardware.value`."""
    node: Any = hardware
    for part in canonical_path(hardware, path).split("."):
        if isinstance(node, dict):
            node = node[part]
        elif isinstance(node, tuple):
            node = node[int(part)]
        else:
            node = getattr(node, part)
    return getattr(node, "value", node) if path.startswith("calibration") else node


def unit_of(hardware: Hardware, path: str) -> str:
    """Return the SI unit of the value at a dotted path, "1" for pure numbers."""
    full = canonical_path(hardware, path)
    if full.startswith("calibration."):
        _, group, key = full.split(".", 2)
        return hardware.calibration[group][key].unit or "1"
    return known_paths(hardware)[full].unit or "1"


def implausible(hardware: Hardware, values: Mapping[str, Scalar]) -> list[str]:
    """Say which values lie so far from the profile's that another unit is likely meant.

    Parameters
    ----------
    hardware : Hardware
        The profile as it is.
    values : mapping of str to scalar
        Dotted path -> value that is going to replace the profile's; paths of values with a unit
        count only.

    Returns
    -------
    list of str
        A clause for each.
    """
    found = []
    for path, value in values.items():
        former, unit = get_value(hardware, path), unit_of(hardware, path)
        numbers = all(isinstance(it, int | float) and it > 0 for it in (former, value))
        if unit == "1" or not numbers:
            continue
        ratio = float(value) / float(former)
        if not 1 / FAR <= ratio <= FAR:
            # Before the value is refused: a ratio may be too small for a reciprocal.
            below = f"{1 / ratio:.0e}" if ratio > LEAST else "countless"
            where = f"{ratio:.0e} times" if ratio > 1 else f"{below} times below"
            found.append(
                f"{path}={value:g} is {where} the profile's {former:g} {unit}; values are in SI "
                "units"
            )
    return found


def row_names(rows: Sequence[Hardware]) -> list[str]:
    """Return profile names, made distinct by the values that were set on them."""
    names = []
    for row in rows:
        changes = ",".join(
            f"{path}={value:g}" if not isinstance(value, str | bool) else f"{path}={value}"
            for path, value in row.overrides.items()
        )
        names.append(f"{row.name}[{changes}]" if changes else row.name)
    return names


def overridden(hardware: Hardware, values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return a profile as a document with other values; see `Hardware.with_values`."""
    # Constants that stay are handed on as they are: they were checked.
    kept = {group: dict(entries) for group, entries in hardware.calibration.items()}
    document = hardware.to_dict() | {"calibration": kept}
    known = known_paths(hardware)
    stated: dict[str, Scalar] = {}
    for path, value in values.items():
        full = canonical_path(hardware, path)
        stated[full] = _parse(value, known[full], full)
    for full, value in _following(hardware, document["device"], stated).items():
        _put(document, full, value, FOLLOWS)
    for full, value in stated.items():
        _put(document, full, value, OVERRIDE)
        if full.startswith("calibration."):
            parent, leaf = _parent(document, full)
            parent[leaf]["fit"] = parent[leaf]["reason"] = ""
    document["overrides"] |= stated
    return document


def _following(
    hardware: Hardware, device: Mapping[str, Any], stated: Mapping[str, Scalar]
) -> dict[str, float]:
    """Return what follows the clock and the units, but for what the user states himself."""
    changed = {path.removeprefix("device."): it for path, it in stated.items()}
    rates = clocks.rates_following(device, changed, ())
    clock = clocks.ratio(device, changed, clocks.CLOCK)
    found = {f"device.{key}": rate for key, rate in rates.items()}
    found |= dict(clocks.constants_following(hardware.calibration, clock))
    return {path: it for path, it in found.items() if path not in {**hardware.overrides, **stated}}


def _put(document: dict[str, Any], path: str, value: Scalar, prefix: str) -> None:
    """Replace one value of a document, and say so in its source."""
    parent, leaf = _parent(document, path)
    if path.startswith("calibration."):
        former = parent[leaf]
        entry = parent[leaf] = dict(vars(former) if isinstance(former, Calibrated) else former)
        entry["value"] = value
        entry["low"], entry["high"] = min(entry["low"], value), max(entry["high"], value)
        entry["source"] = _prefixed(entry["source"], prefix)
    else:
        parent[leaf] = value
    if path in document["source"]:
        document["source"][path] = _prefixed(document["source"][path], prefix)


def _prefixed(former: str, prefix: str) -> str:
    return former if former.startswith(prefix) else prefix + former


def _parent(document: dict[str, Any], path: str) -> tuple[Any, Any]:
    node: Any = document
    parts = path.split(".")
    for part in parts[:-1]:
        node = node[int(part)] if isinstance(node, list) else node[part]
    return node, parts[-1]


def _parse(value: Scalar, field: Field, path: str) -> Scalar:
    if isinstance(value, str) and field.kind in ("count", "number"):
        with contextlib.suppress(ValueError):
            value = float(value)
    elif isinstance(value, str) and field.kind == "flag":
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    return check_value(value, field, path, lambda path: "override")


@dataclass(frozen=True)
class Hardware:
    """A resolved hardware profile.

    Parameters
    ----------
    name, title : str
        Name of the profile and one line about it.
    device : Device
        The chip.
    system : System
        Node and network.
    calibration : dict of str to dict of str to Calibrated
        Fitted numbers by group (``gemm``, ``attention``, ``stream``,
        ``network``, ``host``, …) and key; group ``uncertainty`` holds, as
        ``<class>_<regime>``, how far measured kernels spread around their prediction.
    source : dict of str to str
        Where the number at each dotted path is from.
    aliases, notes : tuple of str
        Other names; what is uncertain or was chosen for the user.
    overrides : dict of str to scalar
        Values that the user put in place of the profile's.
    """

    name: str
    title: str
    device: Device
    system: System
    calibration: dict[str, dict[str, Calibrated]]
    source: dict[str, str]
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    overrides: dict[str, Scalar] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Hardware {self.name}: {self.title}>"

    def _repr_html_(self) -> str:
        memory, node = self.device.memory, self.system.devices_per_node
        facts: list[tuple[str, object]] = [
            ("device", self.device.name),
            ("devices per node", node),
            ("memory", f"{format_gib(memory.capacity)}, {format_si(memory.bandwidth, 'B/s')}"),
        ]
        peaks = self.device.peak_flops.items()
        facts += [(f"peak {name}", format_si(rate, "FLOP/s")) for name, rate in peaks]
        facts += [
            (f"network {level.name}", f"{format_si(level.bandwidth, 'B/s')} per direction")
            for level in self.system.network
        ]
        return facts_html(f"{self.name}: {self.title}", facts)

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted((k, str(v)) for k, v in self.overrides.items()))))

    def calibrated(self, group: str, key: str) -> float:
        """Return a fitted number.

        Parameters
        ----------
        group, key : str
            As in ``[calibration.<group>]``, e.g. ``"gemm", "launch_latency"``.

        Raises
        ------
        HardwareError
            The profile has no such number.
        """
        return self.lookup(group)(key)

    def lookup(
        self,
        group: str,
        *,
        facts: Mapping[str, float] | None = None,
        defaults: Mapping[str, float] | None = None,
        **words: str,
    ) -> Lookup:
        """Return the constants of a group as one kernel, number format or regime sees them.

        Parameters
        ----------
        group : str
            As in ``[calibration.<group>]``.
        facts, defaults : mapping of str to float, optional
            What a library is by its own code; what holds where the profile is silent.
        **words : str
            What they are wanted for: ``kernel``, ``library``, ``precision``, ``regime``.

        Returns
        -------
        Lookup
            Says which value counts.

        Raises
        ------
        HardwareError
            The profile has no such group.
        """
        values = self._values.get(group)
        if not values:
            hint = did_you_mean(group, self.calibration)
            raise HardwareError(
                f"hardware profile '{self.name}' has no [calibration.{group}]"
                + (hint or "; extend a family such as nvidia-hopper, or add the table")
            )
        said = tuple(sorted(words.items()))
        return Lookup(self.name, group, values, said, facts or {}, defaults or {})

    def uncertainty(self, kernel_class: str, regime: str) -> float:
        """Return how far measured kernels spread around their prediction.

        Parameters
        ----------
        kernel_class, regime : str
            One of `perfmodel.base.regimes.LIMITS` and of `perfmodel.base.regimes.REGIMES`.

        Returns
        -------
        float
            Relative half-width of the band from the 10th to the 90th percentile of
            ln(measured / predicted), at least that of devices that were left out where the
            constants are not the device's own; 0 where the profile says nothing.
        """
        if "uncertainty" not in self.calibration:
            return 0.0
        key = kernel_class, regime
        if key not in self._widths:
            stated = self.lookup("uncertainty", regime=regime)(kernel_class, 0.0)
            self._widths[key] = max(stated, self.borrowed_band(kernel_class))
        return self._widths[key]

    def trust(self, kernel_class: str) -> str:
        """Return how most constants of a kernel class came about.

        Parameters
        ----------
        kernel_class : str
            One of `perfmodel.hwprofiles.trust.KERNELS`.

        Returns
        -------
        {"calibrated", "transferred", "prior"}
        """
        return trust(self.calibration, kernel_class)

    def borrowed_band(self, kernel_class: str) -> float:
        """Return how far kernels spread whose constants are another family's or priors.

        Returns
        -------
        float
            Half the 10-90 % band of ln(measured / predicted) of devices that were left out;
            0 where the constants are the device's own or its family's.
        """
        return band(self.calibration, kernel_class)

    # Asked for with every operation: what does not change is worked out once.
    @cached_property
    def _values(self) -> dict[str, dict[str, float]]:
        return {
            group: {key: entry.value for key, entry in entries.items()}
            for group, entries in self.calibration.items()
        }

    @cached_property
    def _widths(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}

    def kept(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return what was made of the profile, or make it and keep it; nobody changes it."""
        found: Made | None = self._made.get(key)
        if found is None:
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            found = self._made[key] = make()
        return found

    def forget(self) -> None:
        """Drop what was kept; it is made again when it is asked for."""
        self._made.clear()

    def value(self, path: str) -> Scalar:
        """Return the value at a dotted path such as ``system.network.1.bandwidth``.

        Raises
        ------
        HardwareError
            No such path; the message names the nearest ones.
        """
        return get_value(self, path)

    def with_values(self, values: Mapping[str, Scalar]) -> Hardware:
        """Return a copy with other values at some dotted paths.

        The copy is validated like a file, and remembers the change in
        `overrides` and `source`.

        Raises
        ------
        HardwareError
            Unknown path, wrong type, or a value out of its limits.
        """
        if not values:
            return self
        where = f"override of hardware profile '{self.name}'"
        return build(overridden(self, values), lambda path: where)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and scalars, fit for JSON; see `hardware_from_dict`."""
        # Constants are flat and many: `asdict` takes ten times as long to copy them.
        calibration = {
            group: {key: dict(vars(entry)) for key, entry in entries.items()}
            for group, entries in self.calibration.items()
        }
        system = asdict(self.system)
        return {
            "name": self.name,
            "title": self.title,
            "device": asdict(self.device),
            "system": system | {"network": list(system["network"])},
            "calibration": calibration,
            "source": dict(self.source),
            "aliases": list(self.aliases),
            "notes": list(self.notes),
            "overrides": dict(self.overrides),
        }


def once(function: Callable[..., Made]) -> Callable[..., Made]:
    """Keep what a function makes of a profile with the profile."""

    @functools.wraps(function)
    def kept(hardware: Hardware, *words: Any, **more: Any) -> Made:
        key = function.__qualname__, words, *more.items()
        return hardware.kept(key, lambda: function(hardware, *words, **more))

    return kept


def build(document: Mapping[str, Any], where: Where) -> Hardware:
    """Check a merged profile and return it as `Hardware`.

    Parameters
    ----------
    document : mapping
        Tables as in a TOML profile with nothing left to inherit; ``source``
        holds dotted path -> text, ``overrides`` what the user replaced.
    where : callable
        Dotted path -> name of the file that set it, for messages.

    Raises
    ------
    HardwareError
        A key is missing, unknown, of the wrong type or out of its limits.
    """
    return Hardware(**checked_profile(document, where))


def hardware_from_dict(document: Mapping[str, Any]) -> Hardware:
    """Return the hardware that `Hardware.to_dict` described.

    Raises
    ------
    HardwareError
        The document is not a complete profile.
    """
    if not isinstance(document.get("name"), str):
        raise HardwareError("hardware document: 'name' is missing; to_dict() writes it")
    return build(document, lambda path: f"hardware document '{document['name']}'")
