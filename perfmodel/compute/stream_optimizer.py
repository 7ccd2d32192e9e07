"""Optimizer steps as streaming work, and the products of Muon; see `stream_catalogue`.

P parameters of one device; g bytes of a stored gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.compute.stream_catalogue import StreamWork

MULTI_TENSOR_LAUNCHES = 4.0
"""Kernels of a multi-tensor update: its argument tables hold a few hundred tensors each
(Apex ``multi_tensor_apply``); an estimate."""


def adam(
    parameters: ArrayLike,
    gradient_bytes: float = 4.0,
    state_bytes: float = 12.0,
    weight_bytes: float = 2.0,
) -> StreamWork:
    """Return the work of a fused Adam step in mixed precision (Kingma & Ba 2015).

    The gradient (g) and the state (fp32 master weight and two moments: 12 bytes) are
    read; the state and the working copy of the weight are written; about 12 operations
    and a square root each. Pure fp32 has no working copy: ``weight_bytes = 0``.
    """
    p = np.asarray(parameters, np.float64)
    return StreamWork(
        bytes_read=p * (gradient_bytes + state_bytes),
        bytes_written=p * (state_bytes + weight_bytes),
        flops=12.0 * p,
        specials=2.0 * p,
        launches=MULTI_TENSOR_LAUNCHES,
    )


def sgd(
    parameters: ArrayLike,
    gradient_bytes: float = 4.0,
    weight_bytes: float = 4.0,
    momentum: bool = True,
) -> StreamWork:
    """Return the work of a fused SGD step: gradient, weight and, if any, fp32 momentum."""
    p = np.asarray(parameters, np.float64)
    state = weight_bytes + (4.0 if momentum else 0.0)
    return StreamWork(
        p * (gradient_bytes + state), p * state, 4.0 * p, launches=MULTI_TENSOR_LAUNCHES
    )


def clip_gradients(parameters: ArrayLike, gradient_bytes: float = 4.0) -> StreamWork:
    """Return the work of clipping by the norm: one read for the norm, one to scale in place."""
    p = np.asarray(parameters, np.float64)
    return StreamWork(
        p * 2.0 * gradient_bytes,
        p * gradient_bytes,
        3.0 * p,
        launches=2.0 * MULTI_TENSOR_LAUNCHES,
    )


class Product(NamedTuple):
    """C[m, n] = A[m, k] B[k, n], ``repeats`` times one after the other."""

    m: float
    n: float
    k: float
    repeats: float


class Muon(NamedTuple):
    """A Muon step of one weight matrix: its products, and all else that it streams."""

    products: tuple[Product, ...]
    streams: StreamWork


NEWTON_SCHULZ_STEPS = 5
"""Of the quintic iteration (K. Jordan 2024, "Muon", kellerjordan.github.io/posts/muon)."""


def muon(
    rows: float, columns: float, gradient_bytes: float = 4.0, weight_bytes: float = 2.0
) -> Muon:
    """Return the work of a Muon step of a (rows x columns) matrix.

    With ``a = min(rows, columns)`` and ``b = max``, each of the 5 Newton-Schulz steps in
    bf16 is ``A = X X^T`` (a, a, b), ``B = A A`` (a, a, a) and ``B X`` (a, b, a), with the
    additions in the products' epilogues. Streamed are the momentum update (gradient and
    fp32 momentum read, momentum and a bf16 copy written), its norm and scaling (bf16, two
    reads and a write), and the update of fp32 master and working weight.
    """
    a, b = min(rows, columns), max(rows, columns)
    n = float(rows) * float(columns)
    products = (
        Product(a, a, b, NEWTON_SCHULZ_STEPS),
        Product(a, a, a, NEWTON_SCHULZ_STEPS),
        Product(a, b, a, NEWTON_SCHULZ_STEPS),
    )
    read = gradient_bytes + 4.0 + 2.0 * 2.0 + (2.0 + 4.0)
    written = (4.0 + 2.0) + 2.0 + (4.0 + weight_bytes)
    return Muon(products, StreamWork(n * read, n * written, 12.0 * n, launches=4.0))
