"""Cases whose time is a formula, to hold sensitivities against what is worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfmodel import load_framework, load_hardware, load_model
from perfmodel.analysis.case import Change, Outcome, TrainingCase
from perfmodel.analysis.single import one_strategy
from perfmodel.hwprofiles import Hardware

RUN: dict[str, Any] = {
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "global_batch_size": 32,
    "sequence_length": 4096,
    "virtual_pipeline": 1,
    "micro_batch_size": 1,
    "recompute": "none",
}


def training(devices: int = 16, framework: str = "megatron", **options: Any) -> TrainingCase:
    """A small training step that is really projected."""
    fields = {name: options.pop(name) for name in list(options) if name in (*RUN, "zero_stage")}
    model = load_model("llama-3.1-8b")
    grid = one_strategy(model, devices, {**RUN, **fields}, framework)
    hardware = options.pop("hardware", None) or load_hardware("dgx-h100")
    return TrainingCase(model, grid, hardware, load_framework(framework), **options)


class Formula(TrainingCase):
    """A case whose results follow from the profile by a formula."""

    results_of: Callable[[Hardware], dict[str, float]]

    def vary(self, changes: Sequence[Change]) -> list[Outcome]:
        return [self._of(self.hardware.with_values(change)) for change in changes]

    def base(self) -> Outcome:
        return self._of(self.hardware)

    def _of(self, hardware: Hardware) -> Outcome:
        results = type(self).results_of(hardware)
        value = results[self.by]
        mark = np.array(list(results.values())).tobytes()
        return Outcome(value, True, mark, {}, results)


def formula(results_of: Callable[[Hardware], dict[str, float]], **options: Any) -> Formula:
    """A case with such results; they are a step time at least."""
    real = training(**options)
    kind = type("OfFormula", (Formula,), {"results_of": staticmethod(results_of)})
    found: Formula = kind(real.model, real.choices, real.hardware, real.software, by=real.by)
    found.keep = tuple(results_of(real.hardware))
    return found


BYTES, FLOP = 2e12, 3e15


def roofline(hardware: Hardware) -> dict[str, float]:
    """Bytes, operations and a message, one after another."""
    memory, network = hardware.device.memory.bandwidth, hardware.system.network[1]
    time = BYTES / memory + FLOP / hardware.device.peak("bf16") + 1e5 * network.latency
    return {"step_time": time}


def hidden_behind(
    compute: float, size: float, latency: float = 0.0
) -> Callable[[Hardware], dict[str, float]]:
    """Data-parallel communication over level 1, beside some compute [s, B, s]."""

    def results(hardware: Hardware) -> dict[str, float]:
        messages = latency * hardware.system.network[1].latency
        total = size / hardware.system.network[1].bandwidth + messages
        exposed = max(total - compute, 0.0)
        times = {"data_parallel_total": total, "data_parallel_exposed": exposed}
        for kind in ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline"):
            times |= {f"{kind}_total": 0.0, f"{kind}_exposed": 0.0}
        return {"step_time": compute + exposed + 1.0, **times}

    return results


def assert_close(found: float, expected: float, relative: float = 1e-3) -> None:
    assert math.isclose(found, expected, rel_tol=relative, abs_tol=1e-9), (found, expected)


TIMES = {"s": 1, "s/B": 1, "Hz": -1, "W": -1}  # powers of the second; "…/s" is -1 as well


def power_of_time(unit: str) -> int:
    """Return the power of the second in a unit; J counts as B or FLOP do."""
    return TIMES.get(unit, -1 if unit.endswith("/s") else 0)
