"""Weights, blocks of the cache and states on the devices of a worker."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.serving.enumerate import deployments_from_rows, serving_grid
from perfmodel.serving.memory import deployment_memory, layout_memory, stage_starts

GIB = 2.0**30


def memory_of(model, hardware="dgx-h100", engine="vllm", **row):
    grid = deployments_from_rows(model, [row], engine=engine)
    layouts, layout, _ = grid.layouts()
    return deployment_memory(grid, layouts, layout, load_hardware(hardware))


def held(model, **row):
    grid = deployments_from_rows(model, [row])
    return layout_memory(grid.model, grid.layouts()[0], load_hardware("dgx-h100"))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-r1", "qwen3-next-80b-a3b"])
def test_one_device_holds_what_is_published(name):
    model = load_model(name)
    found = held(model).weights.sum()
    assert found == pytest.approx(sum(model.weight_bytes().values()), rel=2e-3)


@pytest.mark.parametrize("degrees", [(8, 1, 1), (2, 4, 8), (1, 8, 4), (1, 8, 8)])
def test_what_is_cut_adds_up_over_the_devices_of_a_worker(degrees):
    tensor, ranks, _ = degrees
    row = dict(
        zip(("tensor_parallel", "attention_data_parallel", "expert_parallel"), degrees, strict=True)
    )
    model = load_model("mixtral-8x7b")
    spec = model.layers[0]
    routed = sum(2.0 * p.parameters for where, p in spec.pieces(4096) if where == "experts")
    each = held(model, **row).weights[0, 0] - model.num_layers * routed / (tensor * ranks)
    alone = held(model).weights[0, 0] - model.num_layers * routed
    whole = sum(
        2.0 * (piece.parameters - piece.sharded)
        for layer in model.layers
        for where, piece in layer.pieces(4096)
        if where != "experts"
    )
    whole += 2.0 * model.final_norm_parameters()
    assert tensor * each == pytest.approx(alone + (tensor - 1) * whole, rel=1e-9)


def test_stages_share_the_layers_and_the_last_one_repeats_a_tied_table():
    assert stage_starts(61, 4) == [0, 15, 30, 46, 61]
    for name in ("llama-3.1-8b", "llama-3.2-1b"):
        model = load_model(name)
        alone, cut = held(model), held(model, pipeline_parallel=4)
        table = 2.0 * model.vocab_size * model.hidden_size if model.tied_embeddings else 0.0
        assert cut.weights.sum() == pytest.approx(alone.weights.sum() + table)
        assert cut.per_token.sum() == pytest.approx(alone.per_token.sum())


def test_keys_and_values_are_repeated_beyond_their_heads_and_latents_on_every_rank():
    each = [held("llama-3.1-70b", tensor_parallel=t).per_token[0, 0] for t in (1, 8, 16)]
    assert each == pytest.approx([327680.0, 40960.0, 40960.0])
    latents = [held("deepseek-r1", tensor_parallel=t).per_token[0, 0] for t in (1, 8)]
    assert latents == [70272.0, 70272.0]  # 10.57 GiB for 161,488 tokens (sglang issue 6017)
    beyond = held("llama-3.1-70b", tensor_parallel=16).weights[0, 0]
    assert beyond > held("llama-3.1-70b", tensor_parallel=8).weights[0, 0] / 2


def test_weights_of_published_logs():
    # vllm issue 17469; habana's vllm-fork issue 809, DeepSeek-R1 before anything else is loaded
    assert memory_of("qwen3-30b-a3b", tensor_parallel=4).weights[0] / GIB == pytest.approx(
        14.2474, rel=2e-3
    )
    found = memory_of("deepseek-r1", "dgx-h200", tensor_parallel=8, expert_parallel=8)
    assert found.weights[0] / GIB == pytest.approx(79.41, rel=3e-3)


@pytest.mark.parametrize(
    ("engine", "share", "tokens", "within"),
    [("vllm", 0.9, 178_880, 0.04), ("sglang", 0.93, 367_404, 0.03)],  # vllm issue 21348
)
def test_tokens_of_the_cache_in_published_logs(engine, share, tokens, within):
    found = memory_of(
        "qwen3-235b-a22b",
        engine=engine,
        tensor_parallel=4,
        weight_precision="fp8_block",
        memory_share=share,
    )
    assert found.blocks[0] * found.block_tokens[0] == pytest.approx(tokens, rel=within)


def test_windows_and_states_are_kept_per_sequence():
    both = memory_of("gpt-oss-120b", "dgx-h200")  # every second layer has a window of 128 tokens
    assert both.window == np.inf
    # One block more, of which the first token lies anywhere.
    assert both.state_bytes[0] == pytest.approx(18 * (128 + 16) * 2 * 8 * 64 * 2.0)
    each = memory_of("gpt-oss-120b", "dgx-h200", "trtllm")
    assert each.state_bytes[0] == pytest.approx(18 * 128 * 2 * 8 * 64 * 2.0)
    assert both.state_blocks[0] == pytest.approx(both.state_bytes[0] / (36864 * 16))
    windows = memory_of("mistral-7b")
    assert (windows.window, windows.state_bytes[0]) == (4096, 0)
    recurrent = memory_of("mamba-2.8b-hf")
    assert recurrent.blocks[0] > 100
    assert recurrent.block_tokens[0] > 1e9
    assert recurrent.state_blocks[0] == 0
    hybrid = memory_of("qwen3-next-80b-a3b", "dgx-h200", tensor_parallel=4)
    assert hybrid.state_bytes[0] > hybrid.bytes_per_token[0]


def test_drafts_add_their_modules():
    plain = held("deepseek-r1", draft_length=0, acceptance=0.5)
    drafting = held("deepseek-r1", draft_length=2, acceptance=0.5)
    assert drafting.weights[0, 0] > plain.weights[0, 0]
    assert drafting.per_token[0, 0] == pytest.approx(plain.per_token[0, 0] * 62 / 61)


def test_what_does_not_fit_has_no_blocks_and_all_is_within_the_share():
    grid = serving_grid(
        "llama-3.1-70b", engine=["vllm", "sglang", "trtllm"], tensor_parallel=[1, 2, 4, 8]
    )
    layouts, layout, _ = grid.layouts()
    found = deployment_memory(grid, layouts, layout, load_hardware("dgx-h100"))
    assert np.array_equal(found.fits, found.blocks > 0)
    assert found.fits.any()
    assert not found.fits[grid["tensor_parallel"] == 1].any()
    fitting = found.total[found.fits]
    assert (fitting <= load_hardware("dgx-h100").device.memory.capacity).all()
    parts = found.weights + found.activations + found.workspace + found.cache
    assert found.total[found.fits] == pytest.approx(parts[found.fits])


def test_a_deployment_is_tight_where_the_error_of_memory_may_take_a_requests_room():
    grid = serving_grid("llama-3.1-70b", engine="vllm", tensor_parallel=[1, 4, 8])
    layouts, layout, _ = grid.layouts()
    found = deployment_memory(grid, layouts, layout, load_hardware("dgx-h100"))
    short, long = (np.full((3, 1), tokens) for tokens in (100.0, found.blocks[1] * 16.0))
    assert found.tight(short)[:, 0].tolist() == [False, False, False]  # the first does not fit
    assert found.tight(long)[:, 0].tolist() == [False, True, False]
    assert (found.sure_blocks <= found.blocks).all()


@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_block", "nvfp4", "int4"])
def test_narrower_weights_take_less(name):
    bits = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int4": 0.52}[name]
    model = load_model("llama-3.1-70b")
    tables = 2.0 * (model.embedding_parameters() + model.output_parameters())
    found = held(model, weight_precision=name).weights[0, 0] - tables
    assert found == pytest.approx((model.parameter_count() - tables / 2) * bits, rel=3e-3)


def test_padded_experts_take_what_logs_say():
    # vllm issues 23278 (Marlin) and 33155 (Triton): 65.97 and 64.38 GiB
    for engine, logged in (("vllm-0.10", 65.97), ("vllm-0.14", 64.38)):
        found = memory_of("gpt-oss-120b", engine=engine)
        assert found.weights[0] / GIB == pytest.approx(logged, rel=3e-3)
    bare = memory_of("gpt-oss-120b", engine="trtllm").weights[0]
    assert bare / GIB == pytest.approx(60.7, rel=3e-3)
