"""What a calibration is about: measured tables, and the constants of a profile or family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from perfmodel.hwprofiles import Calibrated, Hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.family import Family
from perfmodel.hwprofiles.loader import normalise
from perfmodel.hwprofiles.transfer import at_clock
from perfmodel.measured.cases import kernel_hardware
from perfmodel.measured.rows import MeasuredRow, Skip

Constants = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Rows of one file.

    Attributes
    ----------
    file : str
    kind : str
        One of `perfmodel.measured.kind.calibrated_kinds`.
    where : str, optional
        Filter over columns, as in `perfmodel.measured.compare.compare_file`.
    """

    file: str
    kind: str
    where: str | None = None


class Subject(Protocol):
    """Chooses rows, and says how their devices get the constants that are fitted."""

    @property
    def constants(self) -> Mapping[str, Mapping[str, Calibrated]]:
        """Constants by group and key."""

    @property
    def name(self) -> str:
        """Of the profile or family."""

    @property
    def described(self) -> str:
        """What it is, and its name."""

    @property
    def wanted(self) -> str:
        """What a row's ``hardware`` should say."""

    @property
    def any_constant(self) -> bool:
        """Whether a fit may be asked for constants that are not adjustable."""

    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """Return what is calibrated and to what, fit for JSON."""

    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Return the row as it is priced; None where its device has nothing to say."""

    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """Return a row's device with the constants in use."""

    def own(self, hardware: Hardware, group: str) -> frozenset[str]:
        """Return the keys that a row's device states itself, whatever is fitted."""

    def at_device(self, hardware: Hardware, group: str, values: Mapping[str, float]) -> Constants:
        """Return constants of the subject as a row's device has them."""


@dataclass(frozen=True)
class OneProfile:
    """A profile, and on demand other devices under its constants.

    Attributes
    ----------
    profile : Hardware
    spelling : str
        Name or path by which it was loaded.
    all_rows : bool
        Also rows of other devices, each with its own device's facts and the profile's
        constants.
    """

    profile: Hardware
    spelling: str
    all_rows: bool = False

    @property
    def constants(self) -> Mapping[str, Mapping[str, Calibrated]]:
        """Those of the profile."""
        return self.profile.calibration

    @property
    def name(self) -> str:
        """Of the profile."""
        return self.profile.name

    @property
    def described(self) -> str:
        """A profile."""
        return f"hardware profile '{self.name}'"

    any_constant = False

    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """One table."""
        (table,) = tables
        return {
            "kind": table.kind,
            "profile": self.name,
            "file": table.file,
            "where": table.where,
            "all_rows": self.all_rows,
        }

    @property
    def wanted(self) -> str:
        """Name or alias."""
        alias = f" or {self.profile.aliases[0]}" if self.profile.aliases else ""
        return f"{self.profile.name}{alias}, or use --all-rows"

    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Rows of its device, and with `all_rows` every other."""
        if self._names(row):
            return row.replaced("hardware", self.spelling)
        return row if self.all_rows else None

    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """Every device under the profile's constants."""
        base = self.profile if hardware.name == self.profile.name else hardware
        constants = self.profile.calibration[group]
        return replace(base, calibration={**base.calibration, group: constants})

    def own(self, hardware: Hardware, group: str) -> frozenset[str]:
        """None: the profile's constants hold for every row."""
        return frozenset()

    def at_device(self, hardware: Hardware, group: str, values: Mapping[str, float]) -> Constants:
        """As they are."""
        return values

    def _names(self, row: MeasuredRow) -> bool:
        """Tell whether a row was measured on the profile's device."""
        profile = self.profile
        text = row.text("hardware").split("|")[0].strip()
        if normalise(text) in map(normalise, (profile.name, profile.device.name, *profile.aliases)):
            return True
        try:
            hardware, _ = kernel_hardware(row)
        except Skip:
            return False
        return hardware.device.name == profile.device.name


@dataclass(frozen=True)
class WholeFamily:
    """All devices of a family, each with its own facts and what it has of its own.

    Attributes
    ----------
    family : Family
    """

    family: Family

    @property
    def constants(self) -> Mapping[str, Mapping[str, Calibrated]]:
        """Those that the family hands down."""
        return self.family.calibration

    @property
    def name(self) -> str:
        """Of the family."""
        return self.family.name

    @property
    def described(self) -> str:
        """A family."""
        return f"family '{self.name}'"

    any_constant = True

    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """All tables."""
        return {
            "family": self.name,
            "systems": list(self.family.systems),
            "tables": [asdict(table) for table in tables],
        }

    @property
    def wanted(self) -> str:
        """The systems of the family."""
        return "one of " + ", ".join(self.family.systems)

    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Rows of its systems."""
        try:
            hardware, _ = kernel_hardware(row)
        except Skip:
            return None
        return row if hardware.name in self.family.systems else None

    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """The device, with what the family has now in place of what it inherited."""
        own = self.own(hardware, group)
        handed = {key: entry for key, entry in self.constants[group].items() if key not in own}
        values = {key: entry.value for key, entry in handed.items()}
        scaled = self.at_device(hardware, group, values)
        handed = {key: replace(entry, value=scaled[key]) for key, entry in handed.items()}
        entries = {**hardware.calibration.get(group, {}), **handed}
        return replace(hardware, calibration={**hardware.calibration, group: entries})

    def own(self, hardware: Hardware, group: str) -> frozenset[str]:
        """What the device's files, or its chip's, state in place of the family."""
        stated = self.family.own.get(hardware.name, frozenset())
        return frozenset(key for its_group, key in stated if its_group == group)

    def at_device(self, hardware: Hardware, group: str, values: Mapping[str, float]) -> Constants:
        """Latencies in clocks."""
        clock = hardware.device.boost_clock
        return {
            key: at_clock(known(group)[key], value, self.family.clock, clock)
            for key, value in values.items()
        }
