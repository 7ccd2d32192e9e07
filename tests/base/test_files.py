"""Files are written whole or not at all, and never over what is no file."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from perfmodel.base import files
from perfmodel.base.errors import DataError, FormatError, MachineError, ModelError
from perfmodel.base.files import (
    MOST_PARTS,
    SETTINGS,
    JsonWords,
    Located,
    atomic_path,
    check_writable,
    json_object,
    parse_json,
    read_text,
    read_toml,
    remove_temporaries,
    shortened,
    user_path,
)
from perfmodel.store import netcdf
from perfmodel.store.files import save_results


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset({"step_time": ("strategy", [1.0, 2.0], {"units": "s"})})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    dataset: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sweep.nc"
    target.write_text("old")

    def fail(*given: Any) -> None:
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(netcdf, "_write_column", fail)
    with pytest.raises(DataError, match="HDF error"):
        save_results(dataset, target)
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
    save_results(dataset, link)
    assert link.is_symlink()
    with xr.open_dataset(target) as found:
        assert found.sizes == dataset.sizes


def test_devices_are_never_replaced():
    with pytest.raises(DataError, match="not a regular file"):
        check_writable("/dev/stdout")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no folder in memory")
def test_a_folder_in_memory_is_no_device():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert check_writable(f"{folder}/x.nc") == Path(folder, "x.nc")


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


@pytest.fixture
def unprivileged(tmp_path):
    """No right to use the folder; root has all rights, and lays them down."""
    tmp_path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)
    tmp_path.chmod(0o700)


def test_what_may_not_be_read_or_written_is_said(tmp_path, unprivileged):
    for path in (tmp_path / "x.nc", tmp_path / "folder" / "x.nc"):
        with pytest.raises(DataError, match=r"^cannot write '.*x\.nc': "):
            check_writable(path)
        with pytest.raises(FormatError, match=r"^cannot read '.*x\.nc': Permission denied$"):
            read_text(path, "text")
        with pytest.raises(ModelError, match=r"^cannot read '.*x\.nc': Permission denied$"):
            read_toml(path, ModelError)


@pytest.mark.parametrize(("name", "reason"), [("x" * 300, "File name too long"), ("a\0b", "null")])
def test_names_that_no_system_takes_are_refused(name, reason, tmp_path):
    for call in (check_writable, lambda path: read_text(path, "text"), read_toml):
        with pytest.raises(
            (DataError, FormatError), match=rf"^cannot (read|write) '.*': .*{reason}"
        ):
            call(tmp_path / name)


def test_names_that_are_no_text_are_not_written(tmp_path):
    with pytest.raises(DataError, match=r"^cannot write '.*': .*surrogates not allowed"):
        check_writable(tmp_path / "a\udcff.nc")


def test_homes_that_are_not_there_stay_as_they_are(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/x") == Path("/home/me/x")
    assert user_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_the_longest_name_can_be_written(tmp_path):
    with atomic_path(tmp_path / ("x" * 252 + ".nc")) as temporary:
        temporary.write_text("whole")
    assert [len(name) for name in os.listdir(tmp_path)] == [255]


def test_a_full_disk_is_the_machines_failure(tmp_path, monkeypatch):
    def fail(number):
        with atomic_path(tmp_path / "x.nc"):
            raise OSError(number, os.strerror(number))

    with pytest.raises(MachineError, match=r"^cannot write '.*x\.nc': No space left on device$"):
        fail(errno.ENOSPC)
    with pytest.raises(DataError, match="Read-only file system"):
        fail(errno.EROFS)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_where_netcdf_says_hdf_error(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(files, "_probe", lambda folder: full)
    with pytest.raises(MachineError, match="No space left on device"), atomic_path(tmp_path / "x"):
        raise RuntimeError("NetCDF: HDF error")
    monkeypatch.setattr(files, "_probe", lambda folder: None)
    with pytest.raises(DataError, match="NetCDF: HDF error"), atomic_path(tmp_path / "x"):
        raise RuntimeError("NetCDF: HDF error")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of sizes there")
def test_netcdf_beyond_the_largest_file_says_so(tmp_path):
    text = f"""
import resource, netCDF4, numpy
from perfmodel.base.files import atomic_path
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with atomic_path({str(tmp_path / "x.nc")!r}) as path, netCDF4.Dataset(path, "w") as file:
    file.createDimension("n", 10**6)
    file.createVariable("x", "f8", ("n",))[:] = numpy.arange(1e6)
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "MachineError: cannot write" in run.stderr, run.stderr
    assert "File too large" in run.stderr
    assert os.listdir(tmp_path) == []


def test_what_was_begun_can_be_removed_at_once(tmp_path):
    writing = atomic_path(tmp_path / "x")
    temporary = writing.__enter__()
    assert temporary.exists()
    remove_temporaries()
    assert not temporary.exists()
    with pytest.raises(DataError, match="No such file"):
        writing.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "not valid TOML: Invalid value"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "not valid TOML: Exceeds the limit"),
        ("b.c = [1, " + "9" * 400 + "]", "'c' has an integer of more than 64 bits"),
        (".".join("a" * 100_000) + " = 1", f"a key has more than {MOST_PARTS} parts"),
        ("[" + ' . "a"' * 100 + "]", f"a key has more than {MOST_PARTS} parts"),
        ("\xff", "not UTF-8 text"),
    ],
)
def test_toml_that_is_refused(text, message, tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError) as error:
        read_toml(path, ModelError)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_what_toml_holds(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(f"a.b = [{', '.join(['1.5'] * 1000)}]\nc = -9223372036854775808", "utf-8-sig")
    assert read_toml(path) == {"a": {"b": [1.5] * 1000}, "c": -(2**63)}


def test_keys_have_lines_and_stand_once() -> None:
    keys = Located("run.yaml")
    keys.put("a.b", 1, 3)
    keys.put("c", 2, 0)
    assert (keys.where("a.b"), keys.where("c"), keys.where("d")) == ("run.yaml:3",) + (
        "run.yaml",
    ) * 2
    with pytest.raises(FormatError) as caught:
        keys.put("a.b", 5, 9)
    assert str(caught.value) == (
        "run.yaml:9: key 'a.b' is given twice (first on line 3); it should stand once"
    )
