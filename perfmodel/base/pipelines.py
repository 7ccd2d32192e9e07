"""Pipeline schedules: names, and the numbers that stand for them.

The position in the tuple is the number that columns, stored datasets and kernels use. Kernels
import nothing of ours and say their numbers themselves; ``tests/base`` holds the two together.
"""

from __future__ import annotations

SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "eager_1f1b",
    "looped_bfs",
    "interleaved_zero_bubble",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "v_half",
    "v_min",
    "dualpipe",
    "dualpipe_v",
    "hanayo",
)
"""Numbered as in `perfmodel.kernels.pipeline.orders`."""

ANY_CHUNKS = frozenset({"interleaved", "looped_bfs", "interleaved_zero_bubble"})
"""Schedules in which a rank may have any number of stages."""

TWO_CHUNKS = frozenset({"zb_v", "v_half", "v_min", "dualpipe_v"})
"""Schedules in which a rank has two, one on the way down the ranks, one on the way up."""

EVEN_CHUNKS = frozenset({"hanayo"})
"""Schedules in which a rank has two for every wave."""
