"""Devices and sizes of messages, checked before a kernel sees them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import StrategyError


def checked_devices(values: ArrayLike, count: int, what: str) -> NDArray[np.int64]:
    """Return ids of devices as int64.

    Raises
    ------
    StrategyError
        An id that is no whole number from 0 to ``count - 1``; `what` names its part.
    """
    ids = np.asarray(values)
    if ids.size == 0:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise StrategyError(
            f"{what} {values!r}; ids of devices are whole numbers from 0 to {count - 1}"
        )
    bad = (ids < 0) | (ids >= count)
    if np.any(bad):
        raise StrategyError(f"{what} {ids[bad].flat[0]} does not exist; ids are 0 to {count - 1}")
    return ids.astype(np.int64)


def checked_sizes(values: ArrayLike) -> NDArray[np.float64]:
    """Return bytes as float64.

    Raises
    ------
    StrategyError
        A value that is no number, negative or not finite.
    """
    try:
        sizes = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise StrategyError(f"bytes {values!r}; sizes of messages are numbers") from None
    bad = ~(np.isfinite(sizes) & (sizes >= 0.0))
    if np.any(bad):
        raise StrategyError(f"a message of {sizes[bad].flat[0]} B; a size is finite and >= 0")
    return sizes
