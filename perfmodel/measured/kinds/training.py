"""Measured training runs against projections: rows to strategies, and back.

What a row leaves open (micro-batch, recompute, virtual chunks) its publisher tuned, so
the projection does the same: among the choices that the projected memory admits, the
fastest. docs/accuracy.md states every rule.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import ModelError, PerfModelError
from perfmodel.base.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.measured.kind import Kind
from perfmodel.measured.row_hardware import hardware_of
from perfmodel.measured.row_model import model_from_row
from perfmodel.measured.row_software import (
    context_parallel_kind,
    framework_of,
    precision_of,
    recompute_of,
    recomputes_half,
    sequence_parallel,
    zero_of,
)
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_REASONS, VALID

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

MEASUREMENTS = ("meas_iter_s", "meas_tokens_s_gpu", "der_iter_s", "der_tokens_s_gpu")
WHOLE_NUMBERS = (
    *("n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"),
    *("ffn", "moe_ffn", "topk", "seq", "tp", "pp", "cp", "ep", "etp", "dp", "mbs", "gbs"),
)
SCALES = ((8, "1-8"), (64, "9-64"), (512, "65-512"))
LARGEST_MICRO_BATCH = 64
# A measured run did fit: what a row leaves open is not ruled out by an excess that lies
# within the error of the memory projection itself: nine of ten of 109 stated peaks are projected
# at no more than 1.18 times their size.
MEMORY_SLACK = 1.2
RECOMPUTE_LEVELS = ("none", "selective", "full")
# Variables of a projection that a scored row keeps.
NUMBERS = (
    *("step_time", "step_time_low", "step_time_high"),
    *(*TIME_COMPONENTS, *MEMORY_COMPONENTS, "memory_total"),
)
# Software whose DeepSeek-V3 has no prediction module: torchtitan knows none, MaxText's base.yml
# leaves them out (mtp_num_layers 0).
WITHOUT_PREDICTION = ("torchtitan", "maxtext")
SCHEDULES = ("", "1f1b", "1f1b-interleaved", "interleaved", "gpipe")


@dataclass(frozen=True, slots=True)
class Case:
    """A row as the projection sees it.

    Attributes
    ----------
    model, devices, hardware, framework
        What a sweep needs.
    candidates : list of dict
        Strategies that the row admits; one where it states everything.
    share : float
        Layers that are recomputed, where only some are; candidates then come in pairs
        without and with full recompute. Otherwise 1.
    measured : float
        Seconds per step.
    opened : tuple of str
        Strategy fields that the row leaves open.
    """

    model: ModelSpec
    devices: int
    hardware: Hardware
    framework: Framework
    candidates: list[dict[str, Any]]
    share: float
    measured: float
    opened: tuple[str, ...]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Group:
    """Cases that one sweep serves, with the position of each one's first strategy."""

    case: Case
    members: list[tuple[int, Case, int]] = field(default_factory=list)
    strategies: list[dict[str, Any]] = field(default_factory=list)


def check(row: MeasuredRow) -> None:
    """Raise DataError where a cell that should be a number is none."""
    for column in WHOLE_NUMBERS:
        row.whole(column)
    for column in MEASUREMENTS:
        row.positive(column)


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return columns that the table implies: ``architecture`` and ``scale``."""
    devices = row.whole("n_gpus") or 0
    scale = next((name for limit, name in SCALES if devices <= limit), ">512")
    return {
        "architecture": "moe" if row.text("n_experts") not in ("", "0") else "dense",
        "scale": scale,
    }


def measured_step_time(row: MeasuredRow) -> float:
    """Return the measured time of a step [s].

    Raises
    ------
    Skip
        The row states neither a step time nor a throughput with its batch.
    """
    if (stated := row.positive("meas_iter_s")) is not None:
        return stated
    batch, length, devices = row.whole("gbs"), row.whole("seq"), row.whole("n_gpus")
    throughput = row.positive("meas_tokens_s_gpu") or row.positive("der_tokens_s_gpu")
    if row.positive("meas_tokens_s_gpu") is None:
        stated = row.positive("der_iter_s")
        if stated is not None:
            return stated
    if throughput is None:
        raise Skip("no usable measurement", scorable=False)
    if not (batch and length and devices):
        raise Skip("global batch or sequence length not stated")
    return batch * length / (throughput * devices)


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what a sweep needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    model, model_notes = _model_of(row)
    measured = measured_step_time(row)
    if row.lower("task") == "lora":
        raise Skip("LoRA is not modelled yet")
    if row.lower("pp_schedule") not in SCHEDULES:
        raise Skip("schedule not modelled yet", row.text("pp_schedule"))
    devices = _stated(row, "n_gpus")
    tensor, pipeline = _stated(row, "tp"), _stated(row, "pp")
    batch, length = _stated(row, "gbs"), _stated(row, "seq")
    context = row.whole("cp") or 1
    data, rest = divmod(devices, tensor * pipeline * context)
    if rest or not data:
        raise Skip(STATUS_REASONS[1], f"{devices} devices, tp {tensor} pp {pipeline} cp {context}")
    hardware, hardware_notes = hardware_of(row)
    precision, assumed, precision_notes = precision_of(row)
    domain = hardware.system.network[0].size
    framework, software_notes = framework_of(row, precision, model.has_experts, domain)
    zero, shards = zero_of(row, framework, pipeline, tensor * pipeline)
    fixed: dict[str, Any] = {
        "tensor_parallel": tensor,
        "sequence_parallel": sequence_parallel(row, framework, tensor),
        "context_parallel": context,
        "context_parallel_kind": context_parallel_kind(row, framework),
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "zero_stage": zero,
        "shard_group": 0 if shards >= data * context else shards,
        "expert_parallel": (row.whole("ep") or 1) if row.text("n_experts") else 1,
        "expert_tensor_parallel": (row.whole("etp") or 1) if row.text("n_experts") else 1,
        "global_batch_size": batch,
        "sequence_length": length,
        "precision": precision,
    }
    open_axes, some_layers, recompute_notes = _open_axes(row, framework, model, fixed)
    candidates = [
        {**fixed, **dict(zip(open_axes, values, strict=True))}
        for values in itertools.product(*open_axes.values())
    ]
    share = 1.0
    if some_layers:
        chunks = pipeline * candidates[0]["virtual_pipeline"]
        share = min(1.0, some_layers * chunks / model.num_layers)
    elif recomputes_half(row):
        share = 0.5
    if share < 1.0:
        candidates = [{**c, "recompute": r} for c in candidates for r in ("none", "full")]
    return Case(
        model,
        devices,
        hardware,
        framework,
        candidates,
        share,
        measured,
        tuple(name for name, values in open_axes.items() if len(values) > 1),
        assumed,
        (*model_notes, *software_notes, *hardware_notes, *precision_notes, *recompute_notes),
    )


def _model_of(row: MeasuredRow) -> tuple[ModelSpec, tuple[str, ...]]:
    if row.lower("arch_known") in ("no", "0", "false"):
        raise Skip("architecture not stated", scorable=False)
    overrides, notes = {}, []
    if _has_prediction_module(row):
        overrides["mtp_modules"] = 1
        notes.append("one multi-token-prediction module")
    cells = {**row.cells, "attn_note": _windows(row.lower("attn_note"))}
    if row.text("attn_note") and not cells["attn_note"]:
        notes.append(f"'{row.text('attn_note')}' not understood: full attention taken")
    try:
        model = model_from_row(cells, **overrides)
    except ModelError as error:
        raise Skip("architecture not stated", str(error), scorable=False) from None
    # Rows differ in name and source of the same model; one sweep serves them all.
    return replace(model, name="measured", source=""), tuple(notes)


def _windows(text: str) -> str:
    """Return an attention note in the form that models are built from; empty if there is none.

    ``5 of 6 layers sliding window 1024``, ``every other layer: window 128`` and
    ``sliding window 4096`` (all layers) are understood.
    """
    window = re.search(r"window\D{0,20}(\d+)", text) or re.search(r"(\d+)\D{0,3}window", text)
    if not window:
        return ""
    some = re.search(r"(\d+) of (\d+)", text)
    half = re.search(r"alternat|every other|every second|half", text)
    share = f"{some.group(1)} of {some.group(2)}" if some else "1 of 2" if half else "1 of 1"
    return f"{share} layers sliding window {window.group(1)}"


def _has_prediction_module(row: MeasuredRow) -> bool:
    """Tell whether a run trained a multi-token-prediction module.

    By the row's notes; else by the FLOP that its publisher counted, which those of Megatron
    count of the modules too; else DeepSeek-V3 is trained as published, with one
    (arXiv:2412.19437, section 4.2), by software that has them.
    """
    notes = row.lower("notes")
    if re.search(r"(w/o|without|no) mtp\b", notes):
        return False
    formula = row.lower("tflops_formula_matched")
    if re.search(r"(w/|with) mtp\b|mtp (layer|module)s? trained", notes) or "+mtp" in formula:
        return True
    name = re.sub(r"[\s_-]", "", row.lower("model"))
    software = row.lower("framework")
    counted = bool(formula) and "megatron" in software
    without = any(word in software for word in WITHOUT_PREDICTION)
    return name.startswith("deepseekv3") and not counted and not without


def _stated(row: MeasuredRow, column: str) -> int:
    value = row.whole(column)
    if value is None:
        names = {
            "n_gpus": "number of devices",
            "tp": "tensor or pipeline degree",
            "pp": "tensor or pipeline degree",
            "gbs": "global batch or sequence length",
            "seq": "global batch or sequence length",
        }
        raise Skip(f"{names[column]} not stated", f"column '{column}' is empty")
    return value


def _open_axes(
    row: MeasuredRow, framework: Framework, model: ModelSpec, fixed: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], int, tuple[str, ...]]:
    """Values of the fields that rows may leave open; one where a row states it."""
    per_replica = fixed["global_batch_size"] // fixed["data_parallel"]
    micro = row.whole("mbs")
    if not framework.accumulates_gradients and fixed["pipeline_parallel"] == 1:
        micro_batches = [max(per_replica, 1)]
    elif micro is not None:
        micro_batches = [micro]
    else:
        doublings = [2**i for i in range(LARGEST_MICRO_BATCH.bit_length())]
        micro_batches = [n for n in doublings if n <= LARGEST_MICRO_BATCH and per_replica % n == 0]
    level, some_layers, notes = recompute_of(row)
    levels = [level] if level else list(RECOMPUTE_LEVELS)
    axes: dict[str, list[Any]] = {
        "micro_batch_size": micro_batches or [1],
        "recompute": levels,
        "virtual_pipeline": _virtual(row, model, framework, fixed),
    }
    return axes, some_layers, notes


def _virtual(
    row: MeasuredRow, model: ModelSpec, framework: Framework, fixed: Mapping[str, Any]
) -> list[int]:
    """Chunks per stage; every divisor where software that interleaves does not say."""
    text = row.text("vpp")
    pipeline = fixed["pipeline_parallel"]
    open_cell = text.startswith(">") or (not text and pipeline > 1 and framework.interleaves)
    if not open_cell:
        return [row.whole("vpp") or 1]
    per_stage = model.num_layers // pipeline
    chunks = [n for n in range(1, per_stage + 1) if model.num_layers % (pipeline * n) == 0]
    least = 2 if text.startswith(">") else 1
    return [n for n in chunks or [1] if n >= least] or [least] if pipeline > 1 else [1]


def _project_group(group: _Group) -> list[tuple[int, Outcome]]:
    """Sweep the strategies of a group once, and choose for each of its rows."""
    from perfmodel.strategy.enumerate import strategies_from_rows
    from perfmodel.sweeps.sweep import sweep_table

    case = group.case
    outcomes = []
    try:
        grid = strategies_from_rows(case.model, case.devices, group.strategies)
        if not np.any(grid.status == VALID):
            return [
                (i, _impossible(member, grid.status[start])) for i, member, start in group.members
            ]
        results = sweep_table(case.model, grid, case.hardware, framework=case.framework, threads=1)
    except PerfModelError as error:
        skipped = Outcome.skipped(Skip("the projection refuses the row", str(error)))
        return [(i, skipped) for i, _, _ in group.members]
    names = (*NUMBERS, "fits", "status")
    columns = {name: results[name].values[:, 0] for name in names}
    for i, member, start in group.members:
        rows = slice(start, start + len(member.candidates))
        mine = {name: column[rows] for name, column in columns.items()}
        outcomes.append((i, _choose(member, mine)))
    return outcomes


def _choose(case: Case, columns: Mapping[str, Any]) -> Outcome:
    """Take the likely candidate: the least recomputation with which the run fits.

    Nobody recomputes more than memory asks for. Among micro-batches and chunks alike in that the
    fastest, for these are tuned; where nothing fits, what needs the least memory.
    """
    valid = np.flatnonzero(columns["status"] == VALID)
    if not valid.size:
        return _impossible(case, columns["status"][0])
    limit = MEMORY_SLACK * case.hardware.device.memory.capacity
    fitting = valid[columns["memory_total"][valid] <= limit]
    if fitting.size:
        order = [RECOMPUTE_LEVELS.index(case.candidates[i]["recompute"]) for i in fitting]
        least = fitting[np.array(order) == min(order)] if case.share == 1.0 else fitting
        best = int(least[np.argmin(columns["step_time"][least])])
    else:
        best = int(valid[np.argmin(columns["memory_total"][valid])])
    details = {name: float(columns[name][best]) for name in NUMBERS}
    chosen = dict(case.candidates[best])
    if case.share < 1.0:
        # Some layers are recomputed and the others not: between the two projections.
        pair = best // 2 * 2
        for name in details:
            none, full = (float(columns[name][pair + i]) for i in (0, 1))
            details[name] = (1.0 - case.share) * none + case.share * full
        chosen["recompute"] = f"full for {case.share:.0%}"
    projected = details.pop("step_time")
    assumed = tuple(f"{name}={chosen[name]}" for name in case.opened)
    return Outcome(
        measured=case.measured,
        projected=projected,
        assumed=case.assumed + assumed,
        notes=case.notes,
        details={
            "profile": case.hardware.name,
            "software": case.framework.name.partition("[")[0],
            **chosen,
            **details,
            "fits": bool(columns["fits"][best]),
        },
    )


def _impossible(case: Case, status: int) -> Outcome:
    detail = case.candidates[0]["precision"] if status == PRECISION_UNSUPPORTED else ""
    return Outcome.skipped(Skip(STATUS_REASONS[int(status)], detail))


@dataclass(frozen=True, kw_only=True)
class TrainingKind(Kind):
    """Training runs; rows that share model, devices and software are projected in one sweep.

    Attributes
    ----------
    case_of : callable
        Row -> `Case`; raises `Skip` with the reason where there is none.
    """

    case_of: Callable[[MeasuredRow], Case] = case_of

    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Project every row."""
        outcomes: list[Outcome | None] = [None] * len(rows)
        groups: dict[Any, _Group] = {}
        for i, row in enumerate(rows):
            try:
                case = self.case_of(row)
            except Skip as skip:
                outcomes[i] = Outcome.skipped(skip)
                progress(1)
                continue
            key = (case.model, case.devices, case.hardware, case.framework)
            group = groups.setdefault(key, _Group(case))
            group.members.append((i, case, len(group.strategies)))
            group.strategies += case.candidates
        for group in groups.values():
            for i, outcome in _project_group(group):
                outcomes[i] = outcome
            progress(len(group.members))
        return [outcome for outcome in outcomes if outcome is not None]


KIND = TrainingKind(
    name="training",
    quantity="step_time",
    needed=("hardware", "n_gpus", "layers", "hidden", "heads", "vocab", "tp", "pp", "gbs", "seq"),
    measurements=MEASUREMENTS,
    group_by=("hardware", "precision", "architecture", "scale", "family", "assumed"),
    check=check,
    derived=derived,
)
