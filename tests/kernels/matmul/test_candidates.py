"""Candidates of a matrix product: what fits, and that none is missed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.matmul import candidates
from perfmodel.kernels.matmul.tiles import PANELS, POWER_OF_TWO_TILES, SPLITS, TILES
from tests.amount import cases
from tests.kernels.matmul.test_gemm import GPU, TPU, product, seconds


def test_stages_are_bounded_by_the_scratchpad():
    # 128 x 256 tiles of bf16 hold (128 + 256) x 128 B a step: 4 steps in 228 KiB
    assert candidates.stage_count(128.0, 256.0, GPU) == 4.0
    assert candidates.stage_count(64.0, 16.0, GPU) == GPU.pipeline_stages
    starved = GPU._replace(scratchpad=65536.0)
    assert seconds(4096, 4096, 4096, device=starved) >= seconds(4096, 4096, 4096)


@settings(max_examples=cases(20), deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 40000), st.integers(1, 3))
def test_no_candidate_is_left_out_that_is_faster(m, n, k, batch):
    for device, tiles in ((GPU, TILES), (GPU._replace(narrow_side=128.0), TILES), (TPU, PANELS)):
        alone = [
            product(m, n, k, batch, device=device, tiles=tiles[[i]], splits=SPLITS[[0, j]])[0]
            for i in range(len(tiles))
            for j in range(1, len(SPLITS))
        ]
        assert seconds(m, n, k, batch, device=device, tiles=tiles) == np.nanmin(alone)


def test_all_candidates_have_a_place_in_the_table():
    assert max(map(len, (TILES, PANELS, SPLITS))) <= candidates.MOST_TILES


def test_the_tile_table_is_symmetric():
    for part in (TILES[:POWER_OF_TWO_TILES], TILES[POWER_OF_TWO_TILES:]):
        tiles = {tuple(tile) for tile in part}
        assert len(tiles) == len(part)
        assert {(b, a) for a, b in tiles} == tiles
