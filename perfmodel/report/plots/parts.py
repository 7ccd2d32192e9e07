"""What times and memory are made of: their parts, each with its words and colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfmodel.base.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    SOFT,
    VERMILLION,
    YELLOW,
)
from perfmodel.kernels import variables
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.store.subject import SERVING, TRAINING
from perfmodel.wafer import result_subject as wafer_variables
from perfmodel.wafer.result_subject import SUBJECT as WAFER


class Part(NamedTuple):
    """A part of a whole: variable, words, colour and hatch."""

    name: str
    words: str
    colour: str
    hatch: str = ""


class Whole(NamedTuple):
    """What parts add up to.

    Attributes
    ----------
    name : str
        The variable; empty where no variable has the sum.
    words : str
    parts : tuple of Part
        In the order in which they are stacked.
    """

    name: str
    words: str
    parts: tuple[Part, ...]


HATCH = "/////"
TIMES: Mapping[str, Whole] = {
    TRAINING.verb: Whole(
        "step_time",
        "time of a step",
        (
            Part("forward_time", "forward", SKY),
            Part("backward_time", "backward", BLUE),
            Part("recompute_time", "recompute", SKY, HATCH),
            Part("optimizer_time", "optimizer", GREEN),
            Part("tensor_parallel_exposed", "tensor comm.", VERMILLION),
            Part("context_parallel_exposed", "context comm.", ORANGE),
            Part("expert_parallel_exposed", "expert comm.", PURPLE),
            Part("pipeline_exposed", "pipeline comm.", YELLOW),
            Part("data_parallel_exposed", "data comm.", ORANGE, HATCH),
            Part("offload_exposed", "offload", GREEN, HATCH),
            Part("host_time", "host", GREY),
            Part("pipeline_bubble", "bubble", PALE),
        ),
    ),
    SERVING.verb: Whole(
        "",
        "time of a mean pass",
        (
            Part("matrices_time", "matrices", BLUE),
            Part("experts_time", "experts", PURPLE),
            Part("attention_time", "attention", SKY),
            Part("communication_time", "communication", VERMILLION),
            Part("other_time", "other", GREEN),
            Part("host_time", "host", GREY),
        ),
    ),
    WAFER.verb: Whole(
        "latency",
        "latency",
        (
            Part("compute_time", "compute", BLUE),
            Part("sram_time", "core memory", SKY),
            Part("issue_time", "issue", GREEN),
            Part("network_time", "network", VERMILLION),
            Part("transfer_time", "regions", ORANGE),
            Part("chip_time", "chips", PURPLE),
            Part("memory_time", "memory beside", YELLOW),
            Part("host_time", "host", GREY),
        ),
    ),
}
"""Parts of times, by what results are about; they are those of ``TIME_COMPONENTS``."""

MEMORY: Mapping[str, Whole] = {
    TRAINING.verb: Whole(
        "memory_total",
        "memory per device",
        (
            Part("memory_parameters", "parameters", BLUE),
            Part("memory_gradients", "gradients", SKY),
            Part("memory_optimizer", "optimizer", GREEN),
            Part("memory_activations", "activations", ORANGE),
            Part("memory_buffers", "buffers", PURPLE),
            Part("memory_fragmentation", "fragments", SOFT),
            Part("memory_reserve", "reserve", GREY),
        ),
    ),
    SERVING.verb: Whole(
        "memory_total",
        "memory per device",
        (
            Part("memory_weights", "weights", BLUE),
            Part("memory_activations", "activations", ORANGE),
            Part("memory_workspace", "workspace", GREY),
            Part("memory_cache", "cache", GREEN),
        ),
    ),
    WAFER.verb: Whole(
        "sram_used",
        "memory of a core",
        (
            Part("weight_bytes", "weights", BLUE),
            Part("cache_bytes", "cache", GREEN),
            Part("activation_bytes", "activations", ORANGE),
        ),
    ),
}
"""Parts of memory, by what results are about."""

COMPONENTS = {
    TRAINING.verb: variables.TIME_COMPONENTS,
    SERVING.verb: serving_variables.TIME_COMPONENTS,
    WAFER.verb: wafer_variables.TIME_COMPONENTS,
}
CAPACITY = BLACK
"""Colour of what memory has to fit in."""
