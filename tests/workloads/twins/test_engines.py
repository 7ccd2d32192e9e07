"""Which engine runs which file, what goes together, and runs from Python."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.cli.workloads.simulate import SHOW, simulate_command
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.convert.opening import INPUT_PURPOSES
from perfmodel.workloads.formats.chakra.files import write_traces
from perfmodel.workloads.trace import COMPUTE, TraceBuilder, TraceSet
from perfmodel.workloads.twins import engines
from perfmodel.workloads.twins.engines import Engine, RunOptions, choose_engine, run_workload
from tests.cli.workloads.test_simulate import (
    AICB,
    ALL_REDUCE,
    MICRO,
    step,
)

ENGINES = {value.name: value for value in vars(engines).values() if isinstance(value, Engine)}
TRACES = {"network": "network.yml", "system": "system.json"}
LOOP = {"network": "native.json", "system": "system.txt"}


@pytest.mark.parametrize(
    ("workload", "stated", "name"),
    [
        ("step", TRACES, "exact"),
        ("step", TRACES | {"model": "exact", "engine": "congestion-aware"}, "exact"),
        ("step", TRACES | {"model": "physical", "streams": "one"}, "physical"),
        ("step", {"hardware": "dgx-h100", "compute": "roofline"}, "hardware"),
        ("micro.txt", TRACES | {"devices": 16}, "exact"),
        ("micro.txt", {"hardware": "dgx-h100", "devices": 16}, "hardware"),
        ("micro.txt", LOOP | {"passes": 2}, "loop"),
        ("micro.txt", LOOP | {"model": "physical"}, "loop physical"),
        ("aicb.txt", {"gpu_type": "A100"}, "SimAI"),
        ("aicb.txt", {"hardware": "dgx-a100", "virtual_pipeline": 2}, "AICB on hardware"),
    ],
)
def test_file_and_options_choose_the_engine(
    run_files: Path, workload: str, stated: dict[str, Any], name: str
) -> None:
    choice = choose_engine(workload, **stated)
    assert choice.engine is ENGINES[name]
    assert choice.options == RunOptions(**stated)


@pytest.mark.parametrize(
    ("workload", "stated", "message"),
    [
        ("step", {"hardware": "dgx-h100", **TRACES}, "both name a network; drop one"),
        ("step", {"hardware": "dgx-h100", "model": "exact"}, "--model is for runs with --network"),
        ("step", TRACES | {"settings": {}}, "--set is for runs on --hardware; this run is as AST"),
        ("step", TRACES | {"passes": 1}, "--passes is for ASTRA-sim texts; 'step' is of another"),
        ("micro.txt", LOOP | {"devices": 4}, "--devices is for ASTRA-sim texts and traces of one"),
        ("micro.txt", LOOP | {"timeline": "t.json"}, "--timeline is for execution traces; this r"),
        ("aicb.txt", {}, "is an AICB text: --gpu-type A100 runs it as SimAI-Analytical"),
        ("aicb.txt", {"gpu_type": "A100", "passes": 2}, "--passes is for ASTRA-sim texts; this"),
        ("step", TRACES | {"nicc_type": "CX7"}, "no option 'nicc_type'; did you mean nic_type"),
    ],
)
def test_what_does_not_go_together_is_refused(
    run_files: Path, workload: str, stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError) as error:
        choose_engine(workload, **stated)
    assert message in str(error.value)


def test_files_that_are_missing_or_of_the_other_version_are_named(run_files: Path) -> None:
    with pytest.raises(FormatError, match="no workload at 'nothing'"):
        choose_engine("nothing", **TRACES)
    with pytest.raises(HardwareError, match=r"cannot read 'none.json'"):
        choose_engine("micro.txt", network="none.json", system="system.txt")
    with pytest.raises(HardwareError, match=r"execution traces need network.yml"):
        choose_engine("step", **LOOP).prepare()
    with pytest.raises(StrategyError, match="name what the workload runs on"):
        choose_engine("step").prepare()
    with pytest.raises(StrategyError, match="--network needs --system beside it"):
        choose_engine("micro.txt", network="native.json").prepare()


def test_nothing_is_computed_before_it_is_asked_for(run_files: Path) -> None:
    run = choose_engine("micro.txt", devices=16, **TRACES).prepare()
    assert (run.where, run.notes) == ("network.yml as ASTRA-sim main", ())
    assert isinstance(run.traces, TraceSet)
    assert run.doing == "running 16 nodes of 16 ranks"
    assert run.compute().ticks("wall_time") == (ALL_REDUCE,) * 16


def test_notes_say_how_a_workload_was_understood(run_files: Path) -> None:
    alone = choose_engine("step.0.et", hardware="H100").prepare()
    assert alone.notes[0].startswith("'H100': form factor not stated; taken as SXM5")
    assert alone.notes[1].startswith("one rank alone; its communication takes the time")
    (run_files / "odd.txt").write_text(MICRO.replace("ALLREDUCE", "ALLREDUC"), encoding="utf-8")
    assert choose_engine("odd.txt", **LOOP).prepare().notes == (
        "'ALLREDUC' is no collective and counts as none, as in ASTRA-sim 1.0",
    )
    stages = AICB.replace(" pp: 1 vpp: 1 ", " pp: 2 vpp: 3 ")
    (run_files / "stages.txt").write_text(stages, encoding="utf-8")
    (note,) = choose_engine("stages.txt", hardware="dgx-h100").prepare().notes
    assert note.endswith("say --virtual-pipeline 3")
    assert not choose_engine("stages.txt", hardware="dgx-h100", virtual_pipeline=3).prepare().notes


def test_every_engine_runs_from_python(run_files: Path) -> None:
    native = run_workload("micro.txt", **LOOP)
    assert native.total_ns == 41565
    modes = run_workload(Path("micro.txt"), model="physical", **LOOP)
    assert modes.native.total_ns == 41565
    simai = run_workload("aicb.txt", gpu_type="A100", devices=16)
    assert simai.compute == pytest.approx(12_003e-9)
    profile = load_hardware("dgx-h100")
    ours = run_workload("aicb.txt", hardware=profile)
    assert ours.total == run_workload("aicb.txt", hardware="dgx-h100").total
    slow = {"system.network.0.bandwidth": 1e9}
    assert run_workload("aicb.txt", hardware=profile, settings=slow).total > ours.total
    traces = run_workload("step", hardware="dgx-h100")
    assert traces.wall_time.shape == (4,)


def test_the_command_line_has_every_option_with_its_default() -> None:
    shown = {param.name: param.default for param in simulate_command.params}
    for field in fields(RunOptions):
        assert field.name in shown
        if field.default not in (None, False) and field.name not in ("kineto", "settings"):
            assert shown[field.name] == field.default, field.name


def test_every_option_has_a_purpose_and_an_engine() -> None:
    purposes = engines.PURPOSES | INPUT_PURPOSES
    explained = {name for names in purposes.values() for name in names}
    assert explained | {"kind"} == {field.name for field in fields(RunOptions)}
    read = {name for names in INPUT_PURPOSES.values() for name in names}
    used = {name for engine in ENGINES.values() for name in engine.options}
    assert explained - read <= used
    assert set(SHOW) == {engine.name for engine in ENGINES.values() if engine.lines == "layer"}


def test_what_the_real_simulator_would_not_end_well_is_said_or_refused(run_files: Path) -> None:
    """The files of `write_traces` state no attribute `inputs` where there are none."""
    write_traces(step(16), "whole")
    system = json.loads(Path("system.json").read_text(encoding="utf-8"))
    Path("tracked.json").write_text(json.dumps(system | {"track-local-mem": 1}), encoding="utf-8")
    files = TRACES | {"system": "tracked.json"}
    run = choose_engine("whole", **files).prepare()
    assert str(run.version) == "astra-sim@main"
    assert [stop.kind for stop in run.stops] == ["never ends"]
    assert not choose_engine("whole", **TRACES).prepare().stops
    assert run_workload("whole", **TRACES, strict=True)
    with pytest.raises(FormatError, match=r"--strict: astra-sim@main never ends: .* 'inputs'"):
        choose_engine("whole", **files, strict=True).prepare()
    with pytest.raises(StrategyError, match="--strict is for runs as ASTRA-sim"):
        choose_engine("step", hardware="dgx-h100", strict=True)


def test_parents_that_are_missing_are_refused_as_astra_sim_does(run_files: Path) -> None:
    """Such control parents of a recording are ignored by our own models alone."""
    builder = TraceBuilder()
    builder.add("work", COMPUTE, duration=1e-6, control=[7])
    traces = TraceSet((builder.build({"schema": "recorded"}),) * 16)
    write_traces(traces, "missing")
    with pytest.raises(FormatError, match=r"missing\.0\.et: node 0 \(work\) waits for node 7"):
        run_workload("missing", **TRACES)
