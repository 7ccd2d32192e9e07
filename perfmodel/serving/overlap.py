"""What runs beside routed experts: shared ones, on a stream of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.kernels.serving.tables import MATRICES, OTHER, PARTS
from perfmodel.operations.operations import Gemm, LayerKeys, Role
from perfmodel.operations.priced import column_of
from perfmodel.serving.pass_pricing import Item, price_items
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

SHARED = (Role.SHARED, Role.SHARED_OUTPUT)


def hidden_parts(
    hardware: Hardware, engine: Engine, items: Sequence[Item], keys: LayerKeys, routed: Floats
) -> Floats:
    """Return what of a layer's shared experts hides beside its routed ones.

    Parameters
    ----------
    hardware : Hardware
    engine : Engine
    items : sequence of Item
        Of one layer.
    keys : LayerKeys
    routed : ndarray, shape (keys,)
        Time of the routed experts [s].

    Returns
    -------
    ndarray, shape (keys, parts)
        [s].

    Notes
    -----
    Two streams share bandwidth and matrix units, so that products still take what their bytes and
    FLOP ask for, ``max(bytes / bandwidth, FLOP / rate)`` each; starts, waits and small kernels
    beyond that run beside the others, as far as those last.
    """
    none = np.zeros((len(keys), len(PARTS)))
    mine = [item for item in items if item.operation.role in SHARED]
    if not mine or not engine.shared_stream_tokens or hardware.device.vendor != "NVIDIA":
        return none
    parts = price_items(hardware, engine, mine, keys).parts
    work = np.zeros(len(keys))
    for item in mine:
        operation = item.operation
        if isinstance(operation, Gemm):
            m, n, k = (column_of(x, len(keys)) for x in (operation.m, operation.n, operation.k))
            read = n * k * item.product.weight_bytes / hardware.device.memory.bandwidth
            work += np.maximum(read, 2.0 * m * n * k / hardware.device.peak(item.product.products))
    alone = parts[:, (MATRICES, OTHER)].sum(axis=1)
    hidden = np.clip(alone - work, 0.0, routed)
    hidden = np.where(keys.tokens <= engine.shared_stream_tokens, hidden, 0.0)
    share = np.divide(hidden, alone, out=np.zeros_like(alone), where=alone > 0.0)
    for part in (MATRICES, OTHER):
        none[:, part] = share * parts[:, part]
    return none
