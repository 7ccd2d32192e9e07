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
def distinct_places(places, top_k, experts, groups, chosen):
    """Ranks or nodes that a token meets, on average, where it chooses within few groups.

    Parameters
    ----------
    places : float
        Ranks, or nodes, that the experts lie on evenly.
    top_k, experts : float
        k distinct experts of E.
    groups, chosen : float
        Groups of experts, and how many of them a token may choose from.

    Returns
    -------
    float
        Between 1 and the smaller of k and the places; `distinct_groups` without a limit.

    Notes
    -----
    Derived here. Groups are chosen for their best experts (DeepSeek-V3, arXiv:2412.19437,
    section 2.1.2: the sum of the two best; DeepEP's test: the best), so that each of them has
    its best expert among the k: draws of 8 of 256 in 4 of 8 groups meet 3.98, where choosing
    evenly among the experts of four groups would meet 3.63. Places with one group or more are
    met by these; in finer ones lie the best experts and the k - chosen others, drawn evenly.
    """
    if chosen >= groups:
        return distinct_groups(places, top_k, experts)
    kept = min(chosen, top_k)
    if places <= groups:
        return distinct_groups(places, kept, groups)
    others = kept * (experts / groups - 1.0)
    own = experts / places
    missed = 1.0
    for choice in range(int(top_k - kept)):
        missed *= max(others - own - choice, 0.0) / max(others - choice, 1.0)
    return kept * (1.0 + (places / groups - 1.0) * (1.0 - missed))


@jit
def distinct_place_counts(places, top_k, experts, groups, chosen):
    """Places that a token meets, column by column; see `distinct_places`.

    Parameters
    ----------
    places : float64[rows]
    top_k : int
    experts, groups, chosen : float

    Returns
    -------
    float64[rows]
    """
    met = np.empty(places.size)
    for i in range(places.size):
        met[i] = distinct_places(places[i], top_k, experts, groups, chosen)
    return met


@jit
def throughput_exchange_time(
    tokens, token_bytes, top_k, experts, members, node, units, groups, share, constants
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
    groups, share : float
        Groups of experts, 0 for one per node, and the share of them among which a token
        chooses.
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
    if groups <= 0.0:
        groups = nodes
    chosen = max(groups * share, 1.0)
    ranks = distinct_places(members, top_k, experts, groups, chosen)
    copies = ranks
    across = 0.0
    if nodes > 1.0:
        met = distinct_places(nodes, top_k, experts, groups, chosen)
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
    low_latency,
    tokens,
    token_bytes,
    top_k,
    experts,
    members,
    node,
    units,
    groups,
    share,
    constants,
):
    """Times of many exchanges of one kind, column by column.

    Parameters
    ----------
    low_latency : bool
    tokens, token_bytes, top_k, experts, members, node, units : float64[rows]
    groups, share : float
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
                groups,
                share,
                constants,
            )
    return time
