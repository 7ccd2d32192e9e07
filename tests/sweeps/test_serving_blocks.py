"""Grids of served models in blocks: every digit as in one piece, whoever projects them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, load_model, serving_grid
from perfmodel.serving.requests import random_trace
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.serving_blocks import Block, ServedGrid
from perfmodel.sweeps.serving_replay import replay_table
from tests.sweeps.block_sweeps import assert_same

HARDWARE = ["dgx-h100", "dgx-h200"]
LOADS = {"input_length": [512, 8192], "output_length": [1, 64], "concurrency": [1, 16]}


def served(deployments: int, loads: int, rows: int = 2) -> ServedGrid:
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1, workers=[*range(1, 9)])
    asked = load_grid(input_length=512, output_length=64, concurrency=[*range(1, loads + 1)])
    hardware = [load_hardware(name) for name in HARDWARE[:rows]]
    return ServedGrid(grid.take(slice(deployments)), asked, hardware)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 2), (3, 4, 2), (8, 1, 1)])
@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
def test_blocks_cover_every_point_once(shape, pieces):
    deployments, loads, rows = shape
    seen = np.zeros((rows, deployments, loads), int)
    blocks = served(*shape).blocks(pieces)
    for block in blocks:
        part = seen[block]
        assert part.size == block.points > 0
        part += 1
    assert (seen == 1).all()
    assert len(blocks) >= min(pieces, seen.size)


def test_rows_of_hardware_are_the_blocks_of_one_piece():
    assert served(3, 4).blocks() == [Block(row, slice(0, 3), slice(0, 4)) for row in (0, 1)]


def test_a_grid_is_served_as_in_one_process(two_workers):
    grid = serving_grid(
        load_model("llama-3.1-70b"), HARDWARE, engine=["vllm", "sglang"], tensor_parallel=[1, 4, 8]
    )
    alone = serve_table("llama-3.1-70b", grid, LOADS, HARDWARE)
    told: list[int] = []
    for dtype in (np.float64, np.float32):
        shared = serve_table(
            "llama-3.1-70b",
            grid,
            LOADS,
            HARDWARE,
            dtype=dtype,
            workers=two_workers,
            progress=told.append,
        )
        if dtype is np.float64:
            assert_same(shared, alone)
            assert sum(told) == alone["status"].values.size
    assert_same(shared, serve_table("llama-3.1-70b", grid, LOADS, HARDWARE, dtype=np.float32))


def test_pools_drafts_and_recursions_are_served_as_in_one_process(two_workers):
    pools = {"prefill_workers": [1, 2], "workers": [1, 3], "tensor_parallel": [2, 4]}
    loads = {"input_length": 1024, "output_length": 64, "arrival_rate": [0.5, 8.0]}
    experts = serving_grid("mixtral-8x7b", "dgx-h100", **pools)
    alone, shared = (
        serve_table(
            "mixtral-8x7b",
            experts,
            loads,
            "dgx-h100",
            prefill_hardware="dgx-h200",
            workers=it,
        )
        for it in (None, two_workers)
    )
    assert_same(shared, alone)
    loads = {"input_length": 512, "output_length": 16, "concurrency": [1, 2, 4, 8]}
    one = {"tensor_parallel": 1}
    for method in ("recursion", "decode"):
        alone, shared = (
            serve_table("llama-3.1-8b", one, loads, "dgx-h100", method=method, workers=it)
            for it in (None, two_workers)
        )
        assert_same(shared, alone)


def test_a_trace_is_replayed_as_in_one_process(two_workers):
    trace = random_trace(20, 4.0, (100, 3000), (2, 20))
    long = random_trace(3, 4.0, 130_000, 2_000)
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=[1, 2], workers=[1, 2])
    for asked, clients in ((trace, ()), (trace, (1, 3)), (long, ())):
        alone, shared = (
            replay_table(grid, asked, HARDWARE, concurrency=clients, workers=it)
            for it in (None, two_workers)
        )
        assert_same(shared, alone)
