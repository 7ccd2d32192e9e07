"""``--for astra-sim``: traces with all that the real simulator needs to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import load_rows
from perfmodel.cli.shared.printing import activity, remark
from perfmodel.cli.workloads.workload.written import tell_written

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.trace import TraceSet
    from perfmodel.workloads.twins.astra.versions import AstraVersion

Function = TypeVar("Function", bound=Callable[..., Any])
ASTRA = "For ASTRA-sim"

for_option = options.options_of("workloads.astra_sim", "for")


class Machine(NamedTuple):
    """Which version of the simulator, and the hardware that it is to simulate."""

    version: AstraVersion
    hardware: Hardware


def hardware_options(function: Function) -> Function:
    """Add ``--for``, and which hardware it is about, to a command that needs none otherwise."""
    return options.stack(
        for_option,
        options.one_hardware_option(
            section=ASTRA, text=f"{options.HARDWARE_HELP}: its network and device, for --for."
        ),
        options.set_option,
    )(function)


def stated_version(simulator: str | None, as_json: bool = False) -> AstraVersion | None:
    """Return the version that ``--for`` names; None without."""
    from perfmodel.workloads.twins.astra.versions import astra_version

    if simulator is None:
        return None
    version = astra_version(simulator)
    if as_json:
        raise StrategyError("--json-traces: ASTRA-sim reads .et files only")
    return version


def machine_of(
    simulator: str | None,
    hardware: str | None,
    settings: Mapping[str, Any],
    as_json: bool = False,
) -> Machine | None:
    """Return what `hardware_options` name; None without ``--for``."""
    version = stated_version(simulator, as_json)
    if version is None:
        for name, given in (("--hardware", hardware), ("--set", settings)):
            if given:
                raise StrategyError(f"{name} is for traces with --for astra-sim")
        return None
    if hardware is None:
        raise StrategyError(
            f"--for {simulator} needs --hardware NAME, whose network the files describe "
            "('perfmodel hardware list')"
        )
    (profile,), _ = load_rows([hardware], settings, {})
    return Machine(version, profile)


def write_for(
    machine: Machine,
    traces: TraceSet,
    prefix: str,
    *,
    precision: str | None = None,
    roofline: bool | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Write traces and what runs them; say what was written, and print both command lines."""
    from perfmodel.workloads.export.astra_sim import (
        astra_export,
        check_prefix,
        command_lines,
        write_astra_export,
    )
    from perfmodel.workloads.formats.chakra.files import make_folder_of

    export = astra_export(
        traces, machine.hardware, machine.version, precision=precision, roofline=roofline
    )
    check_prefix(prefix, export.traces)
    make_folder_of(prefix, export.traces)
    with activity(f"writing {prefix}") as tell:
        paths = write_astra_export(export, prefix, tell)
    tell_written(export.traces, paths)
    files = ", ".join(map(str, paths[-3:]))
    remark(f"wrote {machine.hardware.name} for {machine.version}: {files}")
    for note in (*export.notes, *notes):
        remark(note)
    for line in command_lines(export, prefix):
        click.echo(line)
