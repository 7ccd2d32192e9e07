"""Operations of the feed-forward block of one layer, dense or with experts.

Shape letters: T tokens on this device, h hidden size, f width of the block,
t tensor-parallel degree.
"""

from __future__ import annotations

from perfmodel.model.build import MlpSpec, ModelSpec
from perfmodel.operations.activation import add_activation
from perfmodel.operations.experts_block import add_experts
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Role, Size


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
