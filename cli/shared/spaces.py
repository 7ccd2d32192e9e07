"""Spaces of strategies: the options of sweeps and searches, and what to say where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import load_rows, load_several_software, of_hardware
from perfmodel.cli.shared.models import models_option, say_remarks

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec
    from perfmodel.software.framework import Framework


def nothing_possible(
    model: ModelSpec,
    rejected: Mapping[str, int],
    counts: Sequence[int],
    axes: Mapping[str, Any],
    hardware: Sequence[Hardware],
) -> str:
    """Say in one line why no strategy is possible, and what would be."""
    from perfmodel.strategy.enumerate import describe_rejected, possible_instead
    from perfmodel.strategy.single import DEGREES

    devices = max(counts)
    if axes.get("data_parallel") is None or set(rejected) - {"devices_mismatch"}:
        instead = possible_instead(model, devices, axes, hardware)
        return describe_rejected(rejected, devices) + instead
    factors = [
        f"{name} {','.join(map(str, axes[name]))}"
        for name in (*DEGREES, "data_parallel")
        if axes.get(name) is not None
    ]
    return (
        f"no strategy is possible on {devices:,} devices: tensor × context × pipeline × data "
        f"degrees never multiply to {devices:,} with {', '.join(factors)}; "
        "leave out --dp to derive it"
    )


def smaller(axes: Mapping[str, Any]) -> list[str]:
    """Return what would need less memory, but for what is tried already."""
    saving = {
        "recompute": ("--recompute full", lambda values: "full" not in values),
        "zero_stage": ("--zero 3", lambda values: 3 not in values),
        "tensor_parallel": ("larger --tp", bool),
        "pipeline_parallel": ("larger --pp", bool),
        "context_parallel": ("larger --cp", bool),
        "expert_parallel": ("larger --ep", bool),
        "micro_batch_size": ("--micro-batch 1", lambda values: 1 not in values),
    }
    named = [text for name, (text, helps) in saving.items() if axes[name] and helps(axes[name])]
    return ["more devices", *named, "or hardware with more memory"]


space_options = options.stack(
    models_option,
    options.hardware_options,
    options.device_counts_option,
    options.scaling_option,
    options.axis_options(single=False),
    options.stage_layers_option,
    options.set_option,
    options.sweep_option,
    options.frameworks_option,
    options.config_option,
)


class Named(NamedTuple):
    """What the options name."""

    models: list[ModelSpec]
    hardware: list[Hardware]
    values: dict[str, list[float]]  # swept ones of every row of hardware, by path
    software: list[Framework]


def named(
    model: Sequence[str],
    reading: Mapping[str, Any],
    hardware: Sequence[str],
    framework: Sequence[str] | None,
    settings: Mapping[str, Any],
    swept: Mapping[str, Any],
) -> Named:
    """Load what the options name, and say what is to be said of it.

    Raises
    ------
    PerfModelError
        No such model, hardware or software, or a value that one of them cannot have.
    """
    from perfmodel.model.presets import load_model

    models = [load_model(name, **reading) for name in model]
    say_remarks(models)
    rows, values = load_rows(hardware, of_hardware(settings), of_hardware(swept))
    return Named(models, rows, values, load_several_software(framework, settings, swept))
