"""Every variable of a dataset of models on meshes of cores: name, units and what it means.

Those over mappings come in the order of `perfmodel.kernels.wafer.columns.CLOSED_ROWS`: one that
only the kernels or only this table has fails at import.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.variables import Variable, parts_of
from perfmodel.kernels.wafer.columns import CLOSED_ROWS

SCHEMA_VERSION = "1.0"

ROW_VARIABLES: tuple[Variable, ...] = (
    Variable("latency", "s", "time of one token of every sequence, or of whole prompts"),
    Variable("layer_time", "s", "time of a layer on its cores, mean"),
    Variable("compute_time", "s", "multiply-adds of the busiest core", part_of="latency"),
    Variable("sram_time", "s", "what a core's memory adds to them", part_of="latency"),
    Variable("issue_time", "s", "start of loops and vector instructions", part_of="latency"),
    Variable("network_time", "s", "messages that cores wait for", part_of="latency"),
    Variable("transfer_time", "s", "from region to region", part_of="latency"),
    Variable("chip_time", "s", "sums over chips", part_of="latency"),
    Variable("memory_time", "s", "waiting for memory beside the cores", part_of="latency"),
    Variable("host_time", "s", "dispatch of layers by the host", part_of="latency"),
    Variable("link_time", "s", "in which the busiest link carries a wavelet"),
    Variable(
        "utilization",
        "1",
        "useful multiply-adds over the peak of the cores of a region",
        "useful_macs / (cores * peak_macs * latency)",
        better="up",
    ),
    Variable("region_count", "1", "pipeline regions"),
    Variable("layers_per_region", "1", "layers of a region, at most"),
    Variable(
        "weight_bytes",
        "B",
        "weights in the fullest core; on a chip where memory is beside",
        part_of="sram_used",
    ),
    Variable("cache_bytes", "B", "keys and values of the context in it", part_of="sram_used"),
    Variable(
        "activation_bytes",
        "B",
        "operands and results of the largest part in it",
        part_of="sram_used",
    ),
    Variable("sram_used", "B", "memory of the fullest core"),
    Variable(
        "cache_tokens_row",
        "1",
        "longest context with the cache concatenated on one row",
        better="up",
    ),
    Variable(
        "cache_tokens_shifted", "1", "longest context with the cache over all rows", better="up"
    ),
    Variable("meshes_needed", "1", "meshes whose regions hold the model and the context"),
)
"""Over mapping, hardware and phase."""
if tuple(item.name for item in ROW_VARIABLES) != CLOSED_ROWS:
    raise ImportError("ROW_VARIABLES and the kernels' CLOSED_ROWS differ in names or order")

TIME_COMPONENTS = parts_of("latency", ROW_VARIABLES)
BOTTLENECKS = tuple(name.removesuffix("_time") for name in TIME_COMPONENTS)

OTHER_VARIABLES: tuple[Variable, ...] = (
    Variable(
        "tokens_per_second",
        "1/s",
        "tokens per second of one user: of its prompt, or of its answer",
        title="tokens/s of a user",
        better="up",
    ),
    Variable(
        "mesh_tokens_per_second",
        "1/s",
        "tokens per second of as many users as keep every region busy",
        title="tokens/s of a mesh",
        better="up",
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
