"""Random training steps, and the laws that every one of them keeps.

Shared by `tests/properties/test_physics.py` (thousands of steps) and `benchmarks/physics.py` (as
many as one asks for). A `Case` is one model on one profile with one framework and many random
strategies, priced together as a sweep does. A `Law` changes one thing, projects both, and measures
by how much the side that should not be worse is worse. Where a law is known to bend, it says how
far and why: that is its bound, and it is asserted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import encode
from perfmodel.base.precisions import PRECISIONS
from perfmodel.base.strategy_fields import (
    CONTEXT_PARALLEL_KINDS,
    FIELD_BY_NAME,
    FIELDS,
    MAPPINGS,
    PIPELINE_SCHEDULES,
    RECOMPUTE,
    RECOMPUTE_METHODS,
)
from perfmodel.hwprofiles import Hardware, list_hardware, load_hardware
from perfmodel.kernels.variables import MEMORY_COMPONENTS, STEP_VARIABLES, TIME_COMPONENTS
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import load_model
from perfmodel.software.framework import FRAMEWORKS, Framework, load_framework
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.mapping import axis_order
from perfmodel.strategy.rules import strategy_status
from perfmodel.training.project import project_grid
from perfmodel.training.workload import Workload

Values = dict[str, NDArray[np.float64]]
Columns = dict[str, NDArray[np.int64]]
Pair = tuple[NDArray[np.intp], "Case"]
MODELS = (
    "gpt2",
    "gpt3-13b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "gemma-2-27b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2",
    "qwen3.5-35b-a3b",
    "nemotron-3-nano-30b-a3b",
    "deepseek-v4-flash",
    "deepseek-v3.2",
    "gemma-4-26b-a4b",
    "llama-4-scout",
    "falcon-h1-0.5b",
    "lfm2-1.2b",
    "kimi-linear-48b-a3b",
    "jamba-1.5-mini",
    "minimax-text-01",
)
PROFILES = tuple(list_hardware())


@dataclass(frozen=True)
class Case:
    """Random strategies of one model on one profile with one framework, all possible."""

    model: ModelSpec
    hardware: Hardware
    framework: Framework
    devices: int
    columns: Columns

    @property
    def name(self) -> str:
        """Where it is, in words."""
        where = f"{self.model.name} on {self.hardware.name}, {self.framework.name}"
        return f"{where}, {self.devices} devices"

    def row(self, index: int) -> dict[str, Any]:
        """Return one strategy with labels."""
        return StrategyGrid(self.devices, self.columns).row(index)

    def changed(self, mask: Any, devices: int | None = None, **columns: Any) -> Pair:
        """Return the strategies under a mask, as they are and with other columns.

        Those that are then impossible are left out; as indices, and the changed case.
        """
        wider = self.devices if devices is None else devices
        merged = self.columns | {
            key: np.broadcast_to(np.asarray(value, np.int64), self.columns[key].shape).copy()
            for key, value in columns.items()
        }
        possible = strategy_status(merged, self.model, wider) == VALID
        rows = np.flatnonzero(possible & mask)
        return rows, replace(self, devices=wider, columns=merged).take(rows)

    def take(self, rows: NDArray[Any]) -> Case:
        """Return some of the strategies."""
        return replace(self, columns={name: item[rows] for name, item in self.columns.items()})

    def on(self, path: str, factor: float) -> Case:
        """Return the case on a profile with one value multiplied."""
        value = self.hardware.value(path)
        made = round(value * factor) if isinstance(value, int) else float(value) * factor
        return replace(self, hardware=self.hardware.with_values({path: made}))

    def project(self) -> Values:
        """Project all strategies: variable name to column."""
        count = self.columns["tensor_parallel"].size
        out = np.empty((len(STEP_VARIABLES), count))
        grid = StrategyGrid(self.devices, self.columns, np.zeros(count, np.uint8))
        work = Workload(self.model, grid)
        project_grid(work, self.hardware, self.framework, out, threads=1)
        return {item.name: out[i] for i, item in enumerate(STEP_VARIABLES)}


@functools.cache
def model_named(name: str) -> ModelSpec:
    """Return a preset, read once."""
    return load_model(name)


@functools.cache
def profile_named(name: str) -> Hardware:
    """Return a profile, read once."""
    return load_hardware(name)


def draw_case(rng: np.random.Generator, count: int, **fixed: str) -> Case:
    """Draw a model, a profile, a framework and up to `count` possible strategies.

    Parameters
    ----------
    rng : numpy.random.Generator
    count : int
        Strategies that are drawn; the impossible ones among them are left out.
    **fixed : str
        ``model``, ``hardware`` or ``framework`` by name, not drawn.
    """

    def one(what: str, names: Any) -> str:
        drawn = str(rng.choice(list(names)))
        return fixed.get(what, drawn)

    model = model_named(one("model", MODELS))
    hardware = profile_named(one("hardware", PROFILES))
    framework = load_framework(one("framework", FRAMEWORKS))
    bits = int(rng.integers(0, 9))
    columns = _draw_columns(rng, model, count, bits)
    case = Case(model, hardware, framework, 2**bits, columns)
    return case.take(case.changed(True)[0])


def _draw_columns(rng: np.random.Generator, model: ModelSpec, count: int, bits: int) -> Columns:
    """Draw columns of every field for 2**bits devices."""

    def pick(*values: int) -> NDArray[np.int64]:
        return np.asarray(rng.choice(values, count), np.int64)

    left = np.full(count, bits)
    columns: Columns = {}
    for name, most in (("tensor_parallel", 4), ("context_parallel", 2), ("pipeline_parallel", 3)):
        power = np.minimum(rng.integers(0, most + 1, count) * rng.integers(0, 2, count), left)
        columns[name] = 2**power
        left = left - power
    columns["data_parallel"] = 2**left
    experts = model.has_experts
    parallel = columns["tensor_parallel"] > 1
    columns["sequence_parallel"] = np.where(parallel, 1 if experts else pick(0, 1), 0)
    columns["context_parallel_kind"] = pick(*range(len(CONTEXT_PARALLEL_KINDS)))
    staged = columns["pipeline_parallel"] > 1
    columns["virtual_pipeline"] = np.where(staged, pick(1, 1, 2), 1)
    usual = pick(PIPELINE_SCHEDULES.index("gpipe"), PIPELINE_SCHEDULES.index("1f1b"))
    interleaved = PIPELINE_SCHEDULES.index("interleaved")
    columns["pipeline_schedule"] = np.where(columns["virtual_pipeline"] > 1, interleaved, usual)
    columns["zero_stage"] = pick(0, 1, 2, 3)
    columns["shard_group"] = np.where(columns["zero_stage"] > 0, pick(0, 0, 0, 2, 8), 0)
    columns["expert_parallel"] = pick(1, 2, 4, 8) if experts else pick(1)
    columns["expert_tensor_parallel"] = pick(1, 1, 2) if experts else pick(1)
    columns["micro_batch_size"] = pick(1, 1, 2, 4)
    columns["global_batch_size"] = (
        columns["data_parallel"] * columns["micro_batch_size"] * pick(1, 2, 4, 8, 16)
    )
    columns["sequence_length"] = pick(512, 1024, 2048, 4096, 8192, 16384)
    columns["recompute"] = pick(*range(len(RECOMPUTE)))
    bf16 = PRECISIONS.index("bf16")
    columns["precision"] = np.where(pick(0, 1) > 0, bf16, pick(*range(len(PRECISIONS))))
    columns["mapping"] = np.where(pick(0, 1) > 0, 0, pick(*range(len(MAPPINGS))))
    full = columns["recompute"] == RECOMPUTE.index("full")
    columns["recompute_method"] = np.where(full, pick(0, 0, 1, 2, 3), 0)
    some = columns["recompute_method"] > 0
    columns["recompute_num_layers"] = np.where(some, pick(1, 2, 3, 8), 0)
    usual_values = {
        field.name: encode(field.name, field.default, FIELD_BY_NAME) for field in FIELDS
    }
    return {name: columns.get(name, np.full(count, value)) for name, value in usual_values.items()}


# Laws ------------------------------------------------------------------------------------------

Found = tuple[NDArray[np.intp], NDArray[np.float64]]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Law:
    """What holds of every step.

    Attributes
    ----------
    name : str
    measure : callable
        Case and its projection -> which strategies it is about, and by how much each breaks it:
        0.05 is five per cent. All are finite.
    bound : float
        How far it may bend.
    reason : str
        Why it may, "" where it may not.
    """

    name: str
    measure: Callable[[Case, Values], Found]
    bound: float = ROUNDING
    reason: str = ""


def _finite(base: Values) -> NDArray[np.bool_]:
    return np.isfinite(base["step_time"])


def _worse(base: Values, rows: NDArray[np.intp], new: Case, variable: str) -> Found:
    """How much more of a variable the changed strategies have."""
    if not rows.size:
        return rows, np.zeros(0)
    return rows, new.project()[variable] / base[variable][rows] - 1.0


def _same(*variables: str, where: Callable[[Case], Any], **columns: Any) -> Any:
    """Return a measure: other columns change nothing where they have no meaning."""

    def measure(case: Case, base: Values) -> Found:
        rows, new = case.changed(where(case) & _finite(base), **columns)
        if not rows.size:
            return rows, np.zeros(0)
        found = new.project()
        apart = [np.abs(found[name] / base[name][rows] - 1.0) for name in variables]
        return rows, np.max(apart, axis=0)

    return measure


def finer(hardware: Hardware, factor: float) -> Hardware:
    """Return a profile with more units of the same rates together."""
    device = hardware.device
    paths = [f"device.peak_flops.{name}" for name in device.peak_flops]
    paths += ["device.vector_flops", "device.special_function_rate"]
    rates = {path: hardware.value(path) for path in paths}
    units = round(device.compute_units * factor)
    return hardware.with_values({**rates, "device.compute_units": units})


def _finer(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    more = replace(case.take(rows), hardware=finer(case.hardware, 2.0))
    return _worse(base, rows, more, "step_time")


def _faster(path: str, factor: float) -> Any:
    """Return a measure: with a value of the profile multiplied, no step takes longer.

    ``*`` stands for each of the peak rates.
    """

    def measure(case: Case, base: Values) -> Found:
        parts = path.split(".")
        rows = np.flatnonzero(_finite(base))
        absent = rows[:0], np.zeros(0)
        if parts[1] == "network" and int(parts[2]) >= len(case.hardware.system.network):
            return absent
        names = list(case.hardware.device.peak_flops) if parts[-1] == "*" else [parts[-1]]
        paths = [".".join([*parts[:-1], name]) for name in names]
        if not rows.size or not all(float(case.hardware.value(item)) > 0 for item in paths):
            return absent
        found = [
            _worse(base, rows, case.take(rows).on(item, factor), "step_time") for item in paths
        ]
        return rows, np.max([values for _, values in found], axis=0)

    return measure


def _adds_up(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    apart = []
    for parts, whole in ((TIME_COMPONENTS, "step_time"), (MEMORY_COMPONENTS, "memory_total")):
        total = base[whole][rows]
        apart.append(np.abs(sum(base[name][rows] for name in parts) / total - 1.0))
        apart += [-base[name][rows] / total for name in parts]  # nothing is negative
    return rows, np.max(apart, axis=0)


def _all_or_nothing(case: Case, base: Values) -> Found:
    known = np.array([np.isfinite(base[item.name]) for item in STEP_VARIABLES])
    lacking = ~_finite(base)
    rows = np.flatnonzero(lacking)
    return rows, known[:, rows].any(axis=0).astype(float)


def _between_bounds(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    time, low, high = (base[f"step_time{end}"][rows] for end in ("", "_low", "_high"))
    return rows, np.maximum(low, time) / np.minimum(time, high) - 1.0


def _no_more_than_peak(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    names = ("model_flops_utilization", "hardware_flops_utilization")
    return rows, np.max([base[name][rows] for name in names], axis=0) - 1.0


def _full_square(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    return rows, base["model_flops_utilization_non_causal"][rows] - 1.0


def _hidden_or_not(case: Case, base: Values) -> Found:
    rows = np.flatnonzero(_finite(base))
    axes = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline", "data_parallel")
    parts = [base[f"{name}_exposed"][rows] - base[f"{name}_total"][rows] for name in axes]
    return rows, np.max(parts, axis=0) / base["step_time"][rows]


def _weak_scaling(kind: str) -> Any:
    """Return a measure: twice the replicas with twice the batch take no less time.

    Measured against the time of the gradients' and parameters' communication, that of the
    stages in the bubble included (ZeRO-3); what a smaller shard saves the optimizer is taken
    out. `kind` says of which networks (`network_kind`).
    """

    def measure(case: Case, base: Values) -> Found:
        outside = [data_is_outside(code) for code in case.columns["mapping"].tolist()]
        wanted = np.array(outside, bool) if kind != "moved" else ~np.array(outside, bool)
        if kind not in ("moved", network_kind(case.hardware)):
            wanted[:] = False
        doubled = {name: case.columns[name] * 2 for name in ("data_parallel", "global_batch_size")}
        rows, new = case.changed(wanted & _finite(base), case.devices * 2, **doubled)
        if not rows.size:
            return rows, np.zeros(0)
        found = new.project()
        before = {name: values[rows] for name, values in base.items()}
        gain = before["step_time"] - found["step_time"]
        gain -= np.maximum(before["optimizer_time"] - found["optimizer_time"], 0.0)
        if kind == "moved":
            return rows, gain / found["step_time"]
        own = {name: values[rows] for name, values in case.columns.items()}
        batches = own["global_batch_size"] / (own["data_parallel"] * own["micro_batch_size"])
        sent = before["data_parallel_total"] * (1 + (own["pipeline_parallel"] - 1) / batches)
        # No communication, no gain: a step without any must not get shorter at all.
        return rows, gain / np.maximum(sent, 1e-12 * before["step_time"])

    return measure


def network_kind(hardware: Hardware) -> str:
    """How the innermost level joins its devices: by a switch, in slices, or by links."""
    inner = hardware.system.network[0]
    if inner.closing_side:
        return "slices"
    return "switch" if inner.topology in ("switch", "fat-tree") else "links"


@functools.cache
def data_is_outside(mapping: int) -> bool:
    """Whether more replicas leave the groups of a layer where they are."""
    order = axis_order(mapping)
    return order.index("data") > max(order.index("tensor"), order.index("context"))


def _one_replica(case: Case) -> Any:
    """Who holds the only copy of everything: nobody else has its weights, or its experts."""
    columns = case.columns
    replicas = columns["context_parallel"] * columns["data_parallel"]
    spread = columns["expert_parallel"] * columns["expert_tensor_parallel"]
    experts = case.model.has_experts
    return (replicas == 1) & (not experts or spread == columns["tensor_parallel"])


def _zero_alone(case: Case, base: Values) -> Found:
    """Return what ZeRO-3 changes for a lone replica: no time, and no memory.

    But where sharded parameters are the master: ZeRO-3 casts part by part, others keep all cast.
    """
    kept = () if case.framework.master_parameters else ("memory_total",)
    return _same("step_time", *kept, where=_one_replica, zero_stage=3, shard_group=0)(case, base)


def _next_zero(case: Case, base: Values) -> Found:
    """Return what more ZeRO costs, but for shards of gradients in a pool of their own.

    Where sharded parameters are the master, gradients come late and their shards (from stage 2 on)
    from a pool that nothing else uses: held, of no use, at a peak before they are there.
    """
    stage, apart = case.columns["zero_stage"], not case.framework.master_parameters
    asked = (stage < 3) & (apart | (stage != 1))
    rows, new = case.changed(asked & _finite(base), zero_stage=stage + 1)
    return _worse(base, rows, new, "memory_total")


def _more(**factors: int) -> Any:
    """Return a measure: more of something takes no less time."""

    def measure(case: Case, base: Values) -> Found:
        larger = {name: case.columns[name] * by for name, by in factors.items()}
        rows, new = case.changed(_finite(base), **larger)
        if not rows.size:
            return rows, np.zeros(0)
        return rows, 1.0 - new.project()["step_time"] / base["step_time"][rows]

    return measure


TOGETHER = {"recompute_method": RECOMPUTE_METHODS.index("uniform"), "recompute_num_layers": 3}


def _fewer_layers(variable: str) -> Any:
    """Return a measure: with all but two layers of a chunk kept, a variable does not grow."""

    def measure(case: Case, base: Values) -> Found:
        block = RECOMPUTE_METHODS.index("block")
        rows, new = case.changed(
            _repeated(case) & _finite(base), recompute_method=block, recompute_num_layers=2
        )
        if not rows.size:
            return rows, np.zeros(0)
        before = base[variable][rows]
        return rows, (new.project()[variable] - before) / np.maximum(before, 1e-9)

    return measure


def _repeated(case: Case) -> Any:
    """Who recomputes all layers, one by one or together."""
    full = case.columns["recompute"] == RECOMPUTE.index("full")
    methods = [RECOMPUTE_METHODS.index(name) for name in ("single", "uniform")]
    return full & np.isin(case.columns["recompute_method"], methods)


def _fp8(case: Case, base: Values) -> Found:
    wide = case.columns["precision"] == PRECISIONS.index("bf16")
    rows, new = case.changed(wide & _finite(base), precision=PRECISIONS.index("fp8"))
    rows, worse = _worse(base, rows, new, "step_time")
    known = np.isfinite(worse)  # not every device has fp8
    return rows[known], worse[known]


def _fewer_bytes(case: Case, base: Values) -> Found:
    less = load_framework(
        case.framework,
        gradient_reduce_bytes=case.framework.gradient_reduce_bytes / 2,
        dispatch_bytes=case.framework.dispatch_bytes / 2,
    )
    rows = np.flatnonzero(_finite(base))
    return _worse(base, rows, replace(case, framework=less).take(rows), "step_time")


def _lone(*axes: str) -> Callable[[Case], Any]:
    """Return where these degrees are all 1."""
    return lambda case: np.all([case.columns[axis] == 1 for axis in axes], axis=0)


CHOICE = "the library's own table chooses by what it believes, not by what is fastest"
LAWS = (
    Law("time and memory add up, nothing is negative", _adds_up),
    Law("without the precision everything is NaN", _all_or_nothing),
    Law("low <= time <= high", _between_bounds),
    Law("exposed <= total", _hidden_or_not),
    Law("utilisation <= 1", _no_more_than_peak),
    Law(
        "utilisation that counts the full square <= 1",
        _full_square,
        1.0,
        "convention: attention counts twice what a causal kernel does, which long sequences of an "
        "ideal device show; at most twice",
    ),
    Law("faster memory is never slower", _faster("device.memory.bandwidth", 2.0)),
    Law("a faster cache is never slower", _faster("device.memory.l2_bandwidth", 2.0)),
    Law("a higher peak of any precision is never slower", _faster("device.peak_flops.*", 1.5)),
    Law("a higher clock is never slower", _faster("device.boost_clock", 1.5)),
    Law("faster vector units are never slower", _faster("device.vector_flops", 2.0)),
    Law("faster exponentials are never slower", _faster("device.special_function_rate", 2.0)),
    Law("more power is never slower", _faster("device.tdp", 1.3)),
    Law(
        "more compute units at equal peak are never slower",
        _finer,
        1.0,
        "waves and small products: half as fast each, a unit that has one tile or one head's "
        "block alone takes twice as long, and smaller tiles that fill more units load more per "
        "FLOP; no tile takes more than twice its time",
    ),
    Law("faster links are never slower", _faster("system.network.0.bandwidth", 2.0), 0.02, CHOICE),
    Law(
        "faster scale-out is never slower",
        _faster("system.network.1.bandwidth", 2.0),
        0.05,
        CHOICE,
    ),
    Law("quicker links are never slower", _faster("system.network.0.latency", 0.5)),
    Law("quicker scale-out is never slower", _faster("system.network.1.latency", 0.5)),
    Law("fewer bytes on the wire are never slower", _fewer_bytes, 0.05, CHOICE),
    Law("a larger batch never takes less time", _more(global_batch_size=2)),
    Law("fewer layers recomputed never take more time", _fewer_layers("step_time")),
    Law("fewer layers recomputed never repeat more", _fewer_layers("recompute_time")),
    Law(
        "layers recomputed together take as long as one by one",
        _same("step_time", "recompute_time", where=_repeated, **TOGETHER),
    ),
    Law(
        "a longer sequence never takes less time",
        _more(sequence_length=2),
        0.06,
        f"collectives of activations twice as large: {CHOICE}",
    ),
    Law(
        "fp8 is never slower",
        _fp8,
        0.6,
        "casts: small models and few tokens spend more on quantising than the products save",
    ),
    Law(
        "weak scaling behind switches never gains",
        _weak_scaling("switch"),
        0.25,
        "a library reduces in the switch from three members on, and the adapters of a node "
        "together beat a slow NVLink (HGX H800)",
    ),
    Law(
        "weak scaling on slices never gains",
        _weak_scaling("slices"),
        0.26,
        "a torus: from two to four chips a ring has a second link, 3/4 of the time",
    ),
    Law(
        "weak scaling over links never gains",
        _weak_scaling("links"),
        0.51,
        "a pair of a fully connected node has one link of seven, four have three; a ring closes",
    ),
    Law(
        "weak scaling that moves the groups of a layer",
        _weak_scaling("moved"),
        1.5,
        "with data inside tensor or context ranks, more replicas place every group elsewhere: more "
        "adapters share what leaves a node, rings close",
    ),
    Law("one replica: the ZeRO stage changes nothing", _zero_alone),
    Law("the next ZeRO stage never needs more memory", _next_zero),
    Law(
        "data parallelism alone: the mapping changes nothing",
        _same(
            "step_time",
            "memory_total",
            where=_lone("tensor_parallel", "context_parallel", "pipeline_parallel"),
            mapping=len(MAPPINGS) - 1,
        ),
    ),
    Law(
        "one context rank: its kind changes nothing",
        _same(
            "step_time", "memory_total", where=_lone("context_parallel"), context_parallel_kind=2
        ),
    ),
)
