"""The hardware that a projection runs on: one device type inside one system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.notebook import facts_html
from perfmodel.base.units import format_gib, format_si
from perfmodel.hwprofiles.build import Where, checked_profile
from perfmodel.hwprofiles.constants import Lookup
from perfmodel.hwprofiles.parts import Calibrated, Device, System
from perfmodel.hwprofiles.paths import get_value, overridden
from perfmodel.hwprofiles.schema import Scalar
from perfmodel.hwprofiles.trust import band, trust


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
    overrides: dict[str, Scalar] = field(default_factory=dict)

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
