"""Files that earlier versions wrote, opened, ranked, compared and launched by this one."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel import best, open_results, save_results
from perfmodel.base.errors import DataError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.table import Table
from perfmodel.kernels.variables import MEMORY_COMPONENTS, SCHEMA_VERSION, TIME_COMPONENTS
from perfmodel.model.presets import load_model, model_from_record
from perfmodel.software.framework import framework_of_record
from perfmodel.store.migration import MIGRATED_FROM, STEPS, to_present
from perfmodel.store.results import open_table
from perfmodel.store.subject import SERVING, TRAINING
from perfmodel.wafer.result_subject import SUBJECT as WAFER
from tests.cli.running import assert_one_line, document, run

STORED = Path(__file__).with_name("stored")
TRAINED = sorted(path.name[: -len(".nc.xz")] for path in STORED.glob("training-*.nc.xz"))
ALL = [*TRAINED, "serving-1.0-2026-11-22"]


def unpack(name: str, folder: Path) -> Path:
    """Return a stored file as its version wrote it."""
    path = folder / f"{name}.nc"
    path.write_bytes(lzma.decompress((STORED / f"{name}.nc.xz").read_bytes()))
    return path


def answers(name: str) -> Any:
    """Return what the version that wrote a file said of it."""
    return json.loads(lzma.decompress((STORED / f"{name}.json.xz").read_bytes()))


@pytest.mark.parametrize("name", ALL)
def test_the_best_are_those_that_the_old_version_named_with_its_numbers(name, tmp_path):
    said = answers(name)["strategies" if name in TRAINED else "points"]
    found = best(open_table(unpack(name, tmp_path)), len(said))
    assert len(said) == len(found) >= 2
    for old, new in zip(said, found, strict=True):
        same = {key: new[key] for key in old if key in new}
        assert same == {key: old[key] for key in same}
        assert not set(old) - set(new) - {"strategy", "deployment", "load"}


@pytest.mark.parametrize("name", TRAINED)
def test_fields_and_parts_are_those_of_the_present(name, tmp_path):
    table = open_table(unpack(name, tmp_path))
    assert table.attrs["schema_version"] == SCHEMA_VERSION
    assert table.attrs[MIGRATED_FROM] == name.split("-")[1]
    fields = [spec.name for spec in FIELDS]
    assert [it for it in table.coords if it in fields] == fields
    for row in best(table, 4):
        assert [row[spec.name] for spec in FIELDS if spec.name.startswith("offload")] == [
            spec.default for spec in FIELDS if spec.name.startswith("offload")
        ]
        assert sum(row[it] for it in TIME_COMPONENTS) == pytest.approx(row["step_time"], rel=1e-9)
        held = sum(row[it] for it in MEMORY_COMPONENTS)
        assert held == pytest.approx(row["memory_total"], rel=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_records_name_the_model_and_software_that_were_swept(name, tmp_path):
    attributes = open_table(unpack(name, tmp_path)).attrs
    records = json.loads(attributes["provenance"])
    assert model_from_record(records["model"]) == load_model("llama-3.1-8b")
    # Facts of its page that have changed since are told behind its name.
    assert framework_of_record(records["framework"]).name.partition("[")[0] == "megatron"
    assert attributes["mtp_layers"] == 0


@pytest.mark.parametrize("name", TRAINED)
def test_commands_read_them(name, tmp_path):
    file = unpack(name, tmp_path)
    said = answers(name)["strategies"][0]
    found = document("best", file, "--where", "offload_optimizer == 0 and zero == 1", "--top", "1")
    assert found["strategies"][0]["step_time"] == said["step_time"]
    launched = document("launch", file, "--for", "megatron")
    assert launched["settings"]["tensor-model-parallel-size"] == 2
    newest = unpack(TRAINED[-1], tmp_path)
    compared = document("diff", file, newest)
    assert compared["a"]["step_time"] == said["step_time"]
    assert run("best", file, "--pareto", "step_time,memory_total").exit_code == 0


def test_what_a_version_did_not_have_stays_absent(tmp_path):
    file = unpack(TRAINED[0], tmp_path)
    assert "step_time_low" not in open_table(file)
    assert_one_line(run("best", file, "--safe"), "do not say what is tight in memory; sweep again")
    assert_one_line(run("best", file, "--by", "step_time_low"), "no variable 'step_time_low'")


def test_migrated_results_are_stored_and_opened_as_they_are(tmp_path):
    before = open_results(unpack(TRAINED[0], tmp_path))
    save_results(before, tmp_path / "again.nc")
    after = open_results(tmp_path / "again.nc")
    assert after.attrs[MIGRATED_FROM] == "1.0"
    assert after.attrs["schema_version"] == SCHEMA_VERSION
    assert set(after.variables) == set(before.variables)
    np.testing.assert_array_equal(after.step_time, before.step_time)


def table_of(version: str, **more: Any) -> Table:
    """Return the newest stored table with another version."""
    return Table({}, {}, {"schema_version": version, **more}, {})


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2.0", "results of schema 2.0, and this perfmodel reads 1.x: a newer perfmodel reads it"),
        ("0.9", "results of schema 0.9, and this perfmodel reads 1.x: sweep again"),
        ("", "not a perfmodel sweep (schema version absent"),
        ("one", "not a perfmodel sweep (schema version one"),
        ("1", "not a perfmodel sweep (schema version 1,"),
    ],
)
def test_other_layouts_end_in_one_line(version, told, tmp_path):
    import netCDF4

    file = unpack(TRAINED[-1], tmp_path)
    with netCDF4.Dataset(file, "a") as opened:
        opened.schema_version = version
    for words in (["best", file], ["launch", file, "--for", "megatron"], ["diff", file, file]):
        assert_one_line(run(*words), told, file.name)


def test_a_newer_minor_version_is_read_as_it_is(tmp_path):
    import netCDF4

    file = unpack(TRAINED[-1], tmp_path)
    with netCDF4.Dataset(file, "a") as opened:
        opened.schema_version = "1.99"
    attributes = open_table(file).attrs
    assert attributes["schema_version"] == "1.99"
    assert MIGRATED_FROM not in attributes


def test_what_is_tight_follows_from_what_a_file_holds(tmp_path):
    table = open_table(unpack(TRAINED[-1], tmp_path))
    over = table["memory_high"].values > table["memory_capacity"].values
    whole = table["fits"].values & over
    np.testing.assert_array_equal(table.isel(strategy=[1, 0])["tight"].values, whole[[1, 0]])
    np.testing.assert_array_equal(table["tight"].values, whole)
    assert "tight" not in open_table(unpack(TRAINED[0], tmp_path))


def test_records_that_nobody_can_read_are_left_to_who_needs_them(tmp_path):
    table = open_table(unpack(TRAINED[0], tmp_path))
    for text in ("[" * 5000, "[]", "{}", '{"model": 1, "framework": {}}', "no JSON"):
        again = Table(
            table.data_vars,
            table.coords,
            {"schema_version": "1.0", "provenance": text},
            table.sizes,
        )
        assert to_present(again, "f.nc").attrs["provenance"] == text


@pytest.mark.parametrize(("once", "travels"), [(True, "deepep"), (False, "all_to_all")])
def test_how_tokens_travel_is_named_as_it_is_today(once, travels, tmp_path):
    table = open_table(unpack(TRAINED[0], tmp_path))
    found = json.loads(table.attrs["provenance"])
    del found["framework"]["expert_dispatch"]
    found["framework"]["deduplicated_dispatch"] = once
    attrs = {"schema_version": "1.1", "provenance": json.dumps(found)}
    again = to_present(Table(table.data_vars, table.coords, attrs, table.sizes), "f.nc")
    framework = framework_of_record(json.loads(again.attrs["provenance"])["framework"])
    assert framework.expert_dispatch == travels


def test_every_version_has_a_step_and_the_last_is_the_present():
    for subject in (TRAINING, SERVING, WAFER):
        major, minor = map(int, subject.schema.split("."))
        assert (major, [*STEPS.get(subject.verb, {})]) == (1, [*range(1, minor + 1)])


def test_a_table_without_results_is_none():
    with pytest.raises(DataError, match="not a perfmodel sweep"):
        to_present(table_of("1.1"), "f.nc")
