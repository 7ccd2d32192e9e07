"""Rules that a deployment must keep, each with its code and its reason.

One small function per rule; each takes the columns of a grid and returns a mask of the
deployments that break it. The first broken rule becomes the status. What a device, a load or a
closing kernel finds impossible has codes behind those of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.model.spec import ModelSpec
from perfmodel.serving.fields import DEGREES, is_stated
from perfmodel.strategy.rules import head_counts, mlps_of

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, its stable code, its flag name and what to say to the user."""

    code: int
    name: str
    reason: str
    broken: Callable[[Columns, ModelSpec], Flags]


def rank_devices(c: Columns) -> Integers:
    """Devices of a stage that share the experts, t·a."""
    return c["tensor_parallel"] * c["attention_data_parallel"]


def worker_devices(c: Columns) -> Integers:
    """Devices of a worker, t·a·p."""
    return rank_devices(c) * c["pipeline_parallel"]


def prefill_columns(c: Columns) -> dict[str, NDArray[Any]]:
    """Return the columns as a prefill worker has them; as a decode worker where there is none."""
    own = {name: f"prefill_{name}" for name in DEGREES}
    return dict(c) | {
        name: np.where(is_stated(c, pool), c[pool], c[name]) for name, pool in own.items()
    }


def deployment_devices(c: Columns) -> NDArray[np.float64]:
    """Devices of all workers of both pools, shape (deployments,)."""
    decode = worker_devices(c).astype(np.float64) * c["workers"]
    return decode + worker_devices(prefill_columns(c)) * c["prefill_workers"].astype(np.float64)


def _heads(c: Columns, model: ModelSpec) -> Flags:
    degree = c["tensor_parallel"]
    broken = np.zeros(degree.shape, bool)
    for heads, groups in head_counts(model):
        broken |= heads % degree != 0
        broken |= (groups % degree != 0) & (degree % groups != 0)
    return broken


def _width(c: Columns, model: ModelSpec) -> Flags:
    degree = c["tensor_parallel"]
    inner = np.maximum(rank_devices(c) // c["expert_parallel"], 1)
    broken = np.zeros(degree.shape, bool)
    for part in mlps_of(model):
        if part.kind == "moe":
            broken |= part.expert_intermediate_size % inner != 0
            broken |= part.shared_intermediate_size % degree != 0
        else:
            broken |= part.intermediate_size % degree != 0
    return broken


def _layers(c: Columns, model: ModelSpec) -> Flags:
    return c["pipeline_parallel"] > model.num_layers


def _experts(c: Columns, model: ModelSpec) -> Flags:
    degree = c["expert_parallel"]
    counts = {part.experts for part in mlps_of(model) if part.kind == "moe"}
    if not counts:
        return degree > 1
    # Where they do not divide, some devices hold one more: vLLM's ``determine_expert_map``,
    # redundant experts of SGLang and TensorRT-LLM.
    return degree > min(counts)


def _expert_groups(c: Columns, model: ModelSpec) -> Flags:
    return rank_devices(c) % c["expert_parallel"] != 0


def _drafts(c: Columns, model: ModelSpec) -> Flags:
    return (c["draft_length"] > 0) & (not model.mtp_layers)


RULES: tuple[Rule, ...] = (
    Rule(
        2,
        "heads_not_divisible",
        "attention heads (or key-value groups) do not divide over tensor_parallel",
        _heads,
    ),
    Rule(
        3,
        "width_not_divisible",
        "an MLP width does not divide over tensor_parallel, or an expert's over the devices that "
        "share it",
        _width,
    ),
    Rule(4, "too_few_layers", "pipeline_parallel exceeds the layers", _layers),
    Rule(
        5,
        "too_few_experts",
        "expert_parallel exceeds the model's experts",
        _experts,
    ),
    Rule(
        6,
        "expert_group_mismatch",
        "expert_parallel does not divide tensor_parallel × attention_data_parallel",
        _expert_groups,
    ),
    Rule(
        7, "no_draft_modules", "the model has no multi-token-prediction modules to draft", _drafts
    ),
)
"""Of a worker; those of a prefill worker are the same."""

VALID = 0
TOO_MANY_DEVICES = 1
PRECISION_UNSUPPORTED = 20
MEMORY_TOO_SMALL = 21
CONTEXT_TOO_LONG = 30
RATE_ABOVE_CAPACITY = 41
CACHE_BELOW_ONE_REQUEST = 42
FEWER_REQUESTS_THAN_RANKS = 43
KERNEL_STATES = (VALID, RATE_ABOVE_CAPACITY, CACHE_BELOW_ONE_REQUEST, FEWER_REQUESTS_THAN_RANKS)
"""Codes of `perfmodel.kernels.serving.tables.STATES`, in their order."""

_OTHERS = (
    (TOO_MANY_DEVICES, "too_many_devices", "the workers need more devices than there are"),
    (
        PRECISION_UNSUPPORTED,
        "precision_unsupported",
        "the device has no matrix rate for activation_precision",
    ),
    (
        MEMORY_TOO_SMALL,
        "memory_too_small",
        "weights, activations and workspace leave no memory for a cache",
    ),
    (CONTEXT_TOO_LONG, "context_too_long", "prompt and answer exceed the model's context"),
    (RATE_ABOVE_CAPACITY, "rate_above_capacity", "requests arrive faster than they are served"),
    (
        CACHE_BELOW_ONE_REQUEST,
        "cache_below_one_request",
        "the cache cannot hold one request of this length",
    ),
    (
        FEWER_REQUESTS_THAN_RANKS,
        "fewer_requests_than_ranks",
        "there are fewer requests under way than attention ranks or pipeline stages",
    ),
)

STATUS_NAMES: Mapping[int, str] = dict(
    sorted(
        [
            (VALID, "valid"),
            *((rule.code, rule.name) for rule in RULES),
            *((code, name) for code, name, _ in _OTHERS),
        ]
    )
)
STATUS_REASONS: Mapping[int, str] = {
    VALID: "possible",
    **{rule.code: rule.reason for rule in RULES},
    **{code: reason for code, _, reason in _OTHERS},
}


def deployment_status(
    columns: Columns, model: ModelSpec, devices: int | None = None
) -> NDArray[np.uint8]:
    """Return the code of the first rule that each deployment breaks; 0 where it keeps all."""
    status = np.zeros(columns["tensor_parallel"].shape, np.uint8)
    if devices is not None:
        status[deployment_devices(columns) > devices] = TOO_MANY_DEVICES
    pools: list[Columns] = [columns]
    if columns["prefill_workers"].any():
        pools.append(prefill_columns(columns))
    for pool in pools:
        for rule in RULES:
            status[rule.broken(pool, model) & (status == VALID)] = rule.code
    return status
