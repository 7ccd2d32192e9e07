"""How far the constants of every row of hardware are to be trusted, as columns and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.base.provenance import LEVELS
from perfmodel.base.table import Column, Table, flags
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.trust import KERNELS
from perfmodel.store.results import TRUST, trust_by_hardware

OF_PHASE = {"forward": "attention", "backward": "attention_backward", "decode": "decode"}
"""Phase of attention -> its class of kernels."""


def add_trust(table: Table, rows: Sequence[Hardware]) -> Table:
    """Return a table with ``constants_trust`` (`TRUST`) over kernel class and hardware."""
    codes = [[LEVELS.index(row.trust(name)) for row in rows] for name in KERNELS]
    text = "how the constants of a kernel class came about"
    about = {"units": "1", "long_name": "class of kernels"}
    classes = Column("kernel_class", np.array(list(KERNELS)), about)
    levels = Column(
        ("kernel_class", "hardware"),
        np.array(codes, np.int8),
        {"units": "1", "long_name": text} | flags(LEVELS),
    )
    return Table(
        {**table.data_vars, TRUST: levels},
        {**table.coords, "kernel_class": classes},
        table.attrs,
        {**table.sizes, "kernel_class": len(KERNELS)},
    )


def uncalibrated(table: Table) -> list[str]:
    """Return a line for every device of a grid of kernels that was not measured for them.

    None for kernels that are of no class, and for a table without levels.
    """
    if TRUST not in table:
        return []
    kernel = str(table.attrs.get("kernel"))
    wanted = [kernel] if kernel in KERNELS else []
    if kernel == "attention":
        wanted = list(dict.fromkeys(OF_PHASE[it] for it in table["phase"].labelled().tolist()))
    return _lines(trust_by_hardware(table), wanted)


def uncalibrated_in_serving(rows: Sequence[Hardware]) -> list[str]:
    """Return such lines for devices that serve models."""
    wanted = [name for name in KERNELS if name != OF_PHASE["backward"]]
    return _lines({row.name: {name: row.trust(name) for name in wanted} for row in rows}, wanted)


def _lines(levels: Mapping[str, Mapping[str, str]], wanted: Sequence[str]) -> list[str]:
    found = []
    for name, own in levels.items():
        parts = [
            f"{level}: {', '.join(words)}"
            for level in LEVELS[1:]
            if (words := [it.replace("_", " ") for it in wanted if own[it] == level])
        ]
        if parts:
            found.append(f"constants of {name} {'; '.join(parts)}")
    return found


def trust_document(hardware: Hardware) -> dict[str, dict[str, Any]]:
    """Return level and band of every kernel class, fit for JSON.

    Returns
    -------
    dict
        Class -> ``trust``, and ``band``: half the 10-90 % band of measured over predicted
        times of devices that were left out; None where their own residuals say more.
    """
    found = {}
    for name in KERNELS:
        level = hardware.trust(name)
        found[name] = {"trust": level, "band": hardware.borrowed_band(name) or None}
    return found


def trust_words(hardware: Hardware) -> str:
    """Return one line: which classes are calibrated, transferred (with their band) or priors."""
    parts = []
    document = trust_document(hardware)
    for level in LEVELS:
        names = [
            name.replace("_", " ") + (f" ±{item['band']:.0%}" if item["band"] else "")
            for name, item in document.items()
            if item["trust"] == level
        ]
        if names:
            parts.append(f"{level}: {', '.join(names)}")
    return "; ".join(parts)
