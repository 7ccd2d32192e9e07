"""Results as rows: every answer once, with its choices, figures and the reasons of the others."""

import numpy as np
import pytest

from perfmodel import PerfModelError, best
from perfmodel.base.errors import DataError
from perfmodel.base.table import from_xarray
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.report.rows import comparison_of, is_comparison, population_of, simulation_of


@pytest.fixture(scope="module")
def table(swept):
    return from_xarray(swept)


def test_every_answer_is_a_row(table, swept):
    found = population_of(table)
    assert found.total == swept["step_time"].size
    assert found.count == int(np.isfinite(swept["step_time"].values).sum())
    assert found.total == found.count + sum(found.left_out.values())
    assert found.left_out  # by the rule that they break, in words
    assert all(" " in reason for reason in found.left_out)


def test_the_best_row_is_that_of_best(table, swept):
    (first,) = best(swept, 1)
    found = population_of(table)
    row = found.best_first(found.fitting(), found.kind.rank)[0]
    for name in ("hardware", "tensor_parallel", "pipeline_parallel", "recompute", "zero_stage"):
        it = found.choices[name]
        assert it.labels[it.codes[row]] == str(first[name])
    for name in ("step_time", "memory_total", "tokens_per_second_per_device"):
        assert found.figures[name].values[row] == pytest.approx(first[name], rel=1e-6)


def test_parts_add_up_to_the_whole(table):
    found = population_of(table).figures
    for whole, parts in (("step_time", TIME_COMPONENTS), ("memory_total", MEMORY_COMPONENTS)):
        total = sum(found[name].values.astype(float) for name in parts)
        np.testing.assert_allclose(total, found[whole].values, rtol=2e-6)
    share = found["communication_share"].values
    assert ((share >= 0) & (share < 1)).all()


def test_a_filter_keeps_what_best_keeps(table):
    found = population_of(table, "tp == 2 and hardware == 'dgx-h100'")
    assert set(np.unique(found.choices["tensor_parallel"].codes)) == {0}
    assert found.choices["hardware"].labels == ["dgx-h100"]
    with pytest.raises(PerfModelError, match="filter"):
        population_of(table, "tp <")


def test_choices_say_how_a_command_names_them(table):
    found = population_of(table).choices
    assert found["tensor_parallel"].option == "tp"
    assert found["tensor_parallel"].default == "1"
    assert found["sequence_parallel"].labels == ["no", "yes"]
    assert found["sequence_parallel"].default == "yes"
    assert found["data_parallel"].option == ""  # what the others leave
    assert found["devices"].labels == ["16"]


def test_capacity_is_the_limit_of_memory(table, swept):
    limits = population_of(table).limits["memory_total"]
    assert list(limits) == ["dgx-h100", "dgx-b200"]
    assert list(limits.values()) == swept["memory_capacity"].values.tolist()


def test_a_mean_pass_of_a_served_model_is_the_sum_of_its_parts(served):
    found = population_of(from_xarray(served))
    assert found.kind.name == "serving"
    parts = found.kind.waterfalls[0].parts
    total = sum(found.figures[name].values for name in parts)
    np.testing.assert_allclose(found.figures["pass_time"].values, total)
    assert found.choices["devices"].option == ""


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


def test_what_is_tight_in_memory_is_a_verdict_of_its_own(table, swept):
    found = population_of(table)
    fits = found.choices["fits"]
    assert fits.labels == ["no", "tight", "yes"]
    tight = swept["tight"].values.reshape(-1)[found.flat]
    np.testing.assert_array_equal(fits.codes == 1, tight)
    assert found.fitting().size == int(swept["fits"].values.reshape(-1)[found.flat].sum())
