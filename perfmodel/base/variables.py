"""Every variable of a training dataset: name, units and what it means.

The order of `STEP_VARIABLES` is the order of the rows that the closing pass writes
(`perfmodel.kernels.step.tables`); a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA_VERSION = "1.2"
RATE = "tokens_per_second_per_device"
"""What results are ranked by where nothing else is said."""
SEARCHED_BY = (RATE, "step_time", "model_flops_utilization")
"""What a search can rank by: what follows from the time of a step, once a layout is chosen."""
PHASES = ("forward", "input_gradient", "weight_gradient")
"""Passes of a training step, as text workloads and their results have them."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A dataset variable: its name, units, long name and, where one line says it, formula."""

    name: str
    units: str
    long_name: str
    formula: str = ""


STEP_VARIABLES: tuple[Variable, ...] = (
    Variable("step_time", "s", "time of one training step"),
    Variable(
        "step_time_low",
        "s",
        "10th percentile of the step time",
        "step_time * exp(-w), w = sqrt(step**2 + sum over kernel classes (width / step_time)**2); "
        "not below hardware_flops_utilization * step_time",
    ),
    Variable(
        "step_time_high",
        "s",
        "90th percentile of the step time",
        "step_time * exp(+w), w = sqrt(step**2 + sum over kernel classes (width / step_time)**2)",
    ),
    Variable("forward_time", "s", "forward compute of the slowest stage"),
    Variable("backward_time", "s", "backward compute of the slowest stage"),
    Variable("recompute_time", "s", "recomputed forward of the slowest stage"),
    Variable("optimizer_time", "s", "optimizer update"),
    Variable("host_time", "s", "waiting for the host to launch work"),
    Variable("tensor_parallel_exposed", "s", "tensor-parallel communication that delays the step"),
    Variable(
        "context_parallel_exposed", "s", "context-parallel communication that delays the step"
    ),
    Variable("expert_parallel_exposed", "s", "expert-parallel communication that delays the step"),
    Variable("pipeline_exposed", "s", "stage-to-stage sends that delay the step"),
    Variable("data_parallel_exposed", "s", "data-parallel communication that delays the step"),
    Variable(
        "offload_exposed", "s", "copies to where state waits, and the host's update, that show"
    ),
    Variable("pipeline_bubble", "s", "time in which the slowest stage waits for other stages"),
    Variable("tensor_parallel_total", "s", "tensor-parallel communication, hidden included"),
    Variable("context_parallel_total", "s", "context-parallel communication, hidden included"),
    Variable("expert_parallel_total", "s", "expert-parallel communication, hidden included"),
    Variable("pipeline_total", "s", "stage-to-stage sends, hidden included"),
    Variable("data_parallel_total", "s", "data-parallel communication, hidden included"),
    Variable("tokens_per_second_per_device", "1/s", "tokens per second and device"),
    Variable(
        "model_flops_utilization",
        "1",
        "model FLOP (causal attention, no recomputation) over the peak at this precision",
    ),
    Variable(
        "model_flops_utilization_non_causal",
        "1",
        "model FLOP (full-square attention, no recomputation) over the peak at this precision",
    ),
    Variable(
        "hardware_flops_utilization",
        "1",
        "executed matrix FLOP (recomputation included) over the peak at this precision",
    ),
    Variable("memory_parameters", "B", "parameters on the fullest stage"),
    Variable("memory_gradients", "B", "gradients on the fullest stage"),
    Variable("memory_optimizer", "B", "optimizer state on the fullest stage"),
    Variable("memory_activations", "B", "stored activations and logits on the fullest stage"),
    Variable("memory_buffers", "B", "working set and communication buffers"),
    Variable("memory_fragmentation", "B", "held by the allocator, of no use to it"),
    Variable("memory_reserve", "B", "device context, libraries and communicators"),
    Variable("memory_total", "B", "peak memory of the fullest stage"),
    Variable(
        "memory_high",
        "B",
        "90th percentile of that peak",
        "memory_total * exp(calibration.uncertainty.memory)",
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
    ),
    Variable("status", "1", "valid, or why the strategy is impossible"),
)
COST_VARIABLES: tuple[Variable, ...] = (
    Variable("goodput", "1", "share of the time that checkpoints and failures leave to training"),
    Variable("checkpoint_time", "s", "time in which the run waits for a checkpoint"),
    Variable("checkpoint_interval", "s", "best time between checkpoints"),
    Variable("failure_interval", "s", "mean time between failures of the run"),
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

TIME_COMPONENTS = (
    "forward_time",
    "backward_time",
    "recompute_time",
    "optimizer_time",
    "host_time",
    "tensor_parallel_exposed",
    "context_parallel_exposed",
    "expert_parallel_exposed",
    "pipeline_exposed",
    "data_parallel_exposed",
    "offload_exposed",
    "pipeline_bubble",
)
HOST_MEMORY: Mapping[str, str] = {
    "memory_host": "memory_capacity",
    "memory_nvme": "nvme_capacity",
}
"""What waits with the host -> what of its profile (``[system.host]``) has to hold it."""
MEMORY_COMPONENTS = (
    "memory_parameters",
    "memory_gradients",
    "memory_optimizer",
    "memory_activations",
    "memory_buffers",
    "memory_fragmentation",
    "memory_reserve",
)
