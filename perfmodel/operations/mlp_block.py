"""Operations of the feed-forward block of one layer, dense or with experts.

Shape letters: T tokens on this device, h hidden size, f width of the block,
E experts, k experts per token, t tensor-parallel degree.
"""

from __future__ import annotations

import numpy as np

from perfmodel.compute.stream_catalogue import ROW_GATHER, elementwise, router_top_k, traffic
from perfmodel.model.build import MlpSpec, ModelSpec
from perfmodel.operations.expert_load import busiest_ranks
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Communication, Role, Size, Stream
from perfmodel.strategy.mapping import stage_members, stage_strides


def add_mlp(ops: OperationList, model: ModelSpec, mlp: MlpSpec) -> None:
    """Add the block's products, activation, routing and communication."""
    if mlp.kind == "moe":
        _add_experts(ops, model, mlp)
        if mlp.shared_intermediate_size:
            width = mlp.shared_intermediate_size / ops.keys.tensor
            roles = Role.SHARED, Role.SHARED_OUTPUT
            _add_block(ops, model, mlp, "mlp.shared", width, roles)
        if mlp.shared_expert_gate:
            with ops.in_role(Role.SHARED_OUTPUT):
                _add_shared_gate(ops, float(model.hidden_size))
    else:
        width = mlp.intermediate_size / ops.keys.tensor
        _add_block(ops, model, mlp, "mlp", width, (Role.MLP, Role.MLP_OUTPUT))
    ops.products("mlp", mlp.extra)


def _add_shared_gate(ops: OperationList, hidden: float) -> None:
    """Scale the output of the shared expert by the sigmoid of one number per token."""
    own = ops.keys.stream_tokens
    ops.linear("mlp.shared.gate", own, hidden, 1.0)
    ops.stream("mlp.shared.gated", own * hidden, (2, 2), (4, 2))


def add_activation(
    ops: OperationList, mlp: MlpSpec, name: str, elements: Size, launches: float = 1.0
) -> None:
    """Add the activation between the products; `elements` counts its outputs.

    A fused gated activation reads two halves and writes one (6 bytes an element),
    its gradient reads three and writes two (10); unfused code stores the activation
    and multiplies in a second kernel.
    """
    inputs = 2 if mlp.gated else 1
    fused = ops.framework.fused_elementwise
    kind = "gated" if mlp.gated else "gelu"
    forward = traffic(elementwise(kind, 1.0))
    backward = traffic(elementwise(f"{kind}_backward", 1.0))
    if not fused and mlp.gated:
        forward, backward = (6.0, 4.0), (10.0, 6.0)
    passes = launches if fused else launches * inputs
    cheap = ops.framework.flash_attention  # selective recompute of unfused attention is its core
    ops.stream(name, elements, forward, backward, flops=8.0, launches=passes, selective=cheap)


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
        ops.linear(up, tokens, hidden, width * (2 if mlp.gated else 1))
        add_activation(ops, mlp, f"{name}.activation", tokens * width)
    with ops.in_role(roles[1]):
        ops.linear(f"{name}.down", tokens, width, hidden)
        ops.leave_tensor_parallel(f"{name}.output", hidden, f"{name}.down")


def _add_experts(ops: OperationList, model: ModelSpec, mlp: MlpSpec) -> None:
    """Router, dispatch, grouped products and combine, with balanced loads.

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
    load = busiest_ranks(ops.framework.routing, mlp.experts, mlp.experts_per_token, degree)
    received = routed * inner * load
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
    copies = dispatch_copies(ops, mlp)
    # Sent once per expert, tokens are first copied in the order of their experts; a
    # deduplicating dispatcher reads them where they are.
    copied = (copies >= mlp.experts_per_token) * ROW_GATHER
    ops.stream(
        "mlp.permute",
        routed * hidden * copied,
        (2.0 / mlp.experts_per_token, 2.0),
        (2.0, 2.0 / mlp.experts_per_token),
    )
    sent = own * copies * hidden * load  # what the busiest rank receives
    _exchange_counts(ops, mlp)
    _exchange(ops, "mlp.dispatch", sent * ops.framework.dispatch_bytes, sent * 2.0)
    _expert_tensor(ops, "mlp.dispatch", received * hidden * 2.0, "all_gather", "reduce_scatter")
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
    _expert_tensor(ops, "mlp.combine", received * hidden * 2.0, "reduce_scatter", "all_gather")
    _exchange(ops, "mlp.combine", sent * 2.0, sent * ops.framework.dispatch_bytes)
    ops.stream(
        "mlp.unpermute",
        routed * hidden * copied,
        (2.0, 2.0 / mlp.experts_per_token),
        (2.0 + 2.0 / mlp.experts_per_token, 2.0),
    )
    if mlp.latent_size:
        ops.linear("mlp.latent_up", own, hidden, float(model.hidden_size))


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


def dispatch_copies(ops: OperationList, mlp: MlpSpec) -> np.ndarray:
    """How often a token is sent to the ranks of its expert-parallel group, shape (keys,).

    Once per expert, or, deduplicated, once per distinct rank inside a node and once per
    distinct node between nodes (`perfmodel.kernels.collective.expert_exchange.distinct_groups`).
    Routing limited to some groups of experts leaves that share of the experts and places
    (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
    """
    from perfmodel.kernels.collective import expert_exchange as kernel
    from perfmodel.kernels.work import kernel_work

    degree = ops.keys.number("expert_parallel")
    if not ops.framework.deduplicated_dispatch:
        return np.full(degree.shape, float(mlp.experts_per_token))
    inner = ops.keys.number("expert_tensor_parallel")
    inside = stage_members(ops.keys.columns, degree, inner, ops.machine.domain)
    places = np.where(degree > inside, np.ceil(degree / inside), degree)
    experts = np.full(places.shape, float(mlp.experts))
    if mlp.expert_groups_per_token:
        share = mlp.expert_groups_per_token / mlp.expert_groups
        places, experts = np.maximum(places * share, 1.0), experts * share
    with kernel_work(exchanges=places.size):
        copies: np.ndarray = kernel.distinct_group_counts(places, mlp.experts_per_token, experts)
    return copies


def _exchange(ops: OperationList, name: str, forward_size: Size, backward_size: Size) -> None:
    """All-to-all over the expert-parallel group, in forward and again in backward.

    With overlap, one micro-batch's exchanges run beside the compute of another's
    opposite pass (DualPipe, arXiv:2412.19437, section 3.2.1; Megatron-Core's 1F1B
    overlap); dispatch and combine share that time.
    """
    keys = ops.keys
    degree = keys.number("expert_parallel")
    if not np.any(degree > 1):
        return
    beside = {
        "forward": (("*", "backward_input"), ("*", "backward_weight")),
        "backward_input": (("*", "forward"),),
    }
    for phase, size in (("forward", forward_size), ("backward_input", backward_size)):
        ops.add(
            Communication(
                f"{name}.all_to_all",
                phase,
                "expert",
                "all_to_all",
                size,
                degree,
                _expert_stride(ops),
                hidden_by=beside[phase],
                hides=float(ops.framework.overlap_expert_parallel) / 2,
                count=(degree > 1) * 1.0,
            )
        )


def _exchange_counts(ops: OperationList, mlp: MlpSpec) -> None:
    """Ranks tell each other how many tokens come (int64 per expert), ahead of a dispatch.

    Deduplicating dispatchers do that inside their own kernels.
    """
    degree = ops.keys.number("expert_parallel")
    if not np.any(degree > 1) or ops.framework.deduplicated_dispatch:
        return
    ops.add(
        Communication(
            "mlp.dispatch.counts",
            "forward",
            "expert",
            "all_gather",
            8.0 * mlp.experts * degree,
            degree,
            _expert_stride(ops),
            count=(degree > 1) * 1.0,
        )
    )


def _expert_stride(ops: OperationList) -> np.ndarray:
    """Distance of expert-parallel ranks: those that share one expert lie between them."""
    keys = ops.keys
    inner = keys.number("expert_tensor_parallel")
    degree = keys.number("expert_parallel")
    return stage_strides(keys.columns, degree, inner, ops.machine.sizes)


def _expert_tensor(ops: OperationList, name: str, size: Size, forward: str, backward: str) -> None:
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
