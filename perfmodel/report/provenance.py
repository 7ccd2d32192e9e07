"""What results rest on: programs, inputs, constants and how far these are to be trusted."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.base.table import Table
from perfmodel.base.units import format_gib, format_si
from perfmodel.hwprofiles.trust import KERNELS, LEVELS
from perfmodel.sweeps.trust import TRUST, trust_by_hardware

MOST_HARDWARE = 12
"""Whose constants are listed."""
LONGEST_SOURCE = 160
SHOWN = (
    *("title", "source", "schema_version", "model", "framework", "devices", "method"),
    *("workload", "on", "scaling", "precision", "head"),
)

Facts = list[list[str]]


def file_facts(path: Path) -> Facts:
    """Return size and digest of a file that was read."""
    files = sorted(it for it in path.rglob("*") if it.is_file()) if path.is_dir() else [path]
    digest, size = hashlib.sha256(), 0
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                digest.update(block)
                size += len(block)
    return [["size", f"{size:,} B"], ["SHA-256", digest.hexdigest()]]


def table_provenance(name: str, table: Table, facts: Facts) -> dict[str, Any]:
    """Return what one file of results says of itself.

    Returns
    -------
    dict
        ``name``; ``facts``, pairs of texts; ``hardware``, one mapping per profile with ``name``,
        ``facts``, ``trust`` (kernel class, level, band) and ``constants``.
    """
    attrs = table.attrs
    facts = facts + [
        [key.replace("_", " "), _text(attrs[key])] for key in SHOWN if attrs.get(key) is not None
    ]
    levels = trust_by_hardware(table) if TRUST in table else {}
    stated, hardware, more = _stated(str(attrs.get("provenance", "{}")), json.dumps(levels))
    facts += stated
    if attrs.get("cost"):
        facts.append(["cost assumes", _text(attrs["cost"])])
    return {"name": name, "facts": facts, "hardware": hardware, "more_hardware": more}


@functools.lru_cache(maxsize=16)
def _stated(text: str, trust: str) -> tuple[Facts, list[dict[str, Any]], int]:
    """Return facts of versions and model, profiles, and how many more of these there are.

    Sweeps of one model and machine after another (`perfmodel.report.server`) state the same.
    """
    levels = json.loads(trust)
    try:
        found = json.loads(text)
    except (RecursionError, ValueError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    facts = [[f"{key} (version)", str(it)] for key, it in _mapping(found.get("versions")).items()]
    facts += _model_facts(_mapping(found.get("model")))
    profiles = _mapping(found.get("hardware"))
    listed = [
        _hardware(str(row), _mapping(profile), levels.get(str(row), {}))
        for row, profile in list(profiles.items())[:MOST_HARDWARE]
    ]
    return facts, listed, len(profiles) - len(listed)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray | list | tuple):
        return ", ".join(map(str, np.asarray(value).tolist()))
    return str(value)


def _model_facts(model: Mapping[str, Any]) -> Facts:
    """Return what is worth knowing of one model; nothing of several."""
    from perfmodel.model.record import model_from_record

    try:
        spec = model_from_record(model)
        parameters = format_si(spec.parameter_count(), "", 4)
        return [
            ["layers", f"{len(spec.layers):,}"],
            ["hidden size", f"{spec.hidden_size:,}"],
            ["vocabulary", f"{spec.vocab_size:,}"],
            ["parameters", parameters],
            ["model from", spec.source or "not stated"],
        ]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, PerfModelError):
        return []


def _hardware(row: str, profile: Mapping[str, Any], levels: Mapping[str, str]) -> dict[str, Any]:
    """Return facts, trust and constants of one profile, as far as it states them."""
    from perfmodel.hwprofiles.hardware import hardware_from_dict

    facts: Facts = [["profile", str(profile.get("title", profile.get("name", row)))]]
    device, system = _mapping(profile.get("device")), _mapping(profile.get("system"))
    peaks, memory = _mapping(device.get("peak_flops")), _mapping(device.get("memory"))
    facts += [
        [f"peak {name}", format_si(peaks[name], "FLOP/s", 4)]
        for name in ("bf16", "fp8", "fp4")
        if peaks.get(name)
    ]
    if memory.get("capacity"):
        facts.append(["memory", format_gib(memory["capacity"])])
        facts.append(["memory bandwidth", format_si(memory["bandwidth"], "B/s", 4)])
    for level in system.get("network") or ():
        size = f", groups of {level['size']}" if level.get("size") else ""
        rate = format_si(level["bandwidth"], "B/s", 4)
        delay = f"{1e6 * level['latency']:.3g} µs"
        facts.append([f"network {level['name']}", f"{level['topology']}{size}, {rate}, {delay}"])
    for key, value in _mapping(profile.get("overrides")).items():
        facts.append([f"set {key}", str(value)])
    trust = []
    try:
        hardware = hardware_from_dict(dict(profile))
        for kernel in KERNELS:
            band = hardware.borrowed_band(kernel)
            level = levels.get(kernel) or hardware.trust(kernel)
            trust.append([kernel.replace("_", " "), level, f"±{band:.0%}" if band else ""])
    except (KeyError, RecursionError, TypeError, ValueError, PerfModelError):
        trust = [[kernel.replace("_", " "), level, ""] for kernel, level in levels.items()]
    return {
        "name": row,
        "facts": facts,
        "trust": trust,
        "levels": list(LEVELS),
        "constants": _constants(_mapping(profile.get("calibration"))),
    }


def _constants(calibration: Mapping[str, Any]) -> list[list[str]]:
    """Return name, value, trust and source of every constant."""
    found = []
    for group, entries in calibration.items():
        for key, entry in _mapping(entries).items():
            said = _mapping(entry)
            if "value" not in said:
                continue
            source = str(said.get("source", ""))
            short = source if len(source) <= LONGEST_SOURCE else f"{source[:LONGEST_SOURCE]}…"
            value = f"{said['value']:.5g} {said.get('unit', '')}".strip()
            found.append([f"{group}.{key}", value, str(said.get("trust", "")), short])
    return found
