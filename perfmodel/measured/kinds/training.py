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
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.measured.kind import Further, Kind
from perfmodel.measured.row_choices import (
    RECOMPUTE_LEVELS,
    assumed_batch,
    likeliest,
    micro_batches,
    schedule_of,
    virtual_chunks,
)
from perfmodel.measured.row_hardware import hardware_of
from perfmodel.measured.row_model import model_from_row
from perfmodel.measured.row_software import (
    context_parallel_kind,
    framework_of,
    precision_of,
    recompute_of,
    sequence_parallel,
    tuned,
    zero_of,
)
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip
from perfmodel.model.presets import list_models, load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_REASONS
from perfmodel.training.memory import waiting_share

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.measured.rows import ComparedRow

MEASUREMENTS = ("meas_iter_s", "meas_tokens_s_gpu", "der_iter_s", "der_tokens_s_gpu")
WHOLE_NUMBERS = (
    *("n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"),
    *("ffn", "moe_ffn", "topk", "seq", "tp", "pp", "cp", "ep", "etp", "dp", "mbs", "gbs"),
)
SCALES = ((8, "1-8"), (64, "9-64"), (512, "65-512"))
# A measured run did fit: what a row leaves open is not ruled out by an excess that lies
# within the error of the memory projection itself: nine of ten of 109 stated peaks are projected
# at no more than 1.18 times their size.
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
        "architecture": "moe" if row.text("n_experts") not in ("", "0") else "dense",
        "scale": scale,
    }


def measured_step_time(row: MeasuredRow, batch: int) -> float:
    """Return the measured time of a step [s].

    Parameters
    ----------
    row : MeasuredRow
    batch : int
        Sequences of a step, which turn a throughput into a time.

    Raises
    ------
    Skip
        The row states neither a step time nor a throughput.
    """
    if (stated := row.positive("meas_iter_s")) is not None:
        return stated
    length, devices = _stated(row, "seq"), _stated(row, "n_gpus")
    throughput = row.positive("meas_tokens_s_gpu")
    if throughput is None:
        if (stated := row.positive("der_iter_s")) is not None:
            return stated
        throughput = row.positive("der_tokens_s_gpu")
    if throughput is None:
        raise Skip("no usable measurement", scorable=False)
    return batch * length / (throughput * devices)


def case_of(row: MeasuredRow) -> Case:
    """Turn a row with a time or a throughput into what a sweep needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    if not any(row.positive(column) for column in MEASUREMENTS):
        raise Skip("no usable measurement", scorable=False)
    timed = row.positive("meas_iter_s") or not row.positive("meas_tokens_s_gpu")
    return run_of(row, measured_step_time, batch_needed=bool(timed))


def run_of(
    row: MeasuredRow, measure: Callable[[MeasuredRow, int], float], *, batch_needed: bool
) -> Case:
    """Turn a row into what a sweep needs, whatever was measured of the run.

    Parameters
    ----------
    row : MeasuredRow
    measure : callable
        Row and global batch -> what was measured.
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
    experts = row.text("n_experts") not in ("", "0")
    model, known, model_notes = _model_of(row)
    sinks = known is not None and known.has_sinks
    run = Run(precision, experts, domain, hardware.device.name, sinks=sinks)
    framework, software_notes = framework_of(row, run)
    model, module_notes = _with_modules(row, model, known, framework)
    model_notes += module_notes
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
    measured = measure(row, batch)
    expert = row.whole("ep") or 1
    zero, shards = zero_of(row, framework, pipeline, tensor_parallel * pipeline)
    fixed: dict[str, Any] = {
        "tensor_parallel": tensor_parallel,
        "sequence_parallel": sequence_parallel(row, framework, tensor_parallel),
        "context_parallel": context,
        "context_parallel_kind": context_parallel_kind(row, framework),
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "zero_stage": zero,
        "shard_group": 0 if shards >= data * context else shards,
        "expert_parallel": expert if experts else 1,
        "expert_tensor_parallel": row.whole("etp")
        or _expert_tensor(framework, tensor_parallel, expert, devices // pipeline)
        if experts
        else 1,
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
        "recompute": [level] if level else list(RECOMPUTE_LEVELS),
    }
    candidates = [
        {**fixed, **recompute.layers, **dict(zip(open_axes, values, strict=True))}
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


def _expert_tensor(framework: Framework, tensor_parallel: int, expert: int, ranks: int) -> int:
    """Return the expert-tensor degree of a run that states none; 1 where no other is possible."""
    shared = framework.expert_tensor_parallel and ranks % (tensor_parallel * expert) == 0
    return tensor_parallel if shared else 1


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
        model = model_from_row(cells)
    except ModelError as error:
        raise Skip("architecture not stated", str(error), scorable=False) from None
    # Rows differ in name and source of the same model; one sweep serves them all.
    return replace(model, name="measured", source=""), published(model), tuple(notes)


def _with_modules(
    row: MeasuredRow, model: ModelSpec, known: ModelSpec | None, framework: Framework
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model with the multi-token-prediction modules that a run trained, and notes."""
    modules = _prediction_modules(row, model, known, framework)
    if not modules:
        return model, ()
    try:
        deeper = model_from_row(_cells(row), mtp_modules=modules)
    except ModelError as error:
        raise Skip("architecture not stated", str(error), scorable=False) from None
    named = replace(deeper, name=model.name, source=model.source)
    return named, (f"multi-token-prediction modules: {modules}",)


def _cells(row: MeasuredRow) -> dict[str, str]:
    return {**row.cells, "attn_note": _windows(row.lower("attn_note"))}


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
    valid = np.flatnonzero(columns["status"] == VALID)
    if not valid.size:
        return _impossible(case, columns["status"][0])
    limit = MEMORY_SLACK * case.hardware.device.memory.capacity
    fitting = valid[columns["memory_total"][valid] <= limit]
    if fitting.size:
        best = likeliest(case.candidates, fitting, columns["step_time"])
    else:
        best = int(valid[np.argmin(columns["memory_total"][valid])])
    details = {name: float(columns[name][best]) for name in NUMBERS}
    chosen = dict(case.candidates[best])
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
    needed=("hardware", "n_gpus", "layers", "hidden", "heads", "vocab", "tp", "pp", "gbs", "seq"),
    measurements=MEASUREMENTS,
    group_by=("hardware", "precision", "architecture", "scale", "family", "assumed"),
    whole=WHOLE_NUMBERS,
    positive=MEASUREMENTS,
    counts=counts,
    derived=derived,
    shares=SHARES,
)
