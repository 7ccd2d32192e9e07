"""Blocks on Dask's workers: the same digits, and none lost with a worker."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from perfmodel.base.errors import DataError, MachineError
from perfmodel.sweeps import workers
from perfmodel.sweeps.results import open_table
from perfmodel.sweeps.store import PartsStore
from perfmodel.sweeps.stored import StoredSweep
from perfmodel.sweeps.workers import Workers, local_workers, scheduler_workers
from tests.sweeps.block_sweeps import assert_same, small, small_whole

pytest.importorskip("distributed", reason="Dask (the extra 'dask') is not installed")


class Deadly(PartsStore):
    """A store whose writer is killed at the first try of the second block."""

    def write(self, number, start, table):
        mark = self.path / "killed"
        if number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(number, start, table)


class Full(PartsStore):
    def write(self, number, start, table):
        raise OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def two():
    """Two processes; tests import what they are sent from this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with local_workers(2) as found:
            yield found


def stored(path, run, **more):
    with StoredSweep(small(**more), path, 5).opened(False) as work:
        return work.run(run)


def test_results_are_those_of_one_process_and_a_killed_worker_is_replaced(
    two, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Deadly)
    path = tmp_path / "out.nc"
    summary = stored(path, two)
    assert_same(open_table(path), small_whole(), but=("history",))
    assert summary.counts.fitting == [int(small_whole()["fits"].values.sum())]
    assert [it.name for it in tmp_path.iterdir()] == ["out.nc"]


def test_workers_that_share_no_files_send_what_they_project(two, tmp_path):
    path = tmp_path / "out.nc"
    far = Workers(two.client, shares_files=False, name="far ones")
    told: list[int] = []
    with StoredSweep(small(), path, 5).opened(False) as work:
        work.run(far, told.append)
    assert sum(told) == small().count
    assert_same(open_table(path), small_whole(), but=("history",))


def test_a_full_disk_of_a_worker_is_one_line(two, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Full)
    with pytest.raises(MachineError, match=r"cannot write '.*out\.nc': No space left on device$"):
        stored(tmp_path / "out.nc", two)
    assert list(tmp_path.iterdir()) == []


def test_other_versions_are_refused(two, monkeypatch):
    monkeypatch.setattr(two.client, "run", lambda _: {"tcp://far:1": {"numpy": "1.0"}})
    with pytest.raises(DataError, match="worker tcp://far:1 has perfmodel None, and here is"):
        stored(None, two)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("node1", "'node1' is no address, such as tcp://node1:8786"),
        ("ftp://node1:21", "is no address"),
        ("tcp://127.0.0.1:{port}", "does not answer within 0.2 s"),
    ],
)
def test_a_scheduler_that_is_none_is_one_line(address, text, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with (
            pytest.raises(DataError, match=text),
            scheduler_workers(address.format(port=free.getsockname()[1])),
        ):
            pass


def test_a_scheduler_is_asked_for_its_workers(two):
    with scheduler_workers(two.client.scheduler.address) as found:
        assert len(found.client.nthreads()) == 2
        assert not found.shares_files


def test_dask_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
    needs = pytest.raises(DataError, match=r"--workers needs Dask: pip install 'perfmodel\[dask\]'")
    with needs, local_workers(1):
        pass
