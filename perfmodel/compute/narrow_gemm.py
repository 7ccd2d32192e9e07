"""Products whose weights are stored in fewer bits than they are multiplied in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Column, Floats
from perfmodel.compute.gemm import gemm_device

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

TRAINING_LIBRARY = ("bf16", "fp16", "fp8")
"""Formats whose products are those of training's library: cuBLASLt in TensorRT-LLM, CUTLASS of
the same rate in vLLM and SGLang. First tokens behind prompts of 7,400 take 1.0 PFLOP of
Llama-3.1-70B in 1.16 s on an H200 in fp8 and in 0.59 s on a B200 (InferenceX, TensorRT-LLM),
which the slower kernels of the serving tables do not reach."""

CLOSE = 0.95
"""Weights of that share of an operand's bytes count as just as wide: scales apart."""


def weight_only_times(
    hardware: Hardware,
    precision: str,
    weight_bytes: float,
    m: Column,
    n: Column,
    k: Column,
    batch: Column,
    *,
    resident: float = 0.0,
) -> Floats:
    """Time products ``C[m,n] = A[m,k] B[k,n]`` of served models, one per entry.

    Parameters
    ----------
    hardware : Hardware
    precision : str
        Of the products (`perfmodel.compute.gemm.gemm_device`).
    weight_bytes : float
        One stored number of B, its part of a scale included [B].
    m, n, k, batch : ndarray, shape (shape,)
        Sizes, at least 1.
    resident : float
        See `perfmodel.compute.gemm.gemm_device`.

    Returns
    -------
    ndarray, shape (shape,)
        [s].

    Notes
    -----
    Narrower weights become operands inside the kernel (Marlin, arXiv:2408.11743, section 3: at
    no cost beside the loads). Their product takes as long as one whose B is as wide as A, less
    the time of the bytes that are not there, and no less than if memory were free; they pass
    through the cache as they lie. Prompts are bursts between passes that wait for memory: the
    device is not at its power limit for minutes (`gemm_device`, ``steady``).
    """
    from perfmodel.kernels.matmul import gemm
    from perfmodel.kernels.matmul.tiles import PANELS, SPLITS, TILES
    from perfmodel.kernels.work import kernel_work

    library = "training" if precision in TRAINING_LIBRARY else "serving"
    device = gemm_device(hardware, precision, steady=False, library=library, resident=resident)
    tiles = PANELS if device.array_side > 0.0 else TILES
    output, adds = np.full(m.size, 2.0), np.zeros(m.size, np.bool_)
    narrow = weight_bytes < CLOSE * device.operand_bytes
    with kernel_work(gemms=m.size * (1 + narrow)):
        wide = gemm.gemm_times(m, n, k, batch, output, adds, device, tiles, SPLITS)[0]
        if not narrow:
            return wide
        ratio = device.operand_bytes / weight_bytes
        free = device._replace(
            memory_bandwidth=np.inf,
            l2_bandwidth=device.l2_bandwidth * ratio,
            unit_bandwidth=device.unit_bandwidth * ratio,
        )
        least = gemm.gemm_times(m, n, k, batch, output, adds, free, tiles, SPLITS)[0]
    absent = n * k * batch * (device.operand_bytes - weight_bytes)
    return np.maximum(wide - absent / device.memory_bandwidth, least)
