"""Times of the exchange of tokens between experts: dispatch and combine.

Letters
    T   tokens of a rank
    k   experts that every token goes to, of E experts on n ranks
    b   bytes of a token on the wire
    R   ranks that a token goes to, on average; M nodes likewise, of m
    s   compute units that copy
    c   members per node
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit


class ExchangeConstants(NamedTuple):
    """What an exchange costs on a device; docs/collectives.md defines the constants."""

    latency: float  # of an exchange inside a node [s]
    scale_out_latency: float  # more for every doubling of the nodes [s]
    link_bandwidth: float  # achievable between devices of a node [B/s]
    adapter_bandwidth: float  # achievable between nodes, per device [B/s]
    # Of the kernels that send a token once to every rank, 0 for the others.
    token_time: float  # of one token on one compute unit, beside its bytes [s]
    unit_rate: float  # bytes that one compute unit copies [B/s]
    forward_copies: float  # copies of a token that forwarding between nodes costs


@jit
def distinct_groups(groups, top_k, experts):
    """Groups of experts that a token meets, on average, where experts are chosen evenly.

    Parameters
    ----------
    groups : float
        Equal groups that the experts are split into (ranks, or nodes).
    top_k, experts : float
        k distinct experts of E.

    Returns
    -------
    float
        ``groups (1 - C(E - E/groups, k) / C(E, k))``, between 1 and the smaller of k and
        the groups.

    Notes
    -----
    Derived here: a group is missed when all k choices, without replacement, fall outside
    its E/groups experts.
    """
    missed = 1.0
    own = experts / groups
    for choice in range(int(top_k)):
        missed *= max(experts - own - choice, 0.0) / max(experts - choice, 1.0)
    return groups * (1.0 - missed)


@jit
def distinct_group_counts(groups, top_k, experts):
    """Groups of experts that a token meets, column by column; see `distinct_groups`.

    Parameters
    ----------
    groups, experts : float64[rows]
    top_k : int

    Returns
    -------
    float64[rows]
    """
    met = np.empty(groups.size)
    for i in range(groups.size):
        met[i] = distinct_groups(groups[i], top_k, experts[i])
    return met


@jit
def throughput_exchange_time(
    tokens, token_bytes, top_k, experts, members, node, units, share, constants
):
    """Time of an exchange that sends a token once to every rank that needs it.

    Parameters
    ----------
    tokens : float
        T.
    token_bytes : float
        b [B].
    top_k, experts, members, node : float
        k, E, n, c.
    units : float
        s.
    share : float
        Of the experts, and so of their ranks and nodes, among which a token chooses.
    constants : ExchangeConstants

    Returns
    -------
    float
        [s].

    Notes
    -----
    DeepEP's normal kernels: units copy T R tokens, and where adapters are between pass every
    token on through buffers of the network (T times ``forward_copies``); links carry the
    share (c-1)/c of the T R, adapters T M (m-1)/m, each node once. Copying units and links
    slow each other down: the root of the sum of squares.
    """
    nodes = float(math.ceil(members / node))
    ranks = distinct_groups(max(members * share, 1.0), top_k, experts * share)
    copies = ranks
    across = 0.0
    if nodes > 1.0:
        met = distinct_groups(max(nodes * share, 1.0), top_k, experts * share)
        copies += constants.forward_copies
        across = tokens * token_bytes * met * (nodes - 1.0) / nodes
    copied = tokens * token_bytes * copies / constants.unit_rate + tokens * constants.token_time
    copied /= units
    sent = tokens * token_bytes * ranks * (node - 1.0) / node / constants.link_bandwidth
    inside = math.sqrt(copied * copied + sent * sent)
    return (
        constants.latency
        + constants.scale_out_latency * math.log2(nodes)
        + max(inside, across / constants.adapter_bandwidth)
    )


@jit
def low_latency_exchange_time(tokens, token_bytes, top_k, members, node, constants):
    """Time of an exchange that sends a token to each of its experts on its own.

    Parameters
    ----------
    tokens, token_bytes, top_k, members, node : float
        T, b [B], k, n, c.
    constants : ExchangeConstants

    Returns
    -------
    float
        [s].

    Notes
    -----
    DeepEP's low-latency kernels: T k tokens leave, c/n of them over links, the others
    over adapters, both at once.
    """
    nodes = float(math.ceil(members / node))
    sent = tokens * top_k * token_bytes
    inside = sent * node / members / constants.link_bandwidth
    across = sent * (members - node) / members / constants.adapter_bandwidth
    return constants.latency + constants.scale_out_latency * math.log2(nodes) + max(inside, across)


@jit
def moe_exchange_times(
    low_latency, tokens, token_bytes, top_k, experts, members, node, units, share, constants
):
    """Times of many exchanges of one kind, column by column.

    Parameters
    ----------
    low_latency : bool
    tokens, token_bytes, top_k, experts, members, node, units : float64[rows]
    share : float
    constants : ExchangeConstants

    Returns
    -------
    float64[rows]
        [s]; 0 where there is one member or no token.
    """
    time = np.zeros(tokens.size)
    for i in range(tokens.size):
        if members[i] <= 1.0 or tokens[i] <= 0.0:
            continue
        if low_latency:
            time[i] = low_latency_exchange_time(
                tokens[i], token_bytes[i], top_k[i], members[i], node[i], constants
            )
        else:
            time[i] = throughput_exchange_time(
                tokens[i],
                token_bytes[i],
                top_k[i],
                experts[i],
                members[i],
                node[i],
                units[i],
                share,
                constants,
            )
    return time
