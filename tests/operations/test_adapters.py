"""Frozen products and their adapters: what backward skips, what tensor ranks exchange."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.presets import load_model
from perfmodel.operations.adapters import MARK
from perfmodel.operations.operations import Communication, Gemm, Machine, Stream
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.software.framework import load_framework
from perfmodel.training.flops import adapter_flops, model_flops_per_token
from tests.training.gpt import keys_of

DENSE = load_model("llama-3.1-8b")


def operations(model, framework="megatron", kind="layer", **fields):
    keys = keys_of(**{"micro_batch_size": 1, "sequence_length": 4096, **fields})
    (part, *_) = [each for each in model_parts(model) if each.kind == kind]
    return part_operations(model, part, keys, load_framework(framework), Machine())


def tuned(*targets, rank=16, frozen="", model=DENSE):
    return model.with_adapters(AdapterSpec(rank, targets or ("all_linear",), frozen))


def number(value):
    return float(np.asarray(value).reshape(-1)[0])


def gemm_flops(items, *, adapters, phase=None):
    found = [
        2 * number(item.m) * number(item.n) * number(item.k) * number(item.batch)
        for item in items
        if isinstance(item, Gemm)
        and (MARK in item.name) == adapters
        and phase in (None, item.phase)
    ]
    return sum(found)


def test_backward_of_frozen_products_is_half_of_the_full_one():
    full, lora = operations(DENSE), operations(tuned("q_proj"))
    assert not [x for x in lora if x.phase == "backward_weight" and MARK not in x.name]
    whole = gemm_flops(full, adapters=False)
    assert gemm_flops(lora, adapters=False) == pytest.approx(2 / 3 * whole)
    small = gemm_flops(lora, adapters=True)
    assert small == pytest.approx(6 * 4096 * 16 * (4096 + 4096))


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b"]
)
def test_model_flop_follow_from_the_operations(name):
    """Of products, 4 N and 6 of every adapter; attention as trained."""
    model = load_model(name)
    lora = tuned(model=model)
    length = np.array([4096.0])
    full, less = (model_flops_per_token(x, length)[0] for x in (model, lora))
    forward = model_flops_per_token(model, length, backward=False)[0]
    assert full - less + 3 * adapter_flops(lora) < forward
    assert model_flops_per_token(lora, length, backward=False)[0] == pytest.approx(
        forward + adapter_flops(lora)
    )
    if name == "llama-3.1-8b":
        products = sum(x.products for layer in model.layers for _, x in layer.pieces(4096))
        products += model.vocab_size * 4096
        assert full - less + 3 * adapter_flops(lora) == pytest.approx(2 * products)


def test_nothing_below_the_first_adapter_has_a_gradient():
    assert all(item.phase == "forward" for item in operations(tuned(), kind="embedding"))
    head = operations(tuned(), kind="output")
    assert {x.phase for x in head if x.name == "output.logits"} == {"forward", "backward_input"}


def test_casts_of_frozen_products_write_one_copy():
    def written(model):
        return sum(
            number(x.bytes_written)
            for x in operations(model, precision="fp8")
            if isinstance(x, Stream) and x.name.endswith(".cast") and x.phase == "forward"
        )

    assert written(tuned("q_proj")) == pytest.approx(written(DENSE) / 2)


def test_frozen_weights_in_four_bits_are_widened_in_both_passes():
    found = [x for x in operations(tuned("q_proj", frozen="nf4")) if "dequantise" in x.name]
    assert {x.phase for x in found} == {"forward", "backward_input"}
    up = next(x for x in found if x.name == "mlp.up.dequantise")
    assert number(up.bytes_written) == 2 * 4096 * 28672
    assert number(up.bytes_read) == pytest.approx(0.5159 * 4096 * 28672, rel=1e-4)
    assert not [
        x for x in operations(tuned("q_proj", frozen="nf4"), kind="output") if "deq" in x.name
    ]


def test_tensor_ranks_share_adapters_as_megatron_bridge_does():
    """Gathers of r beside a column, sums of r and a gather of h beside a row (peft/utils.py)."""
    fields = {"tensor_parallel": 2, "sequence_parallel": True}
    found = {
        (x.name.removeprefix("attention."), x.phase, x.collective): number(x.size) * number(x.count)
        for x in operations(tuned("attention"), **fields)
        if isinstance(x, Communication) and MARK in x.name
    }
    small, wide = 4096 * 16 * 2, 4096 * 4096 * 2
    assert found == {
        ("qkv.lora_down.all_gather", "forward", "all_gather"): small,
        ("qkv.lora_down.all_reduce", "backward_input", "all_reduce"): small,
        ("output.lora_down.all_reduce", "forward", "all_reduce"): small,
        ("output.lora_down.all_reduce", "backward_input", "all_reduce"): small,
        ("output.lora_up.all_gather", "forward", "all_gather"): wide,
        ("output.lora_up.all_gather", "backward_input", "all_gather"): wide,
    }
    fields["sequence_parallel"] = False  # then gradients of the whole input are added up as well
    names = [x.name for x in operations(tuned("attention"), **fields) if MARK in x.name]
    assert "attention.qkv.lora_gradient.all_reduce" in names


def test_frozen_indexers_do_not_train():
    sparse = load_model("deepseek-v3.2")

    def phases(model):
        return {x.phase for x in operations(model) if x.name.startswith("attention.index")}

    assert "backward_input" in phases(sparse)
    assert phases(tuned(model=sparse)) == {"forward"}


@pytest.mark.parametrize("rank", [1, 4, 64])
def test_larger_ranks_cost_more(rank):
    less, more = (gemm_flops(operations(tuned(rank=r)), adapters=True) for r in (rank, 2 * rank))
    assert more == pytest.approx(2 * less)


def test_adapters_of_parts_are_told_from_others_by_name():
    found = [x.name for x in operations(tuned("gate_proj", "up_proj", "k_proj")) if MARK in x.name]
    assert {name.partition(MARK)[2].rpartition("_")[0] for name in found} >= {
        ".gate_proj",
        ".up_proj",
        ".k_proj",
    }
