"""Routed experts of one layer of a served pass: their time on the busiest device, and what
brings tokens there and back.

From the choice of experts (whose scores are a dense product) to the sum over them; shared
experts and projections to a latent are products like any other and stand elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.base.routing import Routing
from perfmodel.compute.expected_loads import DISTRIBUTIONS, expected_loads
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.grouped_gemm import Loads, default_kernel, pack_loads
from perfmodel.compute.moe import DRAWS, moe_layer_times
from perfmodel.compute.routing import rank_loads
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles import Hardware
from perfmodel.model.layers import MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.serving.communication import expert_exchange_times
from perfmodel.serving.layouts import (
    ACTIVATION_FORMATS,
    WEIGHT_FORMATS,
    Layouts,
    ProductFormat,
    place_formats,
)
from perfmodel.software.engine import Engine

SERVED_ROUTING = Routing("two_level")
"""How popular the experts of a real model are: 58 layers of DeepSeek-V3 (docs/routing.md)."""


class ExpertTimes(NamedTuple):
    """Seconds of one layer, both of shape (layout, tokens)."""

    experts: Floats
    communication: Floats


class _Variant(NamedTuple):
    """What one call of the kernels has in common."""

    engine: Engine
    kernel: str
    format: ProductFormat


def expert_times(
    model: ModelSpec,
    mlp: MlpSpec,
    layouts: Layouts,
    tokens: ArrayLike,
    hardware: Hardware,
    routing: Routing | None = None,
    *,
    index: int | None = None,
) -> ExpertTimes:
    """Return the time of a layer's routed experts and of their communication.

    Parameters
    ----------
    model : ModelSpec
    mlp : MlpSpec
        A block of kind "moe".
    layouts : Layouts
    tokens : array_like, shape (tokens,)
        Tokens of a pass on an attention rank; all ranks hold as many.
    hardware : Hardware
    routing : Routing, optional
        Default `SERVED_ROUTING`, in closed form as "uniform" is
        (`perfmodel.compute.expected_loads`); others are drawn.
    index : int, optional
        Number of the layer, which decides the format of its weights; default: the first that
        has this block.

    Returns
    -------
    ExpertTimes
        [s]. Choice of experts, permutation, quantisation, grouped products, activation and
        combination on the busiest device; and their exchange.

    Raises
    ------
    HardwareError
        The profile lacks constants.

    Notes
    -----
    a·T tokens meet the experts. A device holds E/e of them, each cut over t·a/e devices, so that
    their width there is f·e/(t·a). The pass waits for the device with most rows.
    """
    knots = np.atleast_1d(np.asarray(tokens, np.float64))
    columns = layouts.columns
    keys = np.stack(
        [
            columns[name]
            for name in (
                "engine",
                "weight_precision",
                "activation_precision",
                "tensor_parallel",
                "attention_data_parallel",
                "expert_parallel",
            )
        ]
    )
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    found = np.zeros((2, distinct.shape[1], knots.size))
    layer = _first_layer(model, mlp) if index is None else index
    variants: dict[_Variant, list[int]] = {}
    for row, (engine, weights, activations) in enumerate(distinct[:3].T):
        variant = _variant(
            model, layouts.engines[engine], WEIGHT_FORMATS[weights],
            ACTIVATION_FORMATS[activations], hardware, layer,
        )  # fmt: skip
        variants.setdefault(variant, []).append(row)
    for variant, rows in variants.items():
        degrees = np.repeat(distinct[3:, rows], knots.size, axis=1)
        own = np.tile(knots, len(rows))
        experts, sent = _variant_times(model, mlp, variant, own, degrees, hardware, routing)
        found[0, rows] = experts.reshape(len(rows), knots.size)
        found[1, rows] = sent.reshape(len(rows), knots.size)
    back = np.ravel(place)
    return ExpertTimes(found[0][back], found[1][back])


def _first_layer(model: ModelSpec, mlp: MlpSpec) -> int:
    layers = (*model.layers, *model.mtp_layers)
    return next((i for i, layer in enumerate(layers) if layer.mlp == mlp), 0)


def _variant(
    model: ModelSpec, engine: Engine, weights: str, activations: str, hardware: Hardware, index: int
) -> _Variant:
    item = place_formats(model, index, weights, activations, hardware)["experts"]
    return _Variant(engine, expert_kernel(engine, hardware), item)


def expert_kernel(engine: Engine, hardware: Hardware) -> str:
    """Return the library that runs routed experts, of `perfmodel.compute.grouped_gemm.KERNELS`."""
    own = default_kernel(hardware)
    if own in ("aiter", "cutlass"):  # of AMD and of systolic arrays, whatever the engine
        return own
    # Generated kernels exist for data-centre Blackwell (sm_100, sm_103) alone.
    blackwell = "sm10" in hardware.device.architecture
    return engine.expert_kernel_blackwell if blackwell else engine.expert_kernel


def _variant_times(
    model: ModelSpec, mlp: MlpSpec, variant: _Variant, tokens: Floats, degrees: Integers,
    hardware: Hardware, routing: Routing | None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return both times of rows of one variant; `degrees` are t, a and e, shape (3, row)."""
    t, a, e = degrees
    hidden = float(mlp.latent_size or model.hidden_size)
    k, number = mlp.experts_per_token, mlp.experts
    wire = OPERAND_BYTES[variant.format.products]
    sent, apart = expert_exchange_times(
        hardware, variant.engine, tokens, hidden, k, number, t, a, e, wire
    )
    met = tokens * a
    width = mlp.expert_intermediate_size * e / (t * a)
    sizes = np.stack([met, e, apart])
    keys, key = np.unique(sizes, axis=1, return_inverse=True)
    loads, draws = _loads(mlp, keys, routing)
    if "moe" not in hardware.calibration:
        time = _plain_times(hardware, variant, loads, draws, np.ravel(key), hidden, width, mlp)
    else:
        layer = np.repeat(np.arange(met.size), draws)
        load = (np.ravel(key)[:, None] * draws + np.arange(draws)).ravel()
        time = moe_layer_times(
            hardware, variant.format.products, loads, layer, load, hidden, width, k, number,
            mlp.gated, kernel=variant.kernel, router=not mlp.hash_routing,
            weight_bytes=variant.format.weight_bytes,
        ).time  # fmt: skip
    if mlp.hash_routing:
        # Experts are looked up by token; only their scores are read.
        chosen = met * k
        time = time + stream_times(hardware, 8.0 * chosen, 4.0 * chosen).time
    return time, sent


def _loads(mlp: MlpSpec, keys: Floats, routing: Routing | None) -> tuple[Loads, int]:
    """Return the loads of tokens, ranks and whether only own tokens come, and draws of each."""
    met, ranks, apart = keys
    same = np.ones(met.size)
    groups, limit = max(mlp.expert_groups, 1), max(mlp.expert_groups_per_token, 1)
    chosen = routing or SERVED_ROUTING
    if chosen.distribution in DISTRIBUTIONS:
        columns = met, same * mlp.experts, same * mlp.experts_per_token, ranks
        found = expected_loads(*columns, groups, limit, distribution=chosen.distribution)
        return found.loads._replace(tokens=np.where(apart > 0.0, found.here, met)), 1
    draws = DRAWS if chosen.random else 1
    drawn = []
    for count, ranks_here, own in keys.T:
        for draw in range(draws):
            load = rank_loads(
                chosen, max(round(count), 1), mlp.experts, mlp.experts_per_token,
                int(ranks_here), draw,
            )  # fmt: skip
            drawn.append((load.tokens if own else count, load.loads))
    return pack_loads(drawn), draws


def _plain_times(
    hardware: Hardware, variant: _Variant, loads: Loads, draws: int, key: Integers,
    hidden: float, width: Floats, mlp: MlpSpec,
) -> Floats:  # fmt: skip
    """Time experts on a device whose libraries are not known: as equal dense products.

    Batched products over the experts that have rows, an activation between them, and the rows
    moved once each way.
    """
    starts = loads.offsets[:-1]
    active = np.add.reduceat(np.where(loads.sizes > 0.0, loads.counts, 0.0), starts)
    rows = np.add.reduceat(loads.sizes * loads.counts, starts)
    active, rows = (x.reshape(-1, draws).mean(axis=1)[key] for x in (active, rows))
    active = np.maximum(active, 1e-9)
    each = np.maximum(rows / active, 1.0)
    inner = np.maximum(width, 1.0)
    gates = 2.0 if mlp.gated else 1.0
    whole = np.maximum(np.floor(active), 1.0)
    precision = variant.format.products
    time: Floats = np.zeros(key.size)
    for n, k in ((inner * gates, np.full(key.size, hidden)), (np.full(key.size, hidden), inner)):
        products = gemm_times(hardware, precision, np.ceil(each), np.ceil(n), np.ceil(k), whole)
        time = time + products.time * active / whole
    time = time + stream_times(hardware, rows * inner * gates * 2.0, rows * inner * 2.0).time
    return time + 2.0 * stream_times(hardware, rows * hidden * 2.0, rows * hidden * 2.0).time
