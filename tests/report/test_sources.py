"""What is read, and what is refused in one line."""

import hashlib

import pytest

from perfmodel import PerfModelError
from perfmodel.base.errors import DataError
from perfmodel.base.table import Table, from_xarray
from perfmodel.report.sources import distinct, file_facts, opened, table_provenance


def test_files_and_results_are_sources(swept, swept_file, compared_file):
    assert opened(swept_file, None, None, {}).name == "sweep.nc"
    held = opened(swept, None, None, {})
    assert held.name == swept.attrs["title"]
    assert held.population.count == opened(swept_file, None, None, {}).population.count
    assert opened(compared_file, "runs", None, {}).provenance["name"] == "runs"


def test_a_simulation_is_known_by_its_ranks(simulated, tmp_path):
    path = tmp_path / "run.nc"
    simulated.to_netcdf(path)
    assert opened(path, None, None, {}).population.kind.name == "ranks"


def test_costs_are_added_where_a_price_is_known(swept):
    plain = opened(swept, None, None, {}).population.figures
    dear = opened(swept, None, None, {"price": 1000.0, "tokens": 1e12}).population.figures
    assert (plain["cost_per_token"].values > 0).all()
    assert (dear["cost_per_token"].values > plain["cost_per_token"].values).all()
    assert "training_cost" in dear
    assert "training_cost" not in plain


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.nc", b"", "not a readable netCDF"),
        ("broken.nc", b"\x89HDF\r\n\x1a\n" + b"\x00" * 200, "not a readable netCDF"),
        ("runs.csv", b"hardware,measured\nH100,2\n", "perfmodel compare"),
        ("missing.nc", None, "does not exist"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PerfModelError) as error:
        opened(path, None, None, {})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_results_of_another_schema_are_refused(tmp_path):
    import xarray as xr

    path = tmp_path / "other.nc"
    xr.Dataset({"x": ("time", [1.0])}, attrs={"schema_version": "9.0"}).to_netcdf(path)
    with pytest.raises(DataError, match=r"not a perfmodel sweep \(schema version 9.0"):
        opened(path, None, None, {})


def test_equal_names_are_told_apart():
    assert distinct(["a.nc", "a.nc", "b.nc", "a.nc"]) == ["a.nc", "a.nc (2)", "b.nc", "a.nc (3)"]


def test_files_are_known_by_their_digest(tmp_path):
    path = tmp_path / "some.nc"
    path.write_bytes(b"abc" * 1000)
    facts = dict(file_facts(path))
    assert facts["size"] == "3,000 B"
    assert facts["SHA-256"] == hashlib.sha256(b"abc" * 1000).hexdigest()


def test_hardware_states_its_numbers(swept):
    found = table_provenance("s", from_xarray(swept), [])
    h100 = found["hardware"][0]
    facts = dict(h100["facts"])
    assert facts["peak bf16"] == "989.4 TFLOP/s"
    assert facts["memory"] == "79.1 GiB"
    assert "450 GB/s" in facts["network nvlink"]
    assert all(len(source) <= 161 for *_, source in h100["constants"])


def test_results_without_provenance_have_little_to_say():
    for text in ("", "{", "[1]", '{"hardware": 3, "model": [], "versions": null}'):
        found = table_provenance("s", Table({}, {}, {"title": "t", "provenance": text}), [])
        assert found["facts"] == [["title", "t"]]
        assert found["hardware"] == []


def test_damaged_profiles_are_shown_as_far_as_they_go():
    text = '{"hardware": {"x": {"title": "X", "device": {"peak_flops": {"bf16": 1e15}}}}}'
    (hardware,) = table_provenance("s", Table({}, {}, {"provenance": text}), [])["hardware"]
    assert ["peak bf16", "1 PFLOP/s"] in hardware["facts"]
    assert hardware["trust"] == []
