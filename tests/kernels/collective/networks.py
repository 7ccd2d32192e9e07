"""Networks and algorithms that the tests of collectives price."""

from __future__ import annotations

from perfmodel.compute.network import set_library
from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BIDIRECTIONAL_RING,
    BROADCAST,
    DIRECT,
    DOUBLE_BINARY_TREE,
    GATHER,
    HALVING_DOUBLING,
    HIERARCHICAL,
    IN_NETWORK,
    IN_NETWORK_TREE,
    MULTICAST,
    ONE_SHOT,
    POINT_TO_POINT,
    RAIL_ALIGNED,
    RECURSIVE_DOUBLING,
    REDUCE_SCATTER,
    RING,
    SCATTER,
    TWO_SHOT,
)
from perfmodel.kernels.collective.choice import (
    AUTO,
    SIMPLE_ONLY,
    algorithm_cost,
    protocol_choice,
)
from perfmodel.kernels.collective.tuning import LOW_LATENCY, LOW_LATENCY_128, SIMPLE

KINDS = (
    *(ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST),
    *(POINT_TO_POINT, MULTICAST, GATHER, SCATTER),
)

ALGORITHMS = {
    ALL_REDUCE: (
        *(RING, BIDIRECTIONAL_RING, DIRECT, HALVING_DOUBLING, RECURSIVE_DOUBLING),
        *(DOUBLE_BINARY_TREE, HIERARCHICAL, IN_NETWORK, IN_NETWORK_TREE, ONE_SHOT, TWO_SHOT),
    ),
    ALL_GATHER: (
        *(RING, DIRECT, HALVING_DOUBLING, RECURSIVE_DOUBLING, HIERARCHICAL, IN_NETWORK),
        AGGREGATED_TREES,
    ),
    REDUCE_SCATTER: (AGGREGATED_TREES,),
    ALL_TO_ALL: (DIRECT, HIERARCHICAL, RAIL_ALIGNED),
    BROADCAST: (RING, DIRECT, RECURSIVE_DOUBLING, DOUBLE_BINARY_TREE, HIERARCHICAL, IN_NETWORK),
    GATHER: (DIRECT, RECURSIVE_DOUBLING),
}
EVERY = [(kind, algorithm) for kind, names in ALGORITHMS.items() for algorithm in names]
PROTOCOLS = (LOW_LATENCY, LOW_LATENCY_128, SIMPLE)
MIB = 2.0**20
INNER, OUTER = 400e9, 50e9


def level(
    size: int,
    bandwidth: float,
    topology: int = column.SWITCH,
    latency: float = 1e-6,
    scale_out: bool = False,
    **others: float,
) -> dict[str, float]:
    """One level with full efficiency."""
    return {
        "domains": size,
        "bandwidth": bandwidth,
        "topology": topology,
        "dimensions": 1,
        "low_latency_hop": latency,
        "low_latency_128_hop": latency,
        "simple_hop": latency,
        "low_latency_fraction": 1.0,
        "pairwise_fraction": 1.0,
        "shot_fraction": 1.0,
        "link_class": column.ADAPTER if scale_out else column.DEVICE_LINK,
        **others,
    }


def network_of(*levels: dict[str, float], **facts: float) -> column.Network:
    """A network of the given levels, innermost first."""
    made = column.blank_network(len(levels))
    for record, values in zip([*made.levels, made.facts], [*levels, facts], strict=True):
        for name, value in values.items():
            record[name] = value
    set_library(made)
    return made


def copy_of(network: column.Network) -> column.Network:
    """The same network, to change."""
    return column.Network(*(part.copy() for part in network))


def innermost(network: column.Network) -> column.Network:
    """The innermost level alone."""
    return network._replace(levels=network.levels[:1].copy())


def nodes_of_eight(**values: float) -> column.Network:
    """Switched nodes of eight with one adapter per device, unbounded fat tree."""
    facts = {name: value for name, value in values.items() if name in column.FACTS.names}
    inner = {name: value for name, value in values.items() if name not in facts}
    outer = level(0, OUTER, latency=3e-6, scale_out=True)
    return network_of(level(8, INNER, **inner), outer, **facts)


def realistic_network() -> column.Network:
    """Like an H100 node: protocols, pipeline fill, copies and switch reduction."""
    table = nodes_of_eight(
        pipeline_latency=1e-6,
        in_network_bandwidth=330e9,
        in_network_pipeline_latency=5e-6,
        pairwise_pipeline_latency=5e-7,
        low_latency_base=5e-6,
        low_latency_128_base=1.5e-5,
        simple_base=1.4e-5,
        in_network_base=2.5e-5,
        pairwise_base=6e-6,
        pairwise_simple_base=1.2e-5,
        spread_latency=2e-6,
        pairwise_spread_latency=2e-6,
        local_copy_time=0.5 / INNER,
        low_latency_128_fraction=0.9,
    )
    table.levels[1].low_latency_128_fraction = 0.93
    table.levels["low_latency_fraction"] = 0.4
    table.levels["low_latency_hop"] *= 0.8
    table.levels[1].low_latency_limit = 8 * MIB
    return table


def tuned(table: column.Network) -> column.Network:
    """The same network under a library with NCCL's table."""
    table = copy_of(table)
    table.levels[0].tuned_bandwidth = 360e9
    table.levels[1].tuned_bandwidth = 50e9
    table.facts.tuned_low_latency_bandwidth = 141e9
    table.facts.tuned_in_network_fraction = 0.85
    return table


def algorithm_time(kind, algorithm, protocol, size, members, stride, network):
    """Time of one algorithm with a protocol, or the fastest; of one that has but one, with that."""
    if members <= 1 or size <= 0.0:
        return 0.0
    cost = algorithm_cost(kind, algorithm, size, members, stride, network)
    protocol = AUTO if algorithm in SIMPLE_ONLY else protocol
    return protocol_choice(kind, algorithm, protocol, size, members, cost, network)[1]
