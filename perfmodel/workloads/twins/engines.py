"""Which engine runs a workload file, and which options go with it.

=====================  ==============================  ==========================
workload               stated                          engine
=====================  ==============================  ==========================
execution traces, or   ``network``, ``system``         `EXACT`: as ASTRA-sim 2.x
what converts to them  … and ``model="physical"``      `PHYSICAL`: our collectives
                       ``hardware``                    `HARDWARE`: our own models
ASTRA-sim text         ``network`` of ASTRA-sim 1.0    `LOOP`: its training loop
                       … and ``model="physical"``      `LOOP_PHYSICAL`: beside ours
AICB text              ``gpu_type``                    `SIMAI`: SimAI-Analytical
                       ``hardware``                    `AICB_HARDWARE`: our network
=====================  ==============================  ==========================

`choose_engine` chooses, and refuses what has no effect; `Choice.prepare` reads the files; the
`Run` that it returns computes. `run_workload` does all of it.

>>> run_workload("traces/llama", hardware="dgx-h100").wall_time  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import FormatError, HardwareError, StrategyError, did_you_mean
from perfmodel.base.fields import refuse_unused
from perfmodel.base.units import counted
from perfmodel.workloads.convert.opening import (
    AICB_TEXT,
    ASTRA_TEXT,
    CHAKRA,
    CHAKRA_JSON,
    INPUT_PURPOSES,
    RANK_PLACE,
    check_input_options,
    open_traces,
    rank_files,
    workload_kind,
)
from perfmodel.workloads.convert.summary import trace_remarks
from perfmodel.workloads.twins.astra.versions import SIMULATOR

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.formats.aicb_text import AicbWorkload
    from perfmodel.workloads.simulation.costs import Costs
    from perfmodel.workloads.trace import TraceSet
    from perfmodel.workloads.twins.astra.versions import AstraVersion, Stop

Progress = Callable[[int, int], None]
File = str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What may be stated about a run; what is not stated has these defaults.

    Attributes
    ----------
    kind, devices, passes, groups, kineto, npu_frequency
        As `perfmodel.workloads.convert.opening.open_traces`.
    network, system : str or Path, optional
        Files of ASTRA-sim: ``network.yml`` and ``system.json``, or those of its version 1.0.
    model : {"exact", "physical"}
        As ASTRA-sim, its simplifications included, or our own collectives on the network.
    engine : {"congestion-unaware", "congestion-aware"}
        Which backend of ASTRA-sim is repeated.
    simulator : str
        Which state of it: see `perfmodel.workloads.twins.astra.versions.astra_version`.
    strict : bool
        Refuse what it would not bring to a good end; else that is said in `Run.stops`.
    issue_order : {"identifier", "hash"}
        See `perfmodel.workloads.simulation.run.simulate`.
    queues_per_dimension : int
        Of ASTRA-sim 1.0.
    hardware : str or Hardware, optional
        Profile that runs the workload.
    settings : mapping of str to value
        Values of the profile to change, by dotted path.
    precision, compute, streams, contention
        See `perfmodel.workloads.simulation.hardware_costs.HardwareCosts`.
    virtual_pipeline : int
        Model chunks per stage of an AICB text on hardware.
    gpu_type, nic_type, gpus_per_server, nics_per_server
        See `perfmodel.workloads.twins.simai.bandwidth.SimaiSystem`.
    timeline : str or Path, optional
        Where the caller is to write a timeline of the run, which only execution traces have.
    """

    kind: str | None = None
    devices: int | None = None
    passes: int = 1
    groups: File | None = None
    kineto: Sequence[File] = ()
    npu_frequency: float | None = None
    network: File | None = None
    system: File | None = None
    model: str = "exact"
    engine: str = "congestion-unaware"
    simulator: str = SIMULATOR
    strict: bool = False
    issue_order: str = "identifier"
    queues_per_dimension: int = 1
    hardware: str | Hardware | None = None
    settings: Mapping[str, Any] | None = None
    precision: str = "bf16"
    compute: str = "auto"
    streams: str = "per-group"
    contention: bool = False
    virtual_pipeline: int = 1
    gpu_type: str | None = None
    nic_type: str = "CX7"
    gpus_per_server: int = 8
    nics_per_server: int = 8
    timeline: File | None = None


OPTION_NAMES = tuple(field.name for field in fields(RunOptions))

PURPOSES: Mapping[str, tuple[str, ...]] = {
    "runs with --network and --system": ("network", "system", "model"),
    "runs as ASTRA-sim on network.yml": ("engine", "simulator", "strict", "issue_order"),
    "ASTRA-sim texts on the files of ASTRA-sim 1.0": ("queues_per_dimension",),
    "execution traces": ("timeline",),
    "execution traces and AICB texts": ("hardware",),
    "runs on --hardware": ("settings", "precision", "compute"),
    "our own models of the network: --hardware, or --model physical": ("streams",),
    "execution traces on --hardware": ("contention",),
    "AICB texts as SimAI-Analytical": (
        "gpu_type",
        "nic_type",
        "gpus_per_server",
        "nics_per_server",
    ),
    "AICB texts on --hardware": ("virtual_pipeline",),
}
"""What an option is for, in words -> the options; those of reading are `INPUT_PURPOSES`."""


@dataclass(frozen=True, slots=True)
class Run:
    """A workload that is ready to run: its files are read and nothing is computed yet.

    Attributes
    ----------
    engine : Engine
    workload : str
    where : str
        What it runs on, in words.
    doing : str
        What computing it is, in words.
    compute : callable
        Does it: returns a `Simulation`, `NativeResult`, `ModeComparison` or `SimaiResult`.
    notes : tuple of str
        What the user should know of how the workload was understood.
    stops : tuple of Stop
        What keeps the simulator that is repeated from a good end.
    version : AstraVersion, optional
        State of that simulator.
    costs : Costs, optional
        Cost model of execution traces.
    traces : TraceSet, optional
    devices : int, optional
        Of an AICB text.
    """

    engine: Engine
    workload: str
    where: str
    doing: str
    compute: Callable[[], Any]
    notes: tuple[str, ...] = ()
    stops: tuple[Stop, ...] = ()
    version: AstraVersion | None = None
    costs: Costs | None = None
    traces: TraceSet | None = None
    devices: int | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to run a workload.

    Attributes
    ----------
    name : str
    run : str
        What a run with it is, in words, for messages.
    lines : {"rank", "layer"}
        What its result can be broken down by.
    options : tuple of str
        Options of `PURPOSES` and of reading that have an effect.
    prepare : callable
        (engine, workload, its kind, options, progress of reading) -> `Run`.
    """

    name: str
    run: str
    lines: str
    options: tuple[str, ...]
    prepare: Callable[[Engine, str, str, RunOptions, Progress | None], Run]


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that runs a workload; nothing is read yet but what it is.

    Attributes
    ----------
    engine : Engine
    workload, kind : str
    options : RunOptions
    """

    engine: Engine
    workload: str
    kind: str
    options: RunOptions

    def prepare(self, progress: Progress | None = None) -> Run:
        """Read what the run needs.

        Parameters
        ----------
        progress : callable, optional
            Called after each of several files with the number of files done and of all.

        Raises
        ------
        FormatError, HardwareError, StrategyError
            A file, a profile or a value is not what it should be.
        """
        return self.engine.prepare(self.engine, self.workload, self.kind, self.options, progress)


def choose_engine(workload: File, **stated: Any) -> Choice:
    """Choose the engine that runs a workload, and check that what is stated goes together.

    Parameters
    ----------
    workload : str or Path
        File, folder or prefix.
    **stated
        Options of `RunOptions`. What is stated, and not None, must have an effect, even if its
        value is the default.

    Returns
    -------
    Choice

    Raises
    ------
    FormatError
        The file is no workload that is known.
    StrategyError
        Nothing says what an AICB text runs on, or something is stated that has no effect.
    HardwareError
        The network file cannot be read.
    """
    for name in stated:
        if name not in OPTION_NAMES:
            raise StrategyError(f"a run has no option '{name}'{did_you_mean(name, OPTION_NAMES)}")
    stated = {name: value for name, value in stated.items() if value is not None}
    options = RunOptions(**stated)
    kind = options.kind or workload_kind(workload)
    engine = _engine(str(workload), kind, options)
    refuse_unused(stated, engine.options, PURPOSES, engine.run)
    if engine.lines == "rank":
        check_input_options(workload, kind, stated)
    else:
        refuse_unused(stated, engine.options, INPUT_PURPOSES, engine.run)
    return Choice(engine, str(workload), kind, options)


def run_workload(workload: File, **stated: Any) -> Any:
    """Run a workload file with the engine that the options choose.

    Parameters
    ----------
    workload : str or Path
    **stated
        Options of `RunOptions`.

    Returns
    -------
    Simulation, NativeResult, ModeComparison or SimaiResult

    Raises
    ------
    FormatError, HardwareError, StrategyError
        See `choose_engine` and `Choice.prepare`.
    """
    return choose_engine(workload, **stated).prepare().compute()


def _engine(workload: str, kind: str, options: RunOptions) -> Engine:
    physical = options.model == "physical"
    if kind == AICB_TEXT:
        if options.hardware is not None:
            return AICB_HARDWARE
        if options.gpu_type is not None:
            return SIMAI
        raise StrategyError(
            f"'{workload}' is an AICB text: --gpu-type A100 runs it as SimAI-Analytical, "
            "--hardware dgx-a100 on our own network model"
        )
    if kind == ASTRA_TEXT and options.network and _is_json(options.network):
        return LOOP_PHYSICAL if physical else LOOP
    if options.hardware is not None:
        if options.network or options.system:
            raise StrategyError("--hardware and --network both name a network; drop one")
        return HARDWARE
    return PHYSICAL if physical else EXACT


# ---------------------------------------------------------------- execution traces


def _run_traces(
    engine: Engine, workload: str, kind: str, options: RunOptions, progress: Progress | None
) -> Run:
    from perfmodel.workloads.simulation.run import simulate

    costs, where, notes = _costs(options)
    traces = open_traces(
        workload,
        kind,
        devices=options.devices,
        passes=options.passes,
        groups=options.groups,
        kineto=options.kineto,
        npu_frequency=options.npu_frequency,
        progress=progress,
    )
    if traces.devices == 1 and not options.devices:
        notes += (
            "one rank alone; its communication takes the time that its trace records "
            "(--devices N runs N like it)",
        )
    notes += tuple(trace_remarks(traces))
    stops, version = _stops(workload, kind, options, traces, costs)
    return Run(
        engine,
        workload,
        where,
        f"running {counted(traces.nodes, 'node')} of {counted(traces.devices, 'rank')}",
        lambda: simulate(traces, costs, issue_order=options.issue_order),
        notes,
        stops,
        version,
        costs,
        traces,
    )


def _stops(
    workload: str, kind: str, options: RunOptions, traces: TraceSet, costs: Costs
) -> tuple[tuple[Stop, ...], AstraVersion | None]:
    """Return where the real simulator would stop, or raise where we do as well."""
    from perfmodel.workloads.twins.astra.costs import AstraCosts
    from perfmodel.workloads.twins.astra.stops import find_stops

    if not isinstance(costs, AstraCosts):
        return (), None
    if traces.devices > 1:
        costs.check(traces.devices)
    if kind in (CHAKRA, CHAKRA_JSON):
        _refuse_missing_parents(workload, traces)
    stops = find_stops(traces, costs.network, costs.system, costs.version, costs.engine)
    if options.strict and stops:
        raise FormatError("--strict: " + "; and ".join(stop.line(costs.version) for stop in stops))
    return stops, costs.version


def _refuse_missing_parents(workload: str, traces: TraceSet) -> None:
    """Raise where a node waits for one that is not in its file, as ASTRA-sim does."""
    from perfmodel.workloads.formats.chakra.files import files_of_ranks
    from perfmodel.workloads.simulation.costs import node_text
    from perfmodel.workloads.twins.astra.stops import each_order, missing_parent

    for rank, trace in each_order(traces):
        missing = missing_parent(trace)
        if missing is not None:
            source = rank_files(workload) if RANK_PLACE in workload else workload
            file = files_of_ranks(source)[0][rank]
            raise FormatError(
                f"{file}: {node_text(trace, missing[0])} waits for node {missing[1]}, which is "
                "not in the trace; ASTRA-sim refuses such a file"
            )


def _costs(options: RunOptions) -> tuple[Costs, str, tuple[str, ...]]:
    """Return what nodes cost, where that is, in words, and notes."""
    if options.hardware is not None:
        from perfmodel.workloads.simulation.hardware_costs import HardwareCosts

        device, named, notes = _device(options)
        costs = HardwareCosts(
            device,
            options.precision,
            options.streams,
            compute=options.compute,
            contention=options.contention,
        )
        return costs, named, notes
    if options.network is None or options.system is None:
        raise StrategyError(
            "name what the workload runs on: --network network.yml --system system.json, or "
            "--hardware NAME"
        )
    if _is_json(options.network):
        raise HardwareError(
            f"'{options.network}' is a network of ASTRA-sim 1.0, which runs its text workloads "
            "alone; execution traces need network.yml"
        )
    from perfmodel.workloads.formats.astra_files import read_network, read_system

    network, system = read_network(options.network), read_system(options.system)
    if options.model == "physical":
        from perfmodel.workloads.twins.astra.costs import NetworkCosts

        where = f"{options.network} with our network model"
        return NetworkCosts(network, system, options.streams), where, ()
    from perfmodel.workloads.twins.astra.costs import AstraCosts

    astra = AstraCosts(network, system, options.engine, options.simulator)
    return astra, f"{options.network} as ASTRA-sim {astra.version.name}", ()


# ---------------------------------------------------------------- ASTRA-sim 1.0


def _run_loop(
    engine: Engine, workload: str, kind: str, options: RunOptions, progress: Progress | None
) -> Run:
    """Run a text workload in its own training loop: as ASTRA-sim 1.0, or beside it our models."""
    from perfmodel.base.files import shortened
    from perfmodel.workloads.formats.astra_text import COLLECTIVES, read_astra_text
    from perfmodel.workloads.formats.astra_text_machine import (
        read_native_network,
        read_native_system,
    )
    from perfmodel.workloads.twins.astra_text.comparison import compare_modes
    from perfmodel.workloads.twins.astra_text.native import run_native

    if options.system is None:
        raise StrategyError("--network needs --system beside it: the system file of ASTRA-sim 1.0")
    network = read_native_network(str(options.network))
    system = read_native_system(str(options.system))
    text = read_astra_text(workload)
    kinds = {str(name) for phase in text.phases for name in phase.collective}
    notes = tuple(
        f"'{shortened(name)}' is no collective and counts as none, as in ASTRA-sim 1.0"
        for name in sorted(kinds - {"NONE", *COLLECTIVES})
    )
    physical = engine is LOOP_PHYSICAL
    how = "with our network model" if physical else "as ASTRA-sim 1.0"
    run: Callable[..., Any] = compare_modes if physical else run_native
    return Run(
        engine,
        workload,
        f"{options.network} {how}",
        f"running {counted(text.layers, 'layer')}",
        lambda: run(
            text,
            network,
            system,
            passes=options.passes,
            queues_per_dimension=options.queues_per_dimension,
        ),
        notes,
    )


# ---------------------------------------------------------------- AICB texts


def _run_aicb_on_hardware(
    engine: Engine, workload: str, kind: str, options: RunOptions, progress: Progress | None
) -> Run:
    from perfmodel.workloads.twins.aicb.physical import run_on_hardware

    text, devices = _aicb_text(workload, options)
    hardware, named, notes = _device(options)
    virtual, chunks = options.virtual_pipeline, text.header.layers_per_stage
    if text.header.pipeline_parallel > 1 and chunks > 1 and virtual == 1:
        notes += (
            f"'vpp: {chunks}' of the header counts as layers, as AICB means it; where "
            f"it is chunks (the corrected dialect), say --virtual-pipeline {chunks}",
        )
    return Run(
        engine,
        workload,
        f"on {named}",
        f"running {counted(text.rows, 'row')}",
        lambda: run_on_hardware(text, devices, hardware, virtual_pipeline=virtual),
        notes,
        devices=devices,
    )


def _run_as_simai(
    engine: Engine, workload: str, kind: str, options: RunOptions, progress: Progress | None
) -> Run:
    from perfmodel.workloads.twins.simai.bandwidth import SimaiSystem
    from perfmodel.workloads.twins.simai.step import simulate

    text, devices = _aicb_text(workload, options)
    system = SimaiSystem(
        options.gpus_per_server,
        options.nics_per_server,
        options.gpu_type,
        options.nic_type,
    )
    return Run(
        engine,
        workload,
        f"as SimAI-Analytical, {options.gpu_type}",
        f"running {counted(text.rows, 'row')}",
        lambda: simulate(text, devices, system),
        devices=devices,
    )


def _aicb_text(workload: str, options: RunOptions) -> tuple[AicbWorkload, int]:
    """Return an AICB text, and the devices that it runs on."""
    from perfmodel.workloads.formats.aicb_text import read_aicb_text

    text = read_aicb_text(workload)
    return text, options.devices or text.header.whole("all_gpus")


def _device(options: RunOptions) -> tuple[Hardware, str, tuple[str, ...]]:
    """Return the profile with its settings, its name as given, and notes about that name."""
    from perfmodel.hwprofiles import Hardware, load_hardware

    given = options.hardware
    profile = given if isinstance(given, Hardware) else load_hardware(str(given))
    notes = tuple(note for note in profile.notes if note.startswith("'"))  # of an alias
    named = given.name if isinstance(given, Hardware) else str(given)
    return profile.with_values(options.settings or {}), named, notes


def _is_json(path: File) -> bool:
    """Tell whether a network file is that of ASTRA-sim 1.0."""
    try:
        return Path(path).read_bytes()[:4096].lstrip().startswith(b"{")
    except OSError as error:
        raise HardwareError(f"cannot read '{path}': {error.strerror}") from None


_FILES = ("network", "system", "model")
_SIMAI = ("gpu_type", "nic_type", "gpus_per_server", "nics_per_server")
EXACT = Engine(
    "exact",
    "this run is as ASTRA-sim",
    "rank",
    (*_FILES, "engine", "simulator", "strict", "issue_order", "timeline"),
    _run_traces,
)
PHYSICAL = Engine(
    "physical",
    "this run is with --model physical",
    "rank",
    (*_FILES, "streams", "timeline"),
    _run_traces,
)
HARDWARE = Engine(
    "hardware",
    "this run is on --hardware",
    "rank",
    ("hardware", "settings", "precision", "compute", "streams", "contention", "timeline"),
    _run_traces,
)
LOOP = Engine(
    "loop",
    "this run is on the files of ASTRA-sim 1.0",
    "layer",
    (*_FILES, "queues_per_dimension", "passes"),
    _run_loop,
)
LOOP_PHYSICAL = replace(LOOP, name="loop physical")
AICB_HARDWARE = Engine(
    "AICB on hardware",
    "this run is on --hardware",
    "layer",
    ("devices", "hardware", "settings", "virtual_pipeline"),
    _run_aicb_on_hardware,
)
SIMAI = Engine(
    "SimAI", "this run is as SimAI-Analytical", "layer", ("devices", *_SIMAI), _run_as_simai
)
