"""Which share of the work a node has: buckets, ranks and groups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.system import WaferSystem


def bucket_sizes(items: int, buckets: int) -> Integers:
    """Deal items into contiguous buckets; the first ``items mod buckets`` get one more.

    Returns
    -------
    array of int, shape (buckets,)
    """
    sizes = np.full(buckets, items // buckets, dtype=np.int64)
    sizes[: items % buckets] += 1
    return sizes


def bucket_starts(items: int, buckets: int) -> Integers:
    """Return where each bucket of `bucket_sizes` begins, and the end: shape (buckets + 1,)."""
    return np.concatenate(([0], np.cumsum(bucket_sizes(items, buckets))))


class NodeRanks(NamedTuple):
    """Ranks of every node, each array of shape (nodes,)."""

    tensor: Integers
    sequence: Integers
    data: Integers
    pipeline: Integers
    ffn_tensor: Integers
    expert: Integers
    ffn_data: Integers


def node_ranks(system: WaferSystem) -> NodeRanks:
    """Return the ranks of all nodes, in the order that `WaferSystem` states."""
    node = np.arange(system.nodes)
    t, s, d = system.tensor_parallel, system.sequence_parallel, system.data_parallel
    f, e, g = system.ffn_tensor_parallel, system.expert_parallel, system.ffn_data_parallel
    return NodeRanks(
        tensor=node % t,
        sequence=node // t % s,
        data=node // (t * s) % d,
        pipeline=node // (t * s * d),
        ffn_tensor=node % f,
        expert=node // f % e,
        ffn_data=node // (f * e) % g,
    )


def token_owners(system: WaferSystem, batch: int) -> Integers:
    """Return the node within a pipeline stage that dispatches each sequence of the batch.

    The batch is dealt over the data-parallel clusters, a cluster's share over its nodes.

    Returns
    -------
    array of int, shape (batch,)
    """
    owners = []
    for cluster, share in enumerate(bucket_sizes(batch, system.data_parallel)):
        members = bucket_sizes(int(share), system.cluster_nodes)
        owners.append(np.repeat(np.arange(system.cluster_nodes), members) + cluster * len(members))
    return np.concatenate(owners)


def shared_nodes(system: WaferSystem) -> Integers:
    """Return the nodes within a stage that each hold the shared experts: evenly spread.

    Returns
    -------
    array of int, shape (copies,)
    """
    return np.arange(system.shared_copies) * (system.stage_nodes // system.shared_copies)


def shared_servers(system: WaferSystem, sequences: int) -> Integers:
    """Return the node within a stage whose copy of the shared experts serves each sequence.

    Returns
    -------
    array of int, shape (sequences,)
    """
    return np.repeat(shared_nodes(system), bucket_sizes(sequences, system.shared_copies))


def expert_ranks(system: WaferSystem, experts: int) -> Integers:
    """Return the expert rank that holds each expert: dealt in their order.

    Returns
    -------
    array of int, shape (experts,)
    """
    return np.repeat(
        np.arange(system.expert_parallel), bucket_sizes(experts, system.expert_parallel)
    )
