"""A whole request on meshes of cores: a prompt on one grid, its answer on another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.table import Table
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.fields import MOST_TOKENS
from perfmodel.wafer.mappings import parse_grid
from perfmodel.wafer.project import default_grid, mesh_rows, project_wafer

MOST_KNOTS = 257
"""Contexts of an answer that are projected; the token's time is linear between more."""


@dataclass(frozen=True)
class WaferRequest:
    """One request from its prompt to its last token.

    Attributes
    ----------
    time_to_first_token : float
        The prompt [s].
    time_per_output_token : float
        Mean over the answer, whose context grows [s].
    request_time : float
        Prompt and answer [s].
    tokens_per_second : float
        Tokens of the answer over `request_time` [1/s].
    prefill, decode : Table
        As of `project_wafer`: the prompt, and the answer's last token.
    fits : bool
        Both find room.
    """

    time_to_first_token: float
    time_per_output_token: float
    request_time: float
    tokens_per_second: float
    prefill: Table
    decode: Table
    fits: bool


def project_request(
    model: ModelSpec | str,
    hardware: MeshHardware | str,
    *,
    input_length: int,
    output_length: int,
    prefill_grid: Any = None,
    decode_grid: Any = None,
    **asked: Any,
) -> WaferRequest:
    """Project one request end to end.

    Parameters
    ----------
    model : ModelSpec or str
    hardware : MeshHardware or str
    input_length, output_length : int
        Tokens of the prompt and of its answer; every token of the answer is a pass of its own.
    prefill_grid, decode_grid : int, str or (int, int), optional
        Cores of a region in either phase; default: the largest square of the mesh. Moving weights
        and cache from one layout to the other is not counted.
    asked
        Further options of `project_wafer`, for both phases.

    Returns
    -------
    WaferRequest

    Raises
    ------
    StrategyError
        Lengths that mean nothing, or several values where one is wanted; as `project_wafer`.
    """
    for name, value in (("input_length", input_length), ("output_length", output_length)):
        if not isinstance(value, int | np.integer) or not 1 <= value <= MOST_TOKENS:
            raise StrategyError(f"{name}: a whole number from 1 to {MOST_TOKENS:,}, not {value!r}")
    (row,) = mesh_rows(hardware)
    grids = [
        parse_grid(given if given is not None else default_grid([row]))
        for given in (prefill_grid, decode_grid)
    ]
    prefill = project_wafer(
        model, row, phase="prefill", grid=[grids[0]], context=input_length, **asked
    )
    if prefill.sizes["mapping"] != 1:
        raise StrategyError("a request takes one value of every field of a mapping")
    knots, weights = _contexts(input_length, output_length, grids[1], row, asked)
    decode = project_wafer(
        model, row, phase="decode", grid=[grids[1]], context=knots.tolist(), **asked
    )
    first = float(prefill["latency"].values[0, 0, 0])
    token = float(decode["latency"].values[:, 0, 0] @ weights)
    whole = first + output_length * token
    last = decode.isel(mapping=[-1])
    fits = bool(prefill["fits"].values[0, 0, 0] and last["fits"].values[0, 0, 0])
    return WaferRequest(first, token, whole, output_length / whole, prefill, last, fits)


def _contexts(
    prompt: int, answer: int, grid: tuple[int, int], hardware: MeshHardware, asked: Any
) -> tuple[Integers, Floats]:
    """Return contexts of an answer's tokens to project, and the share of tokens of each."""
    every = np.arange(prompt + 1, prompt + answer + 1)
    if asked.get("cache_layout", "shifted") == "shifted" and hardware.dram_bandwidth <= 0.0:
        # Tiles grow by a whole token per row or column: between, nothing changes.
        tiles = np.ceil(every[:, None] / np.array(grid)).astype(np.int64)
        last = np.flatnonzero(np.append((tiles[1:] != tiles[:-1]).any(axis=1), True))
        if last.size <= MOST_KNOTS:
            return every[last], np.diff(last, prepend=-1) / answer
    count = min(answer, MOST_KNOTS)
    knots = np.unique(np.linspace(every[0], every[-1], count).round().astype(np.int64))
    if knots.size == answer:
        return knots, np.full(answer, 1.0 / answer)
    gaps = np.diff(knots)
    weights = 0.5 * (np.append(gaps, 0) + np.append(0, gaps))
    return knots, weights / math.fsum(weights)
