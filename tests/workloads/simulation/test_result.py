"""What a run says: figures with units, collectives by kind."""

from __future__ import annotations

import pytest

from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.collective import (
    simulate_collective,
)
from tests.workloads.simulation.made import (
    ALL_TO_ALL,
    MIB,
    REDUCE_SCATTER,
    pipeline,
    reduce_of,
    ring,
)


def test_dataset_names_units_of_everything():
    result = simulate(pipeline(), ring())
    dataset = result.to_dataset()
    for name, variable in dataset.variables.items():
        assert variable.attrs["long_name"], name
        assert "units" in variable.attrs or variable.dtype.kind == "U", name
    assert dataset.wall_time.values.tolist() == pytest.approx(
        [value * 1e-9 for value in result.ticks("wall_time")]
    )
    summary = result.summary()
    assert summary["ranks"] == 4
    assert summary["sent_count"] == 3
    assert summary["sent_bytes"] == 9_000_000
    assert summary["slowest_rank"] == 3
    assert summary["wall_time_nanoseconds"] == result.ticks("wall_time")[3]
    assert summary["collectives"] == {}


def test_collectives_are_added_up_by_kind():
    builder = TraceBuilder()
    reduce_of(builder, "a", 4 * MIB)
    reduce_of(builder, "b", MIB, kind=ALL_TO_ALL)
    reduce_of(builder, "c", MIB, kind=REDUCE_SCATTER)
    reduce_of(builder, "d", 2 * MIB)
    costs = ring()
    summary = simulate(TraceSet((builder.build(),) * 4), costs).summary()

    def seconds(name, size):
        time = simulate_collective(costs.network, costs.system, name, size)
        return time.slowest_nanoseconds * 1e-9

    reduces = summary["collectives"]["all_reduce"]
    assert (reduces["count"], reduces["bytes"]) == (8, 24 * MIB)
    # They take turns, but count from when they begin.
    assert reduces["time"] == pytest.approx(
        4 * (seconds("all_reduce", 4 * MIB) + seconds("all_reduce", 2 * MIB))
    )
    assert set(summary["collectives"]) == {"all_reduce", "all_to_all", "reduce_scatter"}
