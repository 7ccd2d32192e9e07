"""``perfmodel simulate``: run a workload on a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.combinations import refuse_unused
from perfmodel.cli.shared.printing import activity, announce_compilation, detail, remark
from perfmodel.cli.simulate.output import (
    check_outputs,
    show_native,
    show_simai,
    show_simulation,
    write_figures,
    write_simulation,
)
from perfmodel.cli.workload.convert import KIND_PURPOSES, input_options, load_traces

if TYPE_CHECKING:
    from perfmodel.formats.aicb.text import AicbWorkload
    from perfmodel.formats.astra_text.network import NativeNetwork
    from perfmodel.formats.astra_text.system import NativeSystem
    from perfmodel.formats.astra_text.text import AstraTextWorkload
    from perfmodel.parity.simai.step import SimaiResult
    from perfmodel.simulation.costs import Costs

ASTRA, MACHINE, SIMAI = "As ASTRA-sim", "On hardware", "As SimAI-Analytical"
# What options are for, and which of them have an effect on which run.
PURPOSES: dict[str, tuple[str, ...]] = {
    "runs with --network and --system": ("network", "system", "model"),
    "runs as ASTRA-sim on network.yml": ("engine", "issue_order"),
    "ASTRA-sim texts on the files of ASTRA-sim 1.0": ("queues_per_dimension",),
    "execution traces": ("timeline",),
    "execution traces and AICB texts": ("hardware",),
    "runs on --hardware": ("settings", "precision", "compute"),
    "our own models of the network: --hardware, or --model physical": ("streams",),
    "AICB texts as SimAI-Analytical": (
        "gpu_type",
        "nic_type",
        "gpus_per_server",
        "nics_per_server",
    ),
    "AICB texts on --hardware": ("virtual_pipeline",),
}
NATIVE_OPTIONS = ("network", "system", "model", "queues_per_dimension")
EXACT_OPTIONS = ("network", "system", "model", "engine", "issue_order", "timeline")
PHYSICAL_OPTIONS = ("network", "system", "model", "streams", "timeline")
HARDWARE_OPTIONS = ("hardware", "settings", "precision", "compute", "streams", "timeline")
SIMAI_OPTIONS: tuple[str, ...] = ("gpu_type", "nic_type", "gpus_per_server", "nics_per_server")
AICB_OPTIONS: tuple[str, ...] = ("hardware", "settings", "virtual_pipeline")


@click.command("simulate", cls=Command, short_help="Run a workload on a network.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.option(
    "--network",
    section=ASTRA,
    metavar="FILE",
    type=click.Path(),
    help="network.yml; or the network's JSON of ASTRA-sim 1.0, for a text workload.",
)
@options.option(
    "--system",
    section=ASTRA,
    metavar="FILE",
    type=click.Path(),
    help="system.json; or the system text of ASTRA-sim 1.0.",
)
@options.option(
    "--model",
    section=ASTRA,
    type=click.Choice(["exact", "physical"]),
    default="exact",
    show_default=True,
    help="exact: to the nanosecond as ASTRA-sim, its simplifications included. physical: our "
    "own collectives on the same network.",
)
@options.option(
    "--engine",
    section=ASTRA,
    type=click.Choice(["congestion-unaware", "congestion-aware"]),
    default="congestion-unaware",
    show_default=True,
    help="Which of its backends is repeated.",
)
@options.option(
    "--issue-order",
    section=ASTRA,
    type=click.Choice(["identifier", "hash"]),
    default="identifier",
    show_default=True,
    help="Which of a rank's ready nodes begins first; hash: as before April 2025.",
)
@options.option(
    "--queues-per-dimension",
    section=ASTRA,
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Of ASTRA-sim 1.0.",
)
@options.option(
    "--hardware",
    section=MACHINE,
    metavar="NAME|PATH",
    shell_complete=options.complete_hardware,
    help="Hardware profile ('perfmodel hardware list') whose network and device run the traces.",
)
@options.set_option
@options.option(
    "--precision",
    section=MACHINE,
    default="bf16",
    show_default=True,
    help="Matrix rate of the device at which operations run.",
)
@options.option(
    "--compute",
    section=MACHINE,
    type=click.Choice(["auto", "recorded", "roofline"]),
    default="auto",
    show_default=True,
    help="How long computation lasts: as the trace records it, the roofline of its operations "
    "and bytes, or (auto) the roofline only where no time is recorded.",
)
@options.option(
    "--streams",
    section=MACHINE,
    type=click.Choice(["per-group", "one"]),
    default="per-group",
    show_default=True,
    help="Communication of different groups side by side, as in NCCL, or one after another.",
)
@options.option(
    "--virtual-pipeline",
    section=MACHINE,
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Model chunks per pipeline stage of an AICB text, whose header has layers in their place.",
)
@options.option(
    "--gpu-type",
    section=SIMAI,
    metavar="NAME",
    help="A100, A800, H100, H800 or H20: runs an AICB text as SimAI-Analytical does.",
)
@options.option(
    "--nic-type",
    section=SIMAI,
    default="CX7",
    show_default=True,
    metavar="NAME",
    help="CX6, CX7 or BF3.",
)
@options.option(
    "--gpus-per-server",
    section=SIMAI,
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Devices of a server.",
)
@options.option(
    "--nics-per-server",
    section=SIMAI,
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Network adapters of a server.",
)
@options.option(
    "--by",
    section=options.OUTPUT,
    type=click.Choice(["run", "rank", "layer"]),
    default="run",
    show_default=True,
    help="Lines of the table: the whole run, every distinct rank, or every layer of a text.",
)
@options.output_option("FILE.nc", "Write all figures of all ranks as netCDF-4.")
@options.option(
    "--timeline",
    section=options.OUTPUT,
    metavar="FILE.json",
    type=click.Path(),
    help="Write a timeline of the distinct ranks for ui.perfetto.dev.",
)
@options.json_option
@options.verbosity_options
def simulate_command(workload: str, **given: Any) -> None:
    """Run a workload, driven by its dependencies, on a network.

    Chakra traces, ASTRA-sim text, FlexFlow task graphs and PyTorch traces run with
    --network and --system as in ASTRA-sim, or with --hardware on our own models. An ASTRA-sim
    text with the files of ASTRA-sim 1.0 runs its own training loop, layer by layer. An AICB
    text with --gpu-type runs as SimAI-Analytical, with --hardware on our own network model.

    Ranks that behave alike are run once. Exposed communication is wall time without
    computation, waiting included, as ASTRA-sim reports it.

    \b
    Examples:
      perfmodel simulate traces/stage --network network.yml --system system.json
      perfmodel simulate traces/llama --hardware dgx-h100 --timeline timeline.json
      perfmodel simulate DLRM_HybridParallel.txt --devices 8 --network network.yml \\
          --system system.json --model physical
      perfmodel simulate gpt3.txt --network hierarchical.json --system system.txt --by layer
      perfmodel simulate workload.txt --devices 512 --gpu-type A100 --nic-type CX6
    """
    from perfmodel.convert.recognise import AICB_TEXT, ASTRA_TEXT, workload_kind

    kind = given["kind"] or workload_kind(workload)
    detail(f"{workload}: {kind}")
    check_outputs(given["output"], given["timeline"])
    if kind == AICB_TEXT:
        _run_aicb(workload, given)
    elif kind == ASTRA_TEXT and given["network"] and _is_json(given["network"]):
        _run_native(workload, given)
    else:
        _run_traces(workload, kind, given)


def _run_traces(workload: str, kind: str, given: dict[str, Any]) -> None:
    """Run execution traces, or what is converted to them."""
    from perfmodel.simulation.run import simulate

    _refuse_unused_costs(given)
    if given["by"] == "layer":
        raise StrategyError(
            "--by layer is for ASTRA-sim texts with the files of ASTRA-sim 1.0 and for AICB "
            "texts; traces have --by rank"
        )
    costs = _costs(given)
    traces = load_traces(workload, given | {"kind": kind})
    if traces.devices == 1 and not given["devices"]:
        remark(
            "note: one rank alone; its communication takes the time that its trace records "
            "(--devices N runs N like it)"
        )
    announce_compilation()
    with activity(f"running {traces.nodes:,} nodes of {traces.devices:,} ranks"):
        result = simulate(traces, costs, issue_order=given["issue_order"])
    where = _named(given)
    write_simulation(traces, result, given["output"], given["timeline"], workload, where)
    show_simulation(workload, result, where, given["by"], given["as_json"])


def _run_native(workload: str, given: dict[str, Any]) -> None:
    """Run a text workload as ASTRA-sim 1.0, or its loop on our own network model."""
    from perfmodel.cli.simulate.datasets import native_dataset
    from perfmodel.formats.astra_text.network import read_native_network
    from perfmodel.formats.astra_text.system import read_native_system
    from perfmodel.formats.astra_text.text import read_astra_text
    from perfmodel.formats.astra_text.words import COLLECTIVES
    from perfmodel.formats.chakra.schema import shorten
    from perfmodel.parity.astra_text.native import run_native

    run = "this run is on the files of ASTRA-sim 1.0"
    refuse_unused((*NATIVE_OPTIONS, "passes"), PURPOSES | KIND_PURPOSES, run)
    if given["by"] == "rank":
        raise StrategyError("--by rank is for execution traces; text workloads have --by layer")
    if given["system"] is None:
        raise StrategyError("--network needs --system beside it: the system file of ASTRA-sim 1.0")
    network = read_native_network(given["network"])
    system = read_native_system(given["system"])
    announce_compilation()
    found = read_astra_text(workload)
    kinds = {str(kind) for phase in found.phases for kind in phase.collective}
    for kind in sorted(kinds - {"NONE", *COLLECTIVES}):
        remark(f"note: '{shorten(kind)}' is no collective and counts as none, as in ASTRA-sim 1.0")
    if given["model"] == "physical":
        _run_modes(workload, found, network, system, given)
        return
    with activity(f"running {found.layers:,} layers"):
        result = run_native(
            found,
            network,
            system,
            passes=given["passes"],
            queues_per_dimension=given["queues_per_dimension"],
        )
    if given["output"] is not None:
        where = f"{given['network']} as ASTRA-sim 1.0"
        write_figures(native_dataset(result), given["output"], workload, where)
    show_native(workload, result, given["by"], given["as_json"])


def _run_modes(
    workload: str,
    found: AstraTextWorkload,
    network: NativeNetwork,
    system: NativeSystem,
    given: dict[str, Any],
) -> None:
    """Run a text workload's loop on our own network model, beside ASTRA-sim 1.0."""
    from perfmodel.cli.simulate.modes import modes_dataset, show_modes
    from perfmodel.parity.astra_text.comparison import compare_modes

    with activity(f"running {found.layers:,} layers"):
        modes = compare_modes(
            found,
            network,
            system,
            passes=given["passes"],
            queues_per_dimension=given["queues_per_dimension"],
        )
    if given["output"] is not None:
        where = f"{given['network']} with our network model"
        write_figures(modes_dataset(modes), given["output"], workload, where)
    show_modes(workload, modes, given["by"], given["as_json"])


def _run_aicb(workload: str, given: dict[str, Any]) -> None:
    """Run an AICB text as SimAI-Analytical, or on a hardware profile."""
    from perfmodel.cli.simulate.datasets import simai_dataset
    from perfmodel.formats.aicb.text import read_aicb_text

    if given["hardware"] is not None:
        run, used, where = _aicb_on_hardware, AICB_OPTIONS, "on --hardware"
    elif given["gpu_type"] is not None:
        run, used, where = _aicb_as_simai, SIMAI_OPTIONS, "as SimAI-Analytical"
    else:
        raise StrategyError(
            f"'{workload}' is an AICB text: --gpu-type A100 runs it as SimAI-Analytical, "
            "--hardware dgx-a100 on our own network model"
        )
    refuse_unused(("devices", *used), PURPOSES | KIND_PURPOSES, f"this run is {where}")
    if given["by"] == "rank":
        raise StrategyError("--by rank is for execution traces; AICB texts have --by layer")
    with activity(f"reading {workload}"):
        found = read_aicb_text(workload)
    devices = given["devices"] or found.header.whole("all_gpus")
    result, where = run(found, devices, given)
    if given["output"] is not None:
        place = f"{devices:,} devices {where}"
        write_figures(simai_dataset(result), given["output"], workload, place)
    show_simai(workload, result, devices, where, given["by"], given["as_json"])


def _aicb_on_hardware(
    found: AicbWorkload, devices: int, given: dict[str, Any]
) -> tuple[SimaiResult, str]:
    """Return a run on our own network model, and where it took place."""
    from perfmodel.cli.workload.aicb import load_device
    from perfmodel.parity.aicb.physical import run_on_hardware

    device = load_device(given["hardware"], given["settings"])
    virtual, chunks = given["virtual_pipeline"], found.header.layers_per_stage
    if found.header.pipeline_parallel > 1 and chunks > 1 and virtual == 1:
        remark(
            f"note: 'vpp: {chunks}' of the header counts as layers, as AICB means it; where "
            f"it is chunks (the corrected dialect), say --virtual-pipeline {chunks}"
        )
    announce_compilation()
    result = run_on_hardware(found, devices, device, virtual_pipeline=virtual)
    return result, f"on {given['hardware']}"


def _aicb_as_simai(
    found: AicbWorkload, devices: int, given: dict[str, Any]
) -> tuple[SimaiResult, str]:
    """Return what SimAI-Analytical prints, and where it ran."""
    from perfmodel.parity.simai.bandwidth import SimaiSystem
    from perfmodel.parity.simai.step import simulate

    system = SimaiSystem(
        given["gpus_per_server"], given["nics_per_server"], given["gpu_type"], given["nic_type"]
    )
    return simulate(found, devices, system), f"as SimAI-Analytical, {given['gpu_type']}"


def _costs(given: dict[str, Any]) -> Costs:
    """Return the cost model that the options name."""
    if given["hardware"] is not None:
        from perfmodel.cli.workload.aicb import load_device
        from perfmodel.simulation.hardware_costs import HardwareCosts

        device = load_device(given["hardware"], given["settings"])
        return HardwareCosts(device, given["precision"], given["streams"], compute=given["compute"])
    if given["network"] is None or given["system"] is None:
        raise StrategyError(
            "name what the workload runs on: --network network.yml --system system.json, or "
            "--hardware NAME"
        )
    if _is_json(given["network"]):
        raise HardwareError(
            f"'{given['network']}' is a network of ASTRA-sim 1.0, which runs its text workloads "
            "alone; execution traces need network.yml"
        )
    from perfmodel.formats.astra.network import read_network, read_system

    network, system = read_network(given["network"]), read_system(given["system"])
    if given["model"] == "physical":
        from perfmodel.parity.astra.network_costs import NetworkCosts

        return NetworkCosts(network, system, given["streams"])
    from perfmodel.parity.astra.costs import AstraCosts

    return AstraCosts(network, system, given["engine"])


def _refuse_unused_costs(given: dict[str, Any]) -> None:
    """Refuse options that mean nothing where a run of execution traces takes place."""
    if given["hardware"] is not None:
        if given["network"] or given["system"]:
            raise StrategyError("--hardware and --network both name a network; drop one")
        refuse_unused(HARDWARE_OPTIONS, PURPOSES, "this run is on --hardware")
    elif given["model"] == "physical":
        refuse_unused(PHYSICAL_OPTIONS, PURPOSES, "this run is with --model physical")
    else:
        refuse_unused(EXACT_OPTIONS, PURPOSES, "this run is as ASTRA-sim")


def _named(given: dict[str, Any]) -> str:
    """Return on what a run took place, in words."""
    if given["hardware"]:
        return str(given["hardware"])
    how = "as ASTRA-sim" if given["model"] == "exact" else "with our network model"
    return f"{given['network']} {how}"


def _is_json(path: str) -> bool:
    """Tell whether a network file is that of ASTRA-sim 1.0."""
    try:
        return Path(path).read_bytes()[:4096].lstrip().startswith(b"{")
    except OSError as error:
        raise HardwareError(f"cannot read '{path}': {error.strerror}") from None
