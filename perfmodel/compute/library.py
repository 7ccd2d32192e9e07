"""Declared behaviour of kernel libraries: tiles, launches and rules of choice, as data.

What a library does by its source stands in ``libraries/*.toml``, one file per library and in it
a table per subject; how fast a device runs it is fitted and stands in the hardware profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.errors import HardwareError
from perfmodel.base.facts import Record, read_folder
from perfmodel.base.fields import fact

Protocols = tuple[float, ...]
LinkClasses = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLibrary:
    """What a library of collectives believes of links, and how it cuts messages.

    Tables by protocol are in the order low latency, low latency 128, simple; by link class
    in the order device link, bus, adapter.
    """

    ring_base: Protocols = fact("latency of a ring, by protocol", "s", shape=(3,))
    tree_base: Protocols = fact("latency of a tree, by protocol", "s", shape=(3,))
    ring_hop: LinkClasses = fact("a ring's hop, by link class and protocol", "s", shape=(3, 3))
    tree_hop: LinkClasses = fact("a tree's hop, by link class and protocol", "s", shape=(3, 3))
    tree_correction: LinkClasses = fact(
        "part of its bandwidth that a tree reaches, by protocol and power of two of the size from "
        "64 B",
        positive=True,
        shape=(3, 24),
    )
    post_overhead: float = fact("of a message to an adapter; simple protocol: three times", "s")
    in_network_latency: float = fact("of a reducing switch", "s")
    in_network_ratio: float = fact("bandwidth that it reaches / that of links", positive=True)
    in_network_heads: float = fact("members from which its channels fill the links", positive=True)
    in_network_tree_hop: float = fact("of a tree that joins reducing switches", "s")
    aggregated_base: float = fact("latency of aggregated trees", "s")
    aggregated_hop: float = fact("the same for every doubling of the nodes", "s")
    aggregated_member: float = fact("the same for every member", "s")
    aggregated_share: float = fact("bandwidth of aggregated trees / of a ring", positive=True)
    low_latency_share: float = fact("bandwidth of a ring, low latency / simple", positive=True)
    low_latency_128_share: float = fact("the same of low latency 128", positive=True)
    tree_low_latency_share: float = fact("bandwidth of a tree, low latency / simple", positive=True)
    tree_low_latency_128_share: Protocols = fact(
        "the same of low latency 128, in one node and across several", positive=True, shape=(2,)
    )
    low_latency_across: Protocols = fact(
        "most of low latency across two nodes, and across more", "B/s", positive=True, shape=(2,)
    )
    ring_plateau: float = fact("factor on the latency of simple rings that wait for chunks")
    plateau_chunk: float = fact("bytes per channel and rank from which they do", "B")
    block_bytes: float = fact(
        "that one thread block of a low-latency ring takes per rank before a second one joins",
        "B",
        positive=True,
    )
    pairwise_block_bytes: float = fact("the same of a message to a peer", "B", positive=True)
    pairwise_low_latency_limit: float = fact("largest low-latency message to a peer", "B")
    pairwise_piece: float = fact("largest piece that a rail-mate forwards at once", "B")
    tuned_link_fraction: float = fact(
        "bandwidth of a device link that the topology search believes / datasheet", positive=True
    )
    host_bridge_overhead: float = fact(
        "bandwidth of a bus that data take through the processor's bridge / below a switch",
        minimum=1.0,
    )
    low_latency_payload: float = fact("data bytes / bytes sent, low latency", positive=True)
    low_latency_128_payload: float = fact("data bytes / bytes sent, low latency 128", positive=True)


FOLDER = Path(__file__).parent / "libraries"

Tiles = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeKernel:
    """How a library runs a mixture-of-experts layer."""

    tiles: Tiles = fact(
        "rows, columns, and depth of a step [B of an operand]", positive=True, shape=(0, 3)
    )
    small_tiles: Tiles = fact(
        "the same where there are no more tokens than experts; none: `tiles`",
        positive=True,
        shape=(0, 3),
        default=(),
    )
    block_tiles: Tiles = fact(
        "the same for operands of one byte or less; none: `tiles`",
        positive=True,
        shape=(0, 3),
        default=(),
    )
    stages: float = fact(
        "most main-loop steps whose operands are on their way at once; no more than the shared "
        "memory holds count",
        positive=True,
    )
    instruction_rows: float = fact(
        "rows of its matrix instruction; 0: as many as the tile has", default=0.0
    )
    block_instruction_rows: float = fact(
        "the same for block-scaled fp8; 0: `instruction_rows`", default=0.0
    )
    swept_tiles: float = fact(
        "row tiles that share one pass of the weights through the cache", positive=True
    )
    router_launches: float = fact("kernels that choose the experts")
    permute_launches: float = fact("kernels that bring the rows into the order of the experts")
    requantise_launches: float = fact(
        "kernels that quantise the activated rows; 0 where the activation does it"
    )
    combine_launches: float = fact("kernels that sum over the choices of a token")
    sorted_tokens: float = fact("more tokens than that are sorted by kernels of their own")
    sorting_launches: float = fact("how many kernels those are")
    fused_activation: tuple[str, ...] = fact(
        "precisions whose activation is the epilogue of the first product"
    )
    dense_loop: bool = fact("the main loop is that of the dense library, with its constants")
    all_slots: bool = fact(
        "every token's every choice takes part, those of other ranks' experts with zeros; else "
        "only the rows that are here do, and a single choice is written in place"
    )


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """How a library cuts calls of fused attention.

    What a library leaves out follows the profile (``[calibration.attention]``), and where that
    is silent the library ``reference``. Names as in
    `perfmodel.kernels.attention.device.AttentionDevice`.
    """

    query_tile: float | None = fact("query rows of a block", positive=True, default=None)
    smallest_query_tile: float | None = fact(
        "query rows of the smallest block", positive=True, default=None
    )
    key_tile: float | None = fact("keys of a tile, prefill", positive=True, default=None)
    decode_key_tile: float | None = fact("keys of a tile, decode", positive=True, default=None)
    smallest_key_tile: float | None = fact(
        "keys that a tile keeps where the scratchpad is short", positive=True, default=None
    )
    doubled_tiles: float | None = fact(
        "1: tiles that the scratchpad limits have powers of two of keys", default=None
    )
    key_stages: float | None = fact(
        "tiles of keys and of values that wait in the scratchpad", positive=True, default=None
    )
    tile_readers: float | None = fact(
        "groups of rows of a block that each read its keys and values from the scratchpad into "
        "registers; 0: matrix units read them there",
        default=None,
    )
    accumulators: float | None = fact(
        "elements of the output that a block holds at most", positive=True, default=None
    )
    packs_groups: float | None = fact(
        "1: heads that share keys fill a tile together in prefill too", default=None
    )
    packs_always: float | None = fact(
        "0: decode packs heads, and splits their keys, only where heads share keys and no window "
        "is set",
        default=None,
    )
    pairs_units: float | None = fact("1: two units share a wide head", default=None)
    split_rule: float | None = fact(
        "0: keys are not split in prefill; 1: spread over the units; 2: one wave", default=None
    )
    most_splits: float | None = fact("parts of the keys at most", positive=True, default=None)
    smallest_part: float | None = fact("keys of one part at least", default=None)
    latent_splits: float | None = fact("the same for a latent cache", positive=True, default=None)
    residents: float | None = fact(
        "blocks side by side on a unit, prefill", positive=True, default=None
    )
    decode_residents: float | None = fact("the same, decode", positive=True, default=None)
    split_block_latency: float | None = fact(
        "partial result of one block of split keys", "s", default=None
    )
    portable: float | None = fact("1: kernels in a portable language", default=None)
    masked_tile: float | None = fact(
        "time of a tile outside a window that a block walks over, relative to one inside",
        default=None,
    )
    windowed_tile: float | None = fact(
        "time of a tile inside a window, relative to one without a window", default=None
    )
    head_step: float | None = fact(
        "widths are padded to multiples of it", positive=True, default=None
    )
    cache_port: float | None = fact(
        "most that one unit draws from the last shared cache, over its even share",
        positive=True,
        default=None,
    )
    product_operations: float | None = fact(
        "vector FLOP per element of K and V where no matrix unit serves", default=None
    )
    latent_memory: float | None = fact(
        "memory rate over a latent cache, relative", positive=True, default=None
    )


@dataclass(frozen=True, slots=True)
class PortableKernel:
    """How a library in a portable language cuts attention calls further."""

    alone_key_tile: float = fact(
        "keys of a decode tile where a head shares them with no other", positive=True
    )
    key_step: float = fact("parts of the keys are multiples of this", positive=True)
    split_unit_keys: float = fact(
        "parts grow with the logarithm of the length in these", positive=True
    )
    register_residents: float = fact(
        "blocks that the registers of a unit hold at most", positive=True
    )
    wide_head: float = fact("width above which a prefill block has fewer rows")
    wide_rows: float = fact("rows of those", positive=True)


@dataclass(frozen=True, slots=True)
class SerialKernel:
    """How a library without a pipelined kernel walks over a latent cache."""

    heads: float = fact("heads of one block", positive=True)
    parts: float = fact("blocks that share the values of a sequence", positive=True)
    residents: float = fact("blocks side by side on a unit", positive=True)
    shared: float = fact("time of a block that shares its unit, relative to one alone", minimum=1.0)
    keys: float = fact("keys of a tile", positive=True)


@dataclass(frozen=True, slots=True)
class ServingCalls:
    """What a serving framework launches beside an attention kernel, and appends to its cache.

    `perfmodel.compute.attention.small_kernels` says when.
    """

    unequal_width_launches: float = fact(
        "kernels that store keys and values of unequal width, beside the append"
    )
    flashinfer_launches: float = fact("kernels ahead of FlashInfer's prefill on Blackwell")
    flashinfer_cast_launches: float = fact(
        "kernels beside FlashInfer's own with an fp8 cache, in decode"
    )
    scaled_cast_launches: float = fact(
        "kernels that scale and cast to an fp8 cache for TensorRT-LLM's kernel; 0: it casts itself"
    )
    cast_launches: float = fact("kernels that cast to an fp8 cache in decode for other kernels")
    portable_cast_launches: float = fact("the same for portable kernels")
    latent_launches: float = fact("kernels that assemble queries and keys of latent prefill")
    latent_cast_launches: float = fact("kernels that cast those to fp8; 0: they stay wide")
    latent_width: float = fact(
        "elements of a token that latent prefill appends to the cache; 0: whole keys and values"
    )


SUBJECTS: Mapping[str, type] = {
    "moe": MoeKernel,
    "serving": ServingCalls,
    "attention": AttentionKernel,
    "portable_attention": PortableKernel,
    "serial_attention": SerialKernel,
    "collective": CollectiveLibrary,
}
"""Table of a library's file -> what it may state."""


@cache
def libraries() -> Mapping[str, Record]:
    """Return what ships, by the name of the library.

    Raises
    ------
    HardwareError
        A file is malformed (`perfmodel.base.facts.read_folder`).
    """
    return read_folder(FOLDER, SUBJECTS, HardwareError)


@cache
def library_facts(subject: str) -> Mapping[str, Any]:
    """Return the facts of one subject, by the name of each library that states any."""
    records = libraries().items()
    return {name: found.facts[subject] for name, found in records if subject in found.facts}


@cache
def attention_facts(name: str) -> Mapping[str, float]:
    """Return what a library states of attention calls, nothing for an unknown library."""
    found = library_facts("attention").get(name)
    stated = {} if found is None else {key: getattr(found, key) for key in found.__slots__}
    return {key: value for key, value in stated.items() if value is not None}


def collective_library() -> CollectiveLibrary:
    """Return what the library of collectives carries."""
    found: CollectiveLibrary = library_facts("collective")["nccl"]
    return found
