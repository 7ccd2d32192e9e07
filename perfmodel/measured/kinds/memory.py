"""Measured peaks of device memory against projections: which memory a row means, and in what unit.

The runs are those of `perfmodel.measured.kinds.training`; a peak takes the place of the time. What
was read differs by tool: `READINGS` has the parts of a projection that each of them sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import ModelError
from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.measured.kinds import training
from perfmodel.measured.kinds.training import Case, TrainingKind
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip, meaning, words
from perfmodel.model.presets import find_preset, load_model
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.training.stages import all_stage_memories

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec

MEASUREMENTS = ("meas_peak_mem_GB", "activations_GB", "relative_activation_pct")
UNITS = {"gb": 1e9, "gib": 2.0**30}
BELOW = 0.1
"""A projection this far below the peak admits strategies that do not run."""

STATE = ("memory_parameters", "memory_gradients", "memory_optimizer")
LIVE = (*STATE, "memory_activations", "memory_buffers")
RESERVED = (*LIVE, "memory_fragmentation")
READINGS: Mapping[str, tuple[str, ...]] = {
    "device": MEMORY_COMPONENTS,
    "reserved": RESERVED,
    "allocated": LIVE,
    "state and activations": (*STATE, "memory_activations"),
    "relative activations": ("memory_activations",),
}
"""What a tool reads -> components of `memory_total` that it sees.

``device``: nvidia-smi, rocm-smi and fractions of a device's memory count the context and what the
caching allocator holds back. ``reserved``: torch's ``max_memory_reserved`` has the latter alone.
``allocated``: ``max_memory_allocated`` counts tensors.
"""

COLUMNS = {
    "state and activations": ("params_opt_GB", "activations_GB"),
    "relative activations": ("relative_activation_pct",),
}
"""Columns in which a reading stands, where that is not the peak's."""


def reading_of(row: MeasuredRow) -> tuple[str, float]:
    """Return what was read, one of `READINGS`, and the bytes of its unit."""
    known = words("memory")["read_as"]
    told = next(
        (it for it in known if re.search(it["words"], row.lower(it["column"]))),
        {"reading": "device", "unit": "gb"},
    )
    return told["reading"], UNITS[row.lower("unit") or told["unit"]]


def measured_peak(row: MeasuredRow, batch: int = 0, model: ModelSpec | None = None) -> float:
    """Return what was measured [B]; for activations relative to a baseline, their share [1].

    Raises
    ------
    Skip
        The row states no such figure.
    """
    reading, unit = reading_of(row)
    columns = COLUMNS.get(reading, ("meas_peak_mem_GB",))
    if reading == "relative activations":
        unit = 0.01
    values = [row.positive(column) for column in columns]
    if None in values:
        raise Skip("no usable measurement", scorable=False)
    return unit * sum(value for value in values if value is not None)


def check(row: MeasuredRow) -> None:
    """Raise DataError where a unit is not known."""
    if row.lower("unit") not in ("", *UNITS):
        raise row.error("unit", "GB or GiB")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return columns that the table implies.

    ``architecture`` and ``scale`` as of training runs, what was ``read``, and ``family`` where
    there is none: the first word of the source.
    """
    found = {**training.derived(row), "read": reading_of(row)[0]}
    if not row.text("family"):
        found["family"] = (row.text("source").split() or [""])[0].strip(",;:")
    return found


def case_of(row: MeasuredRow) -> Case:
    """Turn a row with a peak, or of a run that crashed, into what a sweep needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    measure = (lambda row, batch, model: 0.0) if crashed(row) else measured_peak
    if not crashed(row):
        measured_peak(row)
    return training.run_of(stated_elsewhere(row), measure, batch_needed=False)


def crashed(row: MeasuredRow) -> bool:
    """Tell a run that did not get through from one that was measured."""
    return not training.counts(row)


_YEAR = re.compile(r"(?<!\d)(20[12]\d)(\d\d)?(?!\d)")
_LAYERS = re.compile(r"[-_ ]?\d+[-_ ]?(?:layers?|l)$", re.IGNORECASE)


def stated_elsewhere(row: MeasuredRow) -> MeasuredRow:
    """Return the row with cells that its table has no column for, but words of other cells.

    The release stands in the framework's name ("Megatron-LM 0.14"), or the round or the year in the
    source ("MLPerf Training v5.0", "Korthikanti 2022"), or the year is that of the model. What a
    table leaves out of a model that is known by its name, and has these sizes, is that model's:
    latent attention, shared experts.
    """
    if not row.text("version"):
        source = row.text("source")
        if found := re.search(r"mlperf\D*(v\d+\.\d+)", source, re.IGNORECASE):
            row = row.replaced("version", f"MLPerf {found.group(1)}")
        elif found := re.search(r"\d+\.\d+", row.text("framework")):
            row = row.replaced("version", found.group(0))
        elif found := _YEAR.search(source):
            row = row.replaced("version", found.group(1))
        else:
            year = meaning(words("memory")["model_years"], row.lower("model"))
            row = row.replaced("version", year)
    if "mla_kv_lora" in row.cells:
        return row
    name = find_preset(_LAYERS.sub("", row.text("model")))
    if name is None:
        return row
    try:
        known = load_model(name)
    except ModelError:
        return row
    if known.hidden_size != row.whole("hidden"):
        return row
    return MeasuredRow({**_cells_of(known), **row.cells}, row.file, row.line)


def _cells_of(model: ModelSpec) -> dict[str, str]:
    """Cells of a known model of which memory depends and tables of memory have no column."""
    attention = model.layers[-1].attention
    experts = next((mlp for layer in model.layers for mlp in layer.mlps if mlp.kind == "moe"), None)
    cells: dict[str, Any] = {"gated_mlp": int(model.layers[-1].mlps[0].gated)}
    if attention.kind == "mla":
        cells |= {
            "mla_q_lora": attention.q_lora_rank or "",
            "mla_kv_lora": attention.kv_lora_rank,
            "mla_nope": attention.qk_nope_head_dim,
            "mla_rope": attention.qk_rope_head_dim,
            "mla_v": attention.value_head_dim,
        }
    if experts is not None:
        width = experts.expert_intermediate_size
        dense = [all(mlp.kind == "dense" for mlp in layer.mlps) for layer in model.layers]
        cells |= {
            "n_shared_experts": experts.shared_intermediate_size // width or "",
            "first_dense_layers": dense.index(False) or "",
        }
    return {name: str(value) for name, value in cells.items()}


@dataclass(frozen=True, kw_only=True)
class MemoryKind(TrainingKind):
    """Peaks of memory; projected as training runs, and read as the tool read them."""

    case_of: Callable[[MeasuredRow], Case] = case_of

    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Project every row, and the baselines of those that are relative to one."""
        relative = [i for i, row in enumerate(rows) if reading_of(row)[0] == "relative activations"]
        baselines = [
            rows[i].replaced("recompute", "none").replaced("sequence_parallel", "no")
            for i in relative
        ]
        everything = [*rows, *baselines]
        found = _on_one_stage(everything, super().project(everything, progress))
        base = dict(zip(relative, found[len(rows) :], strict=True))
        return [_read(row, found[i], base.get(i)) for i, row in enumerate(rows)]


def _on_one_stage(rows: Sequence[MeasuredRow], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the memory of the first stage, where a row speaks of that alone.

    ``rank 0``, or the first stage of a paper's formulas, which leave out the embedding.
    """
    found = list(outcomes)
    alike: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for i, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        formula = reading_of(row)[0] in COLUMNS
        told = words("memory")["rank_0"].items()
        first = formula or any(re.search(said, row.lower(column)) for column, said in told)
        staged = first and ((row.number("pp") or 1) > 1 or formula)
        if outcome.projected is None or not staged:
            continue
        case = case_of(row)
        strategy = next(
            it
            for it in case.candidates
            if all(outcome.details.get(name) == value for name, value in it.items())
        )
        run = case.model, case.devices, case.hardware, case.framework, strategy["precision"]
        alike.setdefault((*run, formula), []).append((i, strategy))
    for (model, devices, hardware, framework, _, formula), members in alike.items():
        grid = strategies_from_rows(model, devices, [strategy for _, strategy in members])
        memories = all_stage_memories(model, grid, hardware, framework, embedding=not formula)
        for (i, _), stages in zip(members, memories, strict=True):
            details = {**found[i].details, **stages[0].at_peak()}
            found[i] = replace(found[i], details=details)
    return found


def _read(row: MeasuredRow, found: Outcome, baseline: Outcome | None) -> Outcome:
    """Return the outcome of a run with its memory in place of its time."""
    if found.projected is None:
        return found
    if crashed(row):
        skipped = Outcome.skipped(Skip("the run crashed", scorable=False))
        return replace(skipped, details=found.details)
    projected = _seen(row, found)
    if baseline is not None:
        if baseline.projected is None:
            return baseline
        projected /= _seen(row, baseline)
    return replace(found, projected=projected)


def _seen(row: MeasuredRow, found: Outcome) -> float:
    parts = READINGS[reading_of(row)[0]]
    return float(sum(found.details[name] for name in parts))


KIND = MemoryKind(
    name="memory",
    quantity="peak_memory",
    unit="B",
    needed=("hardware", "n_gpus", "tp", "pp", "gbs", "seq"),
    measurements=MEASUREMENTS,
    group_by=("family", "hardware", "precision", "architecture", "scale", "read", "assumed"),
    whole=training.WHOLE_NUMBERS,
    positive=(*MEASUREMENTS, "params_opt_GB"),
    check=check,
    derived=derived,
    below=BELOW,
    ranked_by="",
    shares=training.SHARES,
)
