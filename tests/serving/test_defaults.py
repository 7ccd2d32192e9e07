"""Limits that engines take by themselves, by device and release."""

from __future__ import annotations

import pytest

from perfmodel import load_hardware
from perfmodel.serving.defaults import device_class, device_fact, with_limits
from perfmodel.serving.enumerate import deployments_from_rows, serving_grid
from perfmodel.software.engine import load_engine


@pytest.mark.parametrize(
    ("engine", "hardware", "tokens", "sequences"),
    [
        ("vllm-0.22", "dgx-h100", 8192, 1024),
        ("vllm-0.22", "dgx-a100", 2048, 256),  # its name counts, not its memory
        ("vllm-0.22", "l4-server", 2048, 256),
        ("vllm-0.8", "dgx-h100", 8192, 256),
        ("sglang-0.5.8", "l4-server", 2048, 4096),
        ("sglang-0.5.8", "dgx-h100", 8192, 4096),
        ("sglang-0.5.8", "dgx-b200", 16384, 4096),
        ("trtllm", "l4-server", 8192, 2048),
    ],
)
def test_limits_by_device(engine, hardware, tokens, sequences):
    grid = serving_grid("llama-3.1-8b", hardware, engine=engine, tensor_parallel=1)
    assert (grid["token_budget"][0], grid["max_sequences"][0]) == (tokens, sequences)


def test_a_limit_that_devices_do_not_share_is_found_for_each():
    devices = [load_hardware(name) for name in ("dgx-h100", "l4-server")]
    grid = serving_grid("llama-3.1-8b", devices, engine="vllm-0.22", tensor_parallel=1)
    assert grid["token_budget"][0] == 0
    assert with_limits(grid, devices[1:])["token_budget"][0] == 2048
    stated = serving_grid("llama-3.1-8b", devices, tensor_parallel=1, token_budget=512)
    assert stated["token_budget"][0] == 512
    assert with_limits(grid, []) is grid


def test_the_share_of_sglang_follows_its_reserve():
    grid = deployments_from_rows("deepseek-r1", [{"tensor_parallel": 8}], engine="sglang-0.5.8")
    found = {name: with_limits(grid, [load_hardware(name)]) for name in ("dgx-h200", "dgx-b200")}
    assert found["dgx-h200"]["memory_share"][0] == pytest.approx(0.90, abs=0.01)
    assert found["dgx-b200"]["memory_share"][0] == pytest.approx(0.85, abs=0.01)


def test_shares_of_releases():
    shares = {name: load_engine(name).memory_share for name in ("vllm-0.21", "vllm-0.22")}
    assert shares == {"vllm-0.21": 0.9, "vllm-0.22": 0.92}


def test_workspace_is_that_of_a_class():
    engine, small = load_engine("vllm-0.22"), load_hardware("l4-server")
    assert device_fact(engine, small, "workspace_bytes") == 0.35e9
    assert device_class(load_engine("trtllm"), small) == ()
