"""Types of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Column = NDArray[np.floating[Any]]
"""Floats of either width: results may be kept in single precision."""
