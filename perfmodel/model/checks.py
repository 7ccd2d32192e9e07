"""Checks shared by model descriptions: each rule is one small function.

Every function returns nothing and raises `ModelError` naming the key at fault,
so that the reader of a file only has to put the file's name in front.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.base.errors import ModelError

SIZE_LIMIT = 10**9  # far above any real size, and its products still fit in 64 bits
LAYER_LIMIT = 10_000  # far above any real depth, and a tuple of so many is still small


def check_size(key: str, value: object, *, minimum: int = 1, limit: int = SIZE_LIMIT) -> None:
    """Refuse anything but an integer from `minimum` to `limit`.

    Parameters
    ----------
    key : str
        Name of the field, as the user knows it.
    value : object
        What stands there. ``True`` and ``1.0`` are not sizes.
    minimum : int
        Smallest value allowed: 1 for sizes, 0 where zero means "none".
    limit : int
        Largest value allowed.
    """
    wanted = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"key {key!r}: {value!r} should be {wanted}")
    if value < minimum:
        raise ModelError(f"key {key!r}: {value} should be {wanted}")
    if value > limit:
        raise ModelError(f"key {key!r}: {value} should be at most {limit}")


def check_flag(key: str, value: object) -> None:
    """Refuse anything but ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise ModelError(f"key {key!r}: {value!r} should be true or false")


def check_choice(key: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a word that is not among `choices`."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ModelError(f"key {key!r}: {value!r} should be one of {', '.join(known)}")


def check_multiple(key: str, value: int, divisor_key: str, divisor: int) -> None:
    """Refuse a `value` that `divisor` does not divide."""
    if value % divisor:
        raise ModelError(
            f"key {key!r}: {value} should be a multiple of {divisor_key!r}, which is {divisor}"
        )


def check_at_most(key: str, value: int, limit_key: str, limit: int) -> None:
    """Refuse a `value` above the `limit` that another key sets."""
    if value > limit:
        raise ModelError(f"key {key!r}: {value} should be at most {limit_key!r}, which is {limit}")
