"""Families: the constants that a profile hands down to every profile that extends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.hwprofiles.build import build_calibration
from perfmodel.hwprofiles.loader import (
    FOLDER,
    ancestors,
    chip_clock,
    list_hardware,
    merge_chain,
    normalise,
)
from perfmodel.hwprofiles.schema import Calibrated

Calibration = Mapping[str, Mapping[str, Calibrated]]


@dataclass(frozen=True)
class Family:
    """A shipped profile, whole or abstract, as what others extend.

    Parameters
    ----------
    name, title : str
        Of the profile that states the constants.
    calibration : mapping of str to mapping of str to Calibrated
        Its constants by group and key, those that it inherits itself among them.
    systems : tuple of str
        The complete systems that are it or extend it.
    own : mapping of str to frozenset of (str, str)
        System -> group and key of what its files, or its chip's, state in place of the family.
    clock : float
        Boost clock of the chip that they were measured on [Hz]; 0 where none is named.
    """

    name: str
    title: str
    calibration: Calibration
    systems: tuple[str, ...]
    own: Mapping[str, frozenset[tuple[str, str]]]
    clock: float = 0.0

    @property
    def file(self) -> Path:
        """The file that states the constants."""
        return FOLDER / f"{self.name}.toml"

    def with_constants(self, group: str, values: Mapping[str, float]) -> Family:
        """Return the family with other values in one group."""
        entries = self.calibration[group]
        changed = {key: replace(entries[key], value=value) for key, value in values.items()}
        return replace(self, calibration={**self.calibration, group: {**entries, **changed}})


def load_family(name: str) -> Family:
    """Load what a shipped profile hands down.

    Parameters
    ----------
    name : str
        Of a family or chip, such as ``nvidia-hopper``, or of a system.

    Raises
    ------
    HardwareError
        No such profile, or no system that extends it.
    """
    known = {normalise(profile): profile for profile in list_hardware(all=True)}
    found = known.get(normalise(name))
    if found is None:
        raise HardwareError(
            f"unknown family '{name}'{did_you_mean(name, known)}"
            "; list_hardware(all=True) names the profiles that ship"
        )
    merged = merge_chain(str(FOLDER / f"{found}.toml"))
    systems = tuple(system for system in list_hardware() if found in ancestors(system))
    if not systems:
        raise HardwareError(f"no system that ships extends '{found}': there is nothing to price")
    constants = build_calibration(merged.document, merged.where)
    own = {system: _own(system, merged.files) for system in systems}
    clock = chip_clock(merged.measured_on)
    return Family(found, merged.document["title"], constants, systems, own, clock)


def _own(system: str, files: frozenset[str]) -> frozenset[tuple[str, str]]:
    """Return what a system, or its chip, states in place of the family of some files."""
    merged = merge_chain(str(FOLDER / f"{system}.toml"))
    return frozenset(
        (group, key)
        for group, entries in merged.document.get("calibration", {}).items()
        for key in entries
        if merged.where(f"calibration.{group}.{key}") not in files
    )
