"""Which experts the tokens of a layer go to, as one says it: a distribution, or counts of a file.

docs/routing.md describes the distributions and how they compare with real loads; assignments and
loads that follow from one are in `perfmodel.compute.routing`.
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.files import not_read

DISTRIBUTIONS = (
    "identical",
    "balanced",
    "uniform",
    "dirichlet",
    "power_law",
    "two_level",
    "empirical",
)
DEFAULT_PARAMETER = {"dirichlet": 4.24, "power_law": 1.2}
COUNTED = ("identical", "balanced", "power_law")
"""Distributions that fix every load; the others fix probabilities and draw."""


@dataclass(frozen=True)
class Routing:
    """A distribution of load over experts.

    Attributes
    ----------
    distribution : str
        One of `DISTRIBUTIONS`.
    parameter : float or None
        ``dirichlet``: concentration per expert; ``power_law``: exponent.
    counts : tuple of tuple of float
        ``empirical``: tokens seen per expert, for one or more layers.
    groups, group_limit : int
        Node-limited routing: experts form `groups` groups of which a token may use
        `group_limit`. Drawn distributions only.
    seed : int
        Same seed, same result.
    """

    distribution: str = "uniform"
    parameter: float | None = None
    counts: tuple[tuple[float, ...], ...] = ()
    groups: int = 1
    group_limit: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise DataError(
                f"unknown routing distribution '{self.distribution}'"
                f"{did_you_mean(self.distribution, DISTRIBUTIONS)}"
            )
        value = self.parameter
        if value is not None:
            if self.distribution not in DEFAULT_PARAMETER:
                raise DataError(f"routing '{self.distribution}' takes no parameter")
            if not (np.isfinite(value) and value > 0.0):
                raise DataError(
                    f"routing '{self.distribution}': parameter {value} must be finite and above 0"
                )
            if self.distribution == "power_law" and value == 1.0:
                raise DataError("routing 'power_law': the exponent must differ from 1, e.g. 1.01")
        if (self.distribution == "empirical") != bool(self.counts):
            raise DataError("routing 'empirical' needs counts per expert, and only that one does")
        for layer in self.counts:
            if len(layer) != len(self.counts[0]):
                raise DataError("routing 'empirical': layers have different numbers of experts")
            if not (np.isfinite(layer).all() and min(layer) >= 0.0 and sum(layer) > 0.0):
                raise DataError(
                    "routing 'empirical': counts must be finite, not negative, and not all 0"
                )
        if self.groups < 1 or not 1 <= self.group_limit <= self.groups:
            raise DataError(
                f"routing: {self.group_limit} of {self.groups} groups; at least 1 of them, "
                "at most all"
            )
        if self.groups > 1 and self.distribution in COUNTED:
            raise DataError(f"routing '{self.distribution}' fixes loads; it takes no groups")
        if not 0 <= self.seed < 2**63:
            raise DataError(f"routing: seed {self.seed} must be at least 0 and of 63 bits")

    @property
    def value(self) -> float:
        """The parameter, or the distribution's default."""
        default = DEFAULT_PARAMETER.get(self.distribution, 0.0)
        return default if self.parameter is None else self.parameter

    @property
    def random(self) -> bool:
        """Whether two draws differ."""
        return self.distribution not in ("identical", "balanced")


def parse_routing(text: str, seed: int = 0) -> Routing:
    """Read a routing from text.

    Parameters
    ----------
    text : str
        A distribution, ``_`` and its parameter (``power_law_1.2``, ``dirichlet_4``), or
        ``empirical:FILE``.
    seed : int

    Returns
    -------
    Routing

    Raises
    ------
    DataError
        Unknown distribution, bad parameter, or a file that cannot be read.
    """
    name, colon, path = text.strip().partition(":")
    if name == "empirical":
        if not colon or not path:
            raise DataError("routing 'empirical' needs a file, as empirical:counts.json")
        return Routing("empirical", counts=read_counts(path), seed=seed)
    for distribution in DEFAULT_PARAMETER:
        if text.startswith(distribution + "_"):
            tail = text[len(distribution) + 1 :]
            try:
                return Routing(distribution, float(tail), seed=seed)
            except ValueError:
                raise DataError(f"routing '{text}': '{tail}' is no number") from None
    return Routing(text.strip(), seed=seed)


def read_counts(path: str | os.PathLike[str]) -> tuple[tuple[float, ...], ...]:
    """Read counts per expert, for one or more layers.

    Parameters
    ----------
    path : str or path
        JSON: a list of counts, a list of such lists, or an object of such lists by
        layer. CSV: columns ``expert`` (0, 1, …), ``count``, and optionally ``layer``.

    Raises
    ------
    DataError
        The file cannot be read or holds something else.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        layers = _csv_layers(text) if file.suffix.lower() == ".csv" else _json_layers(text)
    except OSError as error:
        raise DataError(not_read(path, error)) from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise DataError(
            f"{path}: not counts per expert; wanted JSON lists of numbers, or CSV with columns "
            "expert and count"
        ) from None
    if not layers or not all(layers):
        raise DataError(f"{path}: no counts")
    return layers


def _json_layers(text: str) -> tuple[tuple[float, ...], ...]:
    data: Any = json.loads(text)
    rows = list(data.values()) if isinstance(data, dict) else data
    if rows and not isinstance(rows[0], list):
        rows = [rows]
    return tuple(tuple(float(count) for count in row) for row in rows)


def _csv_layers(text: str) -> tuple[tuple[float, ...], ...]:
    layers: dict[str, dict[int, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        layers.setdefault(row.get("layer") or "", {})[int(row["expert"])] = float(row["count"])
    for layer in layers.values():
        if sorted(layer) != list(range(len(layer))):
            raise ValueError("experts are not 0, 1, 2, …")
    return tuple(tuple(layer[e] for e in range(len(layer))) for layer in layers.values())
