"""Every variable of a dataset of models on meshes of cores: name, units and what it means.

Those over mappings come in the order of `perfmodel.kernels.wafer.columns.CLOSED_ROWS`; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.base.variables import Variable

SCHEMA_VERSION = "1.0"

TIME_COMPONENTS = (
    "compute_time",
    "sram_time",
    "issue_time",
    "network_time",
    "transfer_time",
    "chip_time",
    "memory_time",
    "host_time",
)
"""They add up to ``latency``."""

BOTTLENECKS = tuple(name.removesuffix("_time") for name in TIME_COMPONENTS)

ROW_VARIABLES: tuple[Variable, ...] = (
    Variable("latency", "s", "time of one token of every sequence, or of whole prompts"),
    Variable("layer_time", "s", "time of a layer on its cores, mean"),
    Variable("compute_time", "s", "multiply-adds of the busiest core"),
    Variable("sram_time", "s", "what a core's memory adds to them"),
    Variable("issue_time", "s", "start of loops and vector instructions"),
    Variable("network_time", "s", "messages that cores wait for"),
    Variable("transfer_time", "s", "from region to region"),
    Variable("chip_time", "s", "sums over chips"),
    Variable("memory_time", "s", "waiting for memory beside the cores"),
    Variable("host_time", "s", "dispatch of layers by the host"),
    Variable("link_time", "s", "in which the busiest link carries a wavelet"),
    Variable(
        "utilization",
        "1",
        "useful multiply-adds over the peak of the cores of a region",
        "useful_macs / (cores * peak_macs * latency)",
    ),
    Variable("region_count", "1", "pipeline regions"),
    Variable("layers_per_region", "1", "layers of a region, at most"),
    Variable("weight_bytes", "B", "weights in the fullest core; on a chip where memory is beside"),
    Variable("cache_bytes", "B", "keys and values of the context in it"),
    Variable("activation_bytes", "B", "operands and results of the largest part in it"),
    Variable("sram_used", "B", "memory of the fullest core"),
    Variable("cache_tokens_row", "1", "longest context with the cache concatenated on one row"),
    Variable("cache_tokens_shifted", "1", "longest context with the cache over all rows"),
    Variable("meshes_needed", "1", "meshes whose regions hold the model and the context"),
)
"""Over mapping, hardware and phase."""

OTHER_VARIABLES: tuple[Variable, ...] = (
    Variable(
        "tokens_per_second", "1/s", "tokens per second of one user: of its prompt, or of its answer"
    ),
    Variable(
        "mesh_tokens_per_second",
        "1/s",
        "tokens per second of as many users as keep every region busy",
    ),
    Variable(
        "link_utilization",
        "1",
        "share of time that the busiest link is busy",
        "link_time / latency",
    ),
    Variable("bottleneck", "1", "what takes the largest part of the latency"),
    Variable("fits", "1", "weights, cache and activations find room"),
    Variable("status", "1", "valid, or why not"),
)

PART_VARIABLES: tuple[Variable, ...] = (
    Variable("part_time", "s", "of one part of one layer"),
    Variable("part_compute_time", "s", "multiply-adds of its busiest core"),
    Variable("part_sram_time", "s", "what a core's memory adds to them"),
    Variable("part_issue_time", "s", "start of its loops and vector instructions"),
    Variable("part_network_time", "s", "messages that cores wait for"),
    Variable("part_link_time", "s", "in which its busiest link carries a wavelet"),
    Variable("part_core_macs", "1", "multiply-adds of its busiest core"),
    Variable("part_macs", "1", "multiply-adds of all cores"),
)
"""Over mapping, hardware and part, of one phase."""

VARIABLES: Mapping[str, Variable] = {
    item.name: item for item in (*ROW_VARIABLES, *OTHER_VARIABLES, *PART_VARIABLES)
}
