"""Sums over instructions of cores, layer by layer.

Experts of a node count as one layer, ``exp_N``, and so do the sums that put a layer's tokens
together; barriers between layers are ``cross_layer``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from perfmodel.wafer.cores.instructions import (
    ADD,
    ARGUMENTS,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    OPCODES,
    READ,
    WRITE,
)
from perfmodel.wafer.twin.cores import NodePieces

_EXPERT = re.compile(r"_exp_\d+_")
_SUM = re.compile(r"_sum_\d+\.\d+$")


class CoreTotal(NamedTuple):
    """Instructions of a kind in a layer on a node.

    Attributes
    ----------
    lines : int
    bytes : int
        Read, written, copied or sent; a multicast counts once [B].
    flops : int
        Two per multiply-accumulate, one per addition.
    cores_used : int
    """

    lines: int
    bytes: int
    flops: int
    cores_used: int


def layer_name(operation: str) -> str:
    """Return the layer that an operation's totals are given under."""
    return _SUM.sub("", _EXPERT.sub("_exp_N_", operation))


def core_totals(mapped: Iterable[NodePieces]) -> dict[tuple[int, str, str], CoreTotal]:
    """Add up instructions by node, layer and kind.

    Parameters
    ----------
    mapped : iterable of NodePieces
        As of `perfmodel.wafer.twin.cores.CoreMapping.pieces`.

    Returns
    -------
    dict of (int, str, str) to CoreTotal
        Node, layer and instruction, in the order in which they come first.
    """
    sums: dict[tuple[int, str, str], list[int]] = {}
    used: dict[tuple[int, str, str], set[int]] = {}
    for node, operation, pieces in mapped:
        layer = layer_name(operation)
        for piece in pieces:
            lines, arguments, _ = piece.instructions
            for opcode in np.unique(lines[:, OPCODE]).tolist():
                rows = lines[:, OPCODE] == opcode
                key = node, layer, OPCODES[opcode]
                total = sums.setdefault(key, [0, 0, 0])
                total[0] += int(np.count_nonzero(rows))
                total[1] += _bytes(opcode, arguments[rows])
                total[2] += _flops(opcode, lines[rows], arguments[rows])
                used.setdefault(key, set()).update(np.unique(lines[rows, CORE]).tolist())
    return {
        key: CoreTotal(lines, moved, flops, len(used[key]))
        for key, (lines, moved, flops) in sums.items()
    }


def _bytes(opcode: int, arguments: np.ndarray) -> int:
    if opcode in (READ, WRITE, MULTICAST):
        return int(arguments[:, 1].sum())
    return int(arguments[:, 2].sum()) if OPCODES[opcode] == "COPY" else 0


def _flops(opcode: int, lines: np.ndarray, arguments: np.ndarray) -> int:
    if opcode == GEMM:
        return 2 * int(arguments[:, :3].prod(axis=1).sum())
    if opcode == ADD:
        sides = np.arange(arguments.shape[1]) < lines[:, [ARGUMENTS]]
        return int(np.where(sides, arguments, 1).prod(axis=1).sum())
    return 0
