"""Where the passes of one operating point go, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.serving.grid import STATUS_REASONS, VALID, DeploymentGrid, LoadGrid
from perfmodel.serving.pass_operations import Pass, PassOperation, pass_operations

if TYPE_CHECKING:
    from perfmodel.compute.routing import Routing
    from perfmodel.hwprofiles import Hardware


def point_passes(grid: DeploymentGrid, loads: LoadGrid, batch: float) -> dict[str, Pass]:
    """Return a decode pass and a pass with a prompt, as an operating point has them.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
        One of each.
    batch : float
        Sequences that decode on an attention rank; NaN where none does.

    Returns
    -------
    dict of str to Pass
        "decode": the mean batch, halfway through its answers. "prefill": the first chunk of a
        prompt, beside that batch where the engine runs both in one pass.
    """
    engine = grid.engines[int(grid["engine"][0])]
    spread = 0.5 * (1.0 + float(loads["length_spread"][0]))
    prompt = spread * float(loads["input_length"][0])
    answer = spread * float(loads["output_length"][0])
    prefix = min(float(loads["prefix"][0]), prompt - 1.0)
    verified = 1.0 + float(grid["draft_length"][0])
    decoding = batch / float(grid["pipeline_parallel"][0])
    found = {}
    if math.isfinite(batch) and batch > 0.0:
        decoding = max(decoding, 1.0)
        context = prompt + 0.5 * answer
        found["decode"] = Pass(decoding=decoding, context=context, verified=verified)
    beside = found.get("decode", Pass())
    apart = bool(grid["prefill_workers"][0])
    if apart or engine.scheduler == "prefill_first":
        beside = Pass()
    new = prompt - prefix
    room = float(grid["token_budget"][0]) - beside.decoding * beside.verified
    chunk = min(new, max(room, 1.0))
    found["prefill"] = beside._replace(
        prompts=1.0, chunk=chunk, before=prefix, finished=float(chunk == new)
    )
    return found


def explain_point(
    grid: DeploymentGrid,
    loads: LoadGrid,
    hardware: Hardware,
    row: Mapping[str, Any],
    *,
    prefill_hardware: Hardware | None = None,
    routing: Routing | None = None,
) -> dict[str, list[PassOperation]]:
    """Price the passes of one operating point, operation by operation.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
        One of each.
    hardware : Hardware
    row : mapping of str to value
        The point's results; its ``batch`` counts.
    prefill_hardware : Hardware, optional
        Of the prefill pool; default `hardware`.
    routing : Routing, optional

    Returns
    -------
    dict of str to list of PassOperation
        By the names of `point_passes`.

    Raises
    ------
    StrategyError
        More than one point, or an impossible deployment.
    """
    if len(grid) != 1 or len(loads) != 1:
        raise StrategyError(
            f"explain takes exactly one point, not {len(grid):,} deployments under {len(loads):,}"
        )
    if grid.status[0] != VALID:
        raise StrategyError(f"impossible deployment: {STATUS_REASONS[int(grid.status[0])]}")
    layouts, layout, second = grid.layouts()
    found = {}
    for name, what in point_passes(grid, loads, float(row["batch"])).items():
        apart = name == "prefill" and second[0] >= 0
        held = layouts.take(np.array([second[0] if apart else layout[0]]))
        device = (prefill_hardware or hardware) if apart else hardware
        found[name] = pass_operations(grid.model, held, device, what, routing=routing)
    return found
