"""The activation between the products of a feed-forward block."""

from __future__ import annotations

from perfmodel.compute.stream_catalogue import elementwise, traffic
from perfmodel.model.build import MlpSpec
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Size


def add_activation(
    ops: OperationList, mlp: MlpSpec, name: str, elements: Size, launches: float = 1.0
) -> None:
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
    passes = launches if fused else launches * inputs
    module = "moe_act" if name.startswith("mlp.experts") else "activation"
    ops.stream(name, elements, forward, backward, flops=8.0, launches=passes, module=module)
