"""Blocks on nodes: shares of heads and widths, and attention of every kind."""

from __future__ import annotations

import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.cores.setting import CoreSetting
from perfmodel.wafer.nodes.blocks import Blocks
from perfmodel.wafer.nodes.rows import Operation, OperationRows
from perfmodel.wafer.nodes.share import Shares
from perfmodel.wafer.system import WaferSystem


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
    Blocks(shares, rows).attention("layer", model.layers[0].attentions[0], 0)
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
