"""Sweeps block by block into a file: the same as at once, whatever interrupts them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from perfmodel.base.errors import DataError, MachineError
from perfmodel.hwprofiles import load_hardware
from perfmodel.store.files import save_results
from perfmodel.store.results import best, best_of_each, open_table, pareto, scaling
from perfmodel.sweeps import stored as module
from perfmodel.sweeps.blocks import PartsStore
from perfmodel.sweeps.stored import (
    BlockResult,
    StoredBlocks,
    StoredSweep,
    Summary,
    check_stored_path,
    joined,
    tally,
    winners,
)
from perfmodel.sweeps.workers import Workers
from tests.sweeps.block_sweeps import AXES, assert_same, blocks, small, small_whole, whole

TOP = 4


def pieces():
    count = whole().sizes["strategy"]
    cuts = [0, 7, 100, 101, 300, count]
    parts = [whole().isel(strategy=slice(a, b)) for a, b in itertools.pairwise(cuts)]
    return [BlockResult(i, tally(part), winners(part, TOP)) for i, part in enumerate(parts)]


def summary(results):
    found = Summary(TOP)
    for result in results:
        found.add(result)
    return found


def numbered(table, rows):
    return [{**row, "strategy": int(table["strategy"].values[row["strategy"]])} for row in rows]


def test_winners_of_parts_answer_what_the_whole_answers():
    table = summary(pieces()).table()
    assert table.sizes["strategy"] < whole().sizes["strategy"] / 2
    assert numbered(table, best(table, TOP)) == list(best(whole(), TOP))
    apart = ["model", "framework", "hardware"]
    assert numbered(table, best_of_each(table, apart)) == list(best_of_each(whole(), apart))
    assert numbered(table, scaling(table)) == list(scaling(whole()))


def test_counts_add_up():
    counts = summary(pieces()).counts
    assert counts == tally(whole())
    finite = np.isfinite(whole()["step_time"].values)
    assert counts.possible == finite.sum(axis=0).tolist()
    assert counts.lacking[0] > 0 == counts.lacking[1]  # A100 has no rate for fp8
    assert counts.possible[0] + counts.lacking[0] == whole().sizes["strategy"]
    memory = np.where(finite, whole()["memory_total"].values, np.inf)
    assert counts.least_memory == memory.min(axis=0).tolist()


def test_the_order_in_which_blocks_come_changes_nothing(monkeypatch):
    expected = summary(pieces()).table()
    shuffled = pieces()
    random.Random(3).shuffle(shuffled)
    monkeypatch.setattr(module, "MOST_KEPT", 20)  # winnowed on the way
    assert_same(summary(shuffled).table(), expected)


def test_a_line_of_json_has_every_digit():
    for result in pieces():
        line = result.to_json()
        assert "\n" not in line
        read = BlockResult.from_json(json.loads(line), whole().isel(strategy=[0]))
        assert (read.number, read.tally) == (result.number, result.tally)
        assert_same(read.winners, result.winners)


def test_nothing_that_fits_leaves_what_is_possible():
    table = whole()
    none = table.isel(strategy=np.flatnonzero(~table["fits"].values.any(axis=1))[:5])
    kept = winners(none, TOP)
    assert kept.sizes["strategy"] > 0
    assert tally(none).fitting == [0, 0]
    assert_same(joined([none]), none)


ENDINGS = (".zarr", ".nc")
# A run that is killed while it writes its second block: half of a store's columns are there.
KILLED = """
import os, signal, sys
from pathlib import Path
from perfmodel.base.table import Table
from perfmodel.sweeps import blocks as store
from perfmodel.sweeps.stored import StoredSweep
from tests.sweeps.block_sweeps import small

for kind in (store.ZarrStore, store.PartsStore):
    def write(self, number, start, table, whole=kind.write):
        if number:
            half = dict(list(table.data_vars.items())[::2])
            whole(self, number, start, Table(half, table.coords, table.attrs, table.sizes))
            os.kill(os.getpid(), signal.SIGKILL)
        whole(self, number, start, table)
    kind.write = write
with StoredSweep(small(), Path(sys.argv[1]), 5).opened(True) as work:
    work.run()
"""


def run(path, *, resume=False, advance=None, **more):
    with StoredSweep(small(**more), path, 5).opened(resume) as work:
        return work.run(advance=advance)


def opened(path):
    if path.is_dir():
        return xr.open_zarr(path, consolidated=False).load()
    with xr.open_dataset(path) as found:
        return found.load()


@pytest.fixture
def failing(monkeypatch):
    """Let the third block fail, until that is undone."""

    def fail(error):
        def done(self, block, progress, done=StoredBlocks.done):
            if block == 2:
                raise error
            return done(self, block, progress)

        monkeypatch.setattr(StoredBlocks, "done", done)
        return monkeypatch.undo

    return fail


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stored_sweep_is_that_at_once_but_for_its_history(tmp_path, ending):
    once, many = tmp_path / f"once{ending}", tmp_path / f"many{ending}"
    save_results(small_whole(), once)
    told: list[int] = []
    summary = run(many, advance=told.append)
    assert sum(told) == small().count
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"many{ending}", f"once{ending}"]
    a, b = opened(once), opened(many)
    assert b.attrs.pop("history").startswith("swept in 3 blocks of 70 strategies; question ")
    xr.testing.assert_identical(a, b)
    assert {name: it.dtype for name, it in a.variables.items()} == {
        name: it.dtype for name, it in b.variables.items()
    }
    assert_same(open_table(many), open_table(once), but=("history",))
    assert summary.counts.fitting == [int(small_whole()["fits"].values.sum())]


@pytest.mark.parametrize("ending", ENDINGS)
def test_kill_9_leaves_finished_blocks_and_nothing_is_done_twice(tmp_path, ending, monkeypatch):
    path = tmp_path / f"out{ending}"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=Path.cwd(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    partial = tmp_path / f"out{ending}.partial"
    first = small_whole().isel(strategy=slice(0, 70))
    if ending == ".zarr":
        found = opened(partial / "results.zarr")
        assert found.sizes["strategy"] == small().count
        expected = first.to_xarray()
        for name in ("step_time", "status", "tensor_parallel", "recompute", "fits"):
            assert (found[name][:70] == expected[name]).all()
        assert found["step_time"][140:].isnull().all()
        with pytest.raises(DataError, match="is not finished; 'perfmodel sweep --resume' goes on"):
            open_table(partial / "results.zarr")
    else:
        assert_same(open_table(partial / "000000.nc"), first, but=("history",))

    done = []

    def counting(self, block, progress, project=StoredBlocks.done):
        done.append(block)
        return project(self, block, progress)

    monkeypatch.setattr(StoredBlocks, "done", counting)
    run(path, resume=True)
    assert done == [1, 2]
    assert_same(open_table(path), small_whole(), but=("history",))
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_disk_is_one_line_and_no_damage(tmp_path, ending, failing):
    path = tmp_path / f"out{ending}"
    undo = failing(OSError(28, "No space left on device"))
    with pytest.raises(MachineError) as error:
        run(path)
    undo()
    assert str(error.value) == (
        f"cannot write '{path}': No space left on device; 2 of 3 blocks are kept; --resume goes on"
    )
    with pytest.raises(DataError, match=r"with other options: number type \(float32 then, float64"):
        run(path, resume=True, dtype="float64")
    run(path, resume=True)
    assert_same(open_table(path), small_whole(), but=("history",))


def test_a_sweep_is_not_resumed_by_a_program_that_was_edited(tmp_path, monkeypatch, failing):
    path = tmp_path / "out.nc"
    undo = failing(MachineError("stopped"))
    with pytest.raises(MachineError):
        run(path)
    undo()
    monkeypatch.setattr("perfmodel.sweeps.stored.source_digest", lambda: "0" * 64)
    with pytest.raises(DataError, match="with other options: source files of perfmodel; resume"):
        run(path, resume=True)


def test_a_result_that_is_there_stays_until_the_new_one_is(tmp_path, failing):
    path = tmp_path / "out.zarr"
    save_results(small_whole().isel(strategy=[3]), path)
    undo = failing(MachineError("stopped"))
    with pytest.raises(MachineError):
        run(path)
    undo()
    assert open_table(path).sizes["strategy"] == 1
    run(path, resume=True)
    assert open_table(path).sizes["strategy"] == small().count


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_complete_is_not_done_again(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    run(path)
    with StoredSweep(small(), path, 5).opened(True) as work:
        assert work.finished
    with StoredSweep(small(safe=True), path, 5).opened(True) as work:
        assert not work.finished
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


def test_blocks_that_were_lost_are_done_again(tmp_path, failing):
    path = tmp_path / "out.nc"
    undo = failing(MachineError("stopped"))
    with pytest.raises(MachineError):
        run(path)
    undo()
    (tmp_path / "out.nc.partial" / "000001.nc").unlink()
    with StoredSweep(small(), path, 5).opened(True) as work:
        assert (work.blocks_done, work.strategies_done) == (1, 70)
        work.run()
    assert_same(open_table(path), small_whole(), but=("history",))


def test_nothing_is_written_where_no_device_has_the_precision(tmp_path):
    lacking = {"axes": {**AXES, "precision": "fp8"}, "hardware": [load_hardware("dgx-a100-80gb")]}
    sweep = blocks(**lacking, devices=[8], block_size=500)
    with StoredSweep(sweep, tmp_path / "out.nc", 5).opened(False) as work:
        assert not any(work.run().counts.possible)
    assert list(tmp_path.iterdir()) == []


def test_what_is_ranked_piece_by_piece_is_what_is_ranked_at_once(tmp_path, monkeypatch):
    for ending in ENDINGS:
        path = tmp_path / f"out{ending}"
        save_results(small_whole(), path)
        expected = best(open_table(path), 7), pareto(open_table(path), "step_time,memory_total")
        monkeypatch.setattr("perfmodel.store.results.AT_ONCE", 50)
        found = best(open_table(path), 7), pareto(open_table(path), "step_time,memory_total")
        assert list(map(list, found)) == list(map(list, expected))
        assert list(found[0]) == list(best(small_whole(), 7))
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["out.csv", "out", "out.json"])
def test_other_kinds_are_not_written_block_by_block(tmp_path, name):
    with pytest.raises(DataError, match=r"block by block; only \.zarr and \.nc files can be"):
        check_stored_path(tmp_path / name)


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


def stored(path, workers):
    with StoredSweep(small(), path, 5).opened(False) as work:
        return work.run(workers)


def test_results_are_those_of_one_process_and_a_killed_worker_is_replaced(
    two_workers, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Deadly)
    path = tmp_path / "out.nc"
    summary = stored(path, two_workers)
    assert_same(open_table(path), small_whole(), but=("history",))
    assert summary.counts.fitting == [int(small_whole()["fits"].values.sum())]
    assert [it.name for it in tmp_path.iterdir()] == ["out.nc"]
    two_workers.client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize("sees", [True, False])
def test_workers_of_a_scheduler_write_what_they_project_where_they_see_the_folder(
    sees, two_workers, tmp_path, monkeypatch
):
    path = tmp_path / "out.nc"
    far = Workers(two_workers.client, shares_files=False, name="far ones")
    assert far.see(tmp_path)
    assert list(tmp_path.iterdir()) == []
    if not sees:  # as on another machine
        monkeypatch.setattr(Workers, "see", lambda self, folder: False)
    written: list[int] = []
    write = PartsStore.write
    monkeypatch.setattr(
        PartsStore,
        "write",
        lambda self, block, *rest: written.append(block) or write(self, block, *rest),
    )
    told: list[int] = []
    with StoredSweep(small(), path, 5).opened(False) as work:
        work.run(far, told.append)
    assert sum(told) == small().count
    assert bool(written) is not sees  # by this process
    assert_same(open_table(path), small_whole(), but=("history",))


def test_a_full_disk_of_a_worker_is_one_line(two_workers, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules["perfmodel.sweeps.stored"].STORES, ".nc", Full)
    with pytest.raises(MachineError, match=r"cannot write '.*out\.nc': No space left on device$"):
        stored(tmp_path / "out.nc", two_workers)
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_its_own_is_served_by_a_scheduler_over_tcp(two_workers, tmp_path):
    """It has no client but the one that it makes of the address."""
    path = tmp_path / "out.nc"
    code = (
        "import sys; from pathlib import Path\n"
        "from perfmodel.sweeps.stored import StoredSweep\n"
        "from perfmodel.sweeps.workers import scheduler_workers\n"
        "from tests.sweeps.test_stored import small\n"
        "with scheduler_workers(sys.argv[1]) as workers:\n"
        "    with StoredSweep(small(), Path(sys.argv[2]), 5).opened(False) as work:\n"
        "        work.run(workers)\n"
    )
    address = two_workers.client.scheduler.address
    assert address.startswith("tcp://")
    subprocess.run([sys.executable, "-c", code, address, str(path)], check=True, cwd=Path.cwd())
    assert_same(open_table(path), small_whole(), but=("history",))
