"""Sequences that go from prefill to decode workers: what is sent, and over what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.serving.grid import DeploymentGrid
    from perfmodel.serving.memory import DeploymentMemory


def handover(
    grid: DeploymentGrid, memory: DeploymentMemory, hardware: Hardware
) -> tuple[Floats, Floats]:
    """Return what handing over a sequence takes, and what each of its tokens adds.

    Parameters
    ----------
    grid : DeploymentGrid
    memory : DeploymentMemory
        Of decode workers.
    hardware : Hardware
        Their device, whose outermost network the pools share.

    Returns
    -------
    latency, per_token : ndarray, shape (deployments,)
        [s]; every device of a decode worker gets its own part of the cache over its own link,
        states with the first token.
    """
    level = hardware.system.network[-1]
    rate = level.bandwidth
    apart = grid["prefill_workers"] > 0
    latency = np.where(apart, level.latency + memory.state_bytes / rate, 0.0)
    return latency, np.where(apart, memory.bytes_per_token / rate, 0.0)
