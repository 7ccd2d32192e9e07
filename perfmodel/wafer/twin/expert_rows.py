"""Rows of a layer with experts, behind its attention.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from perfmodel.wafer.cores.setting import ceiling
from perfmodel.wafer.twin.combine_rows import combine_rows
from perfmodel.wafer.twin.dispatch_rows import dispatch_rows
from perfmodel.wafer.twin.expert_layer import SHARED, ExpertLayer
from perfmodel.wafer.twin.routes import Routes, digest
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import Iteration


def expert_rows(rows: Rows, routes: Routes, name: str, x: Tensor) -> Tensor:
    """Add a layer's experts, which lie on many nodes; return what the next layer reads.

    Parameters
    ----------
    rows : Rows
    routes : Routes
    name : str
        Of the layer's experts, such as ``decode10_moe``.
    x : Tensor
        What the attention made.
    """
    layer, model = ExpertLayer(rows, routes, name), routes.iteration.model
    rows.linear(f"{name}_gate", x, model.experts)
    inputs = dispatch_rows(layer, x)
    widths = {SHARED: model.shared_intermediate}
    outputs = {
        expert: rows.feed_forward(
            f"{name}_exp_{expert}", part, widths.get(expert, model.expert_intermediate)
        )
        for expert, part in inputs.items()
    }
    return combine_rows(layer, outputs)


def whole_expert_rows(rows: Rows, routes: Routes, name: str, x: Tensor) -> Tensor:
    """Add a layer of which every node holds a part of every expert, or that has one node.

    The generator's own rows end on a second node with an error; these are those of its later
    version (38a94c8), which gathers the batch first.
    """
    iteration, model = routes.iteration, routes.iteration.model
    parts, nodes = iteration.system.ffn_tensor_parallel, iteration.system.nodes
    everyone = range(nodes) if parts > 1 else ()
    rows.linear(f"{name}_gate", x, model.experts)
    local = x
    if iteration.system.data_parallel > 1:
        x = _gathered(rows, iteration, name, x)
    outputs = []
    for expert, tokens in enumerate(routes.of_expert):
        slices = []
        for token in tokens:
            sequence, at = divmod(int(token), iteration.length)
            label = f"{x.name}_expert{expert}_slice{sequence}.{at}"
            part = rows.slice(x, sequence, sequence + 1, name=label)
            slices.append(rows.slice(part, at, at + 1, 1, f"{label}_seq{at}"))
        if not slices:
            outputs.append(x)
            continue
        # Named after pairs of numbers as NumPy 2 prints them.
        pairs = (divmod(int(token), iteration.length) for token in tokens)
        label = digest([f"(np.int64({sequence}), np.int64({at}))" for sequence, at in pairs])
        joined = rows.concat(slices, name=f"{x.name}_concat_expert{expert}_{label}")
        width = ceiling(model.expert_intermediate, parts)
        outputs.append(rows.feed_forward(f"{name}_exp_{expert}", joined, width, everyone))
    width = ceiling(model.shared_intermediate, parts)
    shared = rows.feed_forward(f"{name}_exp_{SHARED}", x, width, everyone)
    shared = rows.view(shared, routes.tokens, 1, model.hidden, name=f"{shared.name}_view_shared")
    sums = []
    for token in range(routes.tokens):
        slices = []
        for rank, expert in enumerate(routes.token_experts[token]):
            at = int(routes.expert_place[token, rank])
            slices.append(rows.slice(outputs[expert], at, at + 1))
        slices.append(rows.slice(shared, token, token + 1))
        sums.append(rows.sum(f"{name}_sum_{routes.names[token]}", rows.concat(slices)))
    made = rows.concat(sums, name=f"{name}_combine_out_concat")
    made = rows.view(made, iteration.batch, iteration.length, model.hidden)
    if local.dims[0] == iteration.batch:
        return made
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    label = f"{name}_combine_out_local_slice"
    return rows.slice(made, first, first + local.dims[0], name=label)


def _gathered(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    """Gather the shares of all data-parallel clusters."""
    group = iteration.group(rows.node, "data")
    label = f"{name}_gather_fulltp_ag"
    rows.add(
        label,
        "AllGather",
        f"{list(x.dims)}",
        [x.name],
        [f"{node}:{label}_ag_{rows.node}" for node in group],
        sent=x.size * rows.element,
        group=group,
    )
    parts = [
        Tensor(f"{label}_ag_{node}", (int(iteration.local_batch[node]), *x.dims[1:]))
        for node in group
    ]
    return rows.concat(parts, name=f"{name}_gather_fulltp_concat")
