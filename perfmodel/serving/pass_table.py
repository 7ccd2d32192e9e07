"""What passes of a served model cost, as tables over tokens, sequences and contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import FORMATS
from perfmodel.base.routing import Routing
from perfmodel.kernels.serving.tables import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
    OTHER,
    PARTS,
    PassTables,
)
from perfmodel.model.layers import LayerSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Communication, LayerKeys, Operation, Role, machine_of
from perfmodel.operations.parts import Part
from perfmodel.operations.priced import distinct_rows
from perfmodel.operations.served import (
    append_operation,
    head_operations,
    norm_sums,
    pass_keys,
    served_operations,
)
from perfmodel.serving.communication import fused_norms
from perfmodel.serving.experts import expert_times
from perfmodel.serving.layouts import (
    ACTIVATION_FORMATS,
    KV_FORMATS,
    WEIGHT_FORMATS,
    Layouts,
    ProductFormat,
    place_formats,
)
from perfmodel.serving.memory import resident_bytes
from perfmodel.serving.mixers import (
    Calls,
    check_served,
    decode_times,
    mixer_formats,
    prefill_times,
)
from perfmodel.serving.pass_pricing import (
    TYPICAL_CONTEXT,
    TYPICAL_SEQUENCES,
    Item,
    PassCost,
    half_widths,
    hidden_parts,
    price_items,
)
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

MIXER_LAUNCHES = 3.0
LATENT_LAUNCHES = 10.0
EXPERT_LAUNCHES = 6.0
"""Operations that an eager pass launches for a mixer's core with its append and metadata; for
latent attention, whose keys are made and assembled and whose chunks are joined; and for routed
experts: choice, sorting, two products, activation and sum [priors, counted in vLLM's and
TensorRT-LLM's modules]."""


def ladder(last: int, *, whole: int = 4, steps: int = 3, first: int = 1) -> Floats:
    """Return knots 1, 2, 3, … `whole`, then `steps` per doubling; those in `first` … `last`.

    Examples
    --------
    >>> ladder(32, steps=2).astype(int).tolist()
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    """
    found = set(range(1, whole + 1))
    size = whole
    while size < last:
        found |= {size + size * step // steps for step in range(1, steps + 1)}
        size *= 2
    return np.array(sorted(x for x in found if first <= x <= last), np.float64)


# Between knots times are straight as far as they are smooth: matrix products go up in steps of
# tiles and waves, most visibly between some tens of tokens and some thousands.
TOKENS = np.union1d(ladder(65536, steps=4), ladder(4096, steps=8, first=64))
BATCHES = ladder(4096, steps=3)
SEQUENCES = BATCHES
CONTEXTS = np.array([1.0, 32.0, 64.0, *ladder(2**20, steps=2, first=128)])
CHUNKS = np.array([1.0, *ladder(65536, steps=4, first=8)])
BEFORE = np.array([0.0, *(2.0**n for n in range(7, 21))])


def can_speculate(model: ModelSpec) -> bool:
    """Whether a model can draft tokens: it has multi-token-prediction modules.

    Models are loaded without them unless asked for (``load_model(…, mtp="stated")``).
    """
    return bool(model.mtp_layers)


@dataclass(frozen=True)
class Recipe:
    """Layouts that share an engine and formats: what is priced together.

    Attributes
    ----------
    engine : Engine
    weights, activations, cache : str
        Formats, as `perfmodel.serving.layouts` names them.
    rows : ndarray of int64
        Positions of its layouts.
    layouts : Layouts
        These alone.
    """

    engine: Engine
    weights: str
    activations: str
    cache: str
    rows: Integers
    layouts: Layouts

    @property
    def tensor_parallel(self) -> Integers:
        """Devices of an attention rank."""
        return self.layouts.columns["tensor_parallel"]

    @property
    def speculative_tokens(self) -> Integers:
        """Drafted tokens per pass."""
        return self.layouts.columns["draft_length"]


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind and with the same formats.

    Attributes
    ----------
    layer : LayerSpec
    formats : dict of str to ProductFormat
    index : int
        Number of the first of them.
    count : int
        How many the model has.
    draft : bool
        Of a multi-token-prediction module.
    """

    layer: LayerSpec
    formats: dict[str, ProductFormat]
    index: int
    count: int
    draft: bool = False


def pass_tables(
    model: ModelSpec,
    layouts: Layouts,
    hardware: Hardware,
    *,
    routing: Routing | None = None,
) -> PassTables:
    """Price the passes of all layouts of a model on one hardware.

    Parameters
    ----------
    model : ModelSpec
        With its multi-token-prediction modules, where layouts speculate (`can_speculate`).
    layouts : Layouts
    hardware : Hardware
    routing : Routing, optional
        How tokens spread over experts; default uniform.

    Returns
    -------
    PassTables

    Raises
    ------
    StrategyError
        A model that is not served, or speculative tokens of a model without modules for them.
    HardwareError
        A missing calibration key.
    """
    check_served(model)
    model = replace(model, towers=())
    size = len(layouts)
    body = np.zeros((size, TOKENS.size, len(PARTS)))
    head = np.zeros((size, SEQUENCES.size))
    draft = np.zeros((size, BATCHES.size))
    decode = np.zeros((size, BATCHES.size, CONTEXTS.size))
    prefill = np.zeros((size, CHUNKS.size, BEFORE.size))
    launches = np.zeros(size)
    for recipe in recipes(layouts):
        groups = layer_groups(model, recipe, hardware)
        rows = recipe.rows
        cost = _body(model, recipe, groups, hardware, routing)
        body[rows], launches[rows] = cost.parts, cost.launches
        head[rows] = _head(model, recipe, hardware, SEQUENCES)
        decode[rows] = _decode(recipe, groups, hardware)
        prefill[rows] = _prefill(recipe, groups, hardware)
        draft[rows] = _speculation(model, recipe, groups, hardware, routing)
    layers = float(model.num_layers)
    fact = layouts.by_engine
    latent = sum(any(x.kind == "mla" for x in layer.attentions) for layer in model.layers)
    call, launch = fact("latent_call_time"), fact("operation_time")
    return PassTables(
        tokens=TOKENS,
        body=body,
        sequences=SEQUENCES,
        head=head,
        batches=BATCHES,
        contexts=CONTEXTS,
        decode=decode,
        chunks=CHUNKS,
        before=BEFORE,
        prefill=prefill,
        draft=draft,
        eager_time=launches * launch + latent * np.maximum(call - LATENT_LAUNCHES * launch, 0.0),
        graph_time=fact("graph_time") * np.ones(size),
        graph_limit=fact("graph_limit") * _graph_tokens(layouts),
        graph_step=fact("graph_step").astype(np.float64),
        mixed_graph_limit=fact("mixed_graph_limit").astype(np.float64),
        # Between two captured pieces attention is launched from Python, as one operation.
        piecewise_time=layers * (fact("piecewise_time") + launch)
        + latent * np.maximum(call - launch, 0.0),
        pass_host=fact("pass_host") * np.ones(size),
        sequence_host=fact("sequence_host") * np.ones(size),
        host_hidden=fact("host_hidden") * np.ones(size),
        half_width=half_widths(hardware, _typical_parts(body, decode)),
    )


def _graph_tokens(layouts: Layouts) -> Floats:
    """Tokens of what captured sizes count: a sequence with its drafts, or 1; shape (layout,)."""
    verified = layouts.columns["draft_length"] + 1.0
    return np.where(layouts.by_engine("graphs_of_sequences"), verified, 1.0)


def _typical_parts(body: Floats, decode: Floats) -> Floats:
    """Return the parts of a pass of some decoding sequences, shape (layout, parts)."""
    parts: Floats = body[:, TOKENS.searchsorted(TYPICAL_SEQUENCES)].copy()
    batch, keys = BATCHES.searchsorted(TYPICAL_SEQUENCES), CONTEXTS.searchsorted(TYPICAL_CONTEXT)
    parts[:, ATTENTION] += decode[:, batch, keys]
    return parts


def recipes(layouts: Layouts) -> Iterator[Recipe]:
    """Yield layouts in groups that share an engine and formats."""
    names = ("engine", "weight_precision", "activation_precision", "kv_precision")
    keys = np.stack([layouts.columns[name] for name in names])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    for number, (engine, weights, activations, cache) in enumerate(distinct.T.tolist()):
        rows = np.flatnonzero(inverse.ravel() == number)
        columns = {name: column[rows] for name, column in layouts.columns.items()}
        yield Recipe(
            layouts.engines[engine],
            WEIGHT_FORMATS[weights],
            ACTIVATION_FORMATS[activations],
            KV_FORMATS[cache],
            rows,
            Layouts(layouts.engines, columns),
        )


def layer_groups(model: ModelSpec, recipe: Recipe, hardware: Hardware) -> list[LayerGroup]:
    """Return the distinct layers of a model with the formats in which they are served."""
    layers = (*model.layers, *model.mtp_layers)
    kinds = {id(layer): layer for layer in layers}  # most layers are one object many times
    alike = {key: list(dict.fromkeys(kinds.values())).index(x) for key, x in kinds.items()}
    stated = model.quantization
    limited = stated is not None and any(item.layers for item in stated.places)
    same = place_formats(model, 0, recipe.weights, recipe.activations, hardware)
    found: dict[object, LayerGroup] = {}
    for index, layer in enumerate(layers):
        formats = same
        if limited:
            formats = place_formats(model, index, recipe.weights, recipe.activations, hardware)
        draft = index >= model.num_layers
        key = (alike[id(layer)], tuple(formats.items()), draft)
        item = found.get(key, LayerGroup(layer, formats, index, 0, draft))
        found[key] = replace(item, count=item.count + 1)
    return list(found.values())


def _keys(recipe: Recipe, tokens: Floats) -> LayerKeys:
    """Keys of all layouts of a recipe and all knots, knots running fastest."""
    return pass_keys(
        np.repeat(recipe.tensor_parallel, tokens.size), np.tile(tokens, recipe.rows.size)
    )


def layer_items(
    model: ModelSpec, group: LayerGroup, recipe: Recipe, keys: LayerKeys, hardware: Hardware
) -> list[Item]:
    """List what one layer does to tokens, its routed experts left out."""
    layer = group.layer
    part = Part("layer", "layer", layer)
    found = list(served_operations(model, part, keys, machine_of(hardware)))
    element = FORMATS[recipe.cache].bytes
    for spec in layer.attentions:
        found += [append_operation(spec, keys, element), *norm_sums(spec, keys)]
    apart = _norms_apart(model, recipe, keys, hardware)
    return [Item(_alone(operation, apart), 1.0, group.formats) for operation in found]


def _norms_apart(model: ModelSpec, recipe: Recipe, keys: LayerKeys, hardware: Hardware) -> Floats:
    """Return 0 where the norms of a layer run inside the all-reduces ahead of them, else 1."""
    width = model.hidden_size * model.streams * 2.0
    (size, members), every = distinct_rows([keys.tokens * width, keys.tensor_parallel])
    fused = fused_norms(hardware, recipe.engine, size, members, experts=model.has_experts)[every]
    # Among several attention ranks sums are scattered, not reduced everywhere.
    ranks = recipe.layouts.columns["attention_data_parallel"]
    return 1.0 - fused * np.repeat(ranks == 1, len(keys) // ranks.size)


def _alone(operation: Operation, apart: Floats) -> Operation:
    """Return an operation that vanishes where a norm is no kernel of its own."""
    if not operation.name.endswith(".norm"):
        return operation
    return replace(operation, count=operation.count * apart)


def _body(
    model: ModelSpec,
    recipe: Recipe,
    groups: list[LayerGroup],
    hardware: Hardware,
    routing: Routing | None,
) -> PassCost:
    """Price what depends on tokens alone, shape (layouts of the recipe, TOKENS)."""
    keys = _keys(recipe, TOKENS)
    shape = (recipe.rows.size, TOKENS.size)
    machine = machine_of(hardware)
    embedding = served_operations(model, Part("embedding", "embedding"), keys, machine)
    items = [Item(operation, 1.0, {}) for operation in embedding]
    stages = np.repeat(recipe.layouts.columns["pipeline_parallel"], TOKENS.size)
    stride = np.repeat(recipe.layouts.rank_devices, TOKENS.size)
    volume = keys.tokens * (model.hidden_size * model.streams * 2.0)
    sends = Communication(
        "pipeline.send", "forward", "pipeline", "point_to_point", volume, 2.0,
        stride.astype(np.float64), count=stages - 1.0, role=Role.NONE,
    )  # fmt: skip
    items.append(Item(sends, 1.0, {}))
    experts = np.zeros((*shape, len(PARTS)))
    mixers = 0.0
    for group in groups:
        if group.draft:
            continue
        mine = layer_items(model, group, recipe, keys, hardware)
        items += [replace(item, times=float(group.count)) for item in mine]
        routed = _experts(model, group, recipe, TOKENS, hardware, routing)
        beside = routed[..., EXPERTS].ravel()
        hidden = hidden_parts(hardware, recipe.engine, mine, keys, beside).reshape(routed.shape)
        experts += group.count * (routed - hidden)
        mixers += group.count * _core_launches(group.layer)
    resident = resident_bytes(model, recipe.layouts, hardware, TOKENS)
    cost = price_items(hardware, recipe.engine, items, keys, resident.ravel())
    parts = cost.parts.reshape(*shape, -1) + experts
    parts[..., OTHER] += model.num_layers * recipe.engine.layer_gap
    launches = cost.launches.reshape(shape)[:, 0] + mixers
    first = _first_speculation(model, recipe, groups, hardware, routing)
    return PassCost(parts + first, launches)


def _core_launches(layer: LayerSpec) -> float:
    """Operations that an eager pass launches for mixers' cores and routed experts of a layer."""
    latent = sum(spec.kind == "mla" for spec in layer.attentions)
    others = len(layer.mixers) - latent
    routed = sum(mlp.kind == "moe" for mlp in layer.mlps)
    return MIXER_LAUNCHES * others + LATENT_LAUNCHES * latent + EXPERT_LAUNCHES * routed


def _experts(
    model: ModelSpec,
    group: LayerGroup,
    recipe: Recipe,
    tokens: Floats,
    hardware: Hardware,
    routing: Routing | None,
) -> Floats:
    """Price the routed experts of one layer, shape (layouts, tokens, parts)."""
    found = np.zeros((recipe.rows.size, tokens.size, len(PARTS)))
    for mlp in group.layer.mlps:
        if mlp.kind == "moe":
            times = expert_times(
                model, mlp, recipe.layouts, tokens, hardware, routing, index=group.index
            )
            found[..., EXPERTS] += times.experts
            found[..., COMMUNICATION] += times.communication
    return found


def _head(model: ModelSpec, recipe: Recipe, hardware: Hardware, sequences: Floats) -> Floats:
    """Price what turns sequences into tokens, shape (layouts, sequences)."""
    formats = place_formats(model, 0, recipe.weights, recipe.activations, hardware)
    keys = _keys(recipe, sequences)
    found = head_operations(model, keys, machine_of(hardware))
    items = [Item(operation, 1.0, formats) for operation in found]
    resident = resident_bytes(model, recipe.layouts, hardware, sequences)
    cost = price_items(hardware, recipe.engine, items, keys, resident.ravel())
    return cost.parts.sum(axis=-1).reshape(recipe.rows.size, sequences.size)


def _decode(recipe: Recipe, groups: list[LayerGroup], hardware: Hardware) -> Floats:
    """Price mixers of decoding sequences, shape (layouts, BATCHES, CONTEXTS)."""
    ranks, inverse = np.unique(
        np.stack([recipe.tensor_parallel, recipe.speculative_tokens]), axis=1, return_inverse=True
    )
    tensor_parallel, speculative, batch, keys = np.broadcast_arrays(
        ranks[0][:, None, None], ranks[1][:, None, None], BATCHES[:, None], CONTEXTS
    )
    queries = speculative + 1.0
    calls = _calls(tensor_parallel, batch, queries, np.maximum(keys, queries))
    single = _calls(tensor_parallel, batch, np.ones(batch.shape), keys)
    found = np.zeros(batch.size)
    for group in groups:
        weights = group.formats["attention"]
        formats = mixer_formats(hardware, recipe.engine, recipe.cache, weights, prefill=False)
        for mixer in group.layer.mixers:
            # A module that drafts runs over all tokens of the pass, then over one more each time.
            times = decode_times(hardware, mixer, formats, calls) * group.count
            if group.draft:
                times = decode_times(hardware, mixer, formats, calls) * (speculative.ravel() > 0)
                again = np.maximum(speculative.ravel() - 1.0, 0.0)
                times += again * decode_times(hardware, mixer, formats, single)
            found += times
    return _paddable(found.reshape(batch.shape))[inverse.ravel()]


def _prefill(recipe: Recipe, groups: list[LayerGroup], hardware: Hardware) -> Floats:
    """Price mixers of one chunk, shape (layouts, CHUNKS, BEFORE)."""
    ranks, inverse = np.unique(
        np.stack([recipe.tensor_parallel, recipe.speculative_tokens > 0]),
        axis=1,
        return_inverse=True,
    )
    tensor_parallel, speculative, chunk, before = np.broadcast_arrays(
        ranks[0][:, None, None], ranks[1][:, None, None], CHUNKS[:, None], BEFORE
    )
    calls = _calls(tensor_parallel, np.ones(chunk.shape), chunk, chunk + before)
    found = np.zeros(chunk.size)
    for group in groups:
        weights = group.formats["attention"]
        formats = mixer_formats(hardware, recipe.engine, recipe.cache, weights, prefill=True)
        count = (speculative.ravel() > 0) * 1.0 if group.draft else float(group.count)
        for mixer in group.layer.mixers:
            found += count * prefill_times(hardware, recipe.engine, mixer, formats, calls)
    return _paddable(found.reshape(chunk.shape))[inverse.ravel()]


def _paddable(times: Floats) -> Floats:
    """Return times no longer than those of larger calls: what a library splits badly evens out."""
    for axis in (1, 2):
        times = np.flip(np.minimum.accumulate(np.flip(times, axis), axis), axis)
    return times


def _calls(tensor_parallel: Floats, batch: Floats, queries: Floats, keys: Floats) -> Calls:
    return Calls(
        *(np.asarray(x, np.float64).ravel() for x in (tensor_parallel, batch, queries, keys))
    )


def _draft_layer(
    model: ModelSpec,
    recipe: Recipe,
    groups: list[LayerGroup],
    tokens: Floats,
    hardware: Hardware,
    routing: Routing | None,
) -> Floats:
    """Price one run of a multi-token-prediction module, shape (layouts, tokens, parts)."""
    shape = (recipe.rows.size, tokens.size)
    group = next(item for item in groups if item.draft)
    keys = _keys(recipe, tokens)
    projection = served_operations(model, Part("mtp", "mtp"), keys, machine_of(hardware))
    items = [Item(operation, 1.0, group.formats) for operation in projection]
    items += layer_items(model, group, recipe, keys, hardware)
    cost = price_items(hardware, recipe.engine, items, keys)
    parts = cost.parts.reshape(*shape, -1)
    parts[..., OTHER] += recipe.engine.layer_gap
    return parts + _experts(model, group, recipe, tokens, hardware, routing)


def _first_speculation(
    model: ModelSpec,
    recipe: Recipe,
    groups: list[LayerGroup],
    hardware: Hardware,
    routing: Routing | None,
) -> Floats | float:
    """Price the first run of a module, which takes all tokens of the pass."""
    if not (recipe.speculative_tokens > 0).any() or not can_speculate(model):
        return 0.0
    once = _draft_layer(model, recipe, groups, TOKENS, hardware, routing)
    return once * (recipe.speculative_tokens > 0)[:, None, None]


def _speculation(
    model: ModelSpec,
    recipe: Recipe,
    groups: list[LayerGroup],
    hardware: Hardware,
    routing: Routing | None,
) -> Floats | float:
    """Price further runs of a module, one token per sequence, and the heads of all."""
    gamma = recipe.speculative_tokens[:, None].astype(np.float64)
    if not (gamma > 0).any():
        return 0.0
    if not can_speculate(model):
        raise StrategyError(
            f"model {model.name} has no multi-token-prediction module to draft tokens with"
        )
    layer = _draft_layer(model, recipe, groups, BATCHES, hardware, routing).sum(axis=-1)
    head = _head(model, recipe, hardware, BATCHES)
    return np.maximum(gamma - 1.0, 0.0) * layer + gamma * head
