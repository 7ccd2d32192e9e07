"""What callers say of data that come up again from call to call."""

from __future__ import annotations

import math

from perfmodel.base.errors import DataError


def check_reuse(kernel: str, resident: float, **copies: float) -> None:
    """Refuse what cannot be said of data in a cache.

    Parameters
    ----------
    kernel : str
        Whose data, for the message.
    resident : float
        All bytes that are in use from call to call, other kernels' too [B]; 0: not stated.
    **copies : float
        Calls until the same data come up again, by name; 0: they come from memory.

    Raises
    ------
    DataError
        A number below these, NaN, or infinite.
    """
    for name, count in copies.items():
        if not (1.0 <= count < math.inf or count == 0.0):
            raise DataError(
                f"{name} of {kernel} is at least 1, or 0 for data that come from memory, "
                f"not {count!r}"
            )
    if not 0.0 <= resident < math.inf:
        raise DataError(
            f"resident of {kernel} is a number of bytes, or 0 where none is stated, "
            f"not {resident!r}"
        )
