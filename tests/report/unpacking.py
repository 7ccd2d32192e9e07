"""Columns of a page read again, in the page's own way."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.report.packing import Packed


def unpacked(column: Packed) -> NDArray[Any]:
    """Return what `packed` took."""
    kind = np.dtype(column["type"]).newbyteorder("<")
    data = zlib.decompress(base64.b64decode(column["data"]))
    places = np.frombuffer(data, np.uint8).reshape(kind.itemsize, column["count"])
    return np.ascontiguousarray(places.T).view(kind).reshape(-1)


def from_levels(column: Packed) -> NDArray[np.float64]:
    """Return the numbers that `levels` stand for."""
    low, high = column["low"], column["high"]
    share = np.arange(2 ** column["bits"] - 2) / (2 ** column["bits"] - 3)
    if column["scale"] == "log":
        steps = low * (high / low) ** share
    else:
        steps = low + (high - low) * share
    return np.concatenate(([np.nan, 0.0], steps))[unpacked(column)]
