"""Enumerate strategies: the axes that a user names times those that make sense.

The axes that decide whether a strategy is possible (degrees, batches, sequence)
are multiplied out and checked first; the free ones (recompute, ZeRO stage, …)
multiply what is left. So millions of strategies cost a few array passes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import FEWER_VALUES, axis_rows, axis_values, columns_from_rows
from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS, OFFLOAD, OFFLOAD_TO
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec, head_counts
from perfmodel.strategy.defaults import OF_SOFTWARE, Defaults, completed, defaults_of, following
from perfmodel.strategy.grid import BATCH, VALID, Families, StrategyGrid, joined
from perfmodel.strategy.nearby import instead
from perfmodel.strategy.rules import (
    BATCH_RULES,
    BATCHLESS_RULES,
    LATE_RULES,
    RULES,
    STATUS_NAMES,
    STATUS_REASONS,
    TABLE_RULES,
    fits_chunks,
    strategy_status,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.pipelines import Pipeline

# A free axis enters no rule but LATE_RULES, which are checked at the end.
FREE_AXES = (
    *("recompute", "precision", "mapping", "zero_stage", "shard_group"),
    *("recompute_method", "recompute_num_layers", "document_length", "padding"),
    *(*OFFLOAD, *OFFLOAD_TO.values()),
)
_LATE = (
    *("shard_group", "mapping", "document_length", "offload_activations_to"),
    *("recompute_method", "recompute_num_layers"),
)
LAYOUT_AXES = tuple(
    spec.name
    for spec in FIELDS
    if spec.name not in FREE_AXES and spec.name not in ("data_parallel", "pipeline_schedule")
)
NODE_DEVICES = 8  # where no hardware is named: the boards of DGX, HGX and OCP's OAM
MAX_MICRO_BATCH = 8
MIN_TOKENS_PER_CONTEXT_RANK = 4096
COLUMN_BYTES = 8 * len(FIELDS)
LISTED_BYTES = 9  # of a strategy whose columns nobody has asked for: its batch and status
SLAB = 1 << 18
"""Rows of the product of layout axes that are looked at at once."""
MOST_ROWS = 1 << 28
"""Of them, at about a million a second."""
LARGEST_RUN = 2**40  # devices; as the largest value of a field


@dataclass(frozen=True, slots=True)
class Enumeration:
    """A grid of possible strategies, and how many impossible ones were left out.

    Attributes
    ----------
    grid : StrategyGrid
        What is possible (or everything, with ``keep_impossible``).
    rejected : mapping of str to int
        Impossible strategies by the name of the rule that they break.
    """

    grid: StrategyGrid
    rejected: Mapping[str, int]


def strategy_grid(
    model: ModelSpec | str,
    devices: int,
    *,
    sequence_length: int | Sequence[int],
    global_batch_size: int | Sequence[int],
    hardware: Hardware | str | Sequence[Hardware | str] = (),
    framework: str | Framework | None = None,
    keep_impossible: bool = False,
    **axes: Any,
) -> StrategyGrid:
    """Enumerate the strategies of a model on a number of devices.

    Parameters
    ----------
    model : ModelSpec or str
        As of `load_model`; its heads, layers and experts bound the degrees.
    devices : int
        Devices of the run; data_parallel is what the other degrees leave over.
    sequence_length : int or sequence of int
        Tokens per sequence.
    global_batch_size : int or sequence of int
        Sequences per step.
    hardware : Hardware or str, or sequence of them, optional
        Where the strategies are going to run: tensor parallelism is tried up to the largest
        scale-up domain (`System.scale_up_devices`), without it up to a node of eight.
    framework : str or Framework, optional
        Software whose own choices (`perfmodel.strategy.defaults`) are among what is tried; without
        it the default one's. `perfmodel.sweep` takes its own for fields of one value.
    keep_impossible : bool
        Keep impossible strategies, with the code of the broken rule in ``status``.
    **axes
        One value or a list for any strategy field; an axis that is not given takes
        every value that makes sense for this model and number of devices, and ``"all"``
        every label of a field that has labels (``mapping="all"``: all 24 orders).

    Returns
    -------
    StrategyGrid

    Raises
    ------
    StrategyError
        Unknown axis, bad value, or no strategy is possible (the message counts the
        reasons).

    Examples
    --------
    >>> grid = strategy_grid(load_model("llama-3.1-70b"), 1024,
    ...                      sequence_length=8192, global_batch_size=2048)
    """
    spec = load_model(model)
    given = {"sequence_length": sequence_length, "global_batch_size": global_batch_size, **axes}
    found = enumerate_strategies(
        spec,
        devices,
        given,
        hardware=hardware,
        framework=framework,
        keep_impossible=keep_impossible,
    )
    if not len(found.grid):
        instead = possible_instead(spec, devices, given)
        raise StrategyError(describe_rejected(found.rejected, devices) + instead)
    still_open = frozenset(name for name in OF_SOFTWARE if axes.get(name) is None)
    return replace(found.grid, open=still_open)


def enumerate_strategies(
    model: ModelSpec,
    devices: int,
    axes: Mapping[str, Any],
    *,
    hardware: Hardware | str | Sequence[Hardware | str] = (),
    framework: str | Framework | None = None,
    keep_impossible: bool = False,
    result_bytes: float = 0.0,
    others: int = 0,
) -> Enumeration:
    """Do the work of `strategy_grid` and also count what is impossible, by reason.

    Strategies are counted before they are built: StrategyError where they, with the
    `result_bytes` that the caller is going to keep of each, and `others` that it has enumerated
    before, need more memory than there is.
    """
    from perfmodel.kernels.work import expect

    every = all_axes(model, devices, axes, hardware, framework)
    if every.rows > MOST_ROWS:
        raise StrategyError(f"{every.rows:,} combinations take too long to list; {FEWER_VALUES}")
    rejected: Counter[str] = Counter()
    found, kept = [], []
    strategies, families = others, 0
    for start, stop in slabs_of(every, SLAB):
        part = layouts_in(every, start, stop, keep_impossible)
        rejected += part.rejected
        strategies += part.strategies
        families += part.first.size * every.free_count
        # All families are multiplied out, and then those that make sense are copied.
        size = 2 * COLUMN_BYTES * families + strategies * (LISTED_BYTES + result_bytes)
        _check_memory(strategies, size)
        kept.append(part)
    expect(strategies=strategies)  # rules of many are worth compiled kernels, as is what follows
    for part in kept:
        multiplied, late = families_in(every, part, keep_impossible)
        rejected += late
        found.append(multiplied)
    return Enumeration(joined(found).listed(), rejected)


@dataclass(frozen=True, slots=True)
class Axes:
    """The values of every axis, for one model and number of devices.

    Attributes
    ----------
    given : mapping of str to ndarray
        Those that the user named.
    layout, free : mapping of str to ndarray
        All values of axes that decide whether a strategy is possible, and of the others.
    batch : ndarray
        Sequences per step, ascending, which also decide.
    defaults : Defaults
        What open fields of one value have.
    """

    model: ModelSpec
    devices: int
    given: Mapping[str, Integers]
    layout: Mapping[str, Integers]
    batch: Integers
    free: Mapping[str, Integers]
    defaults: Defaults

    @property
    def values(self) -> dict[str, Integers]:
        """The values of all axes."""
        return {**self.layout, BATCH: self.batch, **self.free}

    @property
    def rows(self) -> int:
        """Combinations of layout axes and batches."""
        return math.prod(values.size for values in self.layout.values()) * self.batch.size

    @property
    def free_count(self) -> int:
        """What one layout is multiplied by."""
        return math.prod(values.size for values in self.free.values())


def all_axes(
    model: ModelSpec,
    devices: int,
    axes: Mapping[str, Any],
    hardware: Hardware | str | Sequence[Hardware | str] = (),
    framework: str | Framework | None = None,
) -> Axes:
    """Return the values of every axis; takes what `enumerate_strategies` takes."""
    devices = _checked_devices(devices)
    given = {
        name: axis_values(name, values, FIELD_BY_NAME)
        for name, values in axes.items()
        if values is not None
    }
    for name in ("sequence_length", "global_batch_size"):
        if name not in given:
            raise StrategyError(f"{name}: a value is needed")
    layout = _layout_axes(model, devices, given, _scale_up_devices(hardware))
    batch = np.sort(layout.pop(BATCH))
    defaults = defaults_of(framework, model)
    return Axes(model, devices, given, layout, batch, free_axes(given), defaults)


def slabs_of(axes: Axes, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of every part of the product of layout axes, and that behind its last.

    Rows have all batches of a layout; about `most` of these at once.
    """
    batches = axes.batch.size
    rows, step = axes.rows // batches, max(most // batches, 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Layouts that are kept, with their batches, and what each becomes.

    Attributes
    ----------
    columns : mapping of str to ndarray, shape (layouts,)
    status : ndarray of uint8, shape (layouts,)
        Impossible ones have a layout for each batch.
    first, size : ndarray of int64, shape (layouts,)
        Their batches are ``batch[first:first + size]``.
    batch : ndarray of int64
    strategies : int
        What all of them become but for `LATE_RULES`.
    rejected : Counter
        Impossible strategies by the name of the rule that they break.
    """

    columns: Mapping[str, Integers]
    status: NDArray[np.uint8]
    first: Integers
    size: Integers
    batch: Integers
    strategies: int
    rejected: Counter[str]


def layouts_in(axes: Axes, start: int, stop: int, keep_impossible: bool = False) -> Layouts:
    """Return the layouts in some rows of the product of their axes."""
    columns = axis_rows(axes.layout, start, stop)
    _add_derived_columns(columns, axes)
    count, batches = columns["tensor_parallel"].size, axes.batch.size
    status = np.zeros((count, batches), np.uint8)
    rules = {**columns, **_free_defaults(columns)}, axes.model, axes.devices
    status[:] = strategy_status(*rules, BATCHLESS_RULES)[:, None]
    # Of the rules that a strategy breaks the first counts, whether it asks for the batch or not.
    asked = np.flatnonzero((status[:, 0] == VALID) | (status[:, 0] > BATCH_RULES[0].code))
    each = {name: column[asked, None] for name, column in columns.items()}
    broken = strategy_status({**each, BATCH: axes.batch[None]}, *rules[1:], BATCH_RULES)
    before = status[asked]
    status[asked] = np.where(
        (broken != VALID) & ((before == VALID) | (broken < before)), broken, before
    )
    repeats = repeats_of(axes, columns)
    rejected = Counter(count_broken(status, np.broadcast_to(repeats[:, None], status.shape)))
    valid = status == VALID
    if keep_impossible:
        columns = {name: np.repeat(column, batches) for name, column in columns.items()}
        return Layouts(
            columns,
            status.reshape(-1),
            np.arange(status.size),
            np.ones(status.size, np.int64),
            np.tile(axes.batch, count),
            int(repeats.sum()) * batches,
            rejected,
        )
    size = valid.sum(axis=1)
    strategies = int((repeats * size).sum())
    kept = size > 0
    size = size[kept]
    return Layouts(
        {name: column[kept] for name, column in columns.items()},
        np.zeros(size.size, np.uint8),
        np.cumsum(size) - size,
        size,
        np.broadcast_to(axes.batch, status.shape)[valid],
        strategies,
        rejected,
    )


def families_in(
    axes: Axes, layouts: Layouts, keep_impossible: bool = False
) -> tuple[Families, Counter[str]]:
    """Multiply layouts by the free axes; return what is kept, and count what breaks rules.

    No rule of free axes asks for the batch, so all strategies of a family break it, or none.
    """
    columns = Multiplied(layouts.columns, axes.free)
    first, size = (np.repeat(it, axes.free_count) for it in (layouts.first, layouts.size))
    status = np.repeat(layouts.status, axes.free_count)
    keep = np.ones(status.size, bool)
    rejected: Counter[str] = Counter()
    if may_break_late(axes.free, axes.model):
        late = strategy_status(columns, axes.model, axes.devices, rules=LATE_RULES)
        late[status != VALID] = VALID
        rejected.update(count_broken(late, size))
        status = np.where(late != VALID, late, status)
        if not keep_impossible:
            keep &= status == VALID
    if "zero_stage" not in axes.given:
        keep &= sensible_zero(columns, axes.defaults)
    size = size[keep]
    batch = layouts.batch
    ordered = {
        spec.name: batch[first[keep]] if spec.name == BATCH else columns[spec.name][keep]
        for spec in FIELDS
    }
    grid = StrategyGrid(axes.devices, ordered, status[keep])
    return Families(grid, first[keep], size, np.cumsum(size) - size, batch), rejected


class Multiplied(Mapping[str, Integers]):
    """Layouts times free axes; each column is multiplied out when it is asked for."""

    def __init__(self, layout: Mapping[str, Integers], free: Mapping[str, Integers]) -> None:
        self.layout, self.free = layout, free
        self._found: dict[str, Integers] = {}

    def __getitem__(self, name: str) -> Integers:
        if name not in self._found:
            self._found[name] = self._column(name)
        return self._found[name]

    def _column(self, name: str) -> Integers:
        sizes = {axis: values.size for axis, values in self.free.items()}
        if name in self.layout:
            return np.repeat(self.layout[name], math.prod(sizes.values()))
        behind = math.prod(list(sizes.values())[list(sizes).index(name) + 1 :])
        one = np.repeat(self.free[name], behind)
        layouts = self.layout["tensor_parallel"].size
        return np.tile(one, layouts * math.prod(sizes.values()) // one.size)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.layout, *self.free))

    def __len__(self) -> int:
        return len(self.layout) + len(self.free)


def strategies_from_rows(
    model: ModelSpec | str,
    devices: int,
    rows: Sequence[Mapping[str, Any]],
    table: Pipeline | None = None,
    framework: str | Framework | None = None,
) -> StrategyGrid:
    """Make a grid of explicitly written strategies; impossible ones keep their status.

    What a row leaves open is as `perfmodel.strategy.defaults` has it, in a `framework` or the
    default one. A `table` is what strategies run that name it as their schedule.
    """
    devices = _checked_devices(devices)
    spec = load_model(model) if isinstance(model, str) else model
    defaults = defaults_of(framework, spec)
    columns = columns_from_rows([completed(row, devices, defaults) for row in rows])
    rules = RULES if table is None else TABLE_RULES
    return StrategyGrid(devices, columns, strategy_status(columns, spec, devices, rules), table)


def describe_rejected(rejected: Mapping[str, int], devices: int) -> str:
    """Write one line that says why no strategy is possible."""
    reasons = {STATUS_NAMES[code]: text for code, text in STATUS_REASONS.items()}
    listed = sorted(rejected.items(), key=lambda item: -item[1])[:3]
    why = "; ".join(f"{reasons[name]} ({count:,})" for name, count in listed)
    return f"no strategy is possible on {devices:,} devices: {why or 'every axis is empty'}"


def possible_instead(
    model: ModelSpec,
    devices: int,
    axes: Mapping[str, Any],
    hardware: Sequence[Hardware] = (),
) -> str:
    """Say which devices or batch near have a possible strategy; see `nearby.instead`."""

    def possible(count: int, changed: Mapping[str, Any]) -> bool:
        try:
            return bool(len(enumerate_strategies(model, count, changed, hardware=hardware).grid))
        except StrategyError:  # more than memory holds, or a value that no run has
            return False

    node = max((item.system.devices_per_node for item in hardware), default=NODE_DEVICES)
    return instead(devices, axes, possible, node)


def _checked_devices(devices: Any) -> int:
    if isinstance(devices, bool) or not isinstance(devices, int | np.integer) or devices < 1:
        raise StrategyError(f"devices: {devices!r} is not a positive whole number")
    if devices > LARGEST_RUN:
        raise StrategyError(f"devices: {devices} is larger than any run; check the number")
    return int(devices)


def _powers_of_two(limit: int) -> list[int]:
    """Powers of two up to `limit`; always 1."""
    return [2**i for i in range(max(int(limit), 1).bit_length())]


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


def _scale_up_devices(hardware: Hardware | str | Sequence[Hardware | str]) -> int:
    """Return the devices of the largest scale-up domain among some profiles."""
    from perfmodel.hwprofiles.rows import profiles_of

    sizes = (profile.system.scale_up_devices for profile in profiles_of(hardware))
    return max(sizes, default=NODE_DEVICES)


def _layout_axes(
    model: ModelSpec, devices: int, given: Mapping[str, Integers], scale_up_devices: int
) -> dict[str, Integers]:
    """Values of every layout axis: the given ones, else every sensible one."""
    heads = min((heads for heads, _ in head_counts(model)), default=1)
    longest = int(given["sequence_length"].max())
    largest_batch = int(given["global_batch_size"].max())
    experts = max((layer.experts for layer in model.layer_kinds()[0]), default=0)
    tensor_parallel = [i for i in _powers_of_two(min(scale_up_devices, devices)) if heads % i == 0]
    layers = model.num_layers
    pipeline = sorted(
        {i for i in _powers_of_two(min(layers, devices))}
        | {i for i in _divisors(layers) if devices % i == 0}
    )
    virtual = {1} | {i for i in _divisors(layers) + _divisors(layers + 2) if i <= layers // 2}
    if "pipeline_schedule" in given:
        virtual |= {item.fewest_chunks for item in SCHEDULE_FACTS.values()}
    sensible: dict[str, Sequence[int]] = {
        "tensor_parallel": tensor_parallel or [1],
        "sequence_parallel": [0],
        "context_parallel": _powers_of_two(longest // MIN_TOKENS_PER_CONTEXT_RANK),
        "context_parallel_kind": [0],
        "micro_batch_group": [0],
        "pipeline_parallel": pipeline,
        "virtual_pipeline": sorted(virtual),
        "expert_parallel": [i for i in _powers_of_two(devices) if experts and experts % i == 0]
        or [1],
        "expert_tensor_parallel": [1],
        "micro_batch_size": _powers_of_two(min(MAX_MICRO_BATCH, largest_batch)),
    }
    axes = {
        name: given[name] if name in given else np.asarray(sensible[name], np.int64)
        for name in LAYOUT_AXES
    }
    for name in ("data_parallel", "pipeline_schedule"):
        if name in given:
            axes[name] = given[name]
    return axes


def _check_memory(strategies: int, size: float) -> None:
    hint = f"{FEWER_VALUES}; 'perfmodel sweep --resume' writes what memory does not hold"
    check_memory(f"{strategies:,} strategies", size, hint, StrategyError)


def _add_derived_columns(layout: dict[str, Integers], axes: Axes) -> None:
    """Add what follows from other fields, and drop what no user would call a strategy.

    Values that were only proposed by `_layout_axes` are dropped where they do not
    apply; what the user gave is kept, so that rules can report it.
    """
    given = axes.given
    layout |= following(layout, axes.devices, given, axes.defaults)
    if "virtual_pipeline" in given:
        return
    keep = (layout["virtual_pipeline"] == 1) | (layout["pipeline_parallel"] > 1)
    if "pipeline_schedule" in given:
        keep &= fits_chunks(layout)
    for name, column in layout.items():
        layout[name] = column[keep]


def free_axes(given: Mapping[str, Integers]) -> dict[str, Integers]:
    """Return the values of every axis of `FREE_AXES`: the given ones, else what makes sense."""
    sensible = {
        "recompute": [0, 1, 2],
        "precision": [0],
        "mapping": [0],
        "zero_stage": [0, 1, 2, 3],
    }
    return {
        name: given[name]
        if name in given
        else np.asarray(sensible[name], np.int64)
        if name in sensible
        else axis_values(name, FIELD_BY_NAME[name].default, FIELD_BY_NAME)
        for name in FREE_AXES
    }


def may_break_late(free: Mapping[str, Integers], model: ModelSpec) -> bool:
    """Tell whether any of `LATE_RULES` may be broken."""
    named = any(free[name].any() for name in _LATE)
    stored = model.adapters is not None and model.adapters.frozen
    return bool(named or stored or free["zero_stage"].max() > 3)


def _free_defaults(layout: Mapping[str, Integers]) -> dict[str, Integers]:
    zeros = np.zeros(layout["tensor_parallel"].shape, np.int64)
    return {name: zeros for name in FREE_AXES}


def sensible_zero(columns: Mapping[str, Integers], defaults: Defaults) -> np.ndarray:
    """Leave out ZeRO stages that gain nothing (one replica) or fight the pipeline.

    That of runs which name none is always there.
    """
    stage, usual = columns["zero_stage"], defaults.pipeline_zero_stage
    gains = defaults.replicated(columns) | (stage == 0)
    return gains & ((columns["pipeline_parallel"] == 1) | (stage <= 1) | (stage == usual))


def repeats_of(axes: Axes, layout: Mapping[str, Integers]) -> NDArray[np.int64]:
    """Return how many strategies each layout becomes but for `LATE_RULES`, shape (layouts,)."""
    zero = axes.free["zero_stage"]
    if "zero_stage" in axes.given:
        stages = np.full(layout["tensor_parallel"].shape, zero.size)
    else:
        stages = np.zeros(layout["tensor_parallel"].shape, np.int64)
        for stage in zero:
            stages += sensible_zero({**layout, "zero_stage": stage}, axes.defaults)
    return stages * (axes.free_count // zero.size)


def count_broken(status: NDArray[np.uint8], weights: NDArray[Any]) -> dict[str, int]:
    """Count broken rules by name, each strategy with its weight."""
    broken = status != VALID
    counts = np.bincount(status[broken], weights=weights[broken])
    return {STATUS_NAMES[code]: int(n) for code, n in enumerate(counts) if n}
