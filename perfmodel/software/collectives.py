"""What a library of collectives states: its beliefs about links, and how it cuts messages."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.software.facts import fact

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
