"""How many random cases are tried: a few with every change, all before a release.

``make test`` and CI run few, ``make test-long`` (``pytest --long``) all; the same on every run.
"""

from __future__ import annotations

LONG = False
"""Whether all are asked for; the option sets it before tests are imported."""


def cases(count: int, fewest: int = 10) -> int:
    """Return how many of a number of cases to try: a quarter, but not fewer than some."""
    return count if LONG else min(count, max(count // 4, fewest))
