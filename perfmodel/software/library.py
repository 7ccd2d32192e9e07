"""Declared behaviour of kernel libraries: tiles, launches and rules of choice, as data.

What a library does by its source stands in ``libraries/*.toml``, one file per library and in it
a table per subject; how fast a device runs it is fitted and stands in the hardware profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.errors import HardwareError
from perfmodel.software.facts import Record, fact, read_folder

FOLDER = Path(__file__).parent / "libraries"

Tiles = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeKernel:
    """How a library runs a mixture-of-experts layer."""

    tiles: Tiles = fact(
        "rows, columns, and depth of a step [B of an operand]", positive=True, shape=(0, 3)
    )
    small_tiles: Tiles = fact(
        "the same where there are no more tokens than experts; none: `tiles`",
        positive=True,
        shape=(0, 3),
        default=(),
    )
    block_tiles: Tiles = fact(
        "the same for operands of one byte or less; none: `tiles`",
        positive=True,
        shape=(0, 3),
        default=(),
    )
    stages: float = fact("main-loop steps whose operands are on their way at once", positive=True)
    swept_tiles: float = fact(
        "row tiles that share one pass of the weights through the cache", positive=True
    )
    router_launches: float = fact("kernels that choose the experts")
    permute_launches: float = fact("kernels that bring the rows into the order of the experts")
    requantise_launches: float = fact(
        "kernels that quantise the activated rows; 0 where the activation does it"
    )
    combine_launches: float = fact("kernels that sum over the choices of a token")
    sorted_tokens: float = fact("more tokens than that are sorted by kernels of their own")
    sorting_launches: float = fact("how many kernels those are")
    fused_activation: tuple[str, ...] = fact(
        "precisions whose activation is the epilogue of the first product"
    )
    dense_loop: bool = fact("the main loop is that of the dense library, with its constants")
    all_slots: bool = fact(
        "every token's every choice takes part, those of other ranks' experts with zeros; else "
        "only the rows that are here do, and a single choice is written in place"
    )


SUBJECTS: Mapping[str, type] = {"moe": MoeKernel}
"""Table of a library's file -> what it may state."""


@cache
def libraries() -> Mapping[str, Record]:
    """Return what ships, by the name of the library.

    Raises
    ------
    HardwareError
        A file is malformed (`perfmodel.software.facts.read_folder`).
    """
    return read_folder(FOLDER, SUBJECTS, HardwareError)


def library_facts(subject: str) -> dict[str, Any]:
    """Return the facts of one subject, by the name of each library that states any."""
    records = libraries().items()
    return {name: found.facts[subject] for name, found in records if subject in found.facts}
