"""All operations of a node in a pass, with the instructions of its cores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.wafer.cores.attention_block import attention_operations
from perfmodel.wafer.cores.expert_block import ExpertRoutes, expert_operations, expert_routes
from perfmodel.wafer.cores.layout import Layout, cast_rows, chosen_rows, even_layout, send_rows
from perfmodel.wafer.cores.node import CoreOperation, Node
from perfmodel.wafer.cores.setting import CoreSetting, ceiling

LM_HEAD = "lm_head"

RoutingOf = Callable[[int, int], Integers]
"""Step and layer -> experts of every token, shape (sequences, length, experts per token)."""


def layer_names(setting: CoreSetting) -> list[str]:
    """Return the names of all layers: ``decode0`` …, then ``lm_head``."""
    return [*(f"{setting.phase}{at}" for at in range(len(setting.model.layers))), LM_HEAD]


def check_layers(setting: CoreSetting, layers: Collection[str] | None) -> frozenset[str]:
    """Return the layers that are asked for; None for all.

    Raises
    ------
    StrategyError
        A layer that the model has not.
    """
    known = layer_names(setting)
    for name in layers or ():
        if name not in known:
            raise StrategyError(
                f"key 'layers': {setting.model.name} has no '{name}'{did_you_mean(name, known)}; "
                f"it has {known[0]} to {known[-2]} and {LM_HEAD}"
            )
    return frozenset(known if layers is None else layers)


class Routes:
    """Routes of tokens to experts, found once for all nodes of a step.

    Parameters
    ----------
    setting : CoreSetting
    routing : callable
        `RoutingOf`.
    kept : int
        Layers that are kept; all nodes ask for the same ones in turn.
    """

    def __init__(self, setting: CoreSetting, routing: RoutingOf) -> None:
        self.setting = setting
        self.routing = routing
        self._found: dict[tuple[int, int], ExpertRoutes] = {}

    def of(self, step: int, layer: int) -> ExpertRoutes:
        """Return the routes of a layer in a step."""
        if (step, layer) not in self._found:
            self._found = {key: value for key, value in self._found.items() if key[0] == step}
            mlp = self.setting.model.layers[layer].mlps[0]
            self._found[step, layer] = expert_routes(
                self.setting,
                self.routing(step, layer),
                mlp.experts,
                mlp.shared_intermediate_size > 0,
            )
        return self._found[step, layer]


def node_operations(
    setting: CoreSetting,
    number: int,
    step: int,
    routes: Routes,
    layers: frozenset[str],
) -> Iterator[CoreOperation]:
    """Yield the operations of a node in order.

    Norms, rotary positions, residual sums and sampling are left out, as in the generator.

    Parameters
    ----------
    setting : CoreSetting
    number : int
        Of the node.
    step : int
        Of decode, from 0; 0 in prefill.
    routes : Routes
    layers : frozenset of str
        As `check_layers` returns them.
    """
    if setting.phase == "decode":
        setting.check_context(setting.input_length + step + setting.length, "osl")
    node = Node(setting, number)
    if not node.tokens:
        yield from _idle(node, step, routes, layers)
        return
    hidden = even_layout(node.tokens, setting.model.hidden_size, node.grid)
    own = setting.stage_layers(number)
    for layer in own:
        name = f"{setting.phase}{layer}"
        if name not in layers:
            continue
        for operation, layout in _layer(node, name, layer, hidden, step, routes):
            yield operation
            hidden = layout
    stages = setting.system.pipeline_parallel
    stage = int(setting.ranks.pipeline[number])
    if stage + 1 < stages:
        yield _handed_on(node, hidden, own)
    elif LM_HEAD in layers:
        yield from _head(node, hidden)


def _layer(
    node: Node, name: str, layer: int, hidden: Layout, step: int, routes: Routes
) -> Iterator[tuple[CoreOperation, Layout]]:
    setting = node.setting
    spec = setting.model.layers[layer]
    for operation, layout in attention_operations(
        node, f"{name}_attn", spec.attention, hidden, step
    ):
        yield operation, layout
        after = layout
    mlp = spec.mlps[0]
    if mlp.experts:
        yield from expert_operations(node, f"{name}_moe", mlp, after, routes.of(step, layer))
        return
    cluster = setting.group(node.number, "cluster")
    width, size = ceiling(mlp.intermediate_size, len(cluster)), setting.model.hidden_size
    for operation, layout in node.network(
        f"{name}_ffn", after, node.tokens, width, size, mlp.gated
    ):
        yield operation, layout
        last = layout
    if len(cluster) > 1:
        yield node.all_reduce(f"{name}_ffn_ar", last, cluster), last


def _idle(node: Node, step: int, routes: Routes, layers: frozenset[str]) -> Iterator[CoreOperation]:
    """Yield what a node without sequences of its own does: its experts, for others' tokens."""
    setting = node.setting
    empty = even_layout(1, setting.model.hidden_size, node.grid)
    for layer in setting.stage_layers(node.number):
        name, mlp = f"{setting.phase}{layer}", setting.model.layers[layer].mlps[0]
        if name in layers and mlp.experts:
            found = expert_operations(node, f"{name}_moe", mlp, empty, routes.of(step, layer))
            yield from (operation for operation, _ in found if operation.kind != "Multicast")


def _handed_on(node: Node, hidden: Layout, own: range) -> CoreOperation:
    """Send all tokens to the node of the next stage that has the same ranks."""
    setting = node.setting
    other = node.number + setting.system.stage_nodes
    made = send_rows(
        hidden,
        np.diff(hidden.rows)[:, None],
        np.array([other]),
        node.number,
        node.grid,
        setting.activation_bytes,
    )
    name = f"{setting.phase}{own[-1]}_next_stage"
    return node.together(name, "Unicast", made, (node.number,))


def _head(node: Node, hidden: Layout) -> Iterator[CoreOperation]:
    """Yield the output matrix, of a prompt's last tokens only, and the gathering of its parts."""
    setting = node.setting
    rows, element = node.tokens, setting.activation_bytes
    if setting.phase == "prefill" and setting.length > 1:
        rows = node.sequences
        last = tuple(range(setting.length - 1, node.tokens, setting.length))
        moved, hidden = chosen_rows(hidden, last, 1, node.grid, element)
        yield node.alone(f"{LM_HEAD}_last", "Slice", 0, moved)
    cluster = setting.group(node.number, "cluster")
    width = ceiling(setting.model.vocab_size, len(cluster))
    operation, layout = node.linear(
        f"{LM_HEAD}_head", hidden, (rows, setting.model.hidden_size, width)
    )
    yield operation
    if len(cluster) > 1:
        made = cast_rows(layout, np.diff(layout.rows), cluster, node.number, node.grid, element)
        yield node.together(f"{LM_HEAD}_gather", "AllGather", made, cluster)
