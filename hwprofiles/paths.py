"""Reading and replacing single values of a profile by dotted path.

A path follows the tables of the file: ``device.memory.bandwidth``,
``device.peak_flops.fp8``, ``system.network.1.latency`` (a level by index or by
its name), ``calibration.gemm.launch_latency`` (its value).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import schema
from perfmodel.hwprofiles.build import check_value
from perfmodel.hwprofiles.schema import LEAST, Field, Scalar

if TYPE_CHECKING:
    from perfmodel.hwprofiles.hardware import Hardware


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
    for path, value in values.items():
        full = canonical_path(hardware, path)
        checked = _parse(value, known[full], full)
        parent, leaf = _parent(document, full)
        if full.startswith("calibration."):
            entry = parent[leaf] = dict(vars(hardware.calibration[full.split(".")[1]][leaf]))
            entry["value"] = checked
            entry["low"] = min(entry["low"], checked)
            entry["high"] = max(entry["high"], checked)
            entry["source"] = _override_source(entry["source"])
            entry["fit"] = entry["reason"] = ""
        else:
            parent[leaf] = checked
        document["overrides"][full] = checked
        if full in document["source"]:
            document["source"][full] = _override_source(document["source"][full])
    return document


def _override_source(former: str) -> str:
    prefix = "override; the profile says: "
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
