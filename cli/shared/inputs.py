"""From what was typed to what is computed: hardware rows and single strategies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.cli.shared.printing import remark
from perfmodel.strategy.fields import FIELD_BY_NAME

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec
    from perfmodel.strategy.grid import StrategyGrid

MAX_ROWS = 20_000
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")


def load_rows(
    names: Sequence[str], settings: Mapping[str, Any], swept: Mapping[str, Sequence[float]]
) -> tuple[list[Hardware], dict[str, list[float]]]:
    """Load profiles and multiply them by the swept values.

    Returns
    -------
    rows : list of Hardware
        One per profile and combination of swept values; no profile twice.
    values : dict of str to list of float
        For each swept path its value in every row.

    Raises
    ------
    HardwareError
        Unknown profile or path, a bad value, or a path both set and swept.
    """
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.hwprofiles.paths import canonical_path

    profiles = {hardware.name: hardware for hardware in map(load_hardware, names)}
    for profile in profiles.values():
        for note in profile.notes:
            if note.startswith("'"):  # the alias could have meant another device
                remark(f"note: {note}")
    combinations = math.prod(len(values) for values in swept.values())
    if combinations * len(profiles) > MAX_ROWS:
        raise HardwareError(
            f"the swept values make {combinations * len(profiles):,} rows of hardware; "
            f"at most {MAX_ROWS:,}"
        )
    rows: list[Hardware] = []
    columns: dict[str, list[float]] = {path: [] for path in swept}
    for profile in profiles.values():
        fixed = {canonical_path(profile, path) for path in settings}
        for path in swept:
            if canonical_path(profile, path) in fixed:
                raise HardwareError(f"'{path}' is both set and swept; drop one of the two")
        base = profile.with_values(settings)
        for chosen in itertools.product(*map(dict.fromkeys, swept.values())):
            values = dict(zip(swept, chosen, strict=True))
            rows.append(base.with_values(values))
            for path, value in values.items():
                columns[path].append(value)
    any_row = rows[0]
    return rows, {canonical_path(any_row, path): column for path, column in columns.items()}


def one_strategy(model: ModelSpec, devices: int, axes: Mapping[str, Any]) -> StrategyGrid:
    """Return a grid of the one strategy that was typed.

    Raises
    ------
    StrategyError
        The strategy is impossible; the message has the numbers and the reason.
    """
    from perfmodel.strategy.enumerate import strategies_from_rows
    from perfmodel.strategy.rules import STATUS_REASONS, VALID

    given = {name: value for name, value in axes.items() if value is not None}
    check_devices(devices, given)
    grid = strategies_from_rows(model, devices, [given])
    status = int(grid.status[0])
    if status != VALID:
        numbers = _numbers(model, grid.row(0), status)
        raise StrategyError(f"impossible strategy: {STATUS_REASONS[status]} ({numbers})")
    return grid


def check_devices(devices: int, given: Mapping[str, Any]) -> None:
    """Check that the degrees multiply to the number of devices.

    Raises
    ------
    StrategyError
        They do not; the message says what would be right.
    """
    degrees = {name: int(given.get(name, 1)) for name in DEGREES}
    product = math.prod(degrees.values())
    written = " × ".join(
        f"{FIELD_BY_NAME[name].option} {degree}" for name, degree in degrees.items()
    )
    data = given.get("data_parallel")
    if data is not None and product * data != devices:
        better = f"--devices {product * data}"
        if devices % product == 0:
            better = f"--dp {devices // product} or {better}"
        raise StrategyError(
            f"{written} × dp {data} = {product * data:,} is not the {devices:,} devices; "
            f"{better} would be right"
        )
    if devices % product:
        below = devices // product * product
        near = f"{below + product:,}" if not below else f"{below:,} or {below + product:,}"
        raise StrategyError(
            f"{devices:,} devices are not a multiple of {written} = {product:,}; {near} would be"
        )


def check_precision(hardware: Hardware, precision: str) -> None:
    """Check that a device has a matrix rate for a precision.

    Raises
    ------
    HardwareError
        It has not; the message names those that it has.
    """
    hardware.device.peak(precision)


def _numbers(model: ModelSpec, row: Mapping[str, Any], status: int) -> str:
    """Return the numbers that a broken rule is about."""
    from perfmodel.strategy.rules import STATUS_NAMES

    about: dict[str, tuple[str, ...]] = {
        "heads_not_divisible": ("tensor_parallel",),
        "width_not_divisible": ("tensor_parallel", "expert_tensor_parallel"),
        "sequence_not_divisible": (
            "sequence_length",
            "context_parallel",
            "tensor_parallel",
            "micro_batch_size",
        ),
        "batch_not_divisible": ("global_batch_size", "data_parallel", "micro_batch_size"),
        "too_few_layers": ("pipeline_parallel", "virtual_pipeline"),
        "schedule_mismatch": ("virtual_pipeline", "pipeline_parallel", "pipeline_schedule"),
        "batches_not_divisible": (
            "global_batch_size",
            "data_parallel",
            "micro_batch_size",
            "pipeline_parallel",
        ),
        "experts_not_divisible": ("expert_parallel", "expert_tensor_parallel"),
        "expert_group_mismatch": (
            "expert_parallel",
            "expert_tensor_parallel",
            *DEGREES[:2],
            "data_parallel",
        ),
        "shard_group_mismatch": ("shard_group", "data_parallel", "zero_stage"),
        "expert_group_spread": (
            "expert_parallel",
            "expert_tensor_parallel",
            *DEGREES,
            "data_parallel",
            "mapping",
        ),
        "shard_group_spread": ("shard_group", *DEGREES, "data_parallel", "mapping"),
    }
    name = STATUS_NAMES[status]
    fields = about.get(name, (*DEGREES, "data_parallel"))
    listed = [f"{field} {row[field]}" for field in fields]
    if name == "heads_not_divisible":
        heads = {
            (layer.attention.heads, layer.attention.key_value_heads)
            for layer in model.layer_kinds()[0]
        }
        listed += [f"{query} heads in {groups} groups" for query, groups in sorted(heads)]
    if name == "too_few_layers":
        listed.append(f"{model.num_layers} layers")
    if name == "experts_not_divisible":
        counts = sorted({layer.mlp.experts for layer in model.layer_kinds()[0]})
        listed.append(f"{' or '.join(map(str, counts))} experts")
    return ", ".join(listed)
