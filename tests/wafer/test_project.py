"""Models on meshes of cores: published figures, bounds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import best, open_results, project_wafer, save_results
from perfmodel.base.errors import DataError, HardwareError, ModelError, StrategyError
from perfmodel.kernels.wafer.columns import CLOSED_ROWS
from perfmodel.store.results import open_table, pareto
from perfmodel.wafer.project import project_request, wafer_table
from perfmodel.wafer.result_subject import ROW_VARIABLES, TIME_COMPONENTS, VARIABLES


def of(table, name):
    return table.data_vars[name].values[:, 0, 0]


def test_rows_of_the_kernel_are_those_of_the_variables():
    assert tuple(item.name for item in ROW_VARIABLES) == CLOSED_ROWS


def test_every_variable_has_units_and_a_name():
    table = wafer_table("llama-3-8b", "wse-2", grid=420, parts=True)
    assert set(table.data_vars) == set(VARIABLES)
    for column in table.data_vars.values():
        assert column.attrs["units"]
        assert column.attrs["long_name"]


def test_capacity_of_a_region_is_what_was_measured():
    """He et al., OSDI 2025, table 5: 382 tokens on one row, 137,548 over all (360 x 360)."""
    table = wafer_table("llama-3-8b", "wse-2", grid=360, context=2048, head=False)
    assert of(table, "region_count")[0] == 6
    assert of(table, "layers_per_region")[0] == 6
    assert of(table, "weight_bytes")[0] == 21_600  # 1,800 numbers of 6 layers, by hand
    assert of(table, "cache_tokens_row")[0] == pytest.approx(382, rel=0.01)
    assert of(table, "cache_tokens_shifted")[0] == pytest.approx(137_548, rel=0.01)


def test_components_add_up():
    for phase in ("decode", "prefill"):
        table = wafer_table("mixtral-8x7b", "wse-2", grid=[200, 360], context=1024, phase=phase)
        total = sum(of(table, name) for name in TIME_COMPONENTS)
        np.testing.assert_allclose(total, of(table, "latency"), rtol=1e-12)


def test_parts_add_up_to_the_layers():
    table = wafer_table("llama-3-8b", "wse-2", grid=420, parts=True)
    whole = (table["part_time"].values[0, 0] * table["layers"].values).sum()
    on_cores = of(table, "latency")[0] - of(table, "transfer_time")[0]
    assert whole == pytest.approx(on_cores, rel=1e-12)


def test_useful_multiply_adds_are_those_of_the_model():
    table = wafer_table("llama-3-8b", "wse-2", grid=420, context=4096, parts=True)
    macs = (table["part_macs"].values[0, 0] * table["layers"].values).sum()
    weights = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    assert macs == weights + 32 * 2 * 4096 * 4096


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ({"grid": 0}, "grid"),
        ({"grid": "420x"}, "420x"),
        ({"grid": 420, "context": 2_000_000}, "context"),
        ({"grid": 420, "batch": 0}, "batch"),
        ({"grid": 420, "collective": "twolevel"}, "two_level"),
        ({"grid": 420, "gird": 3}, "grid"),
        ({"grid": 420, "phase": "decoding"}, "decode"),
    ],
)
def test_wrong_fields_are_named(axes, word):
    with pytest.raises(StrategyError, match=word):
        wafer_table("llama-3-8b", "wse-2", **axes)


def test_what_does_not_fit_says_so():
    table = wafer_table("codellama-34b", "wse-2", grid=[420, 900], context=4096)
    assert list(table["status"].labelled()[:, 0, 0]) == [
        "weights_beyond_memory",
        "grid_beyond_mesh",
    ]
    assert np.isfinite(of(table, "latency")[0])
    assert np.isnan(of(table, "latency")[1])
    assert of(table, "meshes_needed")[0] >= 2


def test_other_refusals():
    with pytest.raises(HardwareError, match="wse-2"):
        wafer_table("llama-3-8b", "wse-22", grid=420)
    with pytest.raises(HardwareError, match="fp64"):
        wafer_table("llama-3-8b", "wse-2", grid=420, precision="fp64")
    with pytest.raises(ModelError, match="mixers"):
        wafer_table("mamba-2.8b", "wse-2", grid=420)


def test_chips_with_memory_beside_them_follow_their_own_model():
    from perfmodel.hwprofiles import load_mesh
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.chips import chip_times

    model, chip = load_model("llama-3.1-8b"), load_mesh("n300")
    table = wafer_table(model, chip, context=128, batch=32)
    found = chip_times(model, chip, phase="decode", batch=32, context=128)
    assert of(table, "latency")[0] == found.time
    assert sum(of(table, name) for name in TIME_COMPONENTS)[0] == pytest.approx(found.time)
    table = wafer_table("llama-3.1-70b", "n150", context=128)
    assert table["status"].labelled()[0, 0, 0] == "weights_beyond_memory"
    assert of(table, "meshes_needed")[0] == 6  # 75.0 GB on chips of 12.9 GB


def test_numbers_are_those_of_kernels_called_with_plain_floats():
    from perfmodel.kernels.wafer.reduce import ALGORITHMS, all_reduce_counts

    table = wafer_table("llama-3-8b", "wse-2", grid=37, collective="all", parts=True)
    at = list(table["part"].values).index("softmax_max")
    for code in range(len(ALGORITHMS)):
        link = table["part_link_time"].values[code, 0, at] * 1.1e9
        assert link == pytest.approx(all_reduce_counts(code, 37.0, 1.0, 2.0)[0])


def test_an_answer_is_the_sum_of_its_tokens():
    found = project_request(
        "llama-3-8b", "wse-2", input_length=2000, output_length=300, prefill_grid=600,
        decode_grid="360x300", head=False,
    )  # fmt: skip
    tokens = wafer_table(
        "llama-3-8b", "wse-2", grid="360x300", context=range(2001, 2301), head=False
    )
    prompt = wafer_table("llama-3-8b", "wse-2", grid=600, context=2000, phase="prefill", head=False)
    answer = tokens["latency"].values.sum()
    assert found.time_to_first_token == prompt["latency"].values[0, 0, 0]
    assert found.time_per_output_token * 300 == pytest.approx(answer, rel=1e-12)
    assert found.tokens_per_second == pytest.approx(
        300 / (prompt["latency"].values[0, 0, 0] + answer)
    )


def test_lengths_between_which_a_token_is_linear():
    chip = project_request("llama-3.1-8b", "n300", input_length=128, output_length=600, batch=1)
    tokens = wafer_table("llama-3.1-8b", "n300", context=range(129, 729))
    assert chip.time_per_output_token == pytest.approx(np.mean(tokens["latency"].values), rel=1e-4)


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0), (2**40, 1), (1.5, 2)])
def test_lengths_that_mean_nothing(lengths):
    with pytest.raises(StrategyError, match="_length: a whole number"):
        project_request("llama-3-8b", "wse-2", input_length=lengths[0], output_length=lengths[1])


def test_one_value_of_every_field():
    with pytest.raises(StrategyError, match="one value"):
        project_request("llama-3-8b", "wse-2", input_length=9, output_length=9, batch=[1, 2])


# Datasets: stored, opened, ranked.


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
