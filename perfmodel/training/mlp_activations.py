"""What feed-forward blocks, dense or with routed experts, keep for their backward pass.

Shape letters: T tokens on one device, h hidden size, f width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.model.layers import MlpSpec
from perfmodel.operations.expert_load import expert_loads
from perfmodel.operations.mlp_block import mlp_module
from perfmodel.operations.operations import Size
from perfmodel.training.activations import SINGLE, Inputs, Kept, Scope


def mlp_kept(at: Scope, mlp: MlpSpec, hidden: float) -> Kept:
    """Return what a feed-forward block keeps, its norm left out.

    One that is repeated whole keeps its input alone, which is counted with the norm.
    """
    return _kept(at, mlp, hidden).inside(mlp_module(mlp))


def _kept(at: Scope, mlp: MlpSpec, hidden: float) -> Kept:
    if mlp.kind == "dense":
        own = mlp.intermediate_size / at.keys.tensor
        # By operation (`Kept.alternate`): counted through the layer behind the four products of
        # attention, the gate, not what stands beside it, and the last, ahead of its sum over
        # tensor ranks; of a plain block the first.
        odd = own + (hidden if mlp.gated else 0.0)
        block = _block(at, mlp, at.tokens, own, "activation")
        return block + Kept(at.products(mlp.extra), alternate=at.tokens * odd * at.stored)
    inner = at.keys.number("expert_tensor_parallel")
    _, held = expert_loads(at.framework, mlp, at.keys.number("expert_parallel"))
    received = at.own * mlp.experts_per_token * inner * held
    width = float(mlp.latent_size or hidden)
    routed = _block(at, mlp, received, mlp.expert_intermediate_size / inner, "moe_act")
    if not at.fused:
        # Weights of the choice are in single precision and widen what they scale: its gradient,
        # and those of both factors (transformers, integrations/moe.py).
        routed = replace(routed, widest=np.maximum(routed.widest, 3 * SINGLE * received * hidden))
    # Permuted inputs of the experts, their outputs (the router's gradient needs them)
    # and the router's scores in fp32.
    kept = received * width * at.inputs + at.own * mlp.experts_per_token * width * at.stored
    kept = kept + at.own * mlp.experts * 8.0
    if mlp.latent_size:  # the sum over experts, which leads back to the hidden size
        kept = kept + at.own * width * at.inputs
    # By operation what arrives and what comes back is kept; grouped products are not.
    exchanged = np.where(at.keys.number("expert_parallel") > 1, 2.0 * received * width, 0.0)
    routed = routed + Kept(
        kept + at.products(mlp.extra),
        widest=received * width * at.stored,
        alternate=exchanged * at.stored,
        outputs={"save_mlpwo": received * width * at.stored},
        inputs={
            (word, ()): received * width * at.inputs for word in ("expert_fc1", "fused_group_mlp")
        },
    )
    if not mlp.shared_intermediate_size:
        return routed
    shared_width = mlp.shared_intermediate_size / at.keys.tensor
    shared = _block(at, mlp, at.tokens, shared_width, "activation")
    if mlp.shared_expert_gate:  # what the gate scales
        shared = shared + Kept(at.own * hidden * at.stored)
    return routed + replace(shared, widest=0.0).inside("shared_experts")


def _block(at: Scope, mlp: MlpSpec, rows: Size, width: Size, module: str) -> Kept:
    """Two products with an activation between: what it reads, and the second one's input.

    Unfused, the activation of a gated block is a factor of a product of its own.
    """
    before = rows * width * (2.0 if mlp.gated else 1.0) * at.stored
    after = rows * width * at.inputs
    if mlp.gated and not at.fused:
        after = after + rows * width * at.stored
    outputs = {"save_mlpwi": before}
    inputs: Inputs = {}
    if module == "moe_act":
        inputs = {(word, ()): before for word in ("moe_act", "fused_group_mlp")}
        inputs["fused_group_mlp", (module,)] = after
    return Kept(
        before + after, {(module,): after}, np.asarray(before), outputs=outputs, inputs=inputs
    )
