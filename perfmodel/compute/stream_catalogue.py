"""Catalogue of streaming operations: bytes, FLOP and launches of each, one formula each.

Shape letters: N elements of a tensor, R rows of C columns (R C = N), s bytes of an
element. Every function returns a `StreamWork`; sizes may be numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.files import read_rows

Size = NDArray[np.float64] | float

UNIT_THREADS = 2048.0
"""Threads in flight on a compute unit (CUDA programming guide, compute capabilities 7.0
to 10.0, and 2560 or less on CDNA)."""


class StreamWork(NamedTuple):
    """What a streaming operation moves and computes; numbers or equal columns.

    Attributes
    ----------
    bytes_read, bytes_written : float or ndarray
        Traffic, every byte once [B].
    flops : float or ndarray
        Operations on the general cores [FLOP].
    specials : float or ndarray
        Exponentials; `calibration.stream.special_operations` operations each.
    launches : float or ndarray
        Kernels.
    bytes_reread : float or ndarray
        Bytes read again by the same or the next kernel of the operation [B].
    rows, row_bytes : float or ndarray
        Rows that a block or warp walks each, and the bytes of one [B]; 0 where
        the whole tensor is shared out.
    threads : float or ndarray
        Threads that share a row.
    walks, reductions : float or ndarray
        How often a row is walked through, and how often its threads agree on a number.
    """

    bytes_read: Size
    bytes_written: Size
    flops: Size = 0.0
    specials: Size = 0.0
    launches: Size = 1.0
    bytes_reread: Size = 0.0
    rows: Size = 0.0
    row_bytes: Size = 0.0
    threads: Size = 256.0
    walks: Size = 1.0
    reductions: Size = 0.0


def traffic(work: StreamWork) -> tuple[float, float]:
    """Return the bytes of one operation read (second reads included) and written [B]."""
    return float(work.bytes_read) + float(work.bytes_reread), float(work.bytes_written)


# --- element by element ---------------------------------------------------------------


class Elementwise(NamedTuple):
    """One kernel that computes each element on its own.

    Attributes
    ----------
    inputs, outputs : float
        Tensors read and written, per element of the larger one.
    flops, specials : float
        Per element: operations, and exponentials (4 make a tanh or an erf, 12 a power).
    """

    inputs: float
    outputs: float
    flops: float
    specials: float = 0.0


ELEMENTWISE: Mapping[str, Elementwise] = {
    row["name"]: Elementwise(*(float(row.get(name, 0)) for name in Elementwise._fields))
    for row in read_rows(Path(__file__).with_name("elementwise.csv"))
}
"""Tensors and operations per element of operations that one kernel does."""


def elementwise(name: str, elements: ArrayLike, element_bytes: float = 2.0) -> StreamWork:
    """Return the work of one elementwise kernel over N elements.

    ``inputs N s`` bytes are read and ``outputs N s`` written; see `ELEMENTWISE`.

    Raises
    ------
    DataError
        Unknown operation.
    """
    if name not in ELEMENTWISE:
        raise DataError(f"unknown elementwise operation '{name}'{did_you_mean(name, ELEMENTWISE)}")
    kind = ELEMENTWISE[name]
    n = np.asarray(elements, np.float64)
    return StreamWork(
        bytes_read=n * element_bytes * kind.inputs,
        bytes_written=n * element_bytes * kind.outputs,
        flops=n * kind.flops,
        specials=n * kind.specials,
    )


def cast(elements: ArrayLike, source_bytes: float, target_bytes: float) -> StreamWork:
    """Return the work of a change of number format: s read and s' written per element."""
    n = np.asarray(elements, np.float64)
    return StreamWork(n * source_bytes, n * target_bytes, n)


def rope(
    tokens: ArrayLike, heads: ArrayLike, head_dim: float, element_bytes: float = 2.0
) -> StreamWork:
    """Return the work of rotating queries or keys in place, one kernel.

    Every element is read and written once, with 3 operations (Su et al. 2021,
    arXiv:2104.09864, eq. 34: two products and a sum); fp32 cosines and sines of
    ``head_dim / 2`` frequencies are read once per token.
    """
    t = np.asarray(tokens, np.float64)
    n = t * np.asarray(heads, np.float64) * head_dim
    return StreamWork(n * element_bytes + t * head_dim * 4.0, n * element_bytes, 3.0 * n)


# --- row by row -----------------------------------------------------------------------


KEPT_ROW = 65536.0
"""Longest row whose elements a fused norm keeps in the registers of its block [B]
(Transformer Engine and Apex tune theirs up to 65,536 columns of 16 bits, over blocks)."""


def norm(
    rows: ArrayLike,
    columns: ArrayLike,
    element_bytes: float = 2.0,
    *,
    mean: bool = False,
    residual: bool = False,
    backward: bool = False,
    fused: bool = True,
) -> StreamWork:
    """Return the work of RMS norm or layer norm, forward or backward.

    ========================  =======  ========  ======  ========
    pass                      reads    re-reads  writes  launches
    ========================  =======  ========  ======  ========
    forward                   s        s         s       1
    forward with residual     2 s      s         2 s     1
    backward                  2 s      2 s       s       2
    ========================  =======  ========  ======  ========

    per element. A row is read for its statistics and again to be scaled; fused kernels
    keep rows up to `KEPT_ROW` and read once. Residual addition in the same kernel writes
    the sum too. A second kernel of backward sums the gradients of the weights over rows.
    Weights (C) are read once per row from the cache and not counted.

    Parameters
    ----------
    rows, columns : array_like
        Shape.
    element_bytes : float
        s [B].
    mean : bool
        Layer norm (Ba et al. 2016): mean and variance; RMS norm otherwise.
    residual : bool
        Add a residual first, in the same kernel (forward only).
    backward : bool
        The gradient.
    fused : bool
        Kernels of training and serving libraries; otherwise PyTorch's own.
    """
    r, c = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    size = r * c * element_bytes
    row_bytes = c * element_bytes * (2.0 if backward else 1.0)
    again = np.where(fused & (row_bytes <= KEPT_ROW), 0.0, 2.0 if backward else 1.0)
    return StreamWork(
        bytes_read=size * (2.0 if residual or backward else 1.0),
        bytes_written=size * (2.0 if residual and not backward else 1.0),
        flops=r * c * ((12.0 if mean else 9.0) if backward else (8.0 if mean else 4.0)),
        launches=2.0 if backward else 1.0,
        bytes_reread=size * again,
        rows=r,
        row_bytes=row_bytes,
        threads=128.0,
        walks=np.where(again > 0.0, 2.0, 1.0),
        reductions=2.0 if mean or backward else 1.0,
    )


def composed_norm(elements: ArrayLike, *, backward: bool = False) -> StreamWork:
    """Return the work of an RMS norm of 16-bit elements that eager PyTorch puts together.

    Forward, per element: to fp32 (2 read, 4 written), square (4, 4), mean (4), times the inverse
    root (4, 4), to 16 bits (4, 2), times the weight (2, 2): 20 and 16 B (``LlamaRMSNorm`` of
    transformers; ``torch.nn.RMSNorm`` before 2.9). Backward, by the formulas of autograd
    (derivatives.yaml): products with the weight (2, 2) and for its gradient (4, 2; sum 2), to
    fp32 (2, 4), products with the inverse root (4, 4) and for its gradient (8, 4; sum 4), the
    square's (three products: 16, 12), their sum (8, 4), to 16 bits (4, 2): 54 and 34 B.

    Parameters
    ----------
    elements : array_like
        Numbers that are normalised.
    backward : bool
        The gradient.
    """
    n = np.asarray(elements, np.float64)
    read, written, flops = (54.0, 34.0, 12.0) if backward else (20.0, 16.0, 4.0)
    return StreamWork(bytes_read=n * read, bytes_written=n * written, flops=n * flops)


def composed_rotary(elements: ArrayLike, *, backward: bool = False) -> StreamWork:
    """Return the work of rotating 16-bit queries or keys by operators of eager PyTorch.

    Forward, per element: times the cosine (2 read, 2 written), half of it negated (1, 1), halves
    put together (2, 2), times the sine (2, 2), sum (4, 2): 11 and 9 B (``apply_rotary_pos_emb`` of
    transformers; views as complex numbers move as much). Backward: both products (4, 4), the
    negated half (1, 1), two halves written into zeros (2, 6), two sums (8, 4): 15 and 15 B.

    Parameters
    ----------
    elements : array_like
        Numbers that are rotated.
    backward : bool
        The gradient.
    """
    n = np.asarray(elements, np.float64)
    read, written = (15.0, 15.0) if backward else (11.0, 9.0)
    return StreamWork(bytes_read=n * read, bytes_written=n * written, flops=n * 4.0)


SOFTMAX_REGISTER_ROW = 1024.0
"""Longest row that a warp keeps in registers (PyTorch, ``PersistentSoftmax.cuh``)."""

ACCESS_BYTES = 128.0
SECTOR_BYTES = 32.0
"""A warp's access and the unit of memory traffic [B]: an access that is not aligned
touches one sector more."""


def softmax(
    rows: ArrayLike, columns: ArrayLike, element_bytes: float = 2.0, *, backward: bool = False
) -> StreamWork:
    """Return the work of softmax along rows, forward or backward.

    ===============  =======  ========  ======
    pass             reads    re-reads  writes
    ===============  =======  ========  ======
    rows <= 1024     s        0         s
    longer rows      s        2 s       s
    backward, short  2 s      0         s
    backward, long   2 s      2 s       s
    ===============  =======  ========  ======

    per element. Short rows stay in registers of a warp; of longer ones a block finds
    the maximum, then the sum, then writes (PyTorch, ``SoftMax.cu``). Short rows that
    don't start on a sector cost one sector more per access.
    """
    r, c = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    size = r * c * element_bytes
    short = c <= SOFTMAX_REGISTER_ROW
    aligned = np.mod(c * element_bytes, SECTOR_BYTES) == 0.0
    sectors = np.where(short & ~aligned, 1.0 + SECTOR_BYTES / ACCESS_BYTES, 1.0)
    inputs = 2.0 if backward else 1.0
    again = np.where(short, 0.0, 2.0)
    vector = 16.0 / element_bytes
    shared = 2.0 ** np.ceil(np.log2(np.maximum(c / vector, 32.0)))
    return StreamWork(
        bytes_read=size * inputs * sectors,
        bytes_written=size * sectors,
        flops=r * c * np.where(short, 8.0, 26.0),
        specials=r * c * (0.0 if backward else np.where(short, 1.0, 2.0)),
        bytes_reread=size * again,
        rows=r,
        row_bytes=c * element_bytes * inputs,
        threads=np.where(short, 32.0, np.minimum(shared, 1024.0)),
        walks=np.where(short, 1.0, 2.0 if backward else 3.0),
        reductions=np.where(short, 0.0, 1.0 if backward else 2.0),
    )


def cross_entropy(
    tokens: ArrayLike,
    vocabulary: ArrayLike,
    *,
    backward: bool = False,
    fused: bool = True,
    element_bytes: float = 2.0,
) -> StreamWork:
    """Return the work of the loss over logits, forward or backward.

    ==================  ========================  ========
    pass                read, written / element   launches
    ==================  ========================  ========
    forward, fused      2 s, s                    2
    backward, fused     s, s                      2
    forward, unfused    s + 20, 16                8
    backward, unfused   8, s + 4                  8
    ==================  ========================  ========

    Fused: one kernel finds maximum and sum, one writes the gradient in place of the
    logits, which backward scales. Unfused: logits are cast to fp32, shifted,
    exponentiated, summed and divided in kernels of their own (``vocab_parallel_cross_entropy`` of
    Megatron-LM; PyTorch's log-softmax reads long rows three times, about as much). With a
    vocabulary split over devices, ``vocabulary`` is the local part, and maximum, sum and the
    target's logit (fp32 per token) are reduced over the group between the kernels.
    """
    n = np.asarray(tokens, np.float64) * np.asarray(vocabulary, np.float64)
    s = element_bytes
    read, written = {
        (True, False): (2.0 * s, s),
        (True, True): (s, s),
        (False, False): (s + 20.0, 16.0),
        (False, True): (8.0, s + 4.0),
    }[fused, backward]
    return StreamWork(n * read, n * written, 8.0 * n, launches=2.0 if fused else 8.0)


# --- by index -------------------------------------------------------------------------

ROW_GATHER = 1.5
"""Rows gathered or scattered by index reach less bandwidth than a stream: 0.57 of the
datasheet's where streams reach 0.83 to 0.88 (Primus moe_mlp.py, permutation kernels)."""


def embedding(
    tokens: ArrayLike,
    hidden: ArrayLike,
    element_bytes: float = 2.0,
    *,
    tables: float = 1.0,
    backward: bool = False,
) -> StreamWork:
    """Return the work of gathering rows of a table, or of adding gradients to them.

    Forward reads a row of each table per token and writes their sum. Backward reads the
    gradient and the fp32 main gradient that it adds to, and writes that.
    """
    n = np.asarray(tokens, np.float64) * np.asarray(hidden, np.float64)
    if backward:
        return StreamWork(n * (element_bytes + 4.0), n * 4.0, n)
    return StreamWork(n * element_bytes * tables, n * element_bytes, n * (tables - 1.0))


def router_top_k(tokens: ArrayLike, experts: ArrayLike, *, backward: bool = False) -> StreamWork:
    """Return the work of scores to chosen experts and weights.

    Softmax, top-k, maps, balance loss, counts and offsets are many small kernels: about 50
    forward, which read 12 and write 6 bytes per score, and 30 backward with 8 and 8 (estimated
    from Megatron-Core's router and dispatchers).
    """
    scores = np.asarray(tokens, np.float64) * np.asarray(experts, np.float64)
    if backward:
        return StreamWork(scores * 8.0, scores * 8.0, launches=30.0)
    return StreamWork(scores * 12.0, scores * 6.0, launches=50.0)


RADIX_BITS = 8.0
"""Bits by which one pass of a radix select sorts (TileLang ``topk_selector``, SGLang)."""


def top_k(rows: ArrayLike, columns: ArrayLike, chosen: ArrayLike, longest: ArrayLike) -> StreamWork:
    """Return the work of choosing the largest of fp32 numbers in each row, by radix select.

    A block of 1,024 threads reads its row twice: once to count the leading `RADIX_BITS` bits,
    once to write the indices (int32) of what is certain and to keep what is not, which the
    other passes sort in shared memory. Rows that are chosen whole are not read.

    Parameters
    ----------
    rows, columns : array_like
        Rows, and numbers of one on average.
    chosen : array_like
        Numbers chosen in each.
    longest : array_like
        Numbers of the longest row.
    """
    r, c, k, most = (np.asarray(n, np.float64) for n in (rows, columns, chosen, longest))
    read = np.where(most > k, r * c * 4.0, 0.0)
    return StreamWork(
        bytes_read=read,
        bytes_written=r * k * 4.0,
        flops=read * 1.5,  # shift, mask and count, twice
        bytes_reread=read,
        rows=r,
        row_bytes=np.where(most > k, c * 4.0, 0.0),
        threads=1024.0,
        walks=2.0,
        reductions=np.where(most > k, 32.0 / RADIX_BITS, 0.0),
    )
