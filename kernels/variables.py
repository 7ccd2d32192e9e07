"""Variables of training results: the one table of their units, words, parts and order.

Rows of `STEP_VARIABLES` are numbered in this order; the closing pass takes its row numbers from
here (`perfmodel.kernels.step.tables.ROW`). Commands, files, figures and queries read the rest.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = "1.2"
RATE = "tokens_per_second_per_device"
"""What results are ranked by where nothing else is said."""
SEARCHED_BY = (RATE, "step_time", "model_flops_utilization")
"""What a search can rank by: what follows from the time of a step, once a layout is chosen."""
PHASES = ("forward", "input_gradient", "weight_gradient")
"""Passes of a training step, as text workloads and their results have them."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of results.

    Attributes
    ----------
    name, units, long_name : str
    formula : str
        Where one line says it.
    short : str
        Heading of a narrow column.
    title : str
        Label of an axis; empty where the name in words will do.
    part_of : str
        Variable or sum that this one is a part of; parts are stacked in the order of the table.
    better : {"down", "up"}
        Which way a result improves.
    """

    name: str
    units: str
    long_name: str
    formula: str = ""
    short: str = ""
    title: str = ""
    part_of: str = ""
    better: str = "down"

    def attributes(self) -> dict[str, str]:
        """Return what a labelled column says of itself."""
        found = {"units": self.units, "long_name": self.long_name}
        return found | ({"formula": self.formula} if self.formula else {})


def parts_of(whole: str, variables: Iterable[Variable]) -> tuple[str, ...]:
    """Return the names of the variables that add up to another one."""
    return tuple(variable.name for variable in variables if variable.part_of == whole)


def larger_is_better(variables: Iterable[Variable]) -> frozenset[str]:
    """Return the names of the variables of which more is better."""
    return frozenset(variable.name for variable in variables if variable.better == "up")


def row_numbers(kind: str, variables: Iterable[Variable], *others: str) -> Any:
    """Return a class of tuples whose fields are the names of variables, and then others."""
    names = [*(variable.name for variable in variables), *others]
    return namedtuple(kind, names)


STEP_VARIABLES: tuple[Variable, ...] = (
    Variable("step_time", "s", "time of one training step", short="step"),
    Variable(
        "step_time_low",
        "s",
        "10th percentile of the step time",
        "step_time * exp(-w), w = sqrt(step**2 + sum over kernel classes (width / step_time)**2); "
        "not below hardware_flops_utilization * step_time",
        title="step time, 10th percentile",
    ),
    Variable(
        "step_time_high",
        "s",
        "90th percentile of the step time",
        "step_time * exp(+w), w = sqrt(step**2 + sum over kernel classes (width / step_time)**2)",
        title="step time, 90th percentile",
    ),
    Variable(
        "forward_time",
        "s",
        "forward compute of the slowest stage",
        short="fwd",
        part_of="step_time",
    ),
    Variable(
        "backward_time",
        "s",
        "backward compute of the slowest stage",
        short="bwd",
        part_of="step_time",
    ),
    Variable(
        "recompute_time",
        "s",
        "recomputed forward of the slowest stage",
        short="recomp",
        part_of="step_time",
    ),
    Variable("optimizer_time", "s", "optimizer update", short="optim", part_of="step_time"),
    Variable(
        "host_time", "s", "waiting for the host to launch work", short="host", part_of="step_time"
    ),
    Variable(
        "tensor_parallel_exposed",
        "s",
        "tensor-parallel communication that delays the step",
        short="TP",
        part_of="step_time",
    ),
    Variable(
        "context_parallel_exposed",
        "s",
        "context-parallel communication that delays the step",
        short="CP",
        part_of="step_time",
    ),
    Variable(
        "expert_parallel_exposed",
        "s",
        "expert-parallel communication that delays the step",
        short="EP",
        part_of="step_time",
    ),
    Variable(
        "pipeline_exposed",
        "s",
        "stage-to-stage sends that delay the step",
        short="PP",
        part_of="step_time",
    ),
    Variable(
        "data_parallel_exposed",
        "s",
        "data-parallel communication that delays the step",
        short="DP",
        part_of="step_time",
    ),
    Variable(
        "offload_exposed",
        "s",
        "copies to where state waits, and the host's update, that show",
        short="offload",
        part_of="step_time",
    ),
    Variable(
        "pipeline_bubble",
        "s",
        "time in which the slowest stage waits for other stages",
        short="bubble",
        part_of="step_time",
    ),
    Variable("tensor_parallel_total", "s", "tensor-parallel communication, hidden included"),
    Variable("context_parallel_total", "s", "context-parallel communication, hidden included"),
    Variable("expert_parallel_total", "s", "expert-parallel communication, hidden included"),
    Variable("pipeline_total", "s", "stage-to-stage sends, hidden included"),
    Variable("data_parallel_total", "s", "data-parallel communication, hidden included"),
    Variable(
        "tokens_per_second_per_device",
        "1/s",
        "tokens per second and device",
        short="tok/s/device",
        title="tokens/s per device",
        better="up",
    ),
    Variable(
        "model_flops_utilization",
        "1",
        "model FLOP (causal attention, no recomputation) over the peak at this precision",
        short="MFU",
        title="MFU",
        better="up",
    ),
    Variable(
        "model_flops_utilization_non_causal",
        "1",
        "model FLOP (full-square attention, no recomputation) over the peak at this precision",
        title="MFU, full-square attention",
        better="up",
    ),
    Variable(
        "hardware_flops_utilization",
        "1",
        "executed matrix FLOP (recomputation included) over the peak at this precision",
        title="HFU",
        better="up",
    ),
    Variable("memory_parameters", "B", "parameters on the fullest stage", part_of="memory_total"),
    Variable("memory_gradients", "B", "gradients on the fullest stage", part_of="memory_total"),
    Variable(
        "memory_optimizer", "B", "optimizer state on the fullest stage", part_of="memory_total"
    ),
    Variable(
        "memory_activations",
        "B",
        "stored activations and logits on the fullest stage",
        part_of="memory_total",
    ),
    Variable(
        "memory_buffers", "B", "working set and communication buffers", part_of="memory_total"
    ),
    Variable(
        "memory_fragmentation",
        "B",
        "held by the allocator, of no use to it",
        part_of="memory_total",
    ),
    Variable(
        "memory_reserve", "B", "device context, libraries and communicators", part_of="memory_total"
    ),
    Variable("memory_total", "B", "peak memory of the fullest stage", title="memory"),
    Variable(
        "memory_high",
        "B",
        "90th percentile of that peak",
        "memory_total * exp(calibration.uncertainty.memory)",
        title="memory, 90th percentile",
    ),
    Variable("memory_host", "B", "what the fullest stage keeps in the memory of its host"),
    Variable("memory_nvme", "B", "what the fullest stage keeps on the NVMe drives of its host"),
)
OTHER_VARIABLES: tuple[Variable, ...] = (
    Variable("model_flops_per_token", "FLOP", "model FLOP per token, causal attention"),
    Variable(
        "model_flops_per_token_non_causal", "FLOP", "model FLOP per token, full-square attention"
    ),
    Variable(
        "fits",
        "1",
        "memory_total is within the device's capacity, memory_host and memory_nvme within the "
        "host's",
        title="fits in memory",
    ),
    Variable("status", "1", "valid, or why the strategy is impossible"),
)
COST_VARIABLES: tuple[Variable, ...] = (
    Variable(
        "goodput",
        "1",
        "share of the time that checkpoints and failures leave to training",
        better="up",
    ),
    Variable("checkpoint_time", "s", "time in which the run waits for a checkpoint"),
    Variable("checkpoint_interval", "s", "best time between checkpoints", better="up"),
    Variable("failure_interval", "s", "mean time between failures of the run", better="up"),
    Variable("power_per_device", "W", "power of a device with its part of node and cooling"),
    Variable(
        "energy_per_token",
        "J",
        "energy per token",
        "power_per_device / tokens_per_second_per_device / goodput",
    ),
    Variable(
        "cost_per_token",
        "USD",
        "price of the devices per token",
        "price / tokens_per_second_per_device / goodput",
        title="cost per million tokens",
    ),
    Variable("training_time", "s", "time to train on all tokens"),
    Variable("device_time", "s", "time to train times devices"),
    Variable("training_energy", "J", "energy to train on all tokens"),
    Variable("training_cost", "USD", "price of the devices to train on all tokens"),
)
STEP_ROWS = {variable.name: row for row, variable in enumerate(STEP_VARIABLES)}
VARIABLES: Mapping[str, Variable] = {v.name: v for v in STEP_VARIABLES + OTHER_VARIABLES}
COSTS: Mapping[str, Variable] = {v.name: v for v in COST_VARIABLES}
"""What `perfmodel.store.cost.add_cost` adds; the others are there always."""

TIME_COMPONENTS = parts_of("step_time", STEP_VARIABLES)
OPERATION_COMPONENTS = (
    "forward_time",
    "backward_time",
    "recompute_time",
    "tensor_parallel_exposed",
    "context_parallel_exposed",
    "expert_parallel_exposed",
)
"""Those to which operations add."""
HOST_MEMORY: Mapping[str, str] = {
    "memory_host": "memory_capacity",
    "memory_nvme": "nvme_capacity",
}
"""What waits with the host -> what of its profile (``[system.host]``) has to hold it."""
MEMORY_COMPONENTS = parts_of("memory_total", STEP_VARIABLES)
