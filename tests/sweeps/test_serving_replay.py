"""Traces replayed on grids of deployments."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, serving_grid
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.serving.variables import VARIABLES
from perfmodel.serving.project import prepare
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace
from perfmodel.store.results import TRUST
from perfmodel.sweeps.serving_replay import replay_table, trace_loads

TRACE = RequestTrace(np.array([1.0, 1.5, 11.0]), np.array([2000, 500, 1000]), np.array([4, 20, 2]))


def grid(**axes):
    return serving_grid("llama-3.1-8b", "dgx-h100", **{"tensor_parallel": [1, 2], **axes})


def test_a_load_has_the_longest_lengths_and_the_mean_rate() -> None:
    loads = trace_loads(TRACE)
    assert loads.row(0)["input_length"] == 2000
    assert loads.row(0)["output_length"] == 20
    assert loads.row(0)["arrival_rate"] == pytest.approx(0.2)
    at_once = RequestTrace(np.zeros(3), TRACE.input_length, TRACE.output_length)
    assert trace_loads(at_once).row(0)["arrival_rate"] == 3.0
    assert trace_loads(TRACE, [1, 4])["concurrency"].tolist() == [1.0, 4.0]


def test_every_deployment_is_replayed_on_every_device() -> None:
    table = replay_table(grid(), TRACE, ["dgx-h100", "dgx-h200"])
    assert set(table.data_vars) == {*VARIABLES, TRUST}
    ready = prepare(grid(), load_hardware("dgx-h200"))
    alone = replay_trace(ready.tables, ready.deployments, TRACE, deployment=1).summary
    for name in ("time_to_first_token_mean", "request_time_p99", "utilization"):
        assert table[name].values[1, 1, 0] == alone[name]
    assert table["status"].labelled().reshape(-1).tolist() == ["valid"] * 4
    assert table.attrs["method"] == "replay"


def test_what_cannot_be_replayed_has_a_status() -> None:
    small = grid(tensor_parallel=[1], memory_share=[0.9, 0.32])
    long = RequestTrace(np.zeros(1), np.array([120_000]), np.array([100]))
    table = replay_table(small, long, "dgx-h100")
    assert table["status"].labelled()[:, 0, 0].tolist() == ["valid", "cache_below_one_request"]
    assert np.isnan(table["request_rate"].values[1, 0, 0])
    longer = RequestTrace(np.zeros(1), np.array([140_000]), np.array([1]))
    assert replay_table(small, longer, "dgx-h100")["status"].labelled()[0, 0, 0] == (
        "context_too_long"
    )


def test_pools_are_refused() -> None:
    with pytest.raises(StrategyError, match="one pool"):
        replay_table(grid(prefill_workers=1), TRACE, "dgx-h100")
