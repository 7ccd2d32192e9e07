"""Operations of a mixture of experts: router, permutations, products of the experts.

Shape letters: T tokens on this device, h hidden size, f width of an expert, E experts,
k experts per token.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.stream_catalogue import ROW_GATHER, router_top_k
from perfmodel.model.build import MlpSpec, ModelSpec
from perfmodel.operations.activation import add_activation
from perfmodel.operations.expert_exchange import add_combine, add_dispatch, dispatch_copies
from perfmodel.operations.expert_load import busiest_ranks
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Role, Stream

SCATTER_FLOP = 80.0
"""Vector work per element that PyTorch adds to a row by index (``scatter_add_`` of results,
``index_add_`` of gradients; Megatron-Core's moe_utils.py, permute and unpermute): a thread for each
element finds two offsets by division, reads an index, converts and adds atomically, about 40
instructions, each in the place of a multiply-add. An estimate; sums are read and written, too."""


def add_experts(ops: OperationList, model: ModelSpec, mlp: MlpSpec) -> None:
    """Add router, dispatch, grouped products and combine.

    Latent experts are reached through a projection ahead of the dispatch and left through
    one behind the combination: only the latent travels (Nemotron-3). Every device routes its
    own part of the residual stream: T/t tokens with sequence parallelism (Megatron-Core
    "alltoall" dispatcher).
    """
    keys = ops.keys
    hidden = float(model.hidden_size)
    own = keys.stream_tokens
    degree, inner = keys.number("expert_parallel"), keys.number("expert_tensor_parallel")
    experts = mlp.experts / degree
    routed = own * mlp.experts_per_token
    # Each of the `degree` ranks of a group receives what the others route to its experts,
    # and the `inner` ranks that share an expert see each other's tokens. The busiest one counts.
    received = routed * inner * _loads(ops, mlp, degree)
    per_expert = np.maximum(received / experts, 1.0)
    width = mlp.expert_intermediate_size / inner
    ops.linear("mlp.router", own, hidden, float(mlp.experts), quantised=False, output_bytes=4.0)
    if mlp.hash_routing:
        # Experts are looked up by token; only their scores are read, and scattered back.
        chosen = own * mlp.experts_per_token
        ops.stream("mlp.route", chosen, (8, 4), (8, 4))
    else:
        _add_choice(ops, mlp)
    if mlp.latent_size:
        ops.linear("mlp.latent_down", own, hidden, float(mlp.latent_size))
        hidden = float(mlp.latent_size)
    # Sent once per expert, tokens are first copied in the order of their experts; a
    # deduplicating dispatcher reads them where they are.
    copied = (dispatch_copies(ops, mlp) >= mlp.experts_per_token) * ROW_GATHER
    ops.stream(
        "mlp.permute",
        routed * hidden * copied,
        (2.0 / mlp.experts_per_token, 2.0),
        (2.0, 2.0 / mlp.experts_per_token),
    )
    add_dispatch(ops, mlp, hidden, received)
    grouped = (degree > 1) * (experts > 1) * 1.0
    # Tokens arrive sorted by sender and are sorted again by expert.
    ops.stream("mlp.sort", received * hidden * ROW_GATHER, (2, 2), (2, 2), count=grouped)
    batch, count = (experts, 1.0) if ops.framework.grouped_gemm else (1.0, experts)
    up = width * (2 if mlp.gated else 1)
    with ops.in_role(Role.EXPERT_PRODUCT):
        ops.linear("mlp.experts_up", per_expert, hidden, up, batch=batch, count=count)
    add_activation(ops, mlp, "mlp.experts_activation", received * width)
    with ops.in_role(Role.EXPERT_PRODUCT):
        ops.linear("mlp.experts_down", per_expert, width, hidden, batch=batch, count=count)
    ops.stream("mlp.unsort", received * hidden * ROW_GATHER, (2, 2), (2, 2), count=grouped)
    add_combine(ops, mlp, hidden, received)
    if ops.framework.sorts_chunks:
        # A deduplicating dispatcher makes the copies, and adds them up, behind it.
        rows = np.where(copied > 0, routed, received)
        ops.stream("mlp.merge", rows * hidden, (2, 2), (2, 2), flops=SCATTER_FLOP)
    ops.stream(
        "mlp.unpermute",
        routed * hidden * copied,
        (2.0, 2.0 / mlp.experts_per_token),
        (2.0 + 2.0 / mlp.experts_per_token, 2.0),
    )
    if mlp.latent_size:
        ops.linear("mlp.latent_up", own, hidden, float(model.hidden_size))


def _loads(ops: OperationList, mlp: MlpSpec, degree: Column) -> Column:
    """Return the tokens of the rank that all wait for, over the mean.

    With a capacity every expert takes that many times the mean, filled up with padding where
    fewer come; what is beyond is dropped.
    """
    if ops.framework.capacity_factor:
        return np.full(degree.shape, ops.framework.capacity_factor)
    return busiest_ranks(ops.framework.routing, mlp.experts, mlp.experts_per_token, degree)


def _add_choice(ops: OperationList, mlp: MlpSpec) -> None:
    """Choose the best experts of every token by their scores."""
    for phase, backward in (("forward", False), ("backward_input", True)):
        own = ops.keys.stream_tokens
        route = router_top_k(own, mlp.experts, mlp.experts_per_token, backward=backward)
        ops.add(
            Stream(
                "mlp.route", phase, route.bytes_read, route.bytes_written, launches=route.launches
            )
        )
