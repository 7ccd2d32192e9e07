"""Operations of the feed-forward block of one layer, dense or with experts.

Tokens are brought into the order of their experts in one of three ways, by the software's facts:
kernels that copy each token once per expert and add its results up; gathers, with passes of their
own ahead and behind (``gathers_alone``); products with a mask over tokens and places (``einsum``;
GShard, arXiv:2006.16668, algorithm 2).

Shape letters: T tokens on this device, h hidden size (of experts what travels), f width of the
block or of an expert, E experts, k experts per token, S tokens of a sequence, t tensor-parallel
degree.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.routing import parse_routing
from perfmodel.compute.routing import rank_loads
from perfmodel.compute.stream_catalogue import ROW_GATHER, elementwise, router_top_k, traffic
from perfmodel.model.layers import MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.expert_exchange import add_combine, add_dispatch, dispatch_copies
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Gemm, Role, Size, Stream
from perfmodel.software.framework import Framework

BALANCED = "balanced"
DRAWS = 5  # of a random distribution, averaged
TOKENS = 1 << 15  # so many that chance adds nothing to what is popular


def expert_loads(framework: Framework, mlp: MlpSpec, ranks: Column) -> tuple[Column, Column]:
    """Return the tokens of the rank that all wait for, and the rows of the buffer they are in.

    With a capacity every expert takes that many times the mean, filled up with padding where
    fewer come; what is beyond is dropped. A mask without a capacity has a place for every token
    at every expert. The most that may come is everything, or, where experts are spread thin,
    every token for each expert of a rank (MaxText, moe.py, get_ragged_buffer_size).

    Parameters
    ----------
    framework : Framework
    mlp : MlpSpec
    ranks : ndarray, shape (keys,)
        Ranks that share the experts.

    Returns
    -------
    load, held : ndarray, shape (keys,)
        Over the mean of the ranks [1].
    """
    all_of_them = mlp.experts / mlp.experts_per_token
    capacity = framework.capacity_factor
    if framework.expert_dispatch == "einsum" and not capacity:
        capacity = all_of_them
    if capacity:
        load = np.full(ranks.shape, capacity)
        return load, load
    load = busiest_ranks(framework.routing, mlp.experts, mlp.experts_per_token, ranks)
    if not framework.expert_buffer:
        return load, load
    held = np.minimum(framework.expert_buffer, np.minimum(ranks, all_of_them))
    return np.minimum(load, held), held


def busiest_ranks(routing: str, experts: int, choices: int, ranks: Column) -> Column:
    """Return the load of the busiest rank over the mean, for each number of ranks [1].

    A step waits for the rank with most tokens: its products, its permutations and what it
    receives take so many times the mean.

    Parameters
    ----------
    routing : str
        As `perfmodel.base.routing.parse_routing` reads it; ``balanced`` for equal loads.
    experts, choices : int
        Experts of a layer, and of a token.
    ranks : ndarray, shape (keys,)
        Ranks that share the experts.

    Returns
    -------
    ndarray, shape (keys,)
        1 where loads are balanced or one rank holds all experts.

    Raises
    ------
    DataError
        `routing` is no distribution.
    """
    distribution = parse_routing(routing).distribution
    found = {
        count: 1.0
        if distribution == BALANCED or count == 1 or experts % count
        else _busiest(routing, experts, choices, int(count))
        for count in np.unique(ranks).tolist()
    }
    return np.array([found[count] for count in ranks.tolist()])


@lru_cache(maxsize=256)
def _busiest(routing: str, experts: int, choices: int, ranks: int) -> float:
    law = parse_routing(routing)
    mean = TOKENS * choices / ranks
    most = [
        float(np.sum(rank_loads(law, TOKENS, experts, choices, ranks, draw).loads)) / mean
        for draw in range(DRAWS)
    ]
    return float(np.mean(most))


def add_activation(ops: OperationList, mlp: MlpSpec, name: str, elements: Size) -> None:
    """Add the activation between the products; `elements` counts its outputs.

    A fused gated activation reads two halves and writes one (6 bytes an element),
    its gradient reads three and writes two (10); unfused code stores the activation
    and multiplies in a second kernel, whose two gradients (8 read, 4 written), that of the
    activation (4, 2) and putting both halves together (4, 4) are kernels of their own.
    """
    inputs = 2 if mlp.gated else 1
    fused = ops.framework.fused_elementwise
    kind = "gated" if mlp.gated else "gelu"
    forward = traffic(elementwise(kind, 1.0))
    backward = traffic(elementwise(f"{kind}_backward", 1.0))
    if not fused and mlp.gated:
        forward, backward = (6.0, 4.0), (16.0, 10.0)
    passes = 1.0 if fused else float(inputs)
    module = "moe_act" if name.startswith("mlp.experts") else "activation"
    ops.stream(name, elements, forward, backward, flops=8.0, launches=passes, module=module)


COMPARISON = 6.0
"""Vector operations per element and stage of a sorting network that carries an index along:
partners are fetched and compared, key and index chosen. An estimate."""


def add_permutation(ops: OperationList, mlp: MlpSpec, hidden: float) -> Column:
    """Add what brings tokens into the order of their experts.

    Sent once per expert, tokens are first copied in that order; a deduplicating dispatcher reads
    them where they are.

    Returns
    -------
    ndarray, shape (keys,)
        1 where tokens are copied ahead of the dispatch.
    """
    if ops.framework.expert_dispatch == "einsum":
        _add_masked(ops, mlp, hidden, "mlp.permute")
        return np.ones(ops.keys.stream_tokens.shape)
    copied: Column = (dispatch_copies(ops, mlp) >= mlp.experts_per_token) * 1.0
    elements = _routed(ops, mlp) * hidden * copied
    own = 2.0 / mlp.experts_per_token
    if ops.framework.gathers_alone:
        ops.stream("mlp.repeat", elements, (own, 2.0), (2.0, own))
        _add_order(ops, mlp)
        ops.stream("mlp.permute", elements * ROW_GATHER, (2.0, 2.0), (2.0, 2.0))
    else:
        ops.stream("mlp.permute", elements * ROW_GATHER, (own, 2.0), (2.0, own))
    return copied


def add_unpermutation(ops: OperationList, mlp: MlpSpec, hidden: float) -> None:
    """Add what brings results back to their tokens and adds them up, weighted."""
    if ops.framework.expert_dispatch == "einsum":
        _add_masked(ops, mlp, hidden, "mlp.unpermute")
        return
    copied: Column = (dispatch_copies(ops, mlp) >= mlp.experts_per_token) * 1.0
    elements = _routed(ops, mlp) * hidden * copied
    own = 2.0 / mlp.experts_per_token
    weighted = ((2.0, own), (2.0 + own, 2.0))  # backwards results are read for the weights, too
    if ops.framework.gathers_alone:
        ops.stream("mlp.unpermute", elements * ROW_GATHER, (2.0, 2.0), (2.0, 2.0))
        ops.stream("mlp.weigh", elements, *weighted)
    else:
        ops.stream("mlp.unpermute", elements * ROW_GATHER, *weighted)


def _routed(ops: OperationList, mlp: MlpSpec) -> Column:
    return ops.keys.stream_tokens * mlp.experts_per_token


def _add_order(ops: OperationList, mlp: MlpSpec) -> None:
    """Sort the chosen experts, and invert that order by another sort, in each direction.

    MaxText's moe.py: ``permute`` and ``unpermute`` call ``argsort``, and so do the gradients of
    both gathers. Prior: a bitonic network, ``log2(n) (log2(n) + 1) / 2`` stages over n elements.
    """
    routed = _routed(ops, mlp)
    depth = np.log2(np.maximum(routed, 2.0))
    work = routed * depth * (depth + 1.0) / 2.0 * COMPARISON
    for phase in ("forward", "backward_input"):
        ops.add(Stream("mlp.order", phase, 16.0 * routed, 16.0 * routed, 2.0 * work, launches=2.0))


def _add_masked(ops: OperationList, mlp: MlpSpec, hidden: float, name: str) -> None:
    """Add the product of a sequence with its mask of places: ``S x (S k c) x h`` each way.

    The mask that fills places is no number that learns; the one that empties them holds the
    router's weights. Where every expert takes every token there is nothing to choose, and no mask.
    """
    keys, capacity = ops.keys, ops.framework.capacity_factor
    if not 0.0 < capacity < mlp.experts / mlp.experts_per_token:
        return
    batch = keys.number("micro_batch_size")
    places = keys.number("sequence_length") * mlp.experts_per_token * capacity
    length = keys.stream_tokens / batch
    fills = ("forward", "backward_input")
    if name == "mlp.unpermute":
        fills = ("backward_input", "forward")
        ops.add(Gemm(name, "backward_input", length, places, hidden, batch))
    ops.add(Gemm(name, fills[0], places, hidden, length, batch))
    ops.add(Gemm(name, fills[1], length, hidden, places, batch))


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
        route = router_top_k(own, mlp.experts, backward=backward)
        ops.add(
            Stream(
                "mlp.route", phase, route.bytes_read, route.bytes_written, launches=route.launches
            )
        )


def mlp_module(mlp: MlpSpec) -> str:
    """Return the module of `perfmodel.software.modules.MODULES` that a whole block is."""
    return "moe" if mlp.kind == "moe" else "mlp"


def add_mlp(ops: OperationList, model: ModelSpec, mlp: MlpSpec) -> None:
    """Add the block's products, activation, routing and communication."""
    with ops.in_module(mlp_module(mlp)):
        if mlp.kind == "moe":
            add_experts(ops, model, mlp)
            with ops.in_module("shared_experts"):
                if mlp.shared_intermediate_size:
                    width = mlp.shared_intermediate_size / ops.keys.tensor_parallel
                    roles = Role.SHARED, Role.SHARED_OUTPUT
                    _add_block(ops, model, mlp, "mlp.shared", width, roles)
                if mlp.shared_expert_gate:
                    with ops.in_role(Role.SHARED_OUTPUT):
                        _add_shared_gate(ops, float(model.hidden_size))
        else:
            width = mlp.intermediate_size / ops.keys.tensor_parallel
            _add_block(ops, model, mlp, "mlp", width, (Role.MLP, Role.MLP_OUTPUT))
        ops.products("mlp", mlp.extra)


def _add_shared_gate(ops: OperationList, hidden: float) -> None:
    """Scale the output of the shared expert by the sigmoid of one number per token."""
    own = ops.keys.stream_tokens
    ops.linear("mlp.shared.gate", own, hidden, 1.0)
    ops.stream("mlp.shared.gated", own * hidden, (2, 2), (4, 2))


def _add_block(
    ops: OperationList,
    model: ModelSpec,
    mlp: MlpSpec,
    name: str,
    width: Size,
    roles: tuple[Role, Role],
) -> None:
    """Add two products with the activation between them; the second has the second role."""
    hidden = float(model.hidden_size)
    tokens = ops.keys.tokens
    up = f"{name}.up"
    with ops.in_role(roles[0]):
        ops.enter_tensor_parallel(f"{name}.input", hidden, up)
        matrices = (width,) * (2 if mlp.gated else 1)
        ops.linear(up, tokens, hidden, width * len(matrices), matrices=matrices)
        add_activation(ops, mlp, f"{name}.activation", tokens * width)
    with ops.in_role(roles[1]):
        ops.linear(f"{name}.down", tokens, width, hidden)
        ops.leave_tensor_parallel(f"{name}.output", hidden, f"{name}.down")
