"""Recurrent mixers: scans and convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.kernels.recurrence.counts import RECURRENCE_PHASES, RECURRENCES
from perfmodel.sweeps.kernel_kinds.kind import Grid, GridAxis, Kernel, Setting, timed_columns

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated


def _scan(hardware: Hardware, part: Columns, kind: str, phase: str, precision: str) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, recurrence_times

    width = 1 if kind == "mamba1" else part["key_dim"]
    heads = 1 if kind == "mamba1" else part["heads"]
    found = recurrence_times(
        hardware,
        precision,
        kind=kind,
        batch=part["batch"],
        length=part["seq_len"],
        heads=part["heads"],
        key_heads=np.where(part["key_heads"] > 0, part["key_heads"], heads),
        key_dim=part["key_dim"],
        value_dim=np.where(part["value_dim"] > 0, part["value_dim"], width),
        chunk=part["chunk"],
        phase=phase,
    )
    return timed_columns(found), RECURRENCE_BOUNDS


_SCAN = Grid(
    "scan",
    ("kind", "phase", "precision"),
    ("batch", "heads", "key_heads", "key_dim", "value_dim", "chunk", "seq_len"),
    _scan,
)
_16_BITS = ("bf16", "fp16")
_PHASE = GridAxis(
    "phase",
    "forward, whole backward, forward with the state handed in and out, or one token",
    "Passes",
    "forward",
    RECURRENCE_PHASES,
)
_MIXER_PRECISION = GridAxis(
    "precision", "number format of activations", "Number formats", "bf16", _16_BITS
)
SCAN = Kernel(
    "scan",
    "Linear attention and state-space models.",
    (
        GridAxis(
            "kind",
            "kind of recurrence",
            "Gated DeltaNet, KDA, SSD, selective scan, lightning attention",
            "gated_delta",
            RECURRENCES,
        ),
        GridAxis("batch", "sequences", default=1),
        GridAxis(
            "seq_len",
            "tokens of a sequence; decode takes one",
            "Tokens of a sequence; decode takes one whatever it is",
            4096,
        ),
        GridAxis(
            "heads",
            "value heads on the device",
            "Value heads on the device (mamba1: channels)",
        ),
        GridAxis(
            "key_heads",
            "key heads (mamba2: groups); 0: one per head",
            "Key heads (mamba2: groups); 0: as --heads (mamba1: 1)",
            0,
        ),
        GridAxis("key_dim", "width of a key", "Width of a key (mamba: d_state)", 128),
        GridAxis(
            "value_dim",
            "width of a value; 0: as that of a key",
            "Width of a value (mamba2: headdim); 0: as --key-dim (mamba1: 1)",
            0,
        ),
        GridAxis(
            "chunk", "tokens of a chunk", "Tokens of a chunk; mamba1 and decode have none", 64
        ),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (),
    lambda axes: _SCAN,
)


def _convolution(
    hardware: Hardware, part: Columns, phase: str, precision: str, activation: bool
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import (
        convolution_bytes,
        convolution_flops,
        convolution_times,
    )
    from perfmodel.compute.stream import STREAM_BOUNDS

    names = {"tokens": "tokens", "channels": "channels", "kernel": "kernel_size"}
    sizes: Any = {name: np.asarray(part[axis], np.float64) for name, axis in names.items()}
    options: Any = {"phase": phase, "precision": precision}
    found = convolution_times(hardware, **sizes, **options, activation=activation)
    per_token = convolution_flops(sizes["channels"], sizes["kernel"], phase)
    return {
        "time": found.time,
        "flops": sizes["tokens"] * np.asarray(per_token),
        "memory_traffic": np.add(*convolution_bytes(**sizes, **options)),
        "bound": found.bound,
    }, STREAM_BOUNDS


_CONVOLUTION = Grid(
    "convolution", ("phase", "precision"), ("channels", "kernel_size", "tokens"), _convolution
)
CONVOLUTION = Kernel(
    "convolution",
    "Causal depthwise convolutions.",
    (
        GridAxis("tokens", "tokens of all sequences; decode: sequences", default=4096),
        GridAxis("channels", "channels on the device"),
        GridAxis("kernel_size", "width of the filter along the sequence", default=4),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (
        Setting(
            "activation",
            "SiLU in the same kernel.",
            True,
            ("--activation/--no-activation",),
        ),
    ),
    lambda axes: _CONVOLUTION,
)
