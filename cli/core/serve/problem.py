"""From what was typed to deployments, loads and hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.core.serve.options import ASSUMED, deployment_axes, load_axes
from perfmodel.cli.shared.inputs import load_engines, load_rows, of_hardware
from perfmodel.cli.shared.models import say_remarks
from perfmodel.cli.shared.printing import detail
from perfmodel.serving.fields import LOAD_FIELD_BY_NAME

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.serving.requests import RequestTrace


@dataclass(frozen=True)
class Question:
    """What is projected.

    Attributes
    ----------
    model_name : str
        As it was typed.
    model : ModelSpec
    hardware : list of str
        As they were typed.
    rows : list of Hardware
    values : dict of str to list of float
        Swept values of each row.
    every, grid : DeploymentGrid
        All deployments that were asked for, and the possible ones.
    loads : LoadGrid
    method : str
        How points are closed.
    assumed : dict of str to value
        Options that nobody gave, with what was taken.
    settings, reading : mapping
        Values of ``--set``, and how the model was read.
    trace : RequestTrace or None
        What is replayed.
    clients : sequence of float
        Requests of the trace that are kept under way; empty where they come by themselves.
    """

    model_name: str
    model: ModelSpec
    hardware: list[str]
    rows: list[Hardware]
    values: dict[str, list[float]]
    every: DeploymentGrid
    grid: DeploymentGrid
    loads: LoadGrid
    method: str
    assumed: dict[str, Any]
    settings: Mapping[str, Any]
    reading: Mapping[str, Any]
    trace: RequestTrace | None
    clients: Sequence[float]

    @property
    def count(self) -> int:
        """Operating points."""
        return len(self.grid) * len(self.rows) * len(self.loads)

    @property
    def is_one(self) -> bool:
        """Whether one point was asked for."""
        return self.count == 1 and len(self.every) == 1

    @property
    def is_phase(self) -> bool:
        """Whether one phase was asked for, of a static batch."""
        return self.method in ("prefill", "decode")


def load_question(
    given: Mapping[str, Any], reading: Mapping[str, Any], problem: Mapping[str, Any]
) -> Question:
    """Load and check everything about a projection, cheapest first.

    Parameters
    ----------
    given : mapping of str to value
        Options of deployments and loads (`perfmodel.cli.core.serve.options.GIVEN`).
    reading : mapping
        How the model is read.
    problem : mapping of str to value
        The other options.

    Raises
    ------
    click.UsageError
        Options that exclude each other, or a load that nothing says.
    StrategyError
        No deployment is possible.
    """
    from perfmodel.base.units import format_si
    from perfmodel.model.presets import load_model
    from perfmodel.serving.enumerate import describe_rejected, load_grid, serving_grid
    from perfmodel.serving.grid import joined
    from perfmodel.serving.requests import read_requests
    from perfmodel.sweeps.serving_replay import trace_loads

    loads = load_axes(given)
    method = _method(problem, loads, given)
    if problem.get("phase"):
        loads["concurrency"] = problem["batch"]
    axes = deployment_axes(given)
    spec = load_model(problem["model"], mtp="stated", **reading)
    say_remarks([spec])
    parameters = format_si(float(spec.without_mtp().parameter_count()))
    detail(f"model {spec.name}: {parameters} parameters in {spec.num_layers:,} layers")
    settings, swept = problem["settings"], problem["swept"]
    rows, values = load_rows(problem["hardware"], of_hardware(settings), of_hardware(swept))
    engines = load_engines(problem["engine"], settings, swept)
    trace = None
    if problem.get("replay"):
        trace = read_requests(problem["replay"])
        asked = trace_loads(trace, loads.get("concurrency", ()))
        detail(f"trace of {len(trace):,} requests in {trace.arrival[-1] - trace.arrival[0]:,.0f} s")
    else:
        asked = load_grid(**loads)
    every = joined(
        [
            serving_grid(spec, rows, engine=engines, devices=limit, keep_impossible=True, **some)
            for limit in problem["devices"] or [None]
            for some in axes
        ]
    )
    possible = every.take(every.status == 0)
    if not len(possible):
        limits = problem["devices"] or [None]
        raise StrategyError(
            describe_rejected(every.status, limits[0] if len(limits) == 1 else None)
        )
    assumed: dict[str, Any] = {} if problem["engine"] else {"engine": engines[0].name}
    for field in (LOAD_FIELD_BY_NAME[name] for name in ASSUMED):
        if given.get(field.name) is None and trace is None:
            assumed[field.option] = field.default
    return Question(
        problem["model"],
        spec,
        problem["hardware"],
        rows,
        values,
        every,
        possible,
        asked,
        method,
        assumed,
        settings,
        reading,
        trace,
        loads.get("concurrency", ()) if trace is not None else (),
    )


def _method(problem: Mapping[str, Any], loads: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return how points are closed."""
    phase, batch = problem.get("phase"), problem.get("batch")
    flows = [name for name in ("concurrency", "arrival_rate") if name in loads]
    if problem.get("replay"):
        others = [field.option for field in LOAD_FIELD_BY_NAME.values() if field.name in loads]
        others = [name for name in others if name != "concurrency"]
        others += [name for name in ("phase", "batch", "exact") if problem.get(name)]
        if others:
            raise click.UsageError(f"--replay takes its load from the trace; drop --{others[0]}")
        if _pools(given):
            raise click.UsageError("--replay runs on one pool; drop --disaggregate and its pools")
        return "replay"
    if (phase is None) != (batch is None):
        raise click.UsageError("--phase and --batch go together: a phase of a static batch")
    if phase is None:
        if not flows:
            raise click.UsageError(
                "--concurrency (requests under way) or --rate (requests per second) is needed, "
                "or --phase with --batch"
            )
        if problem.get("exact") and ("arrival_rate" in flows or _pools(given)):
            raise click.UsageError("--exact takes closed loops (--concurrency) on one pool")
        return "recursion" if problem.get("exact") else "closed"
    if flows:
        raise click.UsageError("--batch is what --phase runs; drop --concurrency and --rate")
    if problem.get("exact") or any(
        given.get(name) for name in ("disaggregate", "prefill", "decode")
    ):
        raise click.UsageError("--phase runs on one pool, without a scheduler; drop the others")
    return str(phase)


def _pools(given: Mapping[str, Any]) -> bool:
    """Tell whether two pools are asked for."""
    return any(given.get(name) for name in ("disaggregate", "prefill", "decode"))
