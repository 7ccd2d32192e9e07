"""Fit the host facts of serving engines to measured runs.

    python benchmarks/fit/serving.py --data ../shared/data [--engine vllm] [--free FACT ...]
        [--leave model|hardware] [--json]

Tables of passes are priced once; facts of the host enter them in closed form, so that a fit takes
seconds. Each model on each device weighs the same, whatever its number of rows; residuals are
logarithms of projected over measured, of the time per output token against 8 % and of the time to
first token against 20 %, with SciPy's soft L1 loss. ``--leave`` fits once without each model or
device and prints the errors of what was left out. Facts that say the same of a row trade off
against each other (an operation's launch and a request's way to the scheduler): printed values
are one of many equally good ones.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.served_fields import LOAD_FIELD_BY_NAME
from perfmodel.kernels.plain import plain
from perfmodel.kernels.serving import steady
from perfmodel.kernels.serving.tables import OTHER, ROWS, Deployments, Loads, PassTables
from perfmodel.kernels.work import kernel_work
from perfmodel.measured.compare import read_table
from perfmodel.measured.kinds.serving import distinct
from perfmodel.measured.rows import Skip
from perfmodel.measured.serving_rows import CLOSED, ServedCase, case_of, measured_value
from perfmodel.serving.defaults import with_limits
from perfmodel.serving.enumerate import deployments_from_rows
from perfmodel.serving.grid import LoadGrid
from perfmodel.serving.memory import deployment_memory
from perfmodel.serving.pass_table import MIXER_LAUNCHES, pass_tables
from perfmodel.serving.project import deployment_columns
from perfmodel.software.engine import Engine

LIMITS = {
    "operation_time": (1e-5, 1.5e-4),
    "piecewise_time": (2e-6, 3e-5),
    "pass_host": (1e-4, 3e-3),
    "sequence_host": (1e-6, 5e-5),
    "layer_gap": (2e-6, 4e-5),
    "request_host": (2e-3, 6e-2),
    "token_host": (3e-7, 2e-5),
}
"""Facts that are fitted, and between what they may lie [s]."""
WIDTHS = {"tpot": 0.08, "ttft": 0.2}
LATEST = 'is_latest_in_group == "yes"'
WEIGHT = 40.0  # rows that a model on a device counts for

Floats = NDArray[np.float64]
Facts = Mapping[str, float]


@dataclass(frozen=True)
class Group:
    """Rows of one engine, model and device, with their tables."""

    model: str
    hardware: str
    engines: Sequence[Engine]
    tables: PassTables
    deployments: Deployments
    loads: Loads
    layout_engine: NDArray[np.int64]
    deployment_engine: NDArray[np.int64]
    layers: float
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    measured: dict[str, Floats]

    def ratios(self, facts: Facts) -> dict[str, Floats]:
        """Return projected over measured of every row."""
        values: Floats = np.full(
            (len(ROWS), self.deployments.layout.size, self.loads.concurrency.size), np.nan
        )
        arguments = (self._tables(facts), self._deployments(facts), self.loads)
        with kernel_work(operating_points=values[0].size):
            steady.close_points(*map(plain, arguments), values)
        names = {"tpot": ROWS.time_per_output_token_mean, "ttft": ROWS.time_to_first_token_mean}
        return {
            metric: values[row][self.rows, self.columns] / self.measured[metric]
            for metric, row in names.items()
        }

    def _fact(self, name: str, facts: Facts, place: NDArray[np.int64]) -> Floats:
        own = [facts.get(name, getattr(engine, name)) for engine in self.engines]
        return np.array(own, np.float64)[place]

    def _tables(self, facts: Facts) -> PassTables:
        at = self.layout_engine
        before = self._fact("operation_time", {}, at)
        launches = np.divide(
            self.tables.eager_time, before, out=np.zeros(before.size), where=before > 0
        )
        operation = self._fact("operation_time", facts, at)
        piece = self._fact("piecewise_time", facts, at)
        gap = self._fact("layer_gap", facts, at) - self._fact("layer_gap", {}, at)
        body = self.tables.body.copy()
        body[:, :, OTHER] += (gap * self.layers)[:, None]
        return self.tables._replace(
            body=body,
            eager_time=launches * operation,
            piecewise_time=self.layers * (piece + MIXER_LAUNCHES * operation),
            pass_host=self._fact("pass_host", facts, at),
            sequence_host=self._fact("sequence_host", facts, at),
        )

    def _deployments(self, facts: Facts) -> Deployments:
        at = self.deployment_engine
        return self.deployments._replace(
            request_host=self._fact("request_host", facts, at),
            token_host=self._fact("token_host", facts, at),
        )


def read_groups(path: Path, where: str = LATEST) -> dict[str, list[Group]]:
    """Return the closed loops of a table with one pool, by engine."""
    members: dict[Any, list[tuple[ServedCase, float, float]]] = {}
    for row in read_table("serving", path, where).rows:
        try:
            case = case_of(row)
            both = tuple(measured_value(row, metric)[0] for metric in WIDTHS)
        except Skip:
            continue
        if case.arrival == CLOSED and "prefill_workers" not in case.deployment:
            key = (case.engine.engine, case.model, case.hardware)
            members.setdefault(key, []).append((case, *both))
    found: dict[str, list[Group]] = {}
    for (engine, _, _), rows in members.items():
        found.setdefault(engine, []).append(_group(rows))
    return found


def _group(members: Sequence[tuple[ServedCase, float, float]]) -> Group:
    cases = [case for case, _, _ in members]
    model, hardware = cases[0].model, cases[0].hardware
    engines = list(dict.fromkeys(case.engine for case in cases))
    deployments, rows = distinct(
        [{**case.deployment, "engine": engines.index(case.engine)} for case in cases]
    )
    loads, columns = distinct([case.load for case in cases])
    grid = deployments_from_rows(model, deployments, engine=engines)
    grid = with_limits(grid, [hardware])
    layouts, layout, none = grid.layouts()
    memory = deployment_memory(grid, layouts, layout, hardware)
    return Group(
        model=model.name,
        hardware=hardware.name,
        engines=engines,
        tables=pass_tables(grid.model, layouts, hardware),
        deployments=deployment_columns(grid, memory, hardware, layout, none),
        loads=LoadGrid(columns_from_rows(loads, LOAD_FIELD_BY_NAME)).kernel_columns(),
        layout_engine=layouts.columns["engine"],
        deployment_engine=grid["engine"],
        layers=float(model.num_layers),
        rows=np.array(rows),
        columns=np.array(columns),
        measured={
            "tpot": np.array([tpot for _, tpot, _ in members]),
            "ttft": np.array([ttft for _, _, ttft in members]),
        },
    )


def fit(groups: Sequence[Group], free: Sequence[str]) -> dict[str, float]:
    """Return facts that fit the rows of some groups."""
    from scipy.optimize import least_squares

    start = {name: getattr(groups[0].engines[-1], name) for name in free}
    low, high = np.log([LIMITS[name] for name in free]).T
    first = np.clip(np.log(list(start.values())), low + 1e-3, high - 1e-3)

    def residuals(logs: Floats) -> Floats:
        facts = dict(zip(free, np.exp(logs), strict=True))
        found = []
        for group in groups:
            weight = math.sqrt(WEIGHT / group.rows.size)
            for metric, ratio in group.ratios(facts).items():
                apart = np.nan_to_num(np.log(ratio), nan=0.0, posinf=0.0, neginf=0.0)
                found.append(weight * _soft(apart / WIDTHS[metric]))
        return np.concatenate(found)

    solved = least_squares(residuals, first, bounds=(low, high), diff_step=2e-2, max_nfev=25)
    return {name: float(np.exp(x)) for name, x in zip(free, solved.x, strict=True)}


def _soft(values: Floats) -> Floats:
    """Return residuals whose squares are soft L1 losses."""
    return np.asarray(np.sign(values) * np.sqrt(2.0 * (np.sqrt(1.0 + values * values) - 1.0)))


def errors(groups: Sequence[Group], facts: Facts) -> dict[str, dict[str, float]]:
    """Return median and mean absolute error and median error of each metric."""
    found = {}
    ratios = [group.ratios(facts) for group in groups]
    for metric in WIDTHS:
        apart = np.concatenate([item[metric] for item in ratios]) - 1.0
        apart = apart[np.isfinite(apart)]
        size = np.abs(apart)
        found[metric] = {
            "count": int(apart.size),
            "median_absolute_error": float(np.median(size)),
            "mean_absolute_error": float(size.mean()),
            "bias": float(np.median(apart)),
        }
    return found


def left_out(
    groups: Sequence[Group], free: Sequence[str], what: Callable[[Group], str]
) -> dict[str, Any]:
    """Fit without each value in turn, and return the errors of what was left out."""
    found = {}
    for value in sorted({what(group) for group in groups}):
        kept = [group for group in groups if what(group) != value]
        if kept:
            facts = fit(kept, free)
            out = [group for group in groups if what(group) == value]
            found[value] = {"facts": facts, **errors(out, facts)}
    return found


def main() -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that has e2e/")
    parser.add_argument("--engine", nargs="*", help="engines; default: all")
    parser.add_argument("--free", nargs="*", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--leave", choices=("model", "hardware"), help="leave one out in turn")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    groups = read_groups(options.data / "e2e/dev_serving_runs.csv")
    document: dict[str, Any] = {}
    for engine in options.engine or groups:
        if engine not in groups:
            print(f"error: no runs of '{engine}'; there are {', '.join(groups)}", file=sys.stderr)
            return 2
        facts = fit(groups[engine], options.free)
        found: dict[str, Any] = {"declared": errors(groups[engine], {}), "facts": facts}
        found["fitted"] = errors(groups[engine], facts)
        if options.leave:
            found["left_out"] = left_out(
                groups[engine], options.free, lambda group: str(getattr(group, options.leave))
            )
        document[engine] = found
    print(json.dumps(document, indent=2) if options.json else _written(document))
    return 0


def _written(document: Mapping[str, Any]) -> str:
    lines = []
    for engine, found in document.items():
        facts = ", ".join(f"{name} {value:.3g}" for name, value in found["facts"].items())
        lines.append(f"{engine}: {facts}")
        named = {"declared": found["declared"], "fitted": found["fitted"]}
        named |= {f"without {value}": item for value, item in found.get("left_out", {}).items()}
        for label, item in named.items():
            texts = [
                f"{metric} {item[metric]['median_absolute_error']:6.1%} median "
                f"{item[metric]['mean_absolute_error']:6.1%} mean {item[metric]['bias']:+6.1%}"
                for metric in WIDTHS
            ]
            lines.append(f"  {label:24} {item['tpot']['count']:5} rows  " + "  ".join(texts))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
