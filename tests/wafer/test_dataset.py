"""Models on meshes of cores as datasets: stored, opened, ranked."""

import numpy as np
import pytest

from perfmodel import best, open_results, project_wafer, save_results
from perfmodel.base.errors import DataError
from perfmodel.store.results import open_table, pareto


@pytest.fixture(scope="module")
def found():
    return project_wafer(
        "llama-3-8b", ["wse-2", "wse-3"], grid=[300, 420, 900], phase=["decode", "prefill"],
        collective=["chain", "two_level"],
    )  # fmt: skip


def test_the_dataset_says_what_it_holds(found):
    assert dict(found.sizes) == {"mapping": 6, "hardware": 2, "phase": 2}
    assert set(found.collective.values) == {"chain", "two_level"}
    assert found.latency.attrs["units"] == "s"
    assert found.attrs["model"] == "llama-3-8b"


def test_the_best_mapping_is_the_fastest_that_fits(found):
    decode = best(found, 3, where="phase == 'decode' and hardware == 'wse-2'")
    times = found.latency.sel(hardware="wse-2", phase="decode")
    assert decode[0]["latency"] == times.min()
    assert [row["collective"] for row in decode][:2] == ["two_level", "two_level"]
    assert "grid_rows" in repr(decode)
    front = pareto(found, "latency,sram_used", where="phase == 'decode'")
    assert len(front) >= 1


def test_stored_and_opened(found, tmp_path):
    for table, name in (
        (found, "x.nc"),
        (project_wafer("llama-3-8b", "wse-2", grid=300, parts=True), "y.nc"),
    ):
        save_results(table, tmp_path / name)
        opened = open_results(tmp_path / name)
        np.testing.assert_array_equal(opened.latency.values, table.latency.values)
        np.testing.assert_array_equal(opened.bottleneck.values, table.bottleneck.values)
        assert best(open_table(tmp_path / name), 1)[0]["latency"] > 0.0


def test_what_mappings_do_not_have(found):
    with pytest.raises(DataError, match="no prices"):
        found.perfmodel.add_cost(price=2.0)
    parts = project_wafer("llama-3-8b", "wse-2", grid=300, parts=True)
    with pytest.raises(DataError, match="part"):
        best(parts, 1, by="part_time")


def test_shares_of_the_latency(found):
    shares = found.perfmodel.breakdown(2)
    np.testing.assert_allclose(shares.drop(columns="latency").sum(axis=1), 1.0)


def test_commands_of_training_steps_say_what_the_file_holds(tmp_path):
    from tests.cli.running import run

    target = tmp_path / "x.nc"
    save_results(project_wafer("llama-3-8b", "wse-2", grid=300), target)
    for words in (
        ("diff", target, target),
        ("launch", target, "--for", "vllm", "-o", tmp_path / "y"),
    ):
        result = run(*words)
        assert result.exit_code == 2
        assert "perfmodel wafer" in result.stderr or "mappings of meshes" in result.stderr
