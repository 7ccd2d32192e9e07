"""What a layer of a model makes the nodes of a wafer send, for the search of their places."""

from __future__ import annotations

from math import ceil

from perfmodel.base.errors import StrategyError
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.mlp import MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.search.placement import GroupBytes
from perfmodel.wafer.system import WaferSystem

LARGEST_TOKENS = 2**40


def layer_bytes(
    model: ModelSpec,
    system: WaferSystem,
    *,
    batch: int,
    length: int = 1,
    element_bytes: float = 2.0,
) -> GroupBytes:
    """Return what a node of the busiest cluster sends in the model's last layer.

    Parameters
    ----------
    model : ModelSpec
    system : WaferSystem
    batch, length : int
        Sequences of all clusters, and tokens of each in a pass: 1 in decode.
    element_bytes : float
        [B]

    Returns
    -------
    GroupBytes
        Sums over tensor ranks (T h), over sequence ranks (T times the heads of a rank times the
        width of what attention sums: latents of latent attention in decode), the residual stream
        between stages (T h), and of experts what leaves a node and what it sends back: tokens go
        once to each other node that has one of their experts, spread evenly; every expert's row
        comes back by itself. Copies to the ranks of a cluster behind the experts are left out.

    Raises
    ------
    StrategyError
        Sizes that are none.
    """
    for key, value in (("batch", batch), ("length", length)):
        if not isinstance(value, int) or not 0 < value <= LARGEST_TOKENS:
            raise StrategyError(f"key '{key}': a whole number from 1, not {value!r}")
    layer = model.layers[-1]
    tokens = ceil(batch / system.data_parallel) * length
    hidden = tokens * model.hidden_size * element_bytes
    attention = [mixer for mixer in layer.mixers if isinstance(mixer, AttentionSpec)]
    summed = max((_summed_width(one, system, length) for one in attention), default=0)
    mlps = [one for one in layer.mlps if one.experts]
    return GroupBytes(
        tensor=hidden,
        sequence=tokens * summed * element_bytes,
        pipeline=hidden,
        experts=_exchanged(mlps[-1], system, hidden) if mlps else 0.0,
    )


def _summed_width(attention: AttentionSpec, system: WaferSystem, length: int) -> int:
    """Numbers of a token that sequence ranks sum up."""
    heads = ceil(attention.heads / system.tensor_parallel)
    absorbed = attention.kind == "mla" and length == 1
    return heads * (attention.kv_lora_rank if absorbed else attention.value_head_dim)


def _exchanged(mlp: MlpSpec, system: WaferSystem, hidden: float) -> float:
    """Bytes that a node sends to experts and back, where experts are spread evenly."""
    ranks = system.expert_parallel
    own = hidden / system.cluster_nodes
    elsewhere = 1.0 - 1.0 / ranks
    nodes = ranks * (1.0 - elsewhere**mlp.experts_per_token) * elsewhere
    return own * (nodes + mlp.experts_per_token * elsewhere)
