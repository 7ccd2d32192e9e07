"""How far the time of a pass may lie from a projected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.regimes import regime_name
from perfmodel.kernels.serving.tables import ATTENTION, COMMUNICATION, EXPERTS, MATRICES, OTHER
from perfmodel.operations.uncertainty import step_width

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

TYPICAL_SEQUENCES = 32.0
TYPICAL_CONTEXT = 2048.0
"""The pass whose band stands for all: tens of sequences of some thousands of tokens."""

LOOP_WIDTH = 0.115
"""What passes of a running server add, relative: schedulers, hosts, flags that nobody states. With
it 80 % of 1,620 measured times per output token lie within the bounds (InferenceX and NVIDIA)."""

CLASSES = {
    # part of a pass: kernel class, and what tells its regime in a typical pass
    MATRICES: ("gemm", TYPICAL_SEQUENCES),
    EXPERTS: ("moe", TYPICAL_SEQUENCES),
    ATTENTION: ("decode", TYPICAL_SEQUENCES * TYPICAL_CONTEXT * 2048.0),  # 8 heads of 128, twice
    COMMUNICATION: ("collective", TYPICAL_SEQUENCES * 16384.0),  # 8,192 numbers of a token
    OTHER: ("stream", TYPICAL_SEQUENCES * 32768.0),
}


def half_widths(hardware: Hardware, parts: Floats) -> Floats:
    """Return half the 10-90 % bands of passes, relative.

    Parameters
    ----------
    hardware : Hardware
    parts : ndarray, shape (layout, parts)
        Seconds of a typical pass (`TYPICAL_SEQUENCES`, `TYPICAL_CONTEXT`), by
        `perfmodel.kernels.serving.tables.PARTS`.

    Returns
    -------
    ndarray, shape (layout,)

    Notes
    -----
    Kernels of one class err together, classes independently of each other, and so does what no
    kernel explains, of which a pass has as large a share as a training step without experts
    (`perfmodel.operations.uncertainty`): loads of experts are priced here.
    """
    widths = np.zeros(parts.shape[-1])
    for part, (name, quantity) in CLASSES.items():
        widths[part] = hardware.uncertainty(name, regime_name(name, quantity))
    kernels = np.sqrt(((widths * parts) ** 2).sum(axis=-1)) / parts.sum(axis=-1)
    alone = np.hypot(kernels, step_width(hardware, experts=False))
    found: Floats = np.hypot(alone, LOOP_WIDTH)
    return found
