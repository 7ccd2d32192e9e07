"""All operations of a node in a pass, with the instructions of its cores."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.cores.attention import (
    STATISTICS,
    AttentionSizes,
    Part,
    decode_attention,
    prompt_attention,
)
from perfmodel.wafer.cores.expert_routes import ExpertRoutes, Routes, node_experts, rows_of
from perfmodel.wafer.cores.instructions import NOTHING, Instructions, barrier, joined
from perfmodel.wafer.cores.layout import (
    Layout,
    along_snake,
    cast_rows,
    chosen_rows,
    even_layout,
    joined_in_place,
    meet,
    ring_all_reduce,
    rows_in_blocks,
    send_rows,
    sums_of_rows,
)
from perfmodel.wafer.cores.products import CoreOperation, product
from perfmodel.wafer.setting import LM_HEAD, CoreSetting, ceiling, key_starts
from perfmodel.wafer.walk import ABSORBED, NAIVE, AttentionShape, Walk

KINDS = {ABSORBED: "MLAAbsorbAttention", NAIVE: "MLANaiveAttention"}
"""Of attention; others are self-attention."""


class Node(Walk[Layout]):
    """Makes the operations of a node, each on its cores.

    Parameters
    ----------
    setting : CoreSetting
    number : int
        Of the node.
    step : int
        Of decode, from 0.
    routes : Routes
    """

    def __init__(self, setting: CoreSetting, number: int, step: int, routes: Routes) -> None:
        super().__init__(setting)
        self.number = number
        self.step = step
        self.routes = routes
        self.made: list[CoreOperation] = []
        self.grid = setting.system.core_grid
        self.cores = setting.system.cores
        self.element = setting.activation_bytes
        self.sequences = int(setting.local_batch[number])
        self.tokens = self.sequences * setting.length
        self.whole = setting.system.sequence_parallel == 1
        self.finish = barrier("end", along_snake(self.grid))

    def alone(self, word: str, kind: str, macs: int, instructions: Instructions) -> None:
        """Add an operation whose instructions count cores from the node's first.

        All cores meet after it, so that the next finds what it wrote.
        """
        name = self.name(word)
        made = joined((instructions, self.finish)).moved(self.number * self.cores)
        self.made.append(CoreOperation(name, kind, macs, made.called(name)))

    def together(
        self, word: str, kind: str, instructions: Instructions, nodes: tuple[int, ...]
    ) -> None:
        """Add an operation of several nodes, which meet after it.

        Nodes without tokens take no part in multicasts.
        """
        if kind == "Multicast" and not self.tokens:
            return
        name, end = self.name(word), meet("end", nodes, self.number, self.cores)
        made = joined((instructions, end)).called(name)
        self.made.append(CoreOperation(name, kind, 0, made))

    def taken(self) -> list[CoreOperation]:
        """Return what was made since this was asked last."""
        made, self.made = self.made, []
        return made

    def group(self, axis: str) -> tuple[int, ...]:
        """Return the nodes that share a collective with this one."""
        return self.setting.group(self.number, axis)

    def linear(self, word: str, x: Layout, inner: int, outer: int) -> Layout:
        """Add a product."""
        return self._product(word, "Linear", x, (1, x.shape[0], inner, outer))

    def by_head(self, word: str, x: Layout, inner: int, outer: int, heads: int) -> Layout:
        """Add products side by side, of the first columns of each head."""
        kind = "GroupedLinear" if heads > 1 else "Linear"
        return self._product(word, kind, x, (heads, x.shape[0], inner, outer))

    def _product(self, word: str, kind: str, x: Layout, sizes: tuple[int, int, int, int]) -> Layout:
        groups, m, k, n = sizes
        columns = (0, x.shape[1] // groups, k) if groups > 1 else None
        bytes_of = (self.element, self.setting.weight_bytes, self.element, self.element)
        made, layout = product(x, sizes, self.grid, bytes_of, columns)
        self.alone(word, kind, groups * m * k * n, made)
        return layout

    def gated(self, up: Layout, gate: Layout) -> Layout:
        """Add the product of a gate with what it lets through, in place."""
        self.alone("add", "Add", 0, joined_in_place(up, self.cores, self.element))
        return up

    def reduced(self, word: str, x: Layout, axis: str) -> Layout:
        """Add this node's part in the sum of a matrix over nodes."""
        group = self.group(axis)
        if len(group) > 1:
            made = ring_all_reduce(x, group, self.number, self.cores, self.element)
            self.together(word, "AllReduce", made, group)
        return x

    def softmax(
        self, spec: AttentionSpec, shape: AttentionShape, given: tuple[Layout, ...]
    ) -> Layout:
        """Add attention proper, over a cache or over prompts."""
        if shape.heads % shape.key_heads:
            raise StrategyError(
                f"key 'tensor_parallel': {shape.heads} heads of a node are no multiple of the "
                f"{shape.key_heads} heads of keys that they share"
            )
        queries, keys = _parts(spec, shape, given)
        if self.setting.phase == "prefill":
            sizes = self._sizes(spec, shape, *self._own_keys())
            made, layout = prompt_attention(queries, keys, sizes, self.grid, self.whole)
            low, high = sizes.seen()
            pairs = int((high - low).sum())
        else:
            count, added = self._cached(spec)
            sizes = self._sizes(spec, shape, count, 0)
            made, layout = decode_attention(
                queries, keys if added else (), sizes, self.grid, self.whole
            )
            pairs = sizes.queries * count
        macs = sizes.sequences * pairs * shape.heads * shape.width
        self.alone(shape.word, KINDS.get(shape.word, "SelfAttention"), macs, made)
        return layout

    def _sizes(
        self, spec: AttentionSpec, shape: AttentionShape, keys: int, first_key: int
    ) -> AttentionSizes:
        prompt = self.setting.phase == "prefill"
        return AttentionSizes(
            shape,
            self.sequences,
            self.setting.length,
            keys,
            first_key=first_key,
            window=spec.window if prompt else 0,
            chunked=prompt and spec.kind == "chunked",
            activation_bytes=self.element,
            cache_bytes=self.setting.cache_bytes,
        )

    def _own_keys(self) -> tuple[int, int]:
        """Return the keys of a prompt on this node, and the first of them."""
        starts = key_starts(self.setting, self.setting.length)
        rank = self.setting.ranks.sequence[self.number]
        return int(starts[rank + 1] - starts[rank]), int(starts[rank])

    def _cached(self, spec: AttentionSpec) -> tuple[int, bool]:
        """Return the keys of a sequence on this node, new ones included, and if it stores those.

        Pages of a sequence have one size on all nodes of a group, so that sums over it fit.
        """
        setting = self.setting
        context = setting.input_length + self.step + setting.length
        if spec.kind == "sliding":
            context = min(context, spec.window + setting.length - 1)
        elif spec.kind == "chunked":
            context = max(context - (context - 1) // spec.window * spec.window, setting.length)
        parts = setting.system.sequence_parallel
        last = int(np.searchsorted(key_starts(setting, context), context - 1, side="right")) - 1
        owner = min(last, parts - 1)
        return ceiling(context, parts), bool(setting.ranks.sequence[self.number] == owner)

    def merged(self, x: Layout, shape: AttentionShape) -> Layout:
        """Add the sum of results over the nodes that share a context, statistics included."""
        if self.whole:
            return x
        if self.setting.phase == "decode":
            self.reduced("ar_sp", _widened(x, shape.values), "sequence")
            return x
        # Nodes see other keys and cut their queries otherwise; a sum needs one layout.
        x = _widened(x, shape.values)
        moved, x = chosen_rows(x, (0,), x.shape[0], self.grid, self.element)
        self.alone(f"{shape.word}_copy", "View", 0, moved)
        self.reduced("ar_sp", x, "sequence")
        return even_layout(x.shape[0], shape.heads * shape.values, self.grid)

    def experts(self, spec: MlpSpec, number: int, x: Layout) -> Layout:
        """Add the operations of a layer's experts.

        Tokens of a cluster are spread over its nodes; each chooses the experts of its own, sends
        them, sums what comes back and hands the sums to the others of its cluster. Tokens arrive
        in equal pieces of columns, one per core.
        """
        routes = self.routes.of(self.step, number)
        stage, cluster = self.group("stage"), self.group("cluster")
        batches = self.setting.own_batch[cluster[0] : self.number + 1] * self.setting.length
        own, first = int(batches[-1]), int(batches[:-1].sum())
        layout = even_layout(max(own, 1), self.hidden, self.grid)
        if own:
            moved, layout = chosen_rows(x, (first,), own, self.grid, self.element)
            self.alone("own", "Slice", 0, moved)
            self.linear("gate", layout, self.hidden, spec.experts)
        self._dispatch(routes, layout, own, stage)
        self._combine(self._outputs(spec, routes, stage), stage)
        if own:
            terms = spec.experts_per_token + (spec.shared_intermediate_size > 0)
            made, layout = sums_of_rows(own, self.hidden, terms, self.grid, self.element)
            self.alone("sum", "Sum", 0, made)
        if len(cluster) == 1:
            return layout
        made = self._cast(layout, np.diff(layout.rows), cluster) if own else NOTHING
        self.together("multicast_dp", "Multicast", made, cluster)
        return even_layout(max(self.tokens, 1), self.hidden, self.grid)

    def _cast(self, layout: Layout, rows: Integers, nodes: tuple[int, ...]) -> Instructions:
        return cast_rows(layout, rows, nodes, self.number, self.grid, self.element)

    def _sent(self, layout: Layout, blocks: Integers, nodes: tuple[int, ...]) -> Instructions:
        place = np.array(nodes)
        return send_rows(layout, blocks, place, self.number, self.grid, self.element)

    def _dispatch(
        self, routes: ExpertRoutes, layout: Layout, own: int, stage: tuple[int, ...]
    ) -> None:
        """Add what brings a node's own tokens to their experts."""
        exchange, place = self.setting.system.expert_exchange, self.number - stage[0]
        parts = []
        if own and exchange == "allgather":
            parts.append(self._cast(layout, np.diff(layout.rows), stage))
        elif own and exchange == "multicast":
            for others, count in routes.casts[place].items():
                to = tuple(stage[0] + other for other in others)
                parts.append(self._cast(layout, rows_of(layout, own, count), to))
        elif own:
            to_each = routes.sent[place].copy()
            to_each[place] = 0
            blocks = np.array([rows_of(layout, own, int(count)) for count in to_each]).T
            parts.append(self._sent(layout, blocks, stage))
        kind, word = {
            "allgather": ("AllGather", "ag_disp"),
            "multicast": ("Multicast", "mc_disp"),
        }.get(exchange, ("AlltoAll", "a2a_disp"))
        self.together(word, kind, joined(parts), stage)

    def _outputs(
        self, spec: MlpSpec, routes: ExpertRoutes, stage: tuple[int, ...]
    ) -> list[tuple[Layout, Integers]]:
        """Add the products of a node's experts; return what goes back to whom of each."""
        found = []
        for word, rows in node_experts(routes, self.number - stage[0], spec.experts):
            shared = word == "exp_shared"
            width = spec.shared_intermediate_size if shared else spec.expert_intermediate_size
            split = 1 if shared else self.setting.system.ffn_tensor_parallel
            self.part = f"moe_{word}"
            source = even_layout(int(rows.sum()), self.hidden, self.grid)
            result = self.network(source, ceiling(width, split), spec.gated)
            if split > 1:
                self.reduced("ar", result, "ffn_tensor")
                # Each node of the team gives back its share of the rows.
                part = self.number % split
                rows = rows * (part + 1) // split - rows * part // split
            found.append((result, rows))
        self.part = "moe"
        return found

    def _combine(self, outputs: list[tuple[Layout, Integers]], stage: tuple[int, ...]) -> None:
        """Add what brings results back to the nodes of their tokens."""
        exchange = self.setting.system.expert_exchange
        parts = []
        for layout, rows in outputs:
            if exchange == "allgather":
                parts.append(self._cast(layout, np.diff(layout.rows), stage))
                continue
            blocks = rows_in_blocks(layout, np.concatenate(([0], np.cumsum(rows))))
            blocks[:, self.number - stage[0]] = 0
            parts.append(self._sent(layout, blocks, stage))
        kind, word = {
            "allgather": ("AllGather", "combine_ag"),
            "multicast": ("Unicast", "combine_unicast"),
        }.get(exchange, ("AlltoAll", "combine_a2a"))
        self.together(word, kind, joined(parts), stage)

    def last_tokens(self, x: Layout) -> Layout:
        """Take a prompt's last tokens only."""
        length = self.setting.length
        if self.setting.phase != "prefill" or length == 1:
            return x
        last = tuple(range(length - 1, self.tokens, length))
        moved, x = chosen_rows(x, last, 1, self.grid, self.element)
        self.alone("last", "Slice", 0, moved)
        return x

    def gathered(self, x: Layout) -> Layout:
        """Add the gathering of the parts of the vocabulary."""
        cluster = self.group("cluster")
        if len(cluster) > 1:
            made = self._cast(x, np.diff(x.rows), cluster)
            self.together("gather", "AllGather", made, cluster)
        return x

    def handed_on(self, layer: str, x: Layout) -> None:
        """Send all tokens to the node of the next stage that has the same ranks."""
        self.layer, self.part = layer, ""
        other = self.number + self.setting.system.stage_nodes
        made = self._sent(x, np.diff(x.rows)[:, None], (other,))
        self.together("next_stage", "Unicast", made, (self.number,))


def _parts(
    spec: AttentionSpec, shape: AttentionShape, given: tuple[Layout, ...]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the columns that are queries, and those that are keys and values."""
    depth, values = shape.depth, shape.values
    rank, rope, nope = spec.kv_lora_rank, spec.qk_rope_head_dim, spec.qk_nope_head_dim
    if shape.word == ABSORBED:
        absorbed, queries, latent = given
        both = Part(absorbed, 0, rank, rank), Part(queries, nope, spec.head_dim, rope)
        return both, (Part(latent, 0, 0, depth),)
    queries, second, third = given
    mine = (Part(queries, 0, depth, depth),)
    if shape.word == NAIVE:
        each = nope + values
        return mine, (Part(third, 0, each, each), Part(second, rank, 0, rope))
    return mine, (Part(second, 0, depth, depth), Part(third, 0, values, values))


@functools.lru_cache(maxsize=256)
def _widened(layout: Layout, values: int) -> Layout:
    """Return a layout of results with the statistics of each head beside its values."""
    return Layout(layout.rows, layout.columns // values * (values + STATISTICS), layout.banks)


def core_operations(
    setting: CoreSetting,
    number: int,
    step: int,
    routes: Routes,
    layers: frozenset[str],
) -> Iterator[CoreOperation]:
    """Yield the operations of a node in order.

    Parameters
    ----------
    setting : CoreSetting
    number : int
        Of the node.
    step : int
        Of decode, from 0; 0 in prefill.
    routes : Routes
    layers : frozenset of str
        As `perfmodel.wafer.setting.check_layers` returns them.
    """
    if setting.phase == "decode":
        setting.check_context(setting.input_length + step + setting.length, "osl")
    node = Node(setting, number, step, routes)
    x = even_layout(max(node.tokens, 1), node.hidden, node.grid)
    own = setting.stage_layers(number)
    for layer in own:
        name, spec = f"{setting.phase}{layer}", setting.model.layers[layer]
        if name not in layers:
            continue
        if node.tokens:
            x = node.attention(name, spec.attentions[0], x)
        elif not spec.mlps[0].experts:
            continue
        # A node without sequences of its own has experts, for others' tokens.
        node.layer = name
        x = node.network_or_experts(spec.mlps[0], layer, x)
        yield from node.taken()
    if node.tokens:
        if setting.ranks.pipeline[number] + 1 < setting.system.pipeline_parallel:
            node.handed_on(f"{setting.phase}{own[-1]}", x)
        elif LM_HEAD in layers:
            node.head(x)
    yield from node.taken()
