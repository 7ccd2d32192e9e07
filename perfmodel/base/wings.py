"""Wings: what hangs on the core and may be absent, and what each of them gives to it.

The core imports no wing. What a wing adds to a table of the core stands in a module of the wing
with an agreed name, as ``perfmodel.wafer.result_subject``, and is found here if the wing is there.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from perfmodel.base.errors import PerfModelError

WINGS = ("workloads", "wafer", "measured", "report")


@functools.cache
def present(package: str = "perfmodel") -> tuple[str, ...]:
    """Name the wings that a package has, in the order of the help page."""
    return tuple(name for name in WINGS if find_spec(f"{package}.{name}") is not None)


@functools.cache
def contributions(module: str, package: str = "perfmodel") -> tuple[ModuleType, ...]:
    """Import a module of this name from every wing that has one.

    Parameters
    ----------
    module : str
        Name within the wing, as "result_subject".
    package : str
        Where the wings' folders are: "perfmodel", or "perfmodel.cli".
    """
    names = [f"{package}.{wing}.{module}" for wing in present(package)]
    return tuple(import_module(name) for name in names if find_spec(name) is not None)


def wing_module(name: str) -> ModuleType:
    """Import a module that may be a wing's, for an option or a name that needs it.

    Raises
    ------
    PerfModelError
        The wing is not installed.
    """
    wing = name.removeprefix("perfmodel.").removeprefix("cli.").partition(".")[0]
    if wing in WINGS and wing not in present():
        raise PerfModelError(f"this needs the wing '{wing}', which is not installed here")
    return import_module(name)
