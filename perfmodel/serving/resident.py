"""What of a served model stays in the last cache of a device from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.compute.gemm import resident_capacity
from perfmodel.serving.layouts import Layouts
from perfmodel.serving.memory import layout_memory
from perfmodel.serving.pass_uncertainty import TYPICAL_CONTEXT

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec


def resident_bytes(
    model: ModelSpec, layouts: Layouts, hardware: Hardware, tokens: Floats
) -> Floats:
    """Return the bytes that passes of a few tokens go round, where a cache holds them all.

    Parameters
    ----------
    model : ModelSpec
    layouts : Layouts
    hardware : Hardware
    tokens : ndarray, shape (tokens,)
        Of a pass, each of a sequence with `TYPICAL_CONTEXT` tokens in the key-value cache.

    Returns
    -------
    ndarray, shape (layout, tokens)
        Weights of the fullest stage and the key-value cache [B]; 0 where they come from memory.

    Notes
    -----
    Derived here; no measured server fits a cache. A model of 600 M parameters in 8 bits over
    eight L40S does.
    """
    capacity = resident_capacity(hardware)
    if capacity == 0.0:
        return np.zeros((len(layouts), tokens.size))
    held = layout_memory(model, layouts, hardware)
    of_token = held.per_token.max(axis=1) * min(TYPICAL_CONTEXT, held.window)
    of_token += held.state.max(axis=1)
    used = held.weights.max(axis=1)[:, None] + of_token[:, None] * tokens
    return np.where(used < capacity, used, 0.0)
