"""From the merged tables of a profile to the checked parts of a `Hardware`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.fields import Field
from perfmodel.hwprofiles import constants, schema
from perfmodel.hwprofiles.schema import BUS_NAMES, Calibrated, Device, Host, Memory, Network, System

UNSOURCED = "not stated"
CLOSING = ("ring", "torus-2d", "torus-3d")  # topologies that close on themselves
DEFAULT_SOURCE = "default of the profile schema"

Where = Callable[[str], str]
"""Names the file (or override) that a dotted path came from."""


def checked_profile(document: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Return the checked fields of `perfmodel.hwprofiles.hardware.Hardware`; see `build` there.

    Raises
    ------
    HardwareError
    """
    check_keys(document, (*schema.TOP_LEVEL, "overrides"), "", where)
    name = document["name"]
    for table in ("device", "system"):
        stated = document.get(table)
        # A chip states how it reaches a host, which makes no system.
        if stated is None or (isinstance(stated, Mapping) and set(stated) == {"host"}):
            raise HardwareError(f"{where(table)}: hardware profile '{name}' has no [{table}]")
    source = dict(document.get("source", {}))
    device = _device(document["device"], where, source)
    system = _system(document["system"], where, source)
    calibration = build_calibration(document, where, source)
    numbers = _numeric_paths(device, system, calibration)
    return {
        "name": name,
        "title": document.get("title", name),
        "device": device,
        "system": system,
        "calibration": calibration,
        "source": {path: source.get(path, f"{UNSOURCED} ({where(path)})") for path in numbers},
        "aliases": tuple(document.get("aliases", ())),
        "notes": tuple(document.get("notes", ())),
        "overrides": dict(document.get("overrides", {})),
    }


def _numeric_paths(
    device: Device, system: System, calibration: Mapping[str, Mapping[str, Calibrated]]
) -> Iterator[str]:
    """Yield the dotted path of every number of a profile, calibration included."""
    for key, field in schema.DEVICE.items():
        if field.kind != "text":
            yield f"device.{key}"
    for precision in device.peak_flops:
        yield f"device.peak_flops.{precision}"
    for key in schema.MEMORY:
        yield f"device.memory.{key}"
    yield from (f"system.{key}" for key in schema.SYSTEM)
    yield from (f"system.host.{key}" for key in schema.HOST)
    for index in range(len(system.network)):
        for key, field in schema.NETWORK.items():
            if field.kind != "text":
                yield f"system.network.{index}.{key}"
    for group, entries in calibration.items():
        yield from (f"calibration.{group}.{key}" for key in entries)


def check_keys(table: Mapping[str, Any], known: Iterable[str], path: str, where: Where) -> None:
    """Refuse keys that the schema does not know.

    Raises
    ------
    HardwareError
        With the nearest known key.
    """
    for key in table:
        if key not in known:
            full = f"{path}.{key}" if path else key
            raise HardwareError(f"{where(full)}: unknown key '{full}'{did_you_mean(key, known)}")


def check_value(value: object, field: Field, path: str, where: Where) -> Any:
    """Return `value` in the type of its key.

    Raises
    ------
    HardwareError
        Wrong type, not finite, or out of the limits of the key.
    """
    try:
        return field.convert(value)
    except ValueError:
        hint = ""
        if field.choices and isinstance(value, str):
            hint = did_you_mean(value, field.choices)
        raise HardwareError(
            f"{where(path)}: '{path}' must be {field.expectation(value)}, not {value!r}{hint}"
        ) from None


def _table(document: object, path: str, where: Where) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise HardwareError(f"{where(path)}: '{path}' must be a table, not {document!r}")
    return document


def _fields(
    table: Mapping[str, Any],
    fields: Mapping[str, Field],
    path: str,
    where: Where,
    source: dict[str, str],
    nested: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the checked values of one table; `source` learns which are defaults."""
    check_keys(table, (*fields, *nested), path, where)
    values = {}
    for key, field in fields.items():
        full = f"{path}.{key}"
        value = table.get(key, field.default)
        if value is None:
            raise HardwareError(
                f"{where(full)}: '{full}' is missing ({field.description}); "
                f"it must be {field.expectation()}"
            )
        values[key] = check_value(value, field, full, where)
        if key not in table and field.kind != "text":
            source[full] = DEFAULT_SOURCE
    return values


def _device(document: object, where: Where, source: dict[str, str]) -> Device:
    table = _table(document, "device", where)
    values = _fields(table, schema.DEVICE, "device", where, source, ("peak_flops", "memory"))
    peaks = _table(table.get("peak_flops", {}), "device.peak_flops", where)
    check_keys(peaks, schema.PEAK_FLOPS, "device.peak_flops", where)
    if not peaks:
        raise HardwareError(
            f"{where('device.peak_flops')}: 'device.peak_flops' needs at least one of "
            + ", ".join(schema.PEAK_FLOPS)
        )
    memory = _table(table.get("memory", {}), "device.memory", where)
    return Device(
        **values,
        peak_flops={
            key: check_value(peaks[key], field, f"device.peak_flops.{key}", where)
            for key, field in schema.PEAK_FLOPS.items()
            if key in peaks
        },
        memory=Memory(**_fields(memory, schema.MEMORY, "device.memory", where, source)),
    )


def _check_shared_link(level: Network, what: str, where: str) -> None:
    """Raise unless a link that devices of a level share says how many and at which rate."""
    devices = getattr(level, f"{what}_devices")
    bandwidth = getattr(level, f"{what}_bandwidth")
    if bool(devices) != bool(bandwidth):
        raise HardwareError(f"{where}_devices' and '{what}_bandwidth' are stated together")
    if devices and level.name not in BUS_NAMES:
        raise HardwareError(
            f"{where}_devices' is for a bus (a level named {' or '.join(BUS_NAMES)}), not "
            f"'{level.name}'"
        )


def _system(document: object, where: Where, source: dict[str, str]) -> System:
    table = _table(document, "system", where)
    values = _fields(table, schema.SYSTEM, "system", where, source, ("network", "host"))
    host = _fields(
        _table(table.get("host", {}), "system.host", where),
        schema.HOST,
        "system.host",
        where,
        source,
    )
    if host["bandwidth"] and not (host["memory_capacity"] and host["memory_bandwidth"]):
        raise HardwareError(
            f"{where('system.host')}: a host with a link needs 'system.host.memory_capacity' and "
            "'system.host.memory_bandwidth'"
        )
    drives = [host[key] > 0.0 for key in ("nvme_capacity", "nvme_read", "nvme_write")]
    if any(drives) and not all(drives):
        raise HardwareError(
            f"{where('system.host')}: drives need 'system.host.nvme_capacity', "
            "'system.host.nvme_read' and 'system.host.nvme_write'"
        )
    levels = table.get("network")
    if not isinstance(levels, list | tuple) or not levels:
        raise HardwareError(
            f"{where('system.network')}: 'system.network' must be at least one "
            "[[system.network]] table, innermost first"
        )
    network = []
    for index, level in enumerate(levels):
        path = f"system.network.{index}"
        fields = _fields(_table(level, path, where), schema.NETWORK, path, where, source)
        network.append(Network(**fields))
        if network[index].size == 0 and index < len(levels) - 1:
            raise HardwareError(
                f"{where(path)}: '{path}.size' is 0 (unbounded), which only the outermost "
                "level may be"
            )
        if network[index].closing_side and network[index].topology not in CLOSING:
            raise HardwareError(
                f"{where(path)}: '{path}.closing_side' is for {', '.join(CLOSING)}; a "
                f"{network[index].topology} does not close on itself"
            )
        for what in ("uplink", "socket"):
            _check_shared_link(network[index], what, f"{where(path)}: '{path}.{what}")
    names = [level.name for level in network]
    for index, name in enumerate(names):
        if name in names[:index] or name.isdigit():
            raise HardwareError(
                f"{where('system.network')}: 'system.network.{index}.name' must be unique in "
                f"the system and not a number, not {name!r}"
            )
    return System(**values, network=tuple(network), host=Host(**host))


def build_calibration(
    document: Mapping[str, Any], where: Where, source: dict[str, str] | None = None
) -> dict[str, dict[str, Calibrated]]:
    """Return the checked constants of a merged profile; `source` learns where they are from.

    Raises
    ------
    HardwareError
        A key is missing, unknown, of the wrong type or out of its bounds.
    """
    stated = dict(document.get("source", {})) if source is None else source
    return dict(_calibration(document.get("calibration", {}), where, stated))


def _calibration(
    document: object, where: Where, source: dict[str, str]
) -> Iterator[tuple[str, dict[str, Calibrated]]]:
    table = _table(document, "calibration", where)
    check_keys(table, constants.constants(), "calibration", where)
    for group, entries in table.items():
        path = f"calibration.{group}"
        checked = {}
        for key, entry in _table(entries, path, where).items():
            full = f"{path}.{key}"
            if isinstance(entry, Calibrated):
                checked[key], source[full] = entry, entry.source
                continue
            whole = constants.complete(group, key, entry, full, where(full), source.get(full))
            whole.setdefault("source", f"{UNSOURCED} ({where(full)})")
            checked[key] = _calibrated(whole, full, where)
            source[full] = checked[key].source
        yield group, checked


def _calibrated(entry: Mapping[str, Any], path: str, where: Where) -> Calibrated:
    calibrated = Calibrated(**_fields(entry, schema.CALIBRATED, path, where, {}))
    for key in ("value", "prior"):
        number = getattr(calibrated, key)
        if not calibrated.low <= number <= calibrated.high:
            raise HardwareError(
                f"{where(path)}: '{path}.{key}' = {number:g} lies outside its bounds "
                f"low = {calibrated.low:g} and high = {calibrated.high:g}"
            )
    if not calibrated.source.strip():
        raise HardwareError(f"{where(path)}: '{path}.source' is empty; name the data or the prior")
    return calibrated
