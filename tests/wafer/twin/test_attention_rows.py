"""Rows of attentions: the generator's own of one layer, oddities, and other shapes."""

from __future__ import annotations

from perfmodel.wafer.twin.attention_rows import attention_rows
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS


def rows_of(name, node=0):
    iteration = ITERATIONS[name]
    rows = Rows(node, iteration.element)
    dims = (int(iteration.local_batch[node]), iteration.length, iteration.model.hidden)
    made = attention_rows(rows, iteration, "decode1", Tensor("x", dims))
    assert made.dims == dims
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
