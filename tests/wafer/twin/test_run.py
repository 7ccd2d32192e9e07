"""Runs in the generator's terms."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import PerfModelError
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.run import run_nodes
from tests.data import ROUTING_COUNTS, WAFER, needed
from tests.wafer.twin.examples import system

DEEPSEEK, LLAMA = load_model("deepseek-v3"), load_model("llama-3-70b")
SMALL = system(4, tensor_parallel=2, sequence_parallel=2)
SYSTEMS = {"prefill": SMALL, "decode": SMALL}


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.csv"))


def test_the_generators_small_run(tmp_path):
    rows = run_nodes(
        tmp_path,
        DEEPSEEK,
        SYSTEMS,
        8,
        1024,
        routing=f"empirical:{needed(ROUTING_COUNTS)}",
        nodes=[0],
        layers="decode10",
    )
    reference = (WAFER / "out_small/nodes_node_0/decode0.csv").read_bytes()
    assert (tmp_path / "nodes/decode/node_0/decode0.csv").read_bytes() == reference
    assert rows == 212 + 242
    assert files(tmp_path / "graph") == ["node_0/decode0.csv", "node_0/decode9.csv"]


def test_phases(tmp_path):
    run_nodes(tmp_path, LLAMA, SYSTEMS, 2, 8, 3, phase="both", steps="all", layers="lm_head")
    assert len(files(tmp_path / "nodes")) == 4 * (1 + 3)
    run_nodes(tmp_path, LLAMA, SYSTEMS, 2, 8, 3, phase="prefill", layers="decode0")
    assert files(tmp_path / "nodes") == [f"prefill/node_{node}/prefill.csv" for node in range(4)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phase": "decod"}, "unknown 'decod'; known: decode, prefill, both"),
        ({"routing": "two_level"}, "does not draw 'two_level'; it has identical, uniform and"),
        ({"routing": "empirical"}, "does not draw 'empirical'"),
        ({"routing": "empirical:nowhere.json"}, "nowhere.json"),
        ({"generated": 0}, "key 'osl'"),
        ({"layers": "decode99"}, "no layer 'decode99'"),
        ({"nodes": [4]}, "no node 4"),
    ],
)
def test_wrong(tmp_path, changes, said):
    asked = {"batch": 8, "prompt": 16, "layers": "decode10", "routing": "uniform"}
    with pytest.raises(PerfModelError, match=said):
        run_nodes(tmp_path / "out", DEEPSEEK, SYSTEMS, **asked | changes)
    assert files(tmp_path) == []
