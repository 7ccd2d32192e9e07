"""Compared runs and simulations as rows."""

import numpy as np
import pytest

from perfmodel import PerfModelError
from perfmodel.base.errors import DataError
from perfmodel.base.table import from_xarray
from perfmodel.report.runs import comparison_of, is_comparison, simulation_of


def test_scored_rows_are_kept_and_others_counted(compared_file):
    found = comparison_of(compared_file)
    assert (found.total, found.count) == (4, 3)
    assert found.left_out == {"no architecture": 1}
    np.testing.assert_allclose(found.figures["absolute_error"].values, [0.1, 0.2, 0.0])
    assert found.figures["measured"].units == "s"
    assert found.choices["n_gpus"].labels == ["8", "16", "–"]
    assert "source" not in found.choices
    assert found.choices["id"].labels == ["a", "b", "c"]


def test_parts_of_the_projection_are_figures(compared_file):
    found = comparison_of(compared_file).figures
    parts = found["projected_forward_time"].values + found["projected_backward_time"].values
    np.testing.assert_allclose(parts[:2], found["projected"].values[:2], rtol=0.01)


def test_a_filter_reads_the_columns(compared_file):
    found = comparison_of(compared_file, "hardware == 'H100' and error < 0")
    assert found.choices["id"].labels[found.choices["id"].codes[0]] == "b"
    assert found.count == 1
    with pytest.raises(PerfModelError, match="hardwar"):
        comparison_of(compared_file, "hardwar == 'H100'")


def test_tables_are_known_by_their_columns(compared_file, tmp_path):
    assert is_comparison(compared_file)
    other = tmp_path / "runs.csv"
    other.write_text("hardware,measured\nH100,2\n")
    assert not is_comparison(other)
    assert not is_comparison(tmp_path / "missing.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00" * 50)
    assert not is_comparison(binary)


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        (",2.0,2.2,0.1,", ",2.0,2.2,", ":2: 13 cells where the header has 14"),
        (",2.0,2.2,0.1,", ",two,2.2,0.1,", "column 'measured' holds something else"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(compared_file, tmp_path, was, becomes, says):
    path = tmp_path / "errors.csv"
    path.write_text(compared_file.read_text().replace(was, becomes))
    with pytest.raises(DataError) as error:
        comparison_of(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_ranks_of_a_simulation_are_rows(simulated):
    found = simulation_of(from_xarray(simulated))
    assert found.kind.name == "ranks"
    assert found.count == 4
    assert set(found.figures) == {"wall_time", "gpu_time", "exposed_communication"}
    assert simulation_of(from_xarray(simulated), "rank > 1").count == 2


def test_layers_of_a_simulation_are_rows_by_pass():
    import xarray as xr

    dims = ("phase", "layer")
    found = simulation_of(
        from_xarray(
            xr.Dataset(
                {
                    "compute_time": (dims, [[1.0, 2.0]] * 3, {"units": "s"}),
                    "exposed_communication": (dims, [[0.5, 0.0]] * 3, {"units": "s"}),
                    "layer_name": (("layer",), np.array(["first", "second"], object)),
                },
                coords={"phase": ["forward", "input", "weight"], "layer": [0, 1]},
            )
        )
    )
    assert found.kind.name == "layers"
    assert found.figures["busy_time"].values.tolist() == [1.5, 2.0] * 3
    assert found.choices["layer_name"].labels == ["first", "second"]
