"""One pass of a served model, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.precisions import FORMATS
from perfmodel.base.units import format_si
from perfmodel.kernels.serving.tables import COMMUNICATION, EXPERTS, OTHER, PARTS
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import Mixer, MlpSpec
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Communication, Gemm, Stream, machine_of
from perfmodel.operations.parts import Part
from perfmodel.operations.served import head_operations, pass_keys, served_operations
from perfmodel.serving.experts import expert_times
from perfmodel.serving.layouts import Layouts
from perfmodel.serving.mixers import Calls, decode_times, mixer_formats, prefill_times
from perfmodel.serving.pass_pricing import SHARED, Item, hidden_parts, price_items
from perfmodel.serving.pass_table import (
    LayerGroup,
    Recipe,
    layer_groups,
    layer_items,
    pass_tables,
    recipes,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


LEAST_SHARE = 0.25
"""Share of a time that products or memory fill at least where they bound it; below that launches,
fills and drains do [prior: a word for people, no number depends on it]."""


class Pass(NamedTuple):
    """What runs in a pass, on one attention rank; see `perfmodel.kernels.serving.passes`.

    Attributes
    ----------
    prompts, chunk, before : float
        Prompts, tokens of each that run, and tokens of it that came before.
    decoding, context, verified : float
        Sequences that decode, tokens that each keeps, and tokens that each runs.
    finished : float
        Prompts whose last chunk it is.
    """

    prompts: float = 0.0
    chunk: float = 0.0
    before: float = 0.0
    decoding: float = 0.0
    context: float = 0.0
    verified: float = 1.0
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class PassOperation:
    """One operation of a pass.

    Attributes
    ----------
    part, name, kind : str
        Part of the model, operation, and the part of the pass's time to which it adds:
        "attention", "matrices", "experts", "communication", "other" or "host".
    shape : str
        Sizes, readable.
    calls : float
        Times it runs in a pass.
    time, adds : float
        Of one call, and what all calls add to the pass [s]: less where other kernels run beside
        them (`perfmodel.serving.pass_pricing`).
    flops, traffic : float
        FLOP of matrix products and bytes of one call, memory or wire [FLOP, B]; 0 where they
        are not told apart.
    bound : str
        What a call is mostly spent on: "compute", "memory", "latency" (neither of the two),
        "network" or "host".
    """

    part: str
    name: str
    kind: str
    shape: str
    calls: float
    time: float
    adds: float
    flops: float
    traffic: float
    bound: str


def pass_operations(
    model: ModelSpec,
    layouts: Layouts,
    hardware: Hardware,
    what: Pass,
) -> list[PassOperation]:
    """Price every operation of one pass.

    Parameters
    ----------
    model : ModelSpec
    layouts : Layouts
        Exactly one.
    hardware : Hardware
    what : Pass

    Returns
    -------
    list of PassOperation
        In the order of a pass; what the host and speculation take stands at the end. `adds` sum up
        to `perfmodel.kernels.serving.passes.pass_times`, but for its interpolation between
        tabulated sizes.

    Raises
    ------
    StrategyError, HardwareError
        As `pass_tables` does.
    """
    from perfmodel.kernels.serving import passes
    from perfmodel.kernels.work import kernel_work

    tables = pass_tables(model, layouts, hardware)
    (recipe,) = recipes(layouts)
    decoded = what.decoding * what.verified
    tokens = what.prompts * what.chunk + decoded
    with kernel_work(passes=1):
        if not what.prompts and decoded <= tables.graph_limit[0]:
            tokens = passes.captured_size(decoded, tables.graph_limit[0], tables.graph_step[0])
        host = float(passes.pass_times(tables, 0, *what)[-1])
        speculation = float(passes.line(tables.batches, tables.draft, 0, what.decoding))
    bare = replace(model, towers=())
    found = list(_dense(bare, recipe, hardware, tokens))
    groups = layer_groups(bare, recipe, hardware)
    for number, group in enumerate(groups):
        found += _mixers(recipe, hardware, group, _name(group, number), what)
    found += _head(bare, recipe, hardware, decoded + what.finished)
    gaps = model.num_layers + bool(recipe.speculative_tokens[0])
    others = [
        (
            "draft tokens", "further draft tokens", "other", f"{what.decoding:.4g} sequences",
            speculation, "memory",
        ),
        (
            "layers", "gaps between kernels", "other", f"{model.num_layers:,} layers",
            gaps * recipe.engine.layer_gap, "latency",
        ),
        ("pass", "waiting for the host", "host", "", host, "host"),
    ]  # fmt: skip
    for part, name, kind, shape, time, bound in others:
        if time > 0.0:
            found.append(PassOperation(part, name, kind, shape, 1.0, time, time, 0.0, 0.0, bound))
    return found


def _name(group: LayerGroup, number: int) -> str:
    return "draft tokens" if group.draft else f"layer{number}"


def _dense(
    model: ModelSpec, recipe: Recipe, hardware: Hardware, tokens: float
) -> Iterator[PassOperation]:
    """Yield what depends on tokens alone: embedding, sends, layers with their experts."""
    knot = np.array([max(tokens, 1.0)])
    keys = pass_keys(recipe.tensor_parallel, knot)
    stages = recipe.layouts.columns["pipeline_parallel"][0]
    embedding = Part("embedding", "embedding")
    for operation in served_operations(model, embedding, keys, machine_of(hardware)):
        yield from _priced("embedding", Item(operation, 1.0, {}), recipe, hardware)
    if stages > 1:
        sends = Communication(
            "send", "forward", "pipeline", "point_to_point",
            knot * (model.hidden_size * model.streams * 2.0), 2.0,
            recipe.layouts.rank_devices.astype(np.float64), count=float(stages - 1),
        )  # fmt: skip
        yield from _priced("pipeline", Item(sends, 1.0, {}), recipe, hardware)
    for number, group in enumerate(layer_groups(model, recipe, hardware)):
        if group.draft and not recipe.speculative_tokens[0]:
            continue
        part, calls = _name(group, number), 1.0 if group.draft else float(group.count)
        items = layer_items(model, group, recipe, keys, hardware)
        routed = _routed(model, group, recipe, hardware, tokens, part, calls)
        beside = np.array([sum(it.time for it in routed if it.kind == PARTS[EXPERTS])])
        hidden = hidden_parts(hardware, recipe.engine, items, keys, beside)[0].sum()
        if group.draft:
            hidden = 0.0
            projections = served_operations(model, Part("mtp", "mtp"), keys, machine_of(hardware))
            items += [Item(operation, 1.0, group.formats) for operation in projections]
        shared = [
            priced
            for item in items
            if item.operation.role in SHARED
            for priced in _priced(part, replace(item, times=calls), recipe, hardware)
            if priced.kind != PARTS[COMMUNICATION]
        ]
        alone = sum(it.adds for it in shared) / calls
        for item in items:
            for priced in _priced(part, replace(item, times=calls), recipe, hardware):
                left = 1.0 - hidden / alone if priced in shared else 1.0
                yield replace(priced, adds=left * priced.adds)
        yield from routed


def _routed(
    model: ModelSpec, group: LayerGroup, recipe: Recipe, hardware: Hardware, tokens: float,
    part: str, calls: float,
) -> list[PassOperation]:  # fmt: skip
    """Return the routed experts of a layer, and what brings tokens there and back."""
    found = []
    knot = np.array([max(tokens, 1.0)])
    for mlp in group.layer.mlps:
        if mlp.kind != "moe":
            continue
        times = expert_times(model, mlp, recipe.layouts, knot, hardware, None, index=group.index)
        met = tokens * recipe.layouts.columns["attention_data_parallel"][0]
        shape = f"{met:,.0f} tokens, {mlp.experts_per_token} of {mlp.experts} experts"
        whole, size = float(times.experts[0, 0]), float(model.hidden_size)
        bound = _experts_bound(mlp, size, group, recipe, hardware, met, whole)
        for name, kind, time, limit in (
            ("routed experts", "experts", times.experts, bound),
            ("expert exchange", "communication", times.communication, "network"),
        ):
            each = float(time[0, 0])
            if each > 0.0:
                found.append(
                    PassOperation(
                        part, name, kind, shape, calls, each, calls * each, 0.0, 0.0, limit
                    )
                )
    return found


def _experts_bound(
    mlp: MlpSpec, hidden: float, group: LayerGroup, recipe: Recipe, hardware: Hardware,
    met: float, time: float,
) -> str:  # fmt: skip
    """Tell what bounds experts: their products, or reading the weights of those with tokens."""
    item = group.formats["experts"]
    devices = float(recipe.layouts.rank_devices[0])
    rows = met * mlp.experts_per_token / devices
    active = mlp.experts * -np.expm1(-met * mlp.experts_per_token / mlp.experts) / devices
    hidden = mlp.latent_size or hidden
    each = (3.0 if mlp.gated else 2.0) * hidden * mlp.expert_intermediate_size
    flops, traffic = 2.0 * rows * each, active * each * item.weight_bytes
    return _bound(hardware, item.products, flops, traffic, time)


def _head(
    model: ModelSpec, recipe: Recipe, hardware: Hardware, sequences: float
) -> Iterator[PassOperation]:
    """Yield what turns sequences into tokens; nothing where none has any."""
    if sequences <= 0.0:
        return
    keys = pass_keys(recipe.tensor_parallel, np.array([sequences]))
    formats = layer_groups(model, recipe, hardware)[0].formats
    for operation in head_operations(model, keys, machine_of(hardware)):
        for item in _priced("output", Item(operation, 1.0, formats), recipe, hardware):
            yield replace(item, kind=PARTS[OTHER])


def _priced(part: str, item: Item, recipe: Recipe, hardware: Hardware) -> Iterator[PassOperation]:
    """Yield an operation with its price; nothing where it does not run."""
    operation = item.operation
    calls = item.times * _number(operation.count)
    if not calls:
        return
    keys = pass_keys(recipe.tensor_parallel, np.ones(1))
    parts = price_items(hardware, recipe.engine, [item], keys).parts[0]
    adds = float(parts.sum())
    if adds <= 0.0:
        return
    flops, traffic, shape, bound = _sizes(item, hardware, adds / calls)
    kind = PARTS[int(np.argmax(parts))]
    _, _, name = operation.name.rpartition(".")
    named = operation.name.removeprefix(f"{part}.") if name else operation.name
    yield PassOperation(part, named, kind, shape, calls, adds / calls, adds, flops, traffic, bound)


def _sizes(item: Item, hardware: Hardware, time: float) -> tuple[float, float, str, str]:
    """Return FLOP, bytes, shape and bound of one call."""
    operation = item.operation
    if isinstance(operation, Gemm):
        m, n, k, batch = (_number(getattr(operation, name)) for name in ("m", "n", "k", "batch"))
        product = item.product
        operand = FORMATS[product.products].bytes
        traffic = batch * (m * k * operand + n * k * product.weight_bytes + 2.0 * m * n)
        flops = 2.0 * batch * m * n * k
        shape = f"{m:g}×{n:g}×{k:g}" if batch == 1.0 else f"{batch:g} of {m:g}×{n:g}×{k:g}"
        shape += f" {product.products}"
        return flops, traffic, shape, _bound(hardware, product.products, flops, traffic, time)
    if isinstance(operation, Communication):
        size = _number(operation.size)
        shape = f"{format_si(size, 'B')} over {_number(operation.members):g} devices"
        return 0.0, size, shape, "network"
    assert isinstance(operation, Stream)
    traffic = _number(operation.bytes_read) + _number(operation.bytes_written)
    bound = _bound(hardware, "", 0.0, traffic, time)
    return 0.0, traffic, format_si(traffic, "B"), bound


def _bound(hardware: Hardware, precision: str, flops: float, traffic: float, time: float) -> str:
    """Return what a time is mostly spent on: products at their peak, memory, or neither."""
    moving = traffic / hardware.device.memory.bandwidth
    computing = flops / hardware.device.peak(precision) if flops else 0.0
    least, bound = max((computing, "compute"), (moving, "memory"))
    return bound if least >= LEAST_SHARE * time else "latency"


def _mixers(
    recipe: Recipe, hardware: Hardware, group: LayerGroup, part: str, what: Pass
) -> Iterator[PassOperation]:
    """Yield the mixers of a layer, over prompts and over decoding sequences."""
    if group.draft and not recipe.speculative_tokens[0]:
        return
    weights, engine = group.formats["attention"], recipe.engine
    calls = 1.0 if group.draft else float(group.count)
    phases = (
        ("prefill", what.prompts, what.chunk, what.before + what.chunk),
        ("decode", what.decoding, what.verified, max(what.context, what.verified)),
        ("further draft tokens", what.decoding, 1.0, max(what.context, 1.0)),
    )
    further = float(recipe.speculative_tokens[0] - 1) if group.draft else 0.0
    for phase, sequences, queries, keys in phases:
        if not sequences or not queries:
            continue
        formats = mixer_formats(hardware, engine, recipe.cache, weights, prefill=phase == "prefill")
        # A prompt has a call of its own; decoding sequences share one.
        batch = 1.0 if phase == "prefill" else sequences
        each = Calls(
            *(np.array([x]) for x in (float(recipe.tensor_parallel[0]), batch, queries, keys))
        )
        for mixer in group.layer.mixers:
            if phase == "prefill":
                time = float(prefill_times(hardware, engine, mixer, formats, each)[0])
                times = calls * sequences
            else:
                time = float(decode_times(hardware, mixer, formats, each)[0])
                times = calls if phase == "decode" else further
            if time * times <= 0.0:
                continue
            flops, traffic = _mixer_sizes(mixer, formats.cache, each)
            bound = _bound(hardware, formats.products, flops, traffic, time)
            shape = f"b{batch:.4g} q{queries:g} k{keys:,.0f}"
            yield PassOperation(
                part, f"{_mixer_name(mixer)} {phase}", "attention", shape, times, time,
                times * time, flops, traffic, bound,
            )  # fmt: skip


def _mixer_name(mixer: Mixer) -> str:
    if isinstance(mixer, RecurrenceSpec):
        return mixer.kind
    return mixer.kind if isinstance(mixer, AttentionSpec) else "convolution"


def _mixer_sizes(mixer: Mixer, cache: str, calls: Calls) -> tuple[float, float]:
    """Return FLOP and bytes of full attention over what is cached; 0 of other mixers."""
    if not isinstance(mixer, AttentionSpec) or mixer.sparse:
        return 0.0, 0.0
    tensor_parallel, batch, queries, keys = (float(x[0]) for x in calls)
    seen = min(keys, float(mixer.window) or keys)
    pairs = batch * queries * (seen - 0.5 * min(queries, seen) if queries > 1.0 else seen)
    width, values = float(mixer.head_dim), float(mixer.value_head_dim)
    groups = max(mixer.key_value_heads / tensor_parallel, 1.0)
    kept = groups * (width + values)
    if mixer.kind == "mla":
        kept = float(mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        if queries == 1.0:
            width, values = kept, float(mixer.kv_lora_rank)
    flops = 2.0 * pairs * max(mixer.heads / tensor_parallel, 1.0) * (width + values)
    return flops, batch * seen * kept * FORMATS[cache].bytes


def _number(value: Any) -> float:
    return float(np.asarray(value, np.float64).reshape(-1)[0])
