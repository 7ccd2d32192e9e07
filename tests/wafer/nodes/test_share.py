"""Shares of nodes: keys counted one by one, and what collectives move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.cores.setting import CoreSetting
from perfmodel.wafer.nodes.share import Shares, all_gather, all_reduce
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
