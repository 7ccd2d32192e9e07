"""Work on Dask's workers: its results, whoever dies, and one line where it cannot be done."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import DataError, MachineError
from perfmodel.kernels.work import amounts_so_far, kernel_work
from perfmodel.sweeps import workers
from perfmodel.sweeps.workers import Workers, cut, local_workers, scheduler_workers, whole_work

pytest.importorskip("distributed", reason="Dask (the extra 'dask') is not installed")


def added(shared: int, piece: int) -> int:
    return shared + piece


def deadly(mark: Path, piece: int) -> int:
    """Kill the worker that tries the third piece first."""
    if piece == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def always_deadly(shared: None, piece: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrong(shared: None, piece: int) -> int:
    if piece == 1:
        import time

        time.sleep(0.2)  # a later piece is refused before
    if piece in (1, 2):
        raise DataError(f"runs.csv, line {piece}: no number")
    return piece


def broken(shared: None, piece: int) -> float:
    return 1 / piece


def marked(folder: Path) -> dict[str, float]:
    (folder / str(os.getpid())).touch()
    return {"gemms": 7.0}


def counted(folder: Path, piece: int) -> int:
    return len(list(folder.iterdir()))


def done(workers: Workers, *work: Any) -> list[Any]:
    return [result for _, result in sorted(workers.results(*work))]


def test_results_say_of_which_piece_they_are(two_workers):
    assert done(two_workers, added, 10, range(9)) == list(range(10, 19))
    assert sorted(place for place, _ in two_workers.results(added, 10, range(9))) == list(range(9))
    assert done(two_workers, added, 10, []) == []


def wait_until_both_answer(two_workers):
    """Wait for those that take the place of killed ones, which Dask counts for a while."""
    end = time.monotonic() + 60.0
    while len(two_workers.client.run(os.getpid, on_error="ignore")) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_worker_is_replaced(two_workers, tmp_path):
    assert done(two_workers, deadly, tmp_path / "killed", range(5)) == [0, 1, 2, 3, 4]
    assert (tmp_path / "killed").exists()
    wait_until_both_answer(two_workers)


def test_what_kills_every_worker_is_one_line():
    text = "1 workers: a piece of the work was given up, as every worker that tried it was killed"
    with local_workers(1) as one, pytest.raises(MachineError, match=text):
        done(one, always_deadly, None, [0])  # whom Dask may leave for dead


def test_the_error_is_that_of_the_first_piece(two_workers):
    with pytest.raises(DataError, match=r"^runs\.csv, line 1: no number$"):
        done(two_workers, wrong, None, range(8))


def test_what_no_user_caused_is_one_line_too(two_workers):
    with pytest.raises(MachineError, match="2 workers: cannot do the work: division by zero"):
        done(two_workers, broken, None, [0])


def test_one_worker_of_a_host_warms_it(two_workers, tmp_path):
    assert done(two_workers, counted, tmp_path, range(4), marked) == [1, 1, 1, 1]


def test_other_versions_are_refused(two_workers, monkeypatch):
    far = {"tcp://far:1": {"numpy": "1.0"}}
    monkeypatch.setattr(two_workers.client, "run", lambda _, **__: far)
    with pytest.raises(DataError, match="worker tcp://far:1 has perfmodel None, and here is"):
        done(two_workers, added, 1, [1])


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


def test_a_scheduler_is_asked_for_its_workers(two_workers):
    with scheduler_workers(two_workers.client.scheduler.address) as found:
        assert isinstance(found, Workers)
        assert set(found.client.nthreads()) == set(two_workers.client.nthreads())
        assert not found.shares_files


def test_dask_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
    needs = pytest.raises(DataError, match=r"workers need Dask: pip install 'perfmodel\[dask\]'")
    with needs, local_workers(1):
        pass


def test_a_range_is_one_piece_where_no_worker_is_left():
    assert cut(5, 0) == [slice(0, 5)]


@pytest.mark.parametrize("count", [0, 1, 5, 16])
def test_ranges_are_cut_into_pieces_that_are_not_empty(count):
    pieces = cut(count, 4)
    assert len(pieces) == min(count, 4)
    assert [i for piece in pieces for i in range(count)[piece]] == list(range(count))
    lengths = [piece.stop - piece.start for piece in pieces]
    assert max(lengths, default=0) - min(lengths, default=0) <= 1


def test_whole_work_is_a_part_so_many_times():
    def part() -> None:
        with kernel_work(gemms=3):
            pass

    before = amounts_so_far().get("gemms", 0.0)
    assert whole_work(part, 20.0)["gemms"] == 60.0
    assert amounts_so_far()["gemms"] == before + 3
