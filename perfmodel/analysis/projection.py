"""One strategy projected: its results, and where its time goes, as Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.analysis.explain import OperationCost, operation_costs
from perfmodel.analysis.single import one_strategy
from perfmodel.base.units import facts_html, format_gib, format_range, format_si, format_time
from perfmodel.kernels.variables import (
    MEMORY_COMPONENTS,
    TIME_COMPONENTS,
    VARIABLES,
    memory_verdict,
)
from perfmodel.model.presets import load_model
from perfmodel.software.framework import Framework, load_framework
from perfmodel.store.cost import add_cost, assumptions
from perfmodel.store.results import rows
from perfmodel.sweeps.sweep import sweep_table

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.strategy.grid import StrategyGrid


class Projection(dict[str, Any]):
    """Results of one strategy by name, in SI units; see `VARIABLES` for what each means.

    Attributes
    ----------
    title : str
        What is projected, on what.
    """

    def __init__(self, results: Mapping[str, Any], title: str) -> None:
        super().__init__(results)
        self.title = title

    def __repr__(self) -> str:
        band = format_range(self["step_time_low"], self["step_time_high"], self["step_time"])
        verdict = memory_verdict(self)
        fits = "" if verdict == "fits" else f" ({verdict})"
        return (
            f"{self.title}: step {format_time(self['step_time'])} ({band}), "
            f"{self['tokens_per_second_per_device']:,.0f} tokens/s/device, "
            f"MFU {self['model_flops_utilization']:.1%}, "
            f"{format_gib(self['memory_total'])} of {format_gib(self['memory_capacity'])}{fits}"
        )

    def _repr_html_(self) -> str:
        lines = [(VARIABLES[name].long_name, format_time(self[name])) for name in TIME_COMPONENTS]
        lines += [(VARIABLES[name].long_name, format_gib(self[name])) for name in MEMORY_COMPONENTS]
        return facts_html(repr(self), lines)


class Explanation(list[OperationCost]):
    """Every operation of the slowest stage, in the order in which they run."""

    def __repr__(self) -> str:
        longest = sorted(self, key=lambda cost: -cost.exposed)[:10]
        lines = [f"{format_time(cost.exposed):>10}  {_named(cost)}" for cost in longest]
        more = len(self) - len(longest)
        return "\n".join([*lines, f"and {more} more"] if more else lines)

    def _repr_html_(self) -> str:
        text: str = self.to_dataframe().to_html()
        return text

    def to_dataframe(self) -> pd.DataFrame:
        """Return the operations as a `pandas.DataFrame`, one row each [SI units]."""
        import pandas as pd

        return pd.DataFrame([asdict(cost) for cost in self])


def _named(cost: OperationCost) -> str:
    rate = f", {format_si(cost.flops / cost.time, 'FLOP/s')}" if cost.flops and cost.time else ""
    return f"{cost.part} {cost.name} ({cost.phase}), {cost.shape}, bound by {cost.bound}{rate}"


def project(
    model: ModelSpec | str,
    hardware: Hardware | str,
    devices: int,
    *,
    sequence_length: int,
    global_batch_size: int,
    framework: str | Framework = "megatron",
    mtp: str = "none",
    cost: Mapping[str, Any] | None = None,
    **strategy: Any,
) -> Projection:
    """Project the training step of one strategy.

    Parameters
    ----------
    model : ModelSpec or str
        As of `load_model`.
    hardware : Hardware or str
        As of `load_hardware`.
    devices : int
    sequence_length : int
        Tokens per sequence.
    global_batch_size : int
        Sequences per step.
    framework : str or Framework
        Declared behaviour of the training software.
    mtp : {"none", "stated"}
        As of `load_model`.
    cost : mapping, optional
        What `perfmodel.add_cost` takes, such as ``{"tokens": 15e12, "price": 2.5}``: the
        projection then has its costs, and under ``cost`` what was assumed.
    **strategy
        Any other field of a strategy, such as ``tensor_parallel=8``; what is left out is as runs
        of the framework usually have it (`perfmodel.base.strategy_fields.SOFTWARE_DEFAULTS`), or
        has its default, and ``data_parallel`` is what the other degrees leave over.

    Returns
    -------
    Projection
        Every field and every variable by name.

    Raises
    ------
    ModelError, HardwareError, StrategyError
        Unknown names, or a strategy that is impossible, with its reason.

    Examples
    --------
    >>> found = project("llama-3.1-8b", "dgx-h100", 8, sequence_length=8192,
    ...                 global_batch_size=64, zero_stage=3, recompute="full")
    >>> bool(found["fits"])
    True
    """
    lengths = {"sequence_length": sequence_length, "global_batch_size": global_batch_size}
    spec, grid, device = _problem(
        load_model(model, mtp=mtp), hardware, devices, lengths | strategy, framework
    )
    return project_strategy(spec, grid, device, framework, cost)


def explain(
    model: ModelSpec | str,
    hardware: Hardware | str,
    devices: int,
    *,
    sequence_length: int,
    global_batch_size: int,
    framework: str | Framework = "megatron",
    mtp: str = "none",
    **strategy: Any,
) -> Explanation:
    """Say where the time of one strategy goes, operation by operation.

    Takes what `project` takes.

    Returns
    -------
    Explanation
        A list of `OperationCost`; ``to_dataframe()`` makes a table of it.

    Raises
    ------
    ModelError, HardwareError, StrategyError
        As of `project`, and a precision that the device lacks.
    """
    lengths = {"sequence_length": sequence_length, "global_batch_size": global_batch_size}
    spec, grid, device = _problem(
        load_model(model, mtp=mtp), hardware, devices, lengths | strategy, framework
    )
    return Explanation(operation_costs(spec, grid, device, framework=framework))


def project_strategy(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: str | Framework,
    cost: Mapping[str, Any] | None = None,
) -> Projection:
    """Return the results of a grid of one strategy; `cost` as of `project`."""
    framework = load_framework(framework)
    table = sweep_table(model, grid, hardware, framework=framework, threads=1)
    if cost:
        table = add_cost(table, **cost)
    (row,) = rows(table, np.zeros(1, np.intp))
    del row["strategy"]
    if cost:
        row["cost"] = assumptions(table)
    title = f"{model.name} on {grid.devices:,} × {row['hardware']}, {framework.name}"
    return Projection(row, title)


def _problem(
    spec: ModelSpec,
    hardware: Hardware | str,
    devices: int,
    fields: Mapping[str, Any],
    framework: str | Framework,
) -> tuple[ModelSpec, StrategyGrid, Hardware]:
    from perfmodel.hwprofiles import load_hardware

    machine = load_hardware(hardware)
    return spec, one_strategy(spec, devices, fields, framework, hardware=machine), machine
