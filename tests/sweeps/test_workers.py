"""Blocks of a sweep on workers: the same digits, and none lost with a worker."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from perfmodel.base.errors import MachineError
from perfmodel.base.workers import Workers
from perfmodel.store.results import open_table
from perfmodel.sweeps.block_store import PartsStore
from perfmodel.sweeps.stored import StoredSweep
from perfmodel.sweeps.workers import run_on
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


def stored(path, run, **more):
    with StoredSweep(small(**more), path, 5).opened(False) as work:
        return work.run(run)


def test_results_are_those_of_one_process_and_a_killed_worker_is_replaced(
    two_workers, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Deadly)
    path = tmp_path / "out.nc"
    summary = stored(path, run_on(two_workers))
    assert_same(open_table(path), small_whole(), but=("history",))
    assert summary.counts.fitting == [int(small_whole()["fits"].values.sum())]
    assert [it.name for it in tmp_path.iterdir()] == ["out.nc"]
    two_workers.client.wait_for_workers(2, timeout=60)


def test_workers_that_share_no_files_send_what_they_project(two_workers, tmp_path):
    path = tmp_path / "out.nc"
    far = Workers(two_workers.client, shares_files=False, name="far ones")
    told: list[int] = []
    with StoredSweep(small(), path, 5).opened(False) as work:
        work.run(run_on(far), told.append)
    assert sum(told) == small().count
    assert_same(open_table(path), small_whole(), but=("history",))


def test_a_full_disk_of_a_worker_is_one_line(two_workers, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Full)
    with pytest.raises(MachineError, match=r"cannot write '.*out\.nc': No space left on device$"):
        stored(tmp_path / "out.nc", run_on(two_workers))
    assert list(tmp_path.iterdir()) == []
