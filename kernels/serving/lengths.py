"""Lengths of prompts and answers: uniform between a share of the longest and the longest."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean


@jit_lean
def mean_length(longest: float, spread: float) -> float:
    """Return the mean of a length that is uniform in [spread · longest, longest]."""
    return 0.5 * (1.0 + spread) * longest


@jit_lean
def mean_square(longest: float, spread: float) -> float:
    """Return the mean of its square."""
    return (1.0 + spread + spread * spread) / 3.0 * longest * longest


@jit_lean
def length_variation(spread: float) -> float:
    """Return its squared coefficient of variation."""
    return (1.0 - spread) * (1.0 - spread) / (3.0 * (1.0 + spread) * (1.0 + spread))
