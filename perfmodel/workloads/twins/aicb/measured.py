"""A measured AIOB file as calibration data: tables that ``perfmodel calibrate`` reads.

AIOB times regions of a layer. Those that are one kernel become a row each; which shapes
they had is not in the file, so the arguments of the run must be given as well.

Left out are regions of several kernels (the embedding; the activation of SwiGLU; the output
projection behind flash attention, which copies first; DeepSeek's latent attention) and
``logit_time``, which AICB measured with fp32 weights before af5cf2b and cold in its first
iteration. AIOB times forward passes only.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.files import atomic_path
from perfmodel.base.precisions import ALIASES
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.formats.aiob import AiobFile, AiobTime
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.computation import (
    DTYPES,
    FlashAttention,
    GroupedProduct,
    Product,
    timed_regions,
)
from perfmodel.workloads.twins.aicb.parameters import layers_of_stage, total_parameters

Row = dict[str, Any]

# Columns of docs/calibration.md, then what AIOB says beside the time.
COLUMNS = {
    "gemm": ("hardware", "dtype", "m", "n", "k", "batch", "time_us"),
    "attention": ("hardware", "framework", "phase", "batch", "heads", "kv_heads", "d_qk", "d_v",
                  "q_len", "kv_len", "causal", "dtype", "time_us"),
    "stream": ("hardware", "framework", "op", "phase", "rows", "cols", "dtype", "time_us"),
    "moe": ("hardware", "dtype", "groups", "m_per_group", "n", "k", "stage", "time_us"),
}  # fmt: skip
BESIDE = ("section", "t_min_us", "t_avg_us", "t_max_us", "repeats")

OPTIMIZER = "param_time"
NOT_USED = ("logit_time",)
NORMS = ("layernorm", "layernorm2", "layernorm_post")
# AIOB calls flash-attn 2 from Python, and PyTorch's and Apex's kernels one by one.
FLASH_ATTENTION = "torch/flash_attention"
EAGER = "pytorch"


def calibration_rows(aiob: AiobFile, arguments: AicbArguments, device: str) -> dict[str, list[Row]]:
    """Return the rows that a measured file gives, by kind of table.

    Parameters
    ----------
    aiob : AiobFile
        Measured for training.
    arguments : AicbArguments
        Of the run that measured: model, sequence, micro-batch and degrees.
    device : str
        Profile of the hardware, or its file.

    Returns
    -------
    dict of str to list of dict
        ``gemm``, ``attention``, ``stream`` and ``moe``: rows with the columns of `COLUMNS`
        and `BESIDE`. Times are µs of one call: of matrix products and attention the
        minimum, which waits least for the host; of streaming kernels, which are called one
        by one from Python, the average.

    Raises
    ------
    StrategyError
        A file of inference, or one with sections that these arguments do not have.
    HardwareError
        Unknown device.
    """
    load_hardware(device)
    _check(aiob, arguments)
    rows: dict[str, list[Row]] = {kind: [] for kind in COLUMNS}
    regions = timed_regions(arguments)
    common = {"hardware": device, "dtype": ALIASES[arguments.dtype]}
    for name, time in aiob.sections.items():
        if name in NOT_USED:
            continue
        repeats = 1
        if name == OPTIMIZER:
            # One pass over the fp32 gradients of a tensor-parallel shard (AiobMegatron.py).
            parameters, _ = total_parameters(layers_of_stage(arguments))
            kind, row = "stream", _stream("div_scalar", parameters, 1) | {"dtype": "fp32"}
        else:
            region = regions[name]
            repeats = region.repeats
            found = _norm(arguments) if name in NORMS else _kernel(region.kernels)
            if found is None:
                continue
            kind, row = found
        measured = _measured(name, time, kind, repeats, aiob.train_iter or 1)
        if measured["time_us"] > 0 and 0 not in row.values():  # nothing to do, nothing measured
            rows[kind].append(common | row | measured)
    return rows


def write_calibration_tables(
    aiob: AiobFile, arguments: AicbArguments, device: str, folder: str | os.PathLike[str]
) -> dict[str, Path]:
    """Write the tables of `calibration_rows` as CSV files.

    Returns
    -------
    dict of str to Path
        Kind of table to the file written, ``aiob-KIND.csv``; kinds without rows have none.

    Raises
    ------
    DataError
        A file cannot be written.
    StrategyError, HardwareError
        As of `calibration_rows`, or nothing to write.
    """
    rows = calibration_rows(aiob, arguments, device)
    if not any(rows.values()):
        raise StrategyError("no section of the AIOB file is a single kernel: nothing to calibrate")
    written = {}
    for kind, of_kind in rows.items():
        if not of_kind:
            continue
        path = Path(folder) / f"aiob-{kind}.csv"
        with (
            atomic_path(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.DictWriter(file, [*COLUMNS[kind], *BESIDE], lineterminator="\n")
            table.writeheader()
            table.writerows(of_kind)
        written[kind] = path
    return written


def _check(aiob: AiobFile, arguments: AicbArguments) -> None:
    """Refuse what is no training run of these arguments."""
    if aiob.train_iter is None or arguments.generator != "training":
        raise StrategyError("calibration data come from AIOB files of training workloads")
    if arguments.dtype not in DTYPES:
        raise StrategyError(f"--dtype={arguments.dtype}: AIOB knows {', '.join(DTYPES)}")
    known = [*timed_regions(arguments), OPTIMIZER]
    for name in aiob.sections:
        if name not in known:
            raise StrategyError(
                f"AIOB times no section '{name}' for these arguments"
                f"{did_you_mean(name, known)}; is --frame, --use_flash_attn or --moe_enable "
                "another than in the run?"
            )


def _kernel(kernels: tuple[Any, ...]) -> tuple[str, Row] | None:
    """Return kind and shape of a region that is a single kernel."""
    if len(kernels) != 1:
        return None
    kernel = kernels[0]
    if isinstance(kernel, Product) and not kernel.fp8:
        return "gemm", {name: int(getattr(kernel, name)) for name in ("m", "n", "k", "batch")}
    if isinstance(kernel, GroupedProduct):
        shape = {"groups": kernel.groups, "m_per_group": int(kernel.rows)}
        return "moe", shape | {"n": int(kernel.n), "k": int(kernel.k), "stage": "fwd"}
    if isinstance(kernel, FlashAttention):
        heads = dict.fromkeys(("heads", "kv_heads"), kernel.heads)
        widths = dict.fromkeys(("d_qk", "d_v"), kernel.head_dim)
        lengths = dict.fromkeys(("q_len", "kv_len"), kernel.length)
        call = {"framework": FLASH_ATTENTION, "phase": "fwd", "causal": True}
        return "attention", call | {"batch": kernel.batch} | heads | widths | lengths
    return None


def _norm(arguments: AicbArguments) -> tuple[str, Row]:
    """Return a layer norm; under sequence parallelism it sees a part of the tokens."""
    tokens = arguments.seq_length * arguments.micro_batch
    if arguments.enable_sequence_parallel:
        tokens //= arguments.tensor_model_parallel_size
    return "stream", _stream("layer_norm", tokens, arguments.hidden_size)


def _stream(operation: str, rows: int, columns: int) -> Row:
    """Return the shape of a streaming kernel."""
    return {
        "framework": EAGER,
        "op": operation,
        "phase": "fwd",
        "rows": rows,
        "cols": columns,
    }


def _measured(
    section: str, time: AiobTime, kind: str, repeats: int, iterations: int
) -> Row:  # fmt: skip
    """Return the time of one kernel [µs], and what else AIOB says of its section."""
    chosen = time.average if kind == "stream" else time.minimum
    return {
        "time_us": chosen / repeats,
        "section": section,
        "t_min_us": time.minimum / repeats,
        "t_avg_us": time.average / repeats,
        "t_max_us": time.maximum / repeats,
        "repeats": iterations,
    }
