"""Quantisation of activations as streaming work; see `perfmodel.compute.stream_catalogue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.precisions import FORMATS, OPERANDS
from perfmodel.compute.stream_catalogue import StreamWork


class Quantisation(NamedTuple):
    """How activations become a low-precision operand.

    Attributes
    ----------
    element_bytes : float
        One quantised element [B].
    group : int
        Elements that share a scale; 0: a row, -1: the whole tensor.
    scale_bytes : float
        One scale [B].
    """

    element_bytes: float
    group: int
    scale_bytes: float


QUANTISATIONS: Mapping[str, Quantisation] = {
    "fp8_static": Quantisation(1.0, -1, 0.0),  # the scale is known beforehand
    "fp8_tensor": Quantisation(1.0, -1, 4.0),  # two launches: maximum, then cast
    "fp8_token": Quantisation(1.0, 0, 4.0),  # one scale per row
    "int8_token": Quantisation(1.0, 0, 4.0),
    **{
        name: Quantisation(item.element_bytes, item.group, item.scale_bytes)
        for name, item in FORMATS.items()
        if item.group and name in OPERANDS
    },
}

PRODUCT_QUANTISATION: Mapping[str, str] = {
    "fp8": "fp8_token",
    "int8": "int8_token",
    **{name: name for name in OPERANDS if FORMATS[name].group},
}
"""Scheme with which a serving library quantises the input of a product of a precision
(SGLang, vLLM: per token for fp8 and int8)."""


def quantise(
    scheme: str, rows: ArrayLike, columns: ArrayLike, source_bytes: float = 2.0
) -> StreamWork:
    """Return the work of quantising a (rows x columns) tensor.

    ===========  =====  ========  =====================================  ========
    scheme       reads  re-reads  writes per element                     launches
    ===========  =====  ========  =====================================  ========
    fp8_static   s      0         1                                      1
    fp8_tensor   s      s         1                                      2
    fp8_token    s      s         1 + 4 / C                              1
    int8_token   s      s         1 + 4 / C                              1
    fp8_block    s      0         1 + 4 / 128                            1
    mxfp8        s      0         1 + 1 / 32                             1
    nvfp4        s      0         1 / 2 + 1 / 16                         1
    mxfp4        s      0         1 / 2 + 1 / 32                         1
    ===========  =====  ========  =====================================  ========

    A group's maximum is found in registers; that of a row or tensor needs a second
    read (SGLang ``per_token_quant_fp8.cu``: a block walks a row twice, and one warp does
    where there are many rows).

    Parameters
    ----------
    scheme : str
        One of `QUANTISATIONS`.
    rows, columns : array_like
        Shape.
    source_bytes : float
        Bytes of one source element s [B].

    Raises
    ------
    DataError
        Unknown scheme.
    """
    if scheme not in QUANTISATIONS:
        raise DataError(f"unknown quantisation '{scheme}'{did_you_mean(scheme, QUANTISATIONS)}")
    kind = QUANTISATIONS[scheme]
    r, c = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    elements = r * c
    by_row, by_tensor = kind.group == 0, kind.group == -1
    scales = r if by_row else (1.0 if by_tensor else elements / max(kind.group, 1))
    dynamic = kind.scale_bytes > 0.0
    return StreamWork(
        bytes_read=elements * source_bytes,
        bytes_written=elements * kind.element_bytes + scales * kind.scale_bytes,
        flops=elements * (5.0 if dynamic else 3.0),
        launches=2.0 if by_tensor and dynamic else 1.0,
        bytes_reread=elements * source_bytes * (dynamic and kind.group <= 0),
        rows=r if by_row else 0.0,
        row_bytes=c * source_bytes if by_row else 0.0,
        threads=np.where(r >= MANY_ROWS, 32.0, 256.0) if by_row else 256.0,
        walks=2.0 if by_row else 1.0,
        reductions=1.0 if by_row else 0.0,
    )


MANY_ROWS = 2112.0
"""Rows from which on a warp instead of a block walks each row: 16 per compute unit of
132 (SGLang ``per_token_quant_fp8.cu``)."""

CONVERSION_OPERATIONS = 70.0
"""Operations per element of PyTorch's kernels that mix number formats: they load element
by element and look up the format at run time. From the two such kernels of SGLang's
quantisation with a known scale (aiconfigurator 095f58a), fitted to H100 and B200."""


def quantise_unfused(elements: ArrayLike, source_bytes: float = 2.0) -> tuple[StreamWork, ...]:
    """Return the four PyTorch kernels of ``(x / scale).clamp(...).to(fp8)`` and a copy.

    The scale is an fp32 tensor, so that the quotient is one: s read and 4 written, 4 and
    4, 4 and 1, 1 and 1 bytes per element.
    """
    n = np.asarray(elements, np.float64)
    return (
        StreamWork(n * source_bytes, n * 4.0, n * CONVERSION_OPERATIONS),
        StreamWork(n * 4.0, n * 4.0, n * 2.0),
        StreamWork(n * 4.0, n * 1.0, n * CONVERSION_OPERATIONS),
        StreamWork(n * 1.0, n * 1.0),
    )
