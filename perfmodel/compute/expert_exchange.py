"""The exchange of tokens between the ranks of a mixture of experts, as DeepEP does it.

*Dispatch* sends every token to the ranks of its experts, quantised to fp8; *combine* brings
the results back in bf16. Mode ``normal`` (training, prefill) sends a token once to each rank
that needs it, mode ``low_latency`` (decode) once to each of its experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Column, Integers, broadcast
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.collectives import members_per_domain
from perfmodel.compute.network import is_scale_out
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import known

if TYPE_CHECKING:
    from perfmodel.kernels.collective.expert_exchange import ExchangeConstants

PHASES = ("dispatch", "combine")
MODES = ("normal", "low_latency")
# Bytes of an element on the wire: fp8 with a 4-byte scale per 128 elements, bf16
# (deepseek-ai/DeepEP README).
ELEMENT_BYTES = {"dispatch": OPERAND_BYTES["fp8_block"], "combine": OPERAND_BYTES["bf16"]}
# Compute units that copy where nothing is said: DeepSeek-V3 report, section 3.2.2.
COMPUTE_UNITS = 20

CONSTANTS = tuple(key for key in known("network") if key.startswith("exchange_"))
"""Keys of ``[calibration.network]``; docs/collectives.md defines them."""


def exchange_constants(
    constants: Mapping[str, float], hardware: Hardware, phase: str, mode: str
) -> ExchangeConstants:
    """Return the kernel's constants for a phase and mode.

    Parameters
    ----------
    constants : mapping of str to float
        By the keys of `CONSTANTS`.
    hardware : Hardware
    phase, mode : str
        Of `PHASES` and `MODES`.

    Returns
    -------
    perfmodel.kernels.collective.expert_exchange.ExchangeConstants
    """
    from perfmodel.kernels.collective.expert_exchange import ExchangeConstants

    levels = hardware.system.network
    outside = [level for i, level in enumerate(levels) if is_scale_out(level, i)]
    adapter = (outside or [levels[-1]])[0]
    rates = constants["exchange_scale_out_efficiency"] * adapter.bandwidth
    single = mode == "low_latency"  # every token to each of its experts on its own
    key = "low_latency" if single else phase
    efficiency = constants["exchange_low_latency_efficiency" if single else "exchange_efficiency"]
    return ExchangeConstants(
        latency=constants[f"exchange_{key}_latency"],
        scale_out_latency=constants["exchange_scale_out_latency"],
        link_bandwidth=efficiency * levels[0].bandwidth,
        adapter_bandwidth=rates / adapter.oversubscription,
        token_time=0.0 if single else constants[f"exchange_{phase}_token_time"],
        unit_rate=0.0 if single else constants["exchange_unit_rate"],
        forward_copies=0.0 if single else constants[f"exchange_{phase}_forward_copies"],
    )


def places_met(places: Column, top_k: int, experts: float, groups: float, chosen: float) -> Column:
    """Return the ranks or nodes that a token meets, on average, column by column.

    Takes what `perfmodel.kernels.collective.expert_exchange.distinct_places` does.
    """
    from perfmodel.kernels.collective import expert_exchange as kernel
    from perfmodel.kernels.work import kernel_work

    with kernel_work(exchanges=places.size) as run:
        met: Column = run(kernel.distinct_place_counts)(places, top_k, experts, groups, chosen)
    return met


def moe_exchange_times(
    hardware: Hardware,
    phase: str,
    mode: str,
    tokens_per_rank: ArrayLike,
    hidden: ArrayLike,
    top_k: ArrayLike,
    experts: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    compute_units: ArrayLike = COMPUTE_UNITS,
    element_bytes: float | None = None,
    share: float = 1.0,
    groups: float = 0.0,
) -> NDArray[np.float64]:
    """Return the times of token exchanges with evenly chosen experts.

    Parameters
    ----------
    hardware : Hardware
    phase : {"dispatch", "combine"}
    mode : {"normal", "low_latency"}
    tokens_per_rank, hidden, top_k, experts : array of int
        Tokens of a rank, elements of a token, experts of a token, all experts.
    members : array of int
        Ranks that share the experts.
    stride : array of int
        Distance between neighbouring ranks.
    compute_units : array of int
        Units that copy; mode ``normal`` only.
    element_bytes : float, optional
        On the wire [B]; those of `ELEMENT_BYTES` where not given.
    share : float
        Of the groups of experts among which a token chooses, where they are limited
        (DeepSeek-V3, arXiv:2412.19437, section 2.1.2); mode ``normal`` only.
    groups : float
        Groups of experts; 0: one per node. Without a limit it does not matter.

    Returns
    -------
    float64[rows]
        [s]; the arguments are broadcast together; 0 for a single member or no token.

    Raises
    ------
    StrategyError
        Unknown phase or mode, a number that is negative or not finite, more choices than
        experts, fewer experts than members.
    HardwareError
        The profile lacks a constant.
    """
    from perfmodel.kernels.collective import expert_exchange as kernel
    from perfmodel.kernels.work import kernel_work

    for what, name, names in (("phase", phase, PHASES), ("mode", mode, MODES)):
        if name not in names:
            raise StrategyError(f"unknown {what} of exchange '{name}'{did_you_mean(name, names)}")
    columns = {
        "tokens_per_rank": tokens_per_rank,
        "hidden": hidden,
        "top_k": top_k,
        "experts": experts,
        "members": members,
        "stride": stride,
        "compute_units": compute_units,
    }
    numbers = {name: np.atleast_1d(np.asarray(x, np.float64)) for name, x in columns.items()}
    for name, values in numbers.items():
        least = 0.0 if name == "tokens_per_rank" else 1.0
        bad = values[~(np.isfinite(values) & (values >= least))]
        if bad.size:
            raise StrategyError(f"{name} of an exchange is {bad.flat[0]}; at least {least:g}")
    rows = broadcast("exchanges", numbers, error=StrategyError).values()
    tokens, width, choices, all_experts, ranks, steps, units = rows
    if np.any(choices > all_experts):
        raise StrategyError("a token cannot choose more experts (top_k) than there are (experts)")
    if np.any(ranks > all_experts):
        i = int(np.argmax(ranks > all_experts))
        raise StrategyError(
            f"{ranks[i]:g} members share {all_experts[i]:g} experts; at least one expert per member"
        )
    node = members_per_domain(hardware, ranks.astype(np.int64), steps.astype(np.int64))
    inside = node[0]
    for level, network in enumerate(hardware.system.network):
        if not is_scale_out(network, level):
            inside = node[level]
    constant = hardware.lookup("network")
    constants = {key: constant(key) for key in CONSTANTS}
    exchange = exchange_constants(constants, hardware, phase, mode)
    with kernel_work(exchanges=tokens.size) as run:
        times: NDArray[np.float64] = run(kernel.moe_exchange_times)(
            mode == "low_latency",
            tokens,
            width * (ELEMENT_BYTES[phase] if element_bytes is None else element_bytes),
            choices,
            all_experts,
            ranks,
            inside.astype(np.float64),
            units,
            float(groups),
            share,
            exchange,
        )
    return times


def stage_strides(
    columns: Mapping[str, Integers], members: Column, step: Column, sizes: Sequence[int]
) -> Column:
    """Return the strides that stand for groups of every `step`-th rank of a pipeline stage.

    Parameters
    ----------
    columns : mapping of str to ndarray of int64, shape (n,)
        With those of `layer_placement`, or without any of them.
    members, step : ndarray, shape (n,)
        Ranks of the groups, and their distance in the numbering of the stage.
    sizes : sequence of int
        Sizes of the network levels, innermost first; 0: unbounded.

    Returns
    -------
    ndarray of floats, shape (n,)
        See `perfmodel.kernels.step.placement.even_stride`.
    """
    if "stage_block" not in columns:
        return step
    from perfmodel.kernels.collective.table import blank_network

    network = blank_network(len(sizes))
    network.levels["domains"] = sizes
    return _by_row("strides_in_rows", columns, members, step, network)


def stage_members(
    columns: Mapping[str, Integers], members: Column, step: Column, domain: int
) -> Column:
    """Count the members of groups of every `step`-th rank of a stage in a network domain.

    Parameters as of `stage_strides`; `domain` in devices. Shape (n,).
    """
    if "stage_block" not in columns:
        return np.clip(domain // step, 1.0, members)
    return _by_row("members_in_rows", columns, members, step, domain)


def _by_row(
    name: str,
    columns: Mapping[str, Integers],
    members: Column,
    step: Column,
    network: Any,
) -> Column:
    from perfmodel.kernels.step import placement as kernel
    from perfmodel.kernels.work import kernel_work

    out = np.empty(members.size, np.int64)
    rows = (members, step, columns["stage_block"], columns["stage_jump"])
    whole = (np.ascontiguousarray(item, np.int64) for item in rows)
    with kernel_work(placements=members.size):
        getattr(kernel, name)(*whole, network, out)
    return out.astype(np.float64)
