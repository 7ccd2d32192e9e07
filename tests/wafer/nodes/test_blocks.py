"""Shares of nodes: keys counted one by one, and what collectives move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.nodes.blocks import Result, Shares, all_gather, all_reduce
from perfmodel.wafer.nodes.rows import Operation, OperationRows
from perfmodel.wafer.nodes.workload import ModelBlocks
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem

SYSTEM = WaferSystem(
    nodes=6,
    node_grid=(2, 3),
    core_grid=(2, 2),
    data_parallel=2,
    sequence_parallel=3,
    ffn_tensor_parallel=6,
)


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked"])
@pytest.mark.parametrize(("phase", "speculative"), [("prefill", 0), ("decode", 0), ("decode", 2)])
def test_pairs_are_counted_one_by_one(kind: str, phase: str, speculative: int) -> None:
    model = load_model("llama-3.1-8b")
    window = 0 if kind == "full" else 5
    spec = replace(model.layers[0].attentions[0], kind=kind, window=window)
    setting = CoreSetting(model, SYSTEM, phase, 4, 17, speculative)
    shares = Shares(setting, (0,) if phase == "prefill" else (0, 3))
    pairs, seen, held, new = shares.keys(spec)
    for at, step in enumerate(shares.steps):
        before = 0 if phase == "prefill" else 17 + step
        queries = range(before, before + setting.length)
        total = before + setting.length
        page = -(-total // 3)
        for node in range(6):
            rank = node % 3
            own = range(min(rank * page, total), min((rank + 1) * page, total))
            visible = {
                query: [
                    key
                    for key in own
                    if key <= query
                    and (kind != "sliding" or key > query - window)
                    and (kind != "chunked" or key // window == query // window)
                ]
                for query in queries
            }
            assert pairs[node, at] == sum(map(len, visible.values()))
            assert seen[node, at] == len(set().union(*visible.values()))
            assert held[node, at] == len(visible[queries[-1]])
            assert new[node, at] == len([key for key in own if key >= before])


def test_tokens_and_groups() -> None:
    setting = CoreSetting(load_model("llama-3.1-8b"), SYSTEM, "decode", 5, 16)
    shares = Shares(setting, (0,))
    assert shares.tokens[:, 0].tolist() == [3, 3, 3, 2, 2, 2]
    assert shares.owned[:, 0].tolist() == [1, 1, 1, 1, 1, 0]
    first, stride, size = shares.group("sequence")
    assert (first.tolist(), stride[0], size[0]) == ([0, 0, 0, 3, 3, 3], 1, 3)
    assert shares.group("stage")[2].tolist() == [6] * 6


def test_rings() -> None:
    """Four nodes: a vector of 800 B goes round in chunks of 200 B, six times."""
    moved = all_reduce(800.0, 4, 2.0)
    assert moved["sent"] == moved["received"] == 6 * 200
    assert moved["flops"] == 3 * 100
    assert all_reduce(800.0, 1, 2.0)["sent"] == 0
    assert all_gather(200.0, 800.0)["received"] == 600


def attention_of(name: str, phase: str, tensor: int = 2, sequence: int = 1) -> list[Operation]:
    nodes = tensor * sequence
    system = WaferSystem(
        nodes=nodes,
        node_grid=(1, nodes),
        tensor_parallel=tensor,
        sequence_parallel=sequence,
        ffn_tensor_parallel=nodes,
    )
    model = load_model(name)
    shares = Shares(CoreSetting(model, system, phase, 2, 8), (0,))
    rows = OperationRows(nodes)
    rows.add("input", "tokens", "barrier")
    given = Result((0,), shares.tokens)
    ModelBlocks(shares, rows, None).attention("layer", model.layers[0].attentions[0], given)
    return rows.operations[1:]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_kinds_of_latent_attention(phase: str) -> None:
    components = [
        one.component.removeprefix("attention.") for one in attention_of("deepseek-v3", phase)
    ]
    absorbed = ["wkv_a", "wq_a", "wq_b", "wkv_b1", "attention", "wkv_b2", "wo", "all_reduce_tensor"]
    naive = ["wkv_a", "wq_a", "wq_b", "wkv_b", "attention", "wo", "all_reduce_tensor"]
    assert components == (naive if phase == "prefill" else absorbed)


def test_heads_are_split_and_few_key_heads_copied() -> None:
    by_name = {
        tensor: {one.component: one for one in attention_of("llama-3.1-8b", "decode", tensor)}
        for tensor in (1, 8, 16)
    }
    for component in ("attention.wq", "attention.wo"):
        whole = by_name[1][component].values["macs"].sum()
        assert by_name[16][component].values["macs"][0] * 16 == whole
    keys = {tensor: one["attention.wk"].values["footprint"] for tensor, one in by_name.items()}
    assert keys[1] == 8 * keys[8] == 8 * keys[16]  # 8 heads: 16 ranks hold one each


def test_a_split_context_is_merged() -> None:
    operations = attention_of("llama-3.1-8b", "decode", 1, 2)
    merged = next(one for one in operations if one.component == "attention.all_reduce_sequence")
    assert merged.joins
    # Two sequences of 32 heads of 128 values and two fp32 numbers: half goes and comes twice.
    assert merged.values["sent"].max() == 2 * 32 * (128 * 2 + 8)
