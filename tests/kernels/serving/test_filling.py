"""Variables that follow from others."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.serving.filling import fill_means, fill_parts, fill_request_quantile
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import ROWS
from tests.kernels.serving.cases import deployment
from tests.kernels.serving.test_passes import linear_tables


def filled() -> np.ndarray:
    out = np.full((len(ROWS), 1, 1), np.nan)
    fill_means(out, 0, 0, 0.5, 0.02, 0.03, 4.0, 1000.0, 101.0, 8.0, 0.25)
    return out


def test_means_follow_from_first_and_other_tokens():
    out = filled()[:, 0, 0]
    assert out[ROWS.request_time_mean] == pytest.approx(0.5 + 100 * 0.02)
    assert out[ROWS.tokens_per_second_per_device] == pytest.approx(4 * 101 / 8)
    assert out[ROWS.total_tokens_per_second_per_device] == pytest.approx(4 * 1101 / 8)
    assert out[ROWS.tokens_per_second_per_user] == pytest.approx(50)
    assert out[ROWS.time_per_output_token_low] == pytest.approx(0.02 / 1.25)
    assert out[ROWS.time_to_first_token_high] == pytest.approx(0.5 * 1.25)


def test_independent_parts_of_a_request_join():
    out = filled()
    out[ROWS.time_to_first_token_p95] = 0.8
    out[ROWS.time_per_output_token_p95] = 0.024
    fill_request_quantile(out, 0, 0, 1, 101.0, 0.0, 0.0)
    assert out[ROWS.request_time_p95, 0, 0] == pytest.approx(2.5 + 0.5)
    fill_request_quantile(out, 0, 0, 1, 101.0, 0.0, 9.0)
    assert out[ROWS.request_time_p95, 0, 0] == 9.0


@pytest.mark.parametrize("fused", [True, False])
def test_parts_of_a_mean_pass_lie_between_those_of_both_kinds(fused):
    tables, held = linear_tables(), deployment()
    out = np.zeros((len(ROWS), 1, 1))
    found = []
    for share in (0.0, 0.25, 1.0):
        asked = (100.0, 0.0, 300.0)
        fill_parts(tables, held, 0, asked, 5.0, share, fused, out, 0)
        found.append(out[ROWS.attention_time : ROWS.host_time + 1, 0, 0].copy())
    alone = pass_times(tables, 0, 0.0, 0.0, 0.0, 5.0, 300.0, 1.0, 0.0)
    assert found[0] == pytest.approx(alone[1:])
    other = pass_times(tables, 0, 1.0, 100.0, 0.0, 5.0 * fused, 300.0, 1.0, 1.0)
    if fused:
        assert found[2] == pytest.approx(other[1:])
        assert found[1] == pytest.approx(0.75 * found[0] + 0.25 * found[2])
    else:
        assert 2 * found[2] == pytest.approx(found[0] + np.array(other[1:]))
