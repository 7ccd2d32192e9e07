"""Tokens on their way to the ranks of their experts and back: dispatch and combine.

How they travel is a fact of the software, ``expert_dispatch``:

- ``all_to_all``: once per chosen expert (Megatron-Core's dispatcher 'alltoall');
- ``all_gather``: every rank gets all tokens of the group, results are reduce-scattered;
- ``deepep``: once per rank that holds any of a token's experts, between nodes once per node and
  forwarded inside (`perfmodel.compute.expert_exchange`);
- ``hybrid_ep``: the same by bulk copies at the rate of the links, as HybridEP does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.expert_exchange import places_met, stage_members, stage_strides
from perfmodel.model.layers import MlpSpec
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Communication, Role, Size, TokenExchange
from perfmodel.software.framework import Framework

DEDUPLICATED = ("deepep", "hybrid_ep")
"""Ways of dispatch that send a token once to each place with any of its experts."""

COMBINED_BYTES = 2.0  # results come back in 16 bits

# What runs at the same time where exchanges overlap: one micro-batch's forward and another's
# backward pass go layer by layer, the dispatches of both beside the experts of both, a combine
# beside the other's attention (DualPipe, arXiv:2412.19437, figure 4; Megatron-Core,
# pipeline_parallel/combined_1f1b.py and models/common/model_chunk_schedule_plan.py).
_EXPERTS = tuple(("mlp.*", phase) for phase in ("forward", "backward_input", "backward_weight"))
_PARTNERS = {
    ("dispatch", "forward"): (_EXPERTS, 0.5),
    ("dispatch", "backward_input"): (_EXPERTS, 0.5),
    ("combine", "forward"): (
        (("mixer.*", "backward_input"), ("mixer.*", "backward_weight")),
        1.0,
    ),
    ("combine", "backward_input"): ((("mixer.*", "forward"),), 1.0),
}

# Shared experts on a stream of their own: the first product and the activation beside the
# dispatch, the second beside the combine (Megatron-Core, transformer/moe/shared_experts.py:
# linear_fc1_forward_and_act, linear_fc2_forward), and so for their gradients.
_SHARED = {
    "dispatch": ("mlp.shared.up", "mlp.shared.activation"),
    "combine": ("mlp.shared.down",),
}


def _partners(
    framework: Framework, mlp: MlpSpec, name: str, phase: str
) -> tuple[tuple[tuple[str, str], ...], float]:
    """Return what runs beside an exchange of a phase, and which share of it."""
    if framework.overlap_expert_parallel:
        return _PARTNERS[name, phase]
    if not (framework.overlap_shared_experts and mlp.shared_intermediate_size):
        return (), 0.0
    passes = ("forward",) if phase == "forward" else ("backward_input", "backward_weight")
    return tuple((own, each) for own in _SHARED[name] for each in passes), 1.0


def add_dispatch(ops: OperationList, mlp: MlpSpec, hidden: float, received: Size) -> None:
    """Add what brings tokens to the ranks of their experts.

    Parameters
    ----------
    ops : OperationList
    mlp : MlpSpec
    hidden : float
        Elements of a token that travels.
    received : float or ndarray
        Tokens on the busiest rank of experts.
    """
    _add_counts(ops, mlp)
    _add_exchange(ops, mlp, "dispatch", hidden, received)
    _add_sharing(ops, "mlp.dispatch", received * hidden * 2.0, "all_gather", "reduce_scatter")


def add_combine(ops: OperationList, mlp: MlpSpec, hidden: float, received: Size) -> None:
    """Add what brings results back; see `add_dispatch`."""
    _add_sharing(ops, "mlp.combine", received * hidden * 2.0, "reduce_scatter", "all_gather")
    _add_exchange(ops, mlp, "combine", hidden, received)


def dispatch_copies(ops: OperationList, mlp: MlpSpec) -> Column:
    """How often a token is sent to the ranks of its expert-parallel group, shape (keys,).

    Once per expert, or, deduplicated, once per distinct rank inside a node and once per
    distinct node between nodes, where routing is limited to some groups of experts those of
    these groups (`perfmodel.kernels.collective.expert_exchange.distinct_places`).
    """
    degree = ops.keys.number("expert_parallel")
    if ops.framework.expert_dispatch not in DEDUPLICATED:
        return np.full(degree.shape, float(mlp.experts_per_token))
    inside = _members_inside(ops)
    places = np.where(degree > inside, np.ceil(degree / inside), degree)
    groups = float(max(mlp.expert_groups, 1))
    sizes = (mlp.experts_per_token, float(mlp.experts), groups, groups * group_share(mlp))
    return places_met(places, *sizes)


def group_share(mlp: MlpSpec) -> float:
    """Return the share of the experts among which a token chooses, once its groups are chosen."""
    if not mlp.expert_groups_per_token:
        return 1.0
    return mlp.expert_groups_per_token / mlp.expert_groups


def _members_inside(ops: OperationList) -> Column:
    """Return how many ranks of an expert-parallel group one node holds."""
    keys = ops.keys
    degree, inner = keys.number("expert_parallel"), keys.number("expert_tensor_parallel")
    inside: Column = stage_members(keys.columns, degree, inner, ops.machine.domain)
    return inside


def _add_exchange(
    ops: OperationList, mlp: MlpSpec, name: str, hidden: float, received: Size
) -> None:
    """Add an exchange over the expert-parallel group, and again for the gradients.

    Gradients of what was dispatched come back as combines do, and conversely.
    """
    keys = ops.keys
    degree = keys.number("expert_parallel")
    if not np.any(degree > 1):
        return
    way = ops.framework.expert_dispatch
    element_bytes = {"dispatch": ops.framework.dispatch_bytes, "combine": COMBINED_BYTES}
    routed = keys.stream_tokens * mlp.experts_per_token
    # What the busiest rank gets over the mean, of the tokens that its own sharers don't bring.
    load = received / (routed * keys.number("expert_tensor_parallel"))
    tokens = keys.stream_tokens * load
    other = {"dispatch": "combine", "combine": "dispatch"}
    for phase, kind in (("forward", name), ("backward_input", other[name])):
        partners, share = _partners(ops.framework, mlp, name, phase)
        size = tokens * hidden * element_bytes[kind]
        shared: dict[str, Any] = {
            "phase": phase,
            "axis": "expert",
            "members": degree,
            "stride": _stride(ops),
            "hidden_by": partners,
            "hides": share,
            "count": (degree > 1) * 1.0,
        }
        if way == "all_gather":
            collective = {"dispatch": "all_gather", "combine": "reduce_scatter"}[kind]
            whole = size * degree
            ops.add(
                Communication(
                    f"mlp.{name}.{collective}", collective=collective, size=whole, **shared
                )
            )
            continue
        whole = size * dispatch_copies(ops, mlp)
        exchange = f"mlp.{name}.all_to_all"
        if way != "deepep":
            algorithm = ops.framework.exchange_algorithm
            ops.add(
                Communication(
                    exchange, collective="all_to_all", size=whole, algorithm=algorithm, **shared
                )
            )
            continue
        ops.add(
            TokenExchange(
                exchange,
                collective="all_to_all",
                size=whole,
                **shared,
                kind=kind,
                tokens=tokens,
                token_bytes=hidden * element_bytes[kind],
                top_k=float(mlp.experts_per_token),
                experts=float(mlp.experts),
                share=group_share(mlp),
                groups=float(mlp.expert_groups),
                units=ops.framework.exchange_units,
            )
        )


def _add_counts(ops: OperationList, mlp: MlpSpec) -> None:
    """Ranks tell each other how many tokens come (int64 per expert), ahead of a dispatch.

    Deduplicating dispatchers do that inside their own kernels; where experts take a fixed
    number of tokens, or every rank gets all, nobody has to.
    """
    degree = ops.keys.number("expert_parallel")
    counted = ops.framework.expert_dispatch == "all_to_all" and not ops.framework.capacity_factor
    if not np.any(degree > 1) or not counted:
        return
    ops.add(
        Communication(
            "mlp.dispatch.counts",
            "forward",
            "expert",
            "all_gather",
            8.0 * mlp.experts * degree,
            degree,
            _stride(ops),
            count=(degree > 1) * 1.0,
        )
    )


def _stride(ops: OperationList) -> Column:
    """Distance of expert-parallel ranks: those that share one expert lie between them."""
    keys = ops.keys
    inner, degree = keys.number("expert_tensor_parallel"), keys.number("expert_parallel")
    stride: Column = stage_strides(keys.columns, degree, inner, ops.machine.sizes)
    return stride


def _add_sharing(ops: OperationList, name: str, size: Size, forward: str, backward: str) -> None:
    """Share tokens among the devices that hold one expert together."""
    inner = ops.keys.number("expert_tensor_parallel")
    if not np.any(inner > 1):
        return
    stride = stage_strides(ops.keys.columns, inner, np.ones(inner.shape), ops.machine.sizes)
    for phase, collective in (("forward", forward), ("backward_input", backward)):
        exchange = Communication(
            f"{name}.{collective}",
            phase,
            "tensor",
            collective,
            size,
            inner,
            stride,
            count=(inner > 1) * 1.0,
        )
        with ops.in_role(Role.EXPERT_SHARING):
            ops.add(exchange)
