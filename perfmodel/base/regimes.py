"""Regimes of each kernel class: where errors are reported, and uncertainty is kept, apart.

A regime says what mostly decides the time: the start of the kernel, the caches, or the
steady rate of matrix units and memory. The limits are those of the accuracy tables
in docs/kernels.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

REGIMES = ("small", "middle", "large")

LIMITS: Mapping[str, tuple[str, float, float]] = {
    # class: (quantity, first value of middle, first value of large)
    "gemm": ("rows of A (m)", 65.0, 2048.0),
    "attention": ("FLOP of unmasked pairs", 1e10, 1e12),
    "attention_backward": ("FLOP of unmasked pairs", 1e10, 1e12),
    "recurrence": ("FLOP", 1e10, 1e12),
    "sparse": ("FLOP of keys that are seen", 1e10, 1e12),
    "decode": ("bytes of keys and values", 1e7, 2e8),
    "moe": ("tokens", 65.0, 2048.0),
    "stream": ("bytes read and written", 1e6, 1e8),
    "collective": ("bytes of the buffer", 2.0**20, 2.0**26),
}
"""What tells the regimes of a class apart, in SI units."""


def regime(kernel_class: str, quantity: ArrayLike) -> NDArray[np.int64]:
    """Return the index into `REGIMES` for each value of the class's quantity.

    Parameters
    ----------
    kernel_class : str
        One of `LIMITS`.
    quantity : array_like of float
        See `LIMITS`.
    """
    _, middle, large = LIMITS[kernel_class]
    return np.searchsorted([middle, large], np.asarray(quantity, np.float64), side="right")


def regime_name(kernel_class: str, quantity: float) -> str:
    """Return the regime of one value."""
    return REGIMES[int(regime(kernel_class, quantity))]
