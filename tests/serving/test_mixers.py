"""Mixers of served passes against the kernels below them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.compute.attention import attention_times
from perfmodel.serving.layouts import ProductFormat
from perfmodel.serving.mixers import (
    Calls,
    MixerFormats,
    check_cached,
    decode_times,
    mixer_formats,
    prefill_times,
)
from perfmodel.software.engine import load_engine

H100, B200, A100 = (load_hardware(f"dgx-{name}") for name in ("h100", "b200", "a100"))
WIDE = ProductFormat("bf16", 2.0)
BF16 = MixerFormats("bf16", "bf16", "bf16", "", WIDE)
VLLM = load_engine("vllm")


def calls(**given: float) -> Calls:
    columns = {"tensor_parallel": 1.0, "batch": 1.0, "queries": 1.0, "keys": 1.0} | given
    return Calls(**{name: np.atleast_1d(float(x)) for name, x in columns.items()})


def test_decode_is_the_attention_kernel() -> None:
    spec = load_model("llama-3.1-70b").layers[0].attention
    found = decode_times(H100, spec, BF16, calls(tensor_parallel=4, batch=32, keys=2048))
    alone = attention_times(H100, "bf16", 32, 1, 2048, 16, 2, 128, 128)
    assert found[0] == alone.time[0]


def test_chunks_stand_behind_what_came_before() -> None:
    spec = load_model("llama-3.1-70b").layers[0].attention
    found = prefill_times(H100, VLLM, spec, BF16, calls(queries=512, keys=4096))
    alone = attention_times(H100, "bf16", 1, 512, 4096, 64, 8, 128, 128)
    assert found[0] == alone.time[0]


def test_passes_ahead_of_prefill_are_an_engine_s() -> None:
    spec = load_model("llama-3.1-70b").layers[0].attention
    chunk = calls(queries=8192, keys=8192)
    bare, once = (
        load_engine("trtllm", prefill_qkv_passes=n, prefill_qkv_passes_blackwell=2 * n)
        for n in (0, 1)
    )
    moved = 2.0 * 2.0 * 8192 * (64 + 16) * 128
    for hardware, passes in ((H100, 1), (B200, 2)):
        times = [prefill_times(hardware, x, spec, BF16, chunk)[0] for x in (bare, once)]
        least = passes * moved / hardware.device.memory.bandwidth
        assert 0.6 * least < times[1] - times[0] < 2.0 * least


def test_formats_follow_engine_and_device() -> None:
    trtllm = load_engine("trtllm")
    assert mixer_formats(H100, trtllm, "fp8", WIDE, prefill=True)[1:3] == ("fp8", "fp8")
    assert mixer_formats(H100, VLLM, "fp8", WIDE, prefill=True)[1:3] == ("bf16", "bf16")
    assert mixer_formats(H100, VLLM, "fp8", WIDE, prefill=False)[1:3] == ("fp8", "fp8")
    assert mixer_formats(A100, VLLM, "fp8", WIDE, prefill=False)[1:3] == ("bf16", "fp8")
    assert mixer_formats(H100, VLLM, "bf16", WIDE, prefill=False)[1:3] == ("bf16", "bf16")


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
@pytest.mark.parametrize("prefill", [False, True])
def test_products_over_an_nvfp4_cache_run_in_fp8(engine: str, prefill: bool) -> None:
    found = mixer_formats(B200, load_engine(engine), "nvfp4", WIDE, prefill=prefill)
    assert found[1:3] == ("fp8", "nvfp4")


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "message"),
    [
        ("llama-3.1-70b", H100, "vllm", "dgx-h100.* no kernels for a cache in nvfp4"),
        ("llama-3.1-70b", "mi355x", "vllm", "need tcgen05"),
        (
            "llama-3.1-70b",
            B200,
            "sglang",
            "engine sglang.* has no cache in nvfp4; possible with vllm or trtllm",
        ),
        ("deepseek-v3", B200, "vllm", r"latent attention \(MLA\) has no kernels"),
        ("deepseek-v3.2-exp", B200, "trtllm", "sparse attention has no kernels"),
    ],
)
def test_an_nvfp4_cache_is_refused_where_no_kernels_are(
    model: str, hardware: object, engine: str, message: str
) -> None:
    device = load_hardware(hardware)
    with pytest.raises((HardwareError, StrategyError), match=message):
        check_cached(load_model(model), device, load_engine(engine), "nvfp4")
    check_cached(load_model(model), device, load_engine(engine), "fp8")


def test_absorbed_latents_win_in_decode_and_lose_in_prefill() -> None:
    """Naive: 192 + 128 numbers a key and head; absorbed: 576 + 512, but one key for all heads."""
    spec = load_model("deepseek-v3").layers[-1].attention
    assert decode_times(H100, spec, BF16, calls(batch=16, keys=8192)) < prefill_times(
        H100, VLLM, spec, BF16, calls(batch=16, keys=8192)
    )
    prompt = calls(queries=8192, keys=8192)
    assert prefill_times(H100, VLLM, spec, BF16, prompt) < decode_times(H100, spec, BF16, prompt)


def test_windows_and_chunks_bound_the_keys() -> None:
    spec = load_model("gpt-oss-20b").layers[0].attention
    assert spec.window == 128
    near, far = (decode_times(H100, spec, BF16, calls(batch=64, keys=n)) for n in (4096, 65536))
    assert near == far
    chunked = load_model("llama-4-scout").layers[0].attention
    assert chunked.kind == "chunked"
    near, far = (decode_times(H100, chunked, BF16, calls(keys=n)) for n in (8192, 131072))
    assert near == far


def test_indexers_see_every_key_and_attention_the_chosen() -> None:
    spec = load_model("deepseek-v3.2").layers[-1].attention
    assert spec.indexer is not None
    times = [decode_times(H100, spec, BF16, calls(batch=8, keys=n))[0] for n in (2048, 65536)]
    dense = load_model("deepseek-v3").layers[-1].attention
    whole = [decode_times(H100, dense, BF16, calls(batch=8, keys=n))[0] for n in (2048, 65536)]
    assert 0.0 < times[1] - times[0] < whole[1] - whole[0]


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "mamba-2.8b", "kimi-linear-48b-a3b"])
def test_states_cost_the_same_at_any_length(name: str) -> None:
    spec = load_model(name).layers[0].recurrences[0]
    times = [decode_times(H100, spec, BF16, calls(batch=8, keys=n))[0] for n in (128, 65536)]
    assert times[0] == times[1] > 0.0
    whole = [
        prefill_times(H100, VLLM, spec, BF16, calls(queries=n, keys=n))[0] for n in (1024, 8192)
    ]
    assert 3.0 < whole[1] / whole[0] < 9.0


@pytest.mark.parametrize("hardware", [H100, B200], ids=["h100", "b200"])
def test_tokens_that_are_verified_share_the_latents_of_their_sequence(hardware) -> None:
    """Three queries multiply three times as much and read as much as one."""
    spec = load_model("deepseek-v3").layers[0].attention
    one, three = (
        decode_times(hardware, spec, BF16, calls(batch=64, queries=n, keys=4096))[0] for n in (1, 3)
    )
    assert one < three < 3.5 * one
