"""What passes through a cache between two uses of the same data."""

from __future__ import annotations

import math

import pytest

from perfmodel.compute.attention import attention_times
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.moe import moe_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.reuse import bytes_between

L40S = load_hardware("l40s-server")  # 96 MiB of cache that all units share


def test_copies_go_round_and_what_is_resident_counts_once() -> None:
    assert bytes_between(1e6, 1.0, 0.0) == 1e6
    assert bytes_between(1e6, 6.0, 0.0) == 6e6
    assert bytes_between(1e6, 0.0, 0.0) == math.inf
    assert bytes_between(1e6, 6.0, 5e7) == 5e7
    assert bytes_between(1e8, 0.0, 5e7) == 1e8  # no call is smaller than itself


def product(**reuse: float) -> float:
    return float(gemm_times(L40S, "bf16", 8, 4096, 2048, **reuse).time[0])


def attention(**reuse: float) -> float:
    call = (4, 1, 2048, 32, 8, 128, 128)
    return float(attention_times(L40S, "bf16", *call, **reuse).time[0])


def experts(**reuse: float) -> float:
    return float(moe_times(L40S, "bf16", 4, 2048, 256, 8, 2, **reuse).time[0])


@pytest.mark.parametrize("kernel", [product, attention, experts])
def test_every_kernel_takes_the_same_words(kernel) -> None:
    name = "weight_copies" if kernel is product else "copies"
    cold = kernel()
    resident = [kernel(resident=size) for size in (1.0, 6e7, 8e7, 1e12)]
    assert resident == sorted(resident)
    assert resident[0] < cold
    assert resident[-1] == cold
    copies = [kernel(**{name: count}) for count in (1.0, 2.0, 1e6)]
    assert copies == sorted(copies)
    assert copies[0] < copies[-1] == cold


@pytest.mark.parametrize(
    ("kernel", "what"),
    [(product, "a matrix product"), (attention, "attention"), (experts, "a MoE layer")],
)
def test_what_cannot_be_is_refused(kernel, what) -> None:
    from perfmodel.base.errors import DataError

    name = "weight_copies" if kernel is product else "copies"
    with pytest.raises(DataError, match=f"{name} of {what} is at least 1, or 0"):
        kernel(**{name: 0.5})
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(DataError, match=f"resident of {what} is a number of bytes"):
            kernel(resident=wrong)
