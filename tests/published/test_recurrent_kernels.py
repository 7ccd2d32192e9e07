"""Published times of chunked recurrent mixers against kernels that were fitted to none of them.

Tables of flash-linear-attention's Triton kernels, at its own benchmark's shapes in bf16
(``benchmarks/ops/registry.py``, L2 norms in the kernel), timed by others:

- helion: pytorch/helion ``examples/linear/BENCHMARKS.md`` (3e928d1, B200: delta rules and
  retention) and ``examples/fla/BENCHMARKS.md`` (fea89d2, H100: retention). Backward is forward and
  backward less forward. Retention is lightning attention's chain: a fixed decay per head.
- paddle: PaddlePaddle/flash-attention pull request 133 (H800).
- flashinfer: flashinfer-ai/flashinfer pull requests 2742 and 3001 (B200, FLA 0.4.2).

Then kernels of serving libraries, timed on the device: the SSD of Mamba-2 (vLLM pull request
27299, "original", H100, tokens per second of Granite 4.0's layer), its state update (vLLM 43083,
H100, an fp16 state: ours of half the heads moves as much), and causal convolutions (TensorRT-LLM
13103, "after", B300).

Rows that the host's time to launch sets (below 0.3 ms forward, 2.3 ms with backward, whatever the
shape) are left out, and the backward pass at width 256 on B200, which the table itself calls an
artifact (62 ms).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from perfmodel.compute.recurrence import convolution_times, recurrence_times
from perfmodel.hwprofiles import load_hardware


class Row(NamedTuple):
    """One published time."""

    source: str
    hardware: str
    kind: str
    shape: tuple[int, int, int, int]  # sequences, tokens of each, heads, width
    forward: float  # [ms]
    both: float = 0.0  # forward and backward [ms]; 0: not published


WIDE = (1, 8192, 96, 128)
LONG = (2, 16384, 16, 128)
MANY = (4, 4096, 64, 128)
BROAD = (8, 2048, 32, 256)
ROWS = [
    Row("helion", "dgx-b200", "gated_delta", WIDE, 1.204, 5.388),
    Row("helion", "dgx-b200", "gated_delta", LONG, 0.925, 4.072),
    Row("helion", "dgx-b200", "gated_delta", MANY, 1.517, 6.945),
    Row("helion", "dgx-b200", "gated_delta", BROAD, 1.958, 9.168),
    Row("helion", "dgx-b200", "kimi_delta", WIDE, 2.241, 11.204),
    Row("helion", "dgx-b200", "kimi_delta", LONG, 1.609, 7.777),
    Row("helion", "dgx-b200", "kimi_delta", MANY, 2.925, 14.615),
    Row("helion", "dgx-b200", "kimi_delta", BROAD, 3.771, 19.095),
    Row("helion", "dgx-b200", "lightning", WIDE, 0.613, 3.300),
    Row("helion", "dgx-b200", "lightning", LONG, 0.496, 2.605),
    Row("helion", "dgx-b200", "lightning", MANY, 0.740, 4.288),
    Row("helion", "dgx-b200", "lightning", BROAD, 1.053),
    Row("helion", "dgx-h100", "lightning", WIDE, 0.961, 3.426),
    Row("helion", "dgx-h100", "lightning", LONG, 0.868, 2.776),
    Row("helion", "dgx-h100", "lightning", MANY, 1.147, 4.524),
    Row("helion", "dgx-h100", "lightning", BROAD, 1.598, 9.079),
    Row("paddle", "hgx-h800", "gated_delta", WIDE, 2.033),
    Row("paddle", "hgx-h800", "gated_delta", LONG, 1.342),
    Row("paddle", "hgx-h800", "kimi_delta", WIDE, 3.268),
    Row("paddle", "hgx-h800", "kimi_delta", LONG, 2.299),
    Row("flashinfer", "dgx-b200", "gated_delta", (1, 4096, 96, 128), 0.7741),
    Row("flashinfer", "dgx-b200", "gated_delta", WIDE, 1.4919),
    Row("flashinfer", "dgx-b200", "gated_delta", (9, 512, 32, 128), 0.3030),
    Row("flashinfer", "dgx-b200", "gated_delta", (9, 1024, 32, 128), 0.5529),
    Row("flashinfer", "dgx-b200", "gated_delta", (1, 8192, 8, 128), 0.338),
    Row("flashinfer", "dgx-b200", "gated_delta", (1, 8192, 16, 128), 0.424),
]


def error(row: Row, phase: str) -> float:
    """Predicted over measured, less 1."""
    batch, length, heads, width = row.shape
    found = recurrence_times(
        load_hardware(row.hardware),
        "bf16",
        kind=row.kind,
        phase=phase,
        batch=batch,
        length=length,
        heads=heads,
        key_heads=heads,
        key_dim=width,
        value_dim=width,
        chunk=64,
    )
    measured = row.forward if phase == "forward" else row.both - row.forward
    return float(found.time[0] * 1e3 / measured - 1.0)


def errors(phase: str, **where: str) -> np.ndarray:
    """Errors of the rows that have a phase, and some columns."""
    return np.array(
        [
            error(row, phase)
            for row in ROWS
            if (phase == "forward" or row.both)
            and all(getattr(row, name) == value for name, value in where.items())
        ]
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}-{row.kind}-{row.shape}")
def test_no_row_is_off_by_a_factor_of_two(row: Row) -> None:
    phases = ("forward", "backward") if row.both else ("forward",)
    for phase in phases:
        assert -0.5 < error(row, phase) < 1.0


# What docs/kernels.md says of them: phase, rows, median of the absolute errors, mean error.
SAID = [
    ("forward", {}, 26, 0.12, 0.01),
    ("backward", {}, 15, 0.20, -0.20),
    ("backward", {"kind": "gated_delta"}, 4, 0.21, -0.22),
    ("backward", {"kind": "kimi_delta"}, 4, 0.36, -0.38),
    ("backward", {"kind": "lightning"}, 7, 0.17, -0.08),
    ("forward", {"hardware": "hgx-h800"}, 4, 0.05, -0.05),
]


@pytest.mark.parametrize(("phase", "where", "count", "median", "bias"), SAID)
def test_errors_are_those_that_the_page_says(phase, where, count, median, bias):
    found = errors(phase, **where)
    assert found.size == count
    assert np.median(np.abs(found)) == pytest.approx(median, abs=0.011)
    assert found.mean() == pytest.approx(bias, abs=0.011)


# ---------------------------------------------------------------- serving libraries

SSD = {
    **{4096: 12.06409e6, 8192: 12.62327e6, 16384: 12.92440e6, 32768: 11.80002e6},
    **{65536: 11.06830e6, 131072: 10.70444e6, 262144: 10.81547e6},
}
"""Tokens of a sequence -> tokens/s."""

UPDATES = {1024: 11.15, 2048: 28.45, 4096: 55.48, 8192: 104.54, 12288: 145.55}
"""Sequences times heads of 128 x 64 numbers in fp16 -> [us]."""

CONVOLUTIONS = {8000: 106.7, 10000: 129.4, 50000: 678.0}
CONVOLUTION_UPDATES = {1: 2.0, 16: 2.7, 64: 5.2, 256: 14.4}
"""Tokens, or sequences of one token, of 10,240 channels, width 4 -> [us]."""


def ssd(length: int, rate: float) -> float:
    shape = {"heads": 128, "key_heads": 1, "key_dim": 128, "value_dim": 64, "chunk": 256}
    found = recurrence_times(
        "dgx-h100", "bf16", kind="mamba2", phase="prefill", batch=1, length=length, **shape
    )
    return float(found.time[0] * rate / length - 1.0)


def update(heads: int, microseconds: float) -> float:
    shape = {"heads": 64, "key_heads": 4, "key_dim": 128, "value_dim": 64}
    found = recurrence_times(
        "dgx-h100", "bf16", kind="mamba2", phase="decode", batch=heads // 128, length=1, **shape
    )
    return float(found.time[0] * 1e6 / microseconds - 1.0)


def convolution(tokens: int, microseconds: float, phase: str = "forward") -> float:
    found = convolution_times("dgx-b300", tokens=tokens, channels=10240, kernel=4, phase=phase)
    return float(found.time[0] * 1e6 / microseconds - 1.0)


def convolution_update(sequences: int, microseconds: float) -> float:
    return convolution(sequences, microseconds, "decode")


@pytest.mark.parametrize(
    ("predicted", "rows", "median", "bias"),
    [
        (ssd, SSD, 0.28, -0.15),
        (update, UPDATES, 0.09, 0.09),
        (convolution, CONVOLUTIONS, 0.04, -0.04),
        (convolution_update, CONVOLUTION_UPDATES, 0.21, -0.16),
    ],
)
def test_errors_of_serving_kernels_are_those_that_the_page_says(predicted, rows, median, bias):
    found = np.array([predicted(*row) for row in rows.items()])
    assert np.median(np.abs(found)) == pytest.approx(median, abs=0.011)
    assert found.mean() == pytest.approx(bias, abs=0.011)
