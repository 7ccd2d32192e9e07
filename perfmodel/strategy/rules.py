"""Rules that a strategy must keep, each with its code and its reason (``rules.csv``).

One small function per rule; each takes the columns of a grid and returns a mask
of the strategies that break it. The first broken rule becomes the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.base.fields import Rule, read_rules
from perfmodel.base.pipelines import (
    CODES,
    GIVEN_GROUPS,
    ROUNDS,
    SCHEDULE_FACTS,
    TABLE,
    schedule_facts,
)
from perfmodel.base.precisions import PRECISIONS
from perfmodel.base.strategy_fields import (
    CONTEXT_PARALLEL_KINDS,
    FIELD_BY_NAME,
    RECOMPUTE,
    RECOMPUTE_METHODS,
)
from perfmodel.model.build import AttentionSpec, ModelSpec
from perfmodel.model.layers import Mixer
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import distinct_layers, head_counts, mlps_of
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.mapping import cut_expert_groups, cut_shard_sets

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

Columns = Mapping[str, Integers]
PAIRED_STAGE = FIELD_BY_NAME["offload_activations_to"].choices.index("stage")


def _devices(c: Columns, model: ModelSpec, devices: int) -> Flags:
    product = c["tensor_parallel"].astype(np.float64)  # absurd degrees must not overflow
    for axis in ("context_parallel", "pipeline_parallel", "data_parallel"):
        product = product * c[axis]
    return product != devices


def _heads(c: Columns, model: ModelSpec, devices: int) -> Flags:
    degree = c["tensor_parallel"]
    broken = np.zeros(degree.shape, bool)
    for heads, groups in head_counts(model):
        broken |= heads % degree != 0
        broken |= (groups % degree != 0) & (degree % groups != 0)
    return broken


def _width(c: Columns, model: ModelSpec, devices: int) -> Flags:
    broken = np.zeros(c["tensor_parallel"].shape, bool)
    for part in mlps_of(model):
        if part.kind == "moe":
            broken |= part.expert_intermediate_size % c["expert_tensor_parallel"] != 0
            broken |= part.shared_intermediate_size % c["tensor_parallel"] != 0
        else:
            broken |= part.intermediate_size % c["tensor_parallel"] != 0
    return broken


def _sequence(c: Columns, model: ModelSpec, devices: int) -> Flags:
    per_rank, rest = np.divmod(c["sequence_length"], c["context_parallel"])
    # A causal ring gives each rank two half-blocks, one early and one late.
    ring = (c["context_parallel_kind"] == CONTEXT_PARALLEL_KINDS.index("ring")) & (
        c["context_parallel"] > 1
    )
    uneven_ring = ring & (per_rank % 2 != 0)
    uneven_tensor = (c["sequence_parallel"] == 1) & (
        per_rank * c["micro_batch_size"] % c["tensor_parallel"] != 0
    )
    return (rest != 0) | uneven_ring | uneven_tensor


def _batch(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return c["global_batch_size"] % (c["data_parallel"] * c["micro_batch_size"]) != 0


def _layers(c: Columns, model: ModelSpec, devices: int) -> Flags:
    # Embedding and output may stand in chunks of their own (`schedule.chunk_sizes`).
    return c["pipeline_parallel"] * c["virtual_pipeline"] > model.num_layers + 2


def _schedule_facts(c: Columns, fact: str) -> NDArray[Any]:
    """Return a fact of the schedule of every strategy."""
    return schedule_facts(fact)[c["pipeline_schedule"]]


def _grouped(c: Columns, groups: str) -> Flags:
    found: Flags = (schedule_facts("groups") == groups)[c["pipeline_schedule"]]
    return found


def _named(**facts: Any) -> str:
    """List the schedules with such facts."""
    found = [
        name
        for name, item in SCHEDULE_FACTS.items()
        if all(getattr(item, fact) == value for fact, value in facts.items())
    ]
    return " and ".join(filter(None, (", ".join(found[:-1]), *found[-1:])))


def _taking(fewest: int, step: int) -> str:
    """List the schedules with so many chunks a stage."""
    return _named(fewest_chunks=fewest, chunk_step=step)


def fits_chunks(c: Columns) -> Flags:
    """Tell which strategies have as many chunks a stage as their schedule can have.

    A lone stage has one, whatever its schedule is called.
    """
    fewest, step = _schedule_facts(c, "fewest_chunks"), _schedule_facts(c, "chunk_step")
    more = c["virtual_pipeline"] - fewest
    found = (more == 0) | ((step > 0) & (more > 0) & (more % np.maximum(step, 1) == 0))
    lone = (c["pipeline_parallel"] == 1) & (c["virtual_pipeline"] == 1)
    return np.where(c["pipeline_parallel"] == 1, lone & (fewest == 1), found)


def _chunks(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return ~fits_chunks(c)


def _batches(c: Columns) -> Integers:
    return c["global_batch_size"] // (c["data_parallel"] * c["micro_batch_size"])


def _interleaved_batches(c: Columns, model: ModelSpec, devices: int) -> Flags:
    # Megatron-Core asserts all of it (schedules.py, forward_backward_pipelining_with_interleaving).
    batches, stages = _batches(c), c["pipeline_parallel"]
    group = np.where(c["micro_batch_group"] > 0, c["micro_batch_group"], stages)
    rest = batches % group
    broken = ((rest != 0) & (rest < stages)) | (group < stages) | (group > batches)
    return _grouped(c, GIVEN_GROUPS) & broken


def _schedule_batches(c: Columns, model: ModelSpec, devices: int) -> Flags:
    batches, stages = _batches(c), c["pipeline_parallel"]
    even = _schedule_facts(c, "even") & ((batches % 2 != 0) | (stages % 2 != 0))
    # torch's rounds of micro-batches (`ScheduleInterleavedZeroBubble`, `ScheduleInterleaved1F1B`)
    rounds = _grouped(c, ROUNDS)
    uneven = rounds & (batches % np.maximum(batches // stages, 1) != 0)
    few = batches < _schedule_facts(c, "batches_per_stage") * stages
    return (stages > 1) & (even | uneven | few)


def _table(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return c["pipeline_schedule"] == CODES[TABLE]


def _sequence_parallel(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return (c["sequence_parallel"] == 1) & (c["tensor_parallel"] == 1)


def _experts(c: Columns, model: ModelSpec, devices: int) -> Flags:
    degree, inner = c["expert_parallel"], c["expert_tensor_parallel"]
    counts = {part.experts for part in mlps_of(model) if part.kind == "moe"}
    if not counts:
        return (degree > 1) | (inner > 1)
    broken = np.zeros(degree.shape, bool)
    for count in counts:
        broken |= count % degree != 0
    return broken


def _expert_groups(c: Columns, model: ModelSpec, devices: int) -> Flags:
    plane = c["tensor_parallel"] * c["context_parallel"] * c["data_parallel"]
    return plane % (c["expert_parallel"] * c["expert_tensor_parallel"]) != 0


def _expert_tokens(c: Columns, model: ModelSpec, devices: int) -> Flags:
    repeated = (c["tensor_parallel"] > 1) & (c["sequence_parallel"] == 0)
    return repeated & model.has_experts


def _expert_mapping(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return cut_expert_groups(c)


def _shard_mapping(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return cut_shard_sets(c, model.has_experts)


def _exchanged_heads(part: Mixer) -> set[int]:
    """Return counts of heads that all-to-all context parallelism spreads over its ranks.

    Chosen and compressed keys are gathered instead, those of an encoder too, and convolutions
    only pass a few tokens on. Groups of keys of a recurrence may be repeated (Megatron-Core,
    ``MambaContextParallel``).
    """
    if isinstance(part, RecurrenceSpec):
        return {part.heads}
    if not isinstance(part, AttentionSpec) or part.cross or part.sparse:
        return set()
    return {part.heads} if part.kind == "mla" else {part.heads, part.key_value_heads}


def _ulysses(c: Columns, model: ModelSpec, devices: int) -> Flags:
    exchange = (c["context_parallel_kind"] == CONTEXT_PARALLEL_KINDS.index("all_to_all")) & (
        c["context_parallel"] > 1
    )
    broken = np.zeros(exchange.shape, bool)
    # Transformer Engine asserts both ("The number of attention heads needs to be divisible by CP
    # size!", AttnFuncWithCPAndQKVOA2A of context_parallel.py); latent keys are expanded per head.
    for layer in distinct_layers(model):
        for part in layer.mixers:
            for heads in _exchanged_heads(part):
                local = np.maximum(heads // c["tensor_parallel"], 1)
                broken |= local % c["context_parallel"] != 0
    return exchange & broken


def _zero(c: Columns, model: ModelSpec, devices: int) -> Flags:
    return c["zero_stage"] > 3


def _shard_group(c: Columns, model: ModelSpec, devices: int) -> Flags:
    group = c["shard_group"]
    if not group.any():
        return np.zeros(group.shape, bool)
    replicas = c["data_parallel"] * c["context_parallel"]
    uneven = replicas % np.maximum(group, 1) != 0
    # Shard sets and expert groups must nest, or copies of an expert would differ in number.
    devices_of_set = np.maximum(group * c["tensor_parallel"], 1)
    plane = c["expert_parallel"] * c["expert_tensor_parallel"]
    crossed = (devices_of_set % plane != 0) & (plane % devices_of_set != 0)
    return (group > 0) & (uneven | crossed | (c["zero_stage"] == 0))


def _documents(c: Columns, model: ModelSpec, devices: int) -> Flags:
    length = c["document_length"]
    # Every document is shared by the context ranks, by a causal ring in two pieces each.
    pieces = np.where(c["context_parallel"] > 1, 2 * c["context_parallel"], 1)
    return (length > 0) & ((length > c["sequence_length"]) | (length < pieces))


def _ranks(c: Columns, model: ModelSpec, devices: int) -> Flags:
    degree = c["tensor_parallel"]
    if model.adapters is None:
        return np.zeros(degree.shape, bool)
    return model.adapters.rank % degree != 0


def _frozen(c: Columns, model: ModelSpec, devices: int) -> Flags:
    if model.adapters is None or not model.adapters.frozen:
        return np.zeros(c["precision"].shape, bool)
    wide = [PRECISIONS.index(name) for name in ("bf16", "fp16")]
    return ~np.isin(c["precision"], wide)


def _recomputed_layers(c: Columns, model: ModelSpec, devices: int) -> Flags:
    method, layers = c["recompute_method"], c["recompute_num_layers"]
    some = method != RECOMPUTE_METHODS.index("single")
    counted = some & (method != RECOMPUTE_METHODS.index("block"))
    partly = some & (c["recompute"] != RECOMPUTE.index("full"))
    return partly | (~some & (layers > 0)) | (counted & (layers == 0))


def _paired(c: Columns, model: ModelSpec, devices: int) -> Flags:
    parked = (c["offload_activations"] > 0) & (c["offload_activations_to"] == PAIRED_STAGE)
    paired = _schedule_facts(c, "pairs_stages")
    return parked & ~(paired & (c["pipeline_parallel"] > 1))


RULES, STATUS_NAMES, STATUS_REASONS = read_rules(
    Path(__file__).with_name("rules.csv"),
    {
        "devices_mismatch": _devices,
        "heads_not_divisible": _heads,
        "width_not_divisible": _width,
        "sequence_not_divisible": _sequence,
        "batch_not_divisible": _batch,
        "too_few_layers": _layers,
        "schedule_mismatch": _chunks,
        "batches_not_divisible": _interleaved_batches,
        "sequence_parallel_alone": _sequence_parallel,
        "experts_not_divisible": _experts,
        "expert_group_mismatch": _expert_groups,
        "context_heads_not_divisible": _ulysses,
        "unknown_zero_stage": _zero,
        "shard_group_mismatch": _shard_group,
        "experts_need_sequence_parallel": _expert_tokens,
        "expert_group_spread": _expert_mapping,
        "shard_group_spread": _shard_mapping,
        "schedule_batches": _schedule_batches,
        "schedule_table_missing": _table,
        "document_length_mismatch": _documents,
        "rank_not_divisible": _ranks,
        "frozen_needs_wide_products": _frozen,
        "recomputed_layers_mismatch": _recomputed_layers,
        "no_paired_stage": _paired,
    },
    one=_taking(1, 0),
    two=_taking(2, 0),
    even=_taking(2, 2),
    more=_taking(2, 1),
    twice=_named(batches_per_stage=2),
    even_batches=_named(even=True),
    rounds=_named(groups=ROUNDS),
)
# Rules that ask how many micro-batches there are, and the others, in order.
BATCH_RULES = tuple(
    rule for rule in RULES if rule.broken in (_batch, _interleaved_batches, _schedule_batches)
)
BATCHLESS_RULES = tuple(rule for rule in RULES if rule not in BATCH_RULES)
# Rules about the axes that multiply an already checked layout.
LATE_RULES = tuple(
    rule
    for rule in RULES
    if rule.broken
    in (
        *(_zero, _shard_group, _expert_mapping, _shard_mapping, _documents, _frozen),
        *(_recomputed_layers, _paired),
    )
)
# What holds where a table of a schedule is given.
TABLE_RULES = tuple(rule for rule in RULES if rule.broken is not _table)
PRECISION_UNSUPPORTED = 100


def strategy_status(
    columns: Columns, model: ModelSpec, devices: int, rules: tuple[Rule, ...] = RULES
) -> NDArray[np.uint8]:
    """Return the code of the first rule that each strategy breaks; 0 where it keeps all."""
    shape = columns["tensor_parallel"].shape
    if columns["tensor_parallel"].ndim > 1:  # of layouts, and batches along another axis
        shape = np.broadcast_shapes(shape, columns["global_batch_size"].shape)
    status = np.zeros(shape, np.uint8)
    for rule in rules:
        broken = rule.broken(columns, model, devices)
        status[broken & (status == VALID)] = rule.code
    return status


def check_one_strategy(grid: StrategyGrid, hardware: Hardware, what: str) -> None:
    """Raise unless a grid is one possible strategy; `what` begins the sentence that says so.

    Raises
    ------
    StrategyError
        Not exactly one strategy, an impossible one (with its reason), or a precision that
        the device lacks.
    """
    if len(grid) != 1:
        raise StrategyError(f"{what} exactly one strategy, not {len(grid)}")
    if grid.status[0] != VALID:
        raise StrategyError(f"impossible strategy: {STATUS_REASONS[int(grid.status[0])]}")
    try:
        hardware.device.peak(PRECISIONS[int(grid["precision"][0])])
    except HardwareError as error:
        raise StrategyError(f"precision: {error}") from error
