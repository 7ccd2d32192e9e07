"""What a pipeline stage sends to the next, and what its tensor ranks gather on arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Communication, LayerKeys
from perfmodel.operations.priced import Priced
from perfmodel.operations.pricing import price_operations
from perfmodel.software.framework import Framework
from perfmodel.training.memory import boundary_bytes

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


def scattered(keys: LayerKeys, framework: Framework) -> Column:
    """Return 1 where tensor ranks send shares of a hidden state that each of them holds."""
    return (framework.scatters_sends & (keys.tensor > 1) & (keys.sharded == 0)).astype(np.float64)


def sent_bytes(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Return what a device sends to the next stage for a micro-batch, forward or backward [B]."""
    whole = boundary_bytes(model, keys)
    return np.where(scattered(keys, framework) > 0, whole / keys.tensor, whole)


def arrival_gather(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework
) -> Priced:
    """Price the gather that makes shares whole again, over the tensor ranks of a stage.

    Narayanan et al. 2021 (arXiv:2104.04473), section 4.1: adapters then carry every byte once and
    not t times, and the fast links of a node the rest.
    """
    operation = Communication(
        "pipeline.all_gather",
        "forward",
        "tensor",
        "all_gather",
        boundary_bytes(model, keys),
        keys.tensor,
        keys.tensor_stride,
        count=scattered(keys, framework),
    )
    return price_operations(hardware, [operation], keys, framework)[0]
