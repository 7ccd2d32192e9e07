"""The table of closed forms: which rows it has, and questions that it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, ModelError, PerfModelError, StrategyError
from perfmodel.model.presets import load_model
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.twin.nodes import PREFILL, compat_nodes, decode_steps, iterations
from tests.wafer.twin.examples import system

DEEPSEEK = load_model("deepseek-v3")
SYSTEMS = {
    "prefill": system(4, tensor_parallel=4),
    "decode": system(4, data_parallel=2, tensor_parallel=2),
}


def routed(step, batch=3, prompt=5):
    length = prompt if step == PREFILL else 1
    experts = np.arange(batch * length * 8).reshape(1, batch, length, 8) * 7 % 256
    return RoutedTokens(experts, 256)


def table(steps=(0,), **options):
    return compat_nodes(DEEPSEEK, SYSTEMS, 3, 5, steps, routed, **options)


def test_rows_and_units():
    found = table((PREFILL, 0, 4), layers="decode0,decode60,lm_head")
    assert sorted(set(found["step"].values.tolist())) == [-1, 0, 4]
    assert set(found["layer"].values.tolist()) == {0, 60, 61}
    assert set(found["node"].values.tolist()) == {0, 1, 2, 3}
    assert found["sent"].attrs["units"] == "B"
    assert (found["rows"].values > 0).all()
    names = set(found["component"].labelled().tolist())
    assert {"attn.mla_naive", "attn.mla_absorb", "moe.combine(alltoall)"} <= names
    xarray = found.to_xarray()
    absorb = xarray.where(xarray.component == "attn.mla_absorb", drop=True)
    # 2 sequences on nodes 0 and 1, one on the others; 5 and 9 keys; 64 heads.
    assert sorted(set(absorb.macs.values.astype(int).tolist())) == [
        n * keys * 64 * 1088 for n, keys in ((1, 5), (1, 9), (2, 5), (2, 9))
    ]


def test_equal_layers_are_equal_but_for_experts():
    found = table(layers="decode0,decode1,decode3,decode9")
    layers = {}
    for at in range(found.sizes["row"]):
        key = found["layer"].values[at]
        layers.setdefault(key, []).append(
            [found[name].values[at] for name in ("node", "component", "macs", "reads", "sent")]
        )
    assert layers[0] == layers[1]
    assert layers[3] == layers[9]  # one layer of routing stands for all


def test_chosen_nodes():
    found = table(layers="lm_head", nodes=[2, 0, 2])
    assert found["node"].values.tolist() == [2, 0, 2, 0]
    with pytest.raises(DataError, match="no node 4; known: 0 to 3"):
        table(nodes=[4])


def test_steps():
    assert decode_steps(10) == (0, 9)
    assert decode_steps(1) == (0,)
    assert decode_steps(3, "all") == (0, 1, 2)
    for wrong in (0, -1, 2.0, 2**40):
        with pytest.raises(DataError, match="key 'osl'"):
            decode_steps(wrong)
    with pytest.raises(DataError, match="unknown 'some'; known: ends, all"):
        decode_steps(3, "some")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"layers": "decode61"}, ModelError, "there is no layer 'decode61'; known: decode0 to"),
        ({"prompt": 0}, DataError, "key 'isl'"),
        ({"prompt": 163840}, DataError, "163840 tokens and 4 steps exceed the 163840 positions"),
        ({"speculative": -1}, DataError, "key 'speculative'"),
        ({"batch": 0}, DataError, "key 'batch'"),
        (
            {"steps": (PREFILL,), "systems": {"decode": SYSTEMS["decode"]}},
            StrategyError,
            "no block",
        ),
        ({"model": load_model("mixtral-8x7b")}, ModelError, "DeepSeek-V3 and Llama 3 only"),
    ],
)
def test_wrong_questions(changes, error, said):
    asked = {"model": DEEPSEEK, "systems": SYSTEMS, "batch": 3, "prompt": 5, "steps": (0, 4)}
    with pytest.raises(error, match=said):
        iterations(**asked | changes)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (None, "layer 'decode3' has experts"),
        (RoutedTokens(np.arange(8).reshape(1, 1, 1, 8), 256), "are .3, 1, 8."),
        (RoutedTokens(np.zeros((1, 3, 1, 1), int), 64), "64 experts; the model has 256"),
        (
            RoutedTokens(np.broadcast_to(np.arange(8), (2, 3, 1, 8)), 256),
            "2 layers; 'decode5' is the model's layer 2 with experts",
        ),
    ],
)
def test_wrong_routing(tokens, said):
    with pytest.raises(PerfModelError, match=said):
        compat_nodes(DEEPSEEK, SYSTEMS, 3, 5, (0,), lambda step: tokens)
