"""Single rows and their names."""

from __future__ import annotations

from perfmodel.wafer.generator_files import GraphNode, NodeOperation
from perfmodel.wafer.twin.experts import LayerRows
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS


def test_names_follow_from_tensors():
    rows = Rows(3, 2)
    x = Tensor("x", (4, 1, 6))
    left, right = rows.split(x, 4, 2)
    assert (left.name, right.name) == ("x_split0:4", "x_split4:6")
    view = rows.view(left, 4, 4)
    assert view == Tensor("x_split0:4_view", (4, 4))
    assert rows.transpose(Tensor("t", (1, 2, 3)), 0, 2) == Tensor("t_transpose", (3, 2, 1))
    assert rows.slice(x, 1, 2).name == "x_slice1"
    assert rows.slice(x, 1, 3) == Tensor("x_slice1:3", (2, 1, 6))
    assert rows.concat([right, right], axis=-1) == Tensor("x_split4:6_concat", (4, 1, 4))
    assert [row.dimensions for row in rows.table] == [
        "-1 -> [4, 2] -> [4, 1, 6]",
        "[4, 1, 4] -> [4, 4]",
        "[0, 2] -> [1, 2, 3] -> [3, 2, 1]",
        "[4, 1, 6] -> 0 -> 1:2",
        "[4, 1, 6] -> 0 -> 1:3",
        "-1 -> [2, 2] -> [4, 1, 4]",
    ]
    assert rows.graph[-1] == GraphNode(
        "x_split4:6_concat", "Concat", ("3:x_split4:6",) * 2, ("3:x_split4:6_concat",)
    )


def test_products():
    rows = Rows(0, 2)
    made = rows.linear("w", Tensor("x", (4, 3, 6)), 5)
    assert made == Tensor("w_out", (4, 3, 5))
    assert rows.table[0] == NodeOperation(
        "w", "Linear", 60, 360, 60, 0, None, "[12, 6] x [6, 5] -> [12, 5]"
    )
    made = rows.grouped_linear("g", Tensor("y", (2, 3, 4)), 5)
    assert made == Tensor("g_out", (2, 3, 5))
    assert rows.table[1][2:5] == (80, 120, 80)
    assert rows.table[1].dimensions == "[2, 3, 4] x [2, 4, 5] -> [2, 3, 5]"


def test_messages():
    rows = Rows(1, 2)
    made = rows.all_reduce("a", Tensor("x", (4, 6)), [1, 3])
    assert made == Tensor("a_out", (4, 6))
    assert rows.table[0][5:] == (48, (1, 3), "[4, 6]")
    assert rows.graph[0].kind == "Allreduce"
    rows.multicast("m", made, [0, 2])
    assert rows.graph[1] == GraphNode("m", "Multicast", ("1:a_out",), ("0:a_out", "2:a_out"))
    rows.barrier("b", [0, 1])
    assert rows.table[2] == NodeOperation("b", "Barrier", 0, 0, 0, 0, (0, 1), "N/A")
    assert len(rows.graph) == 2


def test_feed_forward():
    iteration = ITERATIONS["clusters"]
    walk = LayerRows(iteration, Rows(0, 1), None)
    made = walk.network_or_experts(iteration.model.layers[0].mlp, 0, Tensor("x", (2, 1, 16)))
    assert made == Tensor("dense_ar_out", (2, 1, 16))
    names = [row.name for row in walk.rows.table]
    assert names == ["dense_up", "dense_gate", "dense_add", "dense_down", "dense_ar"]


def rows_of(name, node=0):
    iteration = ITERATIONS[name]
    rows = Rows(node, iteration.element)
    x = Tensor(
        "x", (int(iteration.local_batch[node]), iteration.length, iteration.model.hidden_size)
    )
    spec = iteration.model.layers[0].attention
    assert LayerRows(iteration, rows, None).attention("decode1", spec, x).dims == x.dims
    return {row.name.removeprefix("decode1_attn_"): row for row in rows.table}, rows.graph


def test_absorbed():
    rows, graph = rows_of("clusters")
    assert list(rows)[:5] == [
        "absorb_wkva",
        "absorb_wqa",
        "absorb_wqb",
        "absorb_wqb_out_view",
        "absorb_wqb_out_view_split",
    ]
    attention = rows["absorb_absorbattn"]
    assert attention.dimensions == "Q: [4, 1, 2, 6], KV: [4, 5, 6], PE: [4, 5, 2] -> [4, 1, 2, 6]"
    assert rows["absorb_ar_sp"].group == (0, 2)
    assert rows["absorb_ar_tp"].group == (0, 1)
    assert graph[-1].outputs == ("0:decode1_attn_absorb_ar_tp_out",)


def test_guessed_tokens_count_and_are_not_printed():
    rows, _ = rows_of("guessed")
    attention = rows["absorb_absorbattn"]
    assert attention.dimensions.startswith("Q: [3, 1, 2, 6]")
    assert attention.macs == 3 * 5 * 2 * (2 * 6 + 2) * 3
    assert rows["absorb_ar_sp"].dimensions == "[3, 3, 12]"


def test_naive():
    rows, graph = rows_of("prefill")
    concat = rows["naive_wkva_out_split6:8_view_concat"]
    assert concat.dimensions == "-2 -> [1, 1] -> [3, 4, 2, 2]"
    keys = rows["naive_wkva_out_split6:8_view_concat_concat"]
    assert keys.dimensions == "-1 -> [2, 4] -> [3, 4, 2, 6]"
    attention = rows["naive_naiveattn"]
    assert attention.dimensions == (
        "Q: [3, 4, 2, 6], K: [3, 2, 2, 6], V: [3, 2, 2, 4] -> [3, 4, 2, 4]"
    )
    assert attention.footprint == attention.reads == 0
    assert graph[0].kind == "Linear"


def test_grouped_queries():
    rows, _ = rows_of("llama", 4)
    attention = rows["selfattn"]
    assert attention.dimensions == (
        "Q: [4, 1, 3, 4], K: [4, 6, 1, 4], V: [4, 6, 1, 4] -> [4, 1, 3, 4]"
    )
    assert attention.macs == 2 * 4 * 6 * 3 * 4
    assert rows["ar_tp"].group == (3, 4, 5)
    prefill, _ = rows_of("llama, prefill")
    assert prefill["selfattn"].dimensions.startswith("Q: [2, 7, 8, 4], K: [2, 4, 2, 4]")
    assert prefill["selfattn"].reads == 0
