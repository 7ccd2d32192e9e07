"""Measured training runs against projections: rows to strategies, and back.

What a row leaves open (micro-batch, recompute, virtual chunks) takes the likely choice of
its software among those that the projected memory admits. docs/accuracy.md states every rule.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import ModelError, PerfModelError
from perfmodel.base.facts import Run
from perfmodel.base.strategy_fields import RECOMPUTE
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.measured.kind import Further, Kind
from perfmodel.measured.row_choices import (
    assumed_batch,
    grouped,
    micro_batches,
    schedule_of,
    virtual_chunks,
)
from perfmodel.measured.row_hardware import bf16_peak, hardware_of
from perfmodel.measured.row_model import named_preset, trained_model, wide_layers
from perfmodel.measured.row_software import (
    context_parallel_kind,
    counted_flops,
    framework_of,
    precision_of,
    recompute_of,
    sequence_parallel,
    tuned,
    zero_of,
)
from perfmodel.measured.rows import ComparedRow, MeasuredRow, Outcome, Skip
from perfmodel.model.presets import list_models, load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.defaults import expert_degrees, likeliest
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_REASONS
from perfmodel.training.memory import waiting_share

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

THROUGHPUTS = ("meas_tokens_s_gpu", "meas_tokens_s", "meas_samples_s", "meas_samples_s_gpu")
FLOP_RATES = ("meas_tflops_gpu", "meas_mfu_pct")
MEASUREMENTS = ("meas_iter_s", *THROUGHPUTS, "der_iter_s", "der_tokens_s_gpu", *FLOP_RATES)
WHOLE_NUMBERS = (
    *("n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"),
    *("ffn", "moe_ffn", "topk", "seq", "tp", "pp", "cp", "ep", "etp", "dp", "mbs", "gbs"),
)
SCALES = ((8, "1-8"), (64, "9-64"), (512, "65-512"))
# A measured run did fit: recomputation that a row leaves open is not assumed for an excess within
# the error of projected memory: nine of ten of 109 stated peaks are at most 1.18 times their size.
MEMORY_SLACK = 1.2
VERDICTS = ("fits", "tight")
# Variables of a projection that a scored row keeps.
NUMBERS = (
    *("step_time", "step_time_low", "step_time_high"),
    *(*TIME_COMPONENTS, *MEMORY_COMPONENTS, "memory_total"),
)
SAME_SIZE = 0.01  # parameters of one architecture, of which a table leaves small parts out
SIMILAR_SIZE = 0.25  # the same with another vocabulary


@dataclass(frozen=True, slots=True)
class Case:
    """A row as the projection sees it.

    Attributes
    ----------
    model, devices, hardware, framework
        What a sweep needs.
    candidates : list of dict
        Strategies that the row admits; one where it states everything.
    measured : float
        Seconds per step, or what else a kind of table holds.
    opened : tuple of str
        Strategy fields that the row leaves open.
    """

    model: ModelSpec
    devices: int
    hardware: Hardware
    framework: Framework
    candidates: list[dict[str, Any]]
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


def counts(row: MeasuredRow) -> bool:
    """Tell a run from a failure, which some tables keep beside the runs: ``outcome``."""
    return row.lower("outcome") in ("", "measured")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return columns that the table implies: ``architecture`` and ``scale``."""
    devices = row.whole("n_gpus") or 0
    scale = next((name for limit, name in SCALES if devices <= limit), ">512")
    return {
        "architecture": "moe" if _has_experts(row) else "dense",
        "scale": scale,
    }


def _has_experts(row: MeasuredRow) -> bool:
    preset, _ = named_preset(row.text("model"))
    if row.text("n_experts") or row.text("ffn") or not preset:
        return row.text("n_experts") not in ("", "0")
    return load_model(preset).has_experts


def measured_step_time(row: MeasuredRow, batch: int, model: ModelSpec) -> float:
    """Return the measured time of a step [s].

    Parameters
    ----------
    row : MeasuredRow
    batch : int
        Sequences of a step, which turn a throughput into a time.
    model : ModelSpec
        Of which FLOP rates are.

    Raises
    ------
    Skip
        The row states neither a step time nor a throughput.
    """
    if (stated := row.positive("meas_iter_s")) is not None:
        return stated
    length, devices = _stated(row, "seq"), _stated(row, "n_gpus")
    throughput = _throughput(row, length, devices)
    if throughput is None:
        if (stated := row.positive("der_iter_s")) is not None:
            return stated
        throughput = row.positive("der_tokens_s_gpu") or _by_flops(row, length, model)
    if throughput is None:
        raise Skip("no usable measurement", scorable=False)
    return batch * length / (throughput * devices)


def _throughput(row: MeasuredRow, length: int, devices: int) -> float | None:
    """Return tokens per second and device where a throughput was measured."""
    for column in THROUGHPUTS:
        if (value := row.positive(column)) is not None:
            of_each = value * (length if "samples" in column else 1)
            return of_each if column.endswith("_gpu") else of_each / devices
    return None


def _by_flops(row: MeasuredRow, length: int, model: ModelSpec) -> float | None:
    """Return the same from a rate of FLOP, counted as its software does."""
    rate, share = row.number("meas_tflops_gpu"), row.number("meas_mfu_pct")
    if not rate and share:
        peak = row.positive("bf16_peak_used") or bf16_peak(row)
        rate = peak * share / 100.0
    return None if not rate else rate * 1e12 / counted_flops(row, model, length)


def case_of(row: MeasuredRow) -> Case:
    """Turn a row with a time or a throughput into what a sweep needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    if not any(row.number(column) for column in MEASUREMENTS):
        raise Skip("no usable measurement", scorable=False)
    rates = (*THROUGHPUTS, *(() if row.positive("der_iter_s") else FLOP_RATES))
    timed = row.positive("meas_iter_s") or not any(row.number(column) for column in rates)
    return run_of(row, measured_step_time, batch_needed=bool(timed))


def run_of(
    row: MeasuredRow, measure: Callable[[MeasuredRow, int, ModelSpec], float], *, batch_needed: bool
) -> Case:
    """Turn a row into what a sweep needs, whatever was measured of the run.

    Parameters
    ----------
    row : MeasuredRow
    measure : callable
        Row, global batch and model -> what was measured.
    batch_needed : bool
        A row without a global batch is refused, instead of taking a likely one.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    batch, length = row.whole("gbs"), row.whole("seq")
    if row.lower("arch_known") in ("no", "0", "false"):
        raise Skip("architecture not stated", scorable=False)
    if length is None:
        # Neither a step nor a token of unknown length can be projected.
        raise Skip("sequence length not stated", scorable=False)
    schedule = schedule_of(row)
    devices, context = _stated(row, "n_gpus"), row.whole("cp") or 1
    hardware, hardware_notes = hardware_of(row)
    precision, assumed, precision_notes = precision_of(row)
    domain = hardware.system.network[0].size
    model, known, model_notes = _model_of(row)
    experts = model.has_experts
    sinks = known is not None and known.has_sinks
    run = Run(precision, experts, domain, hardware.device.name, sinks=sinks)
    framework, software_notes = framework_of(row, run)
    model, module_notes = _with_modules(row, model, known, framework)
    model_notes += module_notes
    model, wide_notes = _with_wide_layers(row, model, precision)
    model_notes += wide_notes
    model, packed, tuning = tuned(row, model)
    assumed = (*assumed, *tuning)
    tensor_parallel, pipeline = _degree(row, "tp", framework), _degree(row, "pp", framework)
    data, rest = divmod(devices, tensor_parallel * pipeline * context)
    if rest or not data:
        degrees = f"tp {tensor_parallel} pp {pipeline} cp {context}"
        raise Skip(STATUS_REASONS[1], f"{devices} devices, {degrees}")
    if batch is None:
        if batch_needed:
            raise Skip("global batch not stated", "nor a throughput, to which a likely one does")
        batch = assumed_batch(row, framework, pipeline, data)
        assumed = (*assumed, f"global_batch_size={batch}")
    measured = measure(row, batch, model)
    zero, shards = zero_of(row, framework, pipeline, tensor_parallel * pipeline)
    shards = 0 if shards >= data * context else shards
    ranks = (shards or data * context) * tensor_parallel
    expert, expert_tensor, said = _experts_over(row, model, framework, tensor_parallel, ranks)
    assumed = (*assumed, *said)
    fixed: dict[str, Any] = {
        "tensor_parallel": tensor_parallel,
        "sequence_parallel": sequence_parallel(row, framework, tensor_parallel),
        "context_parallel": context,
        "context_parallel_kind": context_parallel_kind(row, framework),
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "zero_stage": zero,
        "shard_group": shards,
        "expert_parallel": expert,
        "expert_tensor_parallel": expert_tensor,
        "global_batch_size": batch,
        "sequence_length": length,
        "precision": precision,
        **packed,
    }
    recompute = recompute_of(row)
    level = recompute.level or framework.recompute
    notes, words = recompute.notes, recompute.words.split()
    offloaded = waiting_share(model, framework, words, recompute.offloaded)
    if offloaded and hardware.system.host.bandwidth > 0.0:
        fixed["offload_activations"] = offloaded
    elif offloaded:
        notes = (*notes, "what waits in the host's memory counts on the device")
    if schedule and pipeline > 1:
        fixed["pipeline_schedule"] = schedule
    open_axes: dict[str, list[Any]] = {
        "virtual_pipeline": virtual_chunks(row, framework, model, pipeline, schedule),
        "micro_batch_size": micro_batches(row, framework, fixed),
        "recompute": [level] if level else list(RECOMPUTE),
    }
    candidates = [
        grouped({**fixed, **recompute.layers, **dict(zip(open_axes, values, strict=True))})
        for values in itertools.product(*open_axes.values())
    ]
    return Case(
        model,
        devices,
        hardware,
        framework,
        candidates,
        measured,
        tuple(
            name
            for name, values in open_axes.items()
            if len(values) > 1 or (name == "recompute" and not row.text("recompute"))
        ),
        assumed,
        (*model_notes, *software_notes, *hardware_notes, *precision_notes, *notes),
    )


def _experts_over(
    row: MeasuredRow, model: ModelSpec, framework: Framework, tensor_parallel: int, ranks: int
) -> tuple[int, int, tuple[str, ...]]:
    """Return expert and expert-tensor degrees, stated or likely, and what was assumed."""
    if not model.has_experts:
        return 1, 1, ()
    stated = row.whole("ep"), row.whole("etp")
    expert, tensor = expert_degrees(framework, model, tensor_parallel, ranks, *stated)
    said = (("expert_parallel", expert), ("expert_tensor_parallel", tensor))
    opened = [it for it, cell in zip(said, stated, strict=True) if cell is None]
    kept = (it for it in opened if it[0] == "expert_parallel" or tensor_parallel > 1)
    return expert, tensor, tuple(f"{name}={degree}" for name, degree in kept)


def _degree(row: MeasuredRow, column: str, framework: Framework) -> int:
    """Return a degree; where parameters are sharded over all devices, 1 unless stated."""
    if framework.zero_stage == 3 and row.whole(column) is None:
        return 1
    return _stated(row, column)


def _model_of(row: MeasuredRow) -> tuple[ModelSpec, ModelSpec | None, tuple[str, ...]]:
    """Return the model that a row's cells state, the known one with its layers, and notes."""
    notes = []
    cells = _cells(row)
    if row.text("attn_note") and not cells["attn_note"]:
        notes.append(f"'{row.text('attn_note')}' not understood: full attention taken")
    try:
        model, read = trained_model(cells)
    except ModelError as error:
        raise Skip("architecture not stated", str(error), scorable=False) from None
    # Rows differ in name and source of the same model; one sweep serves them all.
    return replace(model, name="measured", source=""), published(model), (*notes, *read)


def _with_wide_layers(
    row: MeasuredRow, model: ModelSpec, precision: str
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model with the layers that a row leaves in 16 bits, and notes."""
    text = f"{row.text('precision')}; {row.text('notes')}"
    first, last = wide_layers(text, model.num_layers, precision)
    try:
        changed = model.with_wide_layers(first, last)
    except ModelError as error:
        return model, (f"{error}: not understood",)
    said = f"{first} first and {last} last layers in 16 bits, from the row"
    return changed, (said,) if first + last else ()


def _with_modules(
    row: MeasuredRow, model: ModelSpec, known: ModelSpec | None, framework: Framework
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model with the multi-token-prediction modules that a run trained, and notes."""
    modules = _prediction_modules(row, model, known, framework)
    if not modules:
        return model, ()
    try:
        deeper, _ = trained_model(_cells(row), modules)
    except ModelError as error:
        raise Skip("architecture not stated", str(error), scorable=False) from None
    named = replace(deeper, name=model.name, source=model.source)
    return named, (f"multi-token-prediction modules: {modules}",)


def _cells(row: MeasuredRow) -> dict[str, str]:
    return {**row.cells, "attn_note": _windows(row.lower("attn_note"))}


def _windows(text: str) -> str:
    """Return an attention note in the form that models are built from; empty if there is none.

    ``5 of 6 layers sliding window 1024``, ``5:1 local to global, window 1024``, ``every 4th layer
    full, others window 4096``, ``every other layer: window 128`` and ``sliding window 4096`` (all
    layers) are understood.
    """
    word = r"(?:window|\bswa\b|local)"
    window = re.search(rf"{word}\D{{0,20}}(\d{{2,}})", text) or re.search(
        rf"(\d{{2,}})\D{{0,3}}(?:tokens?\s+)?(?:sliding )?{word}", text
    )
    if not window:
        return ""
    some = re.search(r"(\d+) of (\d+)", text)
    ratio = re.search(r"\b(\d+) ?: ?(\d+)\b", text)
    full = re.search(r"every (\d+)(?:th|rd|nd)? layers? (?:is |has |with )?(?:full|global)", text)
    half = re.search(r"alternat|every other|every second|half", text)
    share = f"{some.group(1)} of {some.group(2)}" if some else "1 of 2" if half else "1 of 1"
    if ratio and not some:
        share = f"{ratio.group(1)} of {int(ratio.group(1)) + int(ratio.group(2))}"
    elif full and not some:
        share = f"{int(full.group(1)) - 1} of {full.group(1)}"
    return f"{share} layers sliding window {window.group(1)}"


def _prediction_modules(
    row: MeasuredRow, model: ModelSpec, known: ModelSpec | None, framework: Framework
) -> int:
    """Return how many multi-token-prediction modules a run trained.

    By the row's notes; else by the FLOP that its publisher counted, which those of Megatron
    count of the modules too; else those with which its architecture is published, where the
    software trains them.
    """
    if not model.has_experts:
        return 0
    notes = row.lower("notes")
    if re.search(r"(w/o|without|no) mtp\b", notes):
        return 0
    formula = row.lower("tflops_formula_matched")
    if re.search(r"(w/|with) mtp\b|mtp (layer|module)s? trained", notes) or "+mtp" in formula:
        return 1
    if formula and "megatron" in row.lower("framework"):
        return 0
    return len(known.mtp_layers) if known and framework.prediction_modules else 0


@lru_cache(maxsize=64)
def published(model: ModelSpec) -> ModelSpec | None:
    """Return the known model with the same layers, its modules for several tokens included.

    Whatever its vocabulary: runs take other tokenizers.
    """
    size = model.parameter_count()
    for item in list_models():
        if abs(item.parameters / size - 1.0) < SIMILAR_SIZE:
            known = load_model(item.name, mtp="stated")
            shape = known.hidden_size, known.num_layers
            inside, wanted = (_inside(each) for each in (known.without_mtp(), model))
            if shape == (model.hidden_size, model.num_layers) and (
                abs(inside / wanted - 1.0) < SAME_SIZE
            ):
                return known
    return None


def _inside(model: ModelSpec) -> float:
    """Return the parameters of a model between its token table and its output matrix."""
    tables = model.vocab_size * model.table_width * (1 if model.tied_embeddings else 2)
    return float(model.parameter_count() - tables)


def _stated(row: MeasuredRow, column: str) -> int:
    value = row.whole(column)
    if value is None:
        names = {
            "n_gpus": "number of devices",
            "tp": "tensor or pipeline degree",
            "pp": "tensor or pipeline degree",
            "seq": "sequence length",
        }
        raise Skip(f"{names[column]} not stated", f"column '{column}' is empty")
    return value


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
    names = (*NUMBERS, *VERDICTS, "status")
    columns = {name: results[name].values[:, 0] for name in names}
    for i, member, start in group.members:
        rows = slice(start, start + len(member.candidates))
        mine = {name: column[rows] for name, column in columns.items()}
        outcomes.append((i, _choose(member, mine)))
    return outcomes


def _choose(case: Case, columns: Mapping[str, Any]) -> Outcome:
    """Take the likeliest candidate that fits, else the one that needs the least memory."""
    valid = columns["status"] == VALID
    if not valid.any():
        return _impossible(case, columns["status"][0])
    fits, memory, time = (columns[name] for name in ("fits", "memory_total", "step_time"))
    capacity = case.hardware.device.memory.capacity
    best = likeliest(case.candidates, valid, fits, memory, time, memory <= MEMORY_SLACK * capacity)
    details = {name: float(columns[name][best]) for name in NUMBERS}
    chosen = dict(case.candidates[best])
    projected = details.pop("step_time")
    fits = bool(columns["fits"][best])
    excess = f"memory does not fit: {details['memory_total'] / capacity:.0%} of the device's"
    opened = (*case.opened, *(("micro_batch_group",) if "micro_batch_group" in chosen else ()))
    assumed = tuple(f"{name}={chosen[name]}" for name in opened)
    return Outcome(
        measured=case.measured,
        projected=projected,
        assumed=case.assumed + assumed,
        notes=case.notes if fits else (*case.notes, excess),
        details={
            "profile": case.hardware.name,
            "software": case.framework.name.partition("[")[0],
            **chosen,
            **details,
            **{name: bool(columns[name][best]) for name in VERDICTS},
        },
    )


def _impossible(case: Case, status: int) -> Outcome:
    detail = case.candidates[0]["precision"] if status == PRECISION_UNSUPPORTED else ""
    return Outcome.skipped(Skip(STATUS_REASONS[int(status)], detail))


def admissions(rows: Sequence[ComparedRow]) -> Further:
    """Return how many measured and crashed runs fit in the projected memory, tightly or not."""
    lines = []
    for outcome in ("measured", "crashed"):
        found = [
            row.outcome.details
            for row in rows
            if "fits" in row.outcome.details
            and (row.outcome.projected is None) == (outcome == "crashed")
        ]
        if found:
            admitted = sum(one["fits"] for one in found)
            lines.append(
                {
                    "outcome": outcome,
                    "runs": len(found),
                    "admitted": admitted,
                    "tight": sum(one["tight"] for one in found),
                    "refused": len(found) - admitted,
                    "admitted_share": admitted / len(found),
                }
            )
    return {"runs that fit": lines} if lines else {}


SHARES = ("hardware", "n_gpus", "framework", "layers", "hidden", "vocab")


@dataclass(frozen=True, kw_only=True)
class TrainingKind(Kind):
    """Training runs; rows that share model, devices and software are projected in one sweep.

    Attributes
    ----------
    case_of : callable
        Row -> `Case`; raises `Skip` with the reason where there is none.
    """

    case_of: Callable[[MeasuredRow], Case] = case_of
    further: Callable[[Sequence[ComparedRow]], Further] = admissions

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
    needed=("hardware", "n_gpus", "tp", "pp", "gbs", "seq"),
    measurements=MEASUREMENTS,
    group_by=("hardware", "precision", "architecture", "scale", "family", "assumed"),
    whole=WHOLE_NUMBERS,
    positive=tuple(name for name in MEASUREMENTS if name not in FLOP_RATES),
    counts=counts,
    derived=derived,
    shares=SHARES,
)
