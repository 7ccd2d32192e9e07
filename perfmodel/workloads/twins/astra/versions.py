"""Which state of ASTRA-sim is repeated: where its states differ, with the line that decides.

``af2492b`` is the head of April 2025 (branch *stage*), ``main`` what a clone gave in March 2026
(518bd51). Paths are those of the ASTRA-sim repository at that state.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import HardwareError, did_you_mean

__all__ = ["DEFAULT_VERSION", "SIMULATOR", "VERSIONS", "AstraVersion", "astra_version"]

SIMULATOR = "astra-sim"
ASSUMED_DIMENSIONS = 4  # of main's collectives that state none: Workload.cc, issue_coll_comm


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraVersion:
    """A state of ASTRA-sim.

    Attributes
    ----------
    name, commit, date : str
    dimensions_attribute : str
        The only attribute of a node that restricts a collective to some dimensions:
        ``workload/Workload.cc``, ``issue_coll_comm``.
    dimensions_override_group : bool
        Such a collective leaves its communicator group aside; else the group decides
        (``Sys.cc``, ``generate_all_reduce`` and its like).
    group_keeps_algorithm : bool
        A group that leaves devices out uses the algorithm of a list with one entry, and a
        ring otherwise; else always a ring (``system/CommunicatorGroup.cc``,
        ``get_collective_plan``).
    numbered_groups : bool
        Names of groups are read as numbers: ``Workload.cc``, ``initialize_comm_groups``
        (``stoi``).
    counts_host : bool
        Statistics know nodes of the host; else they are lost where a trace has one:
        ``workload/Statistics.cc``, ``extract_comp_comm_overlap``.
    """

    name: str
    commit: str
    date: str
    dimensions_attribute: str
    dimensions_override_group: bool
    group_keeps_algorithm: bool
    numbered_groups: bool
    counts_host: bool

    def reads(self, attributes: tuple[str, ...]) -> bool:
        """Tell whether dimensions count that a file states so; traces from no file name none."""
        return not attributes or self.dimensions_attribute in attributes

    def __str__(self) -> str:
        """Return the version as options name it."""
        return f"{SIMULATOR}@{self.name}"


VERSIONS = {
    version.name: version
    for version in (
        AstraVersion(
            name="af2492b",
            commit="af2492b",
            date="2025-04-17",
            dimensions_attribute="involve_dims",
            dimensions_override_group=True,
            group_keeps_algorithm=False,
            numbered_groups=False,
            counts_host=True,
        ),
        AstraVersion(
            name="main",
            commit="518bd51",
            date="2026-03",
            dimensions_attribute="involved_dim",
            dimensions_override_group=False,
            group_keeps_algorithm=True,
            numbered_groups=True,
            counts_host=False,
        ),
    )
}
DEFAULT_VERSION = VERSIONS["main"]  # what is cloned today


def astra_version(text: str | AstraVersion) -> AstraVersion:
    """Return the version that a text names.

    Parameters
    ----------
    text : str or AstraVersion
        ``astra-sim``, which is the default, or ``astra-sim@VERSION``.

    Raises
    ------
    HardwareError
        No such simulator or version; names those that are known.

    Examples
    --------
    >>> astra_version("astra-sim@af2492b").group_keeps_algorithm
    False
    """
    if isinstance(text, AstraVersion):
        return text
    simulator, stated, name = text.partition("@")
    if simulator != SIMULATOR:
        raise HardwareError(f"simulator '{text}' is not known; it should be {_known()}")
    if not stated:
        return DEFAULT_VERSION
    for version in VERSIONS.values():
        if name in (version.name, version.commit):
            return version
    raise HardwareError(
        f"{SIMULATOR} has no version '{name}' here; it should be {_known()}"
        + did_you_mean(name, VERSIONS)
    )


def _known() -> str:
    """Return all versions as options name them."""
    *others, last = map(str, VERSIONS.values())
    return ", ".join([SIMULATOR, *others]) + f" or {last}"
