"""What to say where no strategy is possible, or none fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec


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
