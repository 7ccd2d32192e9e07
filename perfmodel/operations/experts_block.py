"""Operations of a mixture of experts: router and products of the experts.

Shape letters: T tokens on this device, h hidden size, f width of an expert, E experts,
k experts per token.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.stream_catalogue import ROW_GATHER, router_top_k
from perfmodel.model.build import MlpSpec, ModelSpec
from perfmodel.operations.activation import add_activation
from perfmodel.operations.expert_exchange import add_combine, add_dispatch
from perfmodel.operations.expert_load import expert_loads
from perfmodel.operations.expert_permutation import add_permutation, add_unpermutation
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
    load, held = expert_loads(ops.framework, mlp, degree)
    received, rows = routed * inner * load, routed * inner * held
    per_expert = np.maximum(received / experts, 1.0) + _shared_tiles(ops, experts)
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
    copied = add_permutation(ops, mlp, hidden)
    add_dispatch(ops, mlp, hidden, received)
    # Tokens arrive sorted by sender and are sorted again by expert; static buffers, even for one.
    several = (experts > 1) | (ops.framework.expert_buffer > 0)
    grouped = (degree > 1) * several * (ops.framework.expert_dispatch != "einsum") * 1.0
    ops.stream("mlp.sort", rows * hidden * ROW_GATHER, (2, 2), (2, 2), count=grouped)
    batch, count = (experts, 1.0) if ops.framework.grouped_gemm else (1.0, experts)
    up = width * (2 if mlp.gated else 1)
    with ops.in_role(Role.EXPERT_PRODUCT):
        ops.linear(
            "mlp.experts_up",
            per_expert,
            hidden,
            up,
            batch=batch,
            count=count,
            sides=2 if mlp.gated else 1,
            rows=received / count,
        )
    add_activation(ops, mlp, "mlp.experts_activation", rows * width)
    with ops.in_role(Role.EXPERT_PRODUCT):
        ops.linear(
            "mlp.experts_down",
            per_expert,
            width,
            hidden,
            batch=batch,
            count=count,
            rows=received / count,
        )
    ops.stream("mlp.unsort", rows * hidden * ROW_GATHER, (2, 2), (2, 2), count=grouped)
    add_combine(ops, mlp, hidden, received)
    if ops.framework.sorts_chunks:
        # A deduplicating dispatcher makes the copies, and adds them up, behind it.
        merged = np.where(copied > 0, routed, received)
        ops.stream("mlp.merge", merged * hidden, (2, 2), (2, 2), flops=SCATTER_FLOP)
    add_unpermutation(ops, mlp, hidden)
    if mlp.latent_size:
        ops.linear("mlp.latent_up", own, hidden, float(model.hidden_size))


def _shared_tiles(ops: OperationList, experts: Column) -> Column:
    """Return the rows that every expert computes for others, in tiles on their borders.

    Sizes of groups are not multiples of a tile: all borders between ``e`` experts lie within
    one, which is computed twice (``e - 1`` more tiles than rows would fill).
    """
    if ops.framework.expert_dispatch == "einsum":
        return np.zeros(experts.shape)
    shared: Column = ops.framework.expert_tile_rows * np.maximum(1.0 - 1.0 / experts, 0.0)
    return shared


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
