"""Files are written whole or not at all, and never over what is no file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from perfmodel.base.errors import DataError, FormatError, ModelError
from perfmodel.base.files import (
    SETTINGS,
    JsonWords,
    atomic_path,
    check_writable,
    json_object,
    parse_json,
    shortened,
)
from perfmodel.sweeps import results as stored


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset({"step_time": ("strategy", [1.0, 2.0], {"units": "s"})})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    dataset: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sweep.nc"
    target.write_text("old")

    def fail(self: xr.Dataset, path: Path, **kwargs: Any) -> None:
        Path(path).write_text("half")
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)
    with pytest.raises(DataError, match="HDF error"):
        stored.save_results(dataset, target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["sweep.nc"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "sweep.nc") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing/sweep.nc", "does not exist"), (".", "is a folder"), ("pipe", "not a regular file")],
)
def test_unwritable_targets_are_found_before_any_work(
    name: str, message: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=message):
        check_writable(tmp_path / name)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_and_its_target_is_written(dataset, tmp_path):
    target, link = tmp_path / "target.nc", tmp_path / "link.nc"
    target.write_text("before")
    link.symlink_to(target)
    stored.save_results(dataset, link)
    assert link.is_symlink()
    with xr.open_dataset(target) as found:
        assert found.sizes == dataset.sizes


def test_devices_are_never_replaced():
    with pytest.raises(DataError, match="not a regular file"):
        check_writable("/dev/stdout")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 60, "a" * 60),
        ("a" * 61, "a" * 60 + "…"),
        ("two\nlines\x1b", "two?lines?"),
        (12, "12"),
    ],
)
def test_what_a_message_quotes_is_one_short_printable_line(value, text):
    assert shortened(value) == text


PLAIN = JsonWords("{path} at {line}, {column}: {reason}", "{path}: {reason}")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ('{"a":\n [1,}', PLAIN, "f at 2, 5: Expecting value"),
        ("[" * 100_000, PLAIN, "f: nested too deeply"),
        ("[NaN]", PLAIN._replace(constants=False), "f: 'NaN' is no JSON number"),
        ("[]", PLAIN._replace(no_object="{path} holds {kind}"), "f holds list"),
        ('{"a": 1,\n"b": {"a": 2},\n"b": 3}', SETTINGS, "f:3: key 'b' is given twice; it should"),
    ],
)
def test_every_reader_of_json_says_it_in_its_words(text, words, message):
    with pytest.raises(ModelError) as error:
        parse_json(text, "f", words, ModelError)
    assert str(error.value).startswith(message)


def test_what_json_text_holds():
    assert parse_json('{"a": 1, "a": 2, "b": [Infinity]}', "f", PLAIN) == {"a": 2, "b": [math.inf]}
    assert json_object("f", '{"b": 1, "a": 2}', "a") == {"b": 1, "a": 2}
    with pytest.raises(FormatError, match=r"^f:1: should be a JSON object with keys such as a$"):
        json_object("f", "[1]", "a")
