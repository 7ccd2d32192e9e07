"""Operations of served passes are training's forward operations, less what depends on sequences."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_model
from perfmodel.model.layers import layer_parameters
from perfmodel.operations.operations import Communication, Gemm, Machine, Role, Stream
from perfmodel.operations.parts import Part
from perfmodel.operations.served import (
    append_operation,
    head_operations,
    norm_sums,
    operation_launches,
    pass_keys,
    served_operations,
)

KEYS = pass_keys(np.array([1, 4]), np.array([64, 64]))


def layer_of(name: str, index: int = -1) -> list:
    model = load_model(name)
    part = Part("layer", "layer", model.layers[index])
    return served_operations(model, part, KEYS, Machine())


def weights(operations: list, key: int) -> float:
    """Numbers in the matrices that a pass reads on a device."""
    total = 0.0
    for item in operations:
        if isinstance(item, Gemm):
            sizes = [np.broadcast_to(x, 2)[key] for x in (item.n, item.k, item.batch)]
            total += float(np.prod(sizes))
    return total


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-32b", "gemma-3-27b", "mamba-2.8b"])
def test_a_layer_reads_its_matrices_once(name: str) -> None:
    model = load_model(name)
    found = layer_of(name)
    stated = sum(
        piece.weights * piece.copies
        for _, piece in model.layers[-1].pieces(model.hidden_size)
        if piece.kind == "matrix"
    )
    assert weights(found, 0) == pytest.approx(stated)
    assert weights(found, 1) == pytest.approx(stated / 4, rel=0.02)


def test_latent_attention_leaves_prompts_their_products() -> None:
    found = {item.name for item in layer_of("deepseek-v3")}
    assert {"attention.query_down", "attention.query_up", "attention.output"} <= found
    assert not {"attention.key_value_up", "attention.assemble_keys"} & found


def test_experts_are_left_out_and_shared_ones_stay() -> None:
    model = load_model("deepseek-v3")
    found = layer_of("deepseek-v3")
    shared = [
        x for x in found if isinstance(x, Gemm) and x.role in (Role.SHARED, Role.SHARED_OUTPUT)
    ]
    width = model.layers[-1].mlp.shared_intermediate_size
    assert weights(shared, 0) == pytest.approx(3 * width * model.hidden_size)
    assert not any(item.role == Role.EXPERT_PRODUCT for item in found)
    # What shared experts give is summed with the rest: one sum stays, that of attention.
    assert [x.name for x in found if isinstance(x, Communication)] == [
        "attention.output.all_reduce"
    ]
    assert {"mlp.norm", "mlp.router"} == {x.name for x in found if x.role == Role.EXPERTS}
    assert layer_parameters(model.layers[-1], model.hidden_size).experts > 0


def test_residual_additions_run_inside_norms() -> None:
    streams = {x.name: x for x in layer_of("llama-3.1-8b") if isinstance(x, Stream)}
    hidden = load_model("llama-3.1-8b").hidden_size
    assert set(streams) == {
        "attention.norm",
        "attention.rope",
        "mlp.norm",
        "mlp.activation",
    }
    assert streams["mlp.norm"].bytes_read[0] == 64 * hidden * 4.0
    assert operation_launches(streams["attention.rope"]) == 1.0


def test_appends() -> None:
    element = np.array(1.0)
    llama = append_operation(load_model("llama-3.1-8b").layers[0].attention, KEYS, element)
    assert np.asarray(llama.bytes_written).tolist() == [64 * 8 * 256, 64 * 2 * 256]
    latent = append_operation(load_model("deepseek-v3").layers[0].attention, KEYS, element)
    assert np.asarray(latent.bytes_written).tolist() == [64 * 576] * 2


def test_the_head_has_no_loss() -> None:
    model = load_model("llama-3.1-8b")
    found = head_operations(model, KEYS, Machine())
    assert {item.name for item in found} == {
        "output.norm",
        "output.logits",
        "output.gather",
        "output.sample",
    }
    assert weights(found, 0) == pytest.approx(model.vocab_size * model.hidden_size)


def test_norms_over_all_heads_need_sums_of_other_devices() -> None:
    spec = load_model("minimax-m2").layers[0].attention
    (found,) = norm_sums(spec, KEYS)
    assert np.asarray(found.size).tolist() == [512.0, 512.0]
    assert np.asarray(found.count).tolist() == [0.0, 1.0]
    assert not norm_sums(load_model("qwen3-32b").layers[0].attention, KEYS)
