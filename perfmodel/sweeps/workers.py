"""Work in blocks: done in this process, or by the workers of a Dask cluster.

Who has work of many blocks makes a `Work` of it; `in_blocks` goes through them wherever they are
done. Otherwise a function and its pieces are handed over (`Workers.results`); the function and what
it takes are pickled, so it stands at the top of a module.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import logging
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perfmodel.base.errors import DataError, MachineError, PerfModelError
from perfmodel.base.provenance import versions

if TYPE_CHECKING:
    from distributed import Client, Future

EACH_CORE = 16  # processes
PATIENCE = 10  # s, until a scheduler has answered
CLOSING = 20  # s, until workers that are no longer needed have ended
ADDRESS = re.compile(r"(tcp|tls|ucx|wss?)://\S+:\d{1,5}")
AHEAD = 2  # pieces per worker that are asked for, so that none waits and no results pile up
PIECES = 8  # of one worker: the last to end keeps the others waiting for an eighth at most

Task = Callable[[Any, Any], Any]
"""(what all pieces share, a piece) -> its result."""
Warm = Callable[[Any], Mapping[str, float]]
"""What all pieces share -> all work that there is, by the kinds of `perfmodel.kernels.work`."""


class Work(Protocol):
    """Work that is done block by block; small, so that it can be sent to other processes."""

    def size(self, block: Any) -> int:
        """Return how many results a block has, by which progress is counted."""

    def done(self, block: Any, progress: Callable[[int], None] | None) -> Any:
        """Do a block; without `progress` as one of many workers, each with a thread of its own."""

    def warm(self) -> Mapping[str, float]:
        """Do a little of the work, and say how much all of it is; see `Warm`."""


def in_blocks(
    work: Work,
    blocks: Sequence[Any],
    workers: Workers | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield blocks and what comes of them, in the order in which they are done.

    Parameters
    ----------
    work : Work
    blocks : sequence
    workers : Workers, optional
        Who does them; default: this process, one after another.
    progress : callable, optional
        Called with the number of results since the last call.

    Raises
    ------
    PerfModelError, OSError
        As of `Workers.results`, or of a block.
    """
    told = progress or (lambda count: None)
    if workers is not None:
        for place, found in workers.results(_block_done, work, blocks, _work_warm):
            told(work.size(blocks[place]))
            yield blocks[place], found
        return
    for block in blocks:
        left = work.size(block)

        def counted(count: int) -> None:
            nonlocal left
            left -= count
            told(count)

        found = work.done(block, counted)
        told(left)  # what is impossible
        yield block, found


def _block_done(work: Work, block: Any) -> Any:
    return work.done(block, None)


def _work_warm(work: Work) -> Mapping[str, float]:
    return work.warm()


class Workers:
    """Workers that do pieces of work.

    A piece whose worker dies is done by another one, up to Dask's
    ``distributed.scheduler.allowed-failures`` times.

    Parameters
    ----------
    client : distributed.Client
    shares_files : bool
        Whether workers are on this machine and see all that this process sees.
    name : str
        What errors call them.
    """

    def __init__(self, client: Client, shares_files: bool, name: str) -> None:
        self.client, self.shares_files, self.name = client, shares_files, name

    def __len__(self) -> int:
        return len(self.client.nthreads())

    def see(self, folder: Path) -> bool:
        """Tell whether all workers there are now see the files of a folder, by showing them one."""
        if self.shares_files:
            return True
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".shown-") as file:
            file.write(file.name)
            file.flush()
            seen = self.client.run(_holds, file.name, on_error="ignore")
            return len(seen) == len(self) and all(held is True for held in seen.values())

    def results(
        self, task: Task, shared: Any, pieces: Sequence[Any], warm: Warm | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the place of a piece and its result, in the order in which they are done.

        Parameters
        ----------
        task : callable
        shared : object
            What all pieces need.
        pieces : sequence
        warm : callable, optional
            Does a little of the work ahead of all, on one worker of each host: it compiles kernels,
            which the others find in the cache. What it returns decides whether they compile any.

        Raises
        ------
        PerfModelError, OSError
            Of the first piece, in their order, whose task raises one.
        MachineError
            Every worker that tried a piece was killed, or workers cannot do it.
        DataError
            Workers of other versions, which would not give the same digits.
        """
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        if not pieces:
            return
        try:
            self._check_versions()
            payload = pickle.dumps(shared)
            ahead = self._warmed(warm, payload) if warm is not None else {}
            yield from self._in_turn((task, payload, ahead), pieces)
        except (KilledWorker, CommClosedError) as error:
            reason = "the connection is lost"
            if isinstance(error, KilledWorker):
                reason = "a piece of the work was given up, as every worker that tried it was "
                reason += "killed; memory may be short"
            raise MachineError(f"{self.name}: {reason}") from None
        except (PerfModelError, OSError):
            raise
        except Exception as error:  # whatever a worker, or the way to it, lacks
            reason = str(error) or type(error).__name__
            raise MachineError(f"{self.name}: cannot do the work: {reason}") from None

    def _in_turn(
        self, work: tuple[Task, bytes, Mapping[str, float]], pieces: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        from distributed import as_completed

        waiting = iter(enumerate(pieces))
        places: dict[Any, int] = {}  # of what is asked for, by key

        def asked(count: int) -> list[Future]:
            futures = []
            for place, piece in itertools.islice(waiting, count):
                futures.append(self.client.submit(_done, *work, piece, pure=False))
                places[futures[-1].key] = place
            return futures

        failed, first = None, len(pieces)
        futures = as_completed(asked(max(AHEAD * len(self), 1)), loop=self.client.loop)
        for future in futures:
            place = places.pop(future.key)
            error = future.exception()
            if error is None:
                yield place, future.result()
            elif place < first:
                failed, first = error, place
            future.release()
            if failed is None:
                futures.update(asked(1))
            elif not any(place < first for place in places.values()):
                raise failed  # all before it went well

    def _check_versions(self) -> None:
        """Refuse workers that would not give the same digits; one that just died says nothing."""
        ours = _versions()
        for worker, theirs in self.client.run(_versions, on_error="ignore").items():
            for name, version in ours.items():
                if theirs.get(name) != version:
                    raise DataError(
                        f"{self.name}: worker {worker} has {name} {theirs.get(name)}, and here is "
                        f"{version}; results would differ"
                    )

    def _warmed(self, warm: Warm, payload: bytes) -> Mapping[str, float]:
        """Compile kernels once per host: its other workers find them in the cache."""
        first: dict[str, str] = {}
        for address in self.client.nthreads():
            first.setdefault(address.rpartition(":")[0], address)
        warmed = [
            self.client.submit(
                _warmth, warm, payload, workers=[address], allow_other_workers=True, pure=False
            )
            for address in first.values()
        ]
        found: list[Mapping[str, float]] = self.client.gather(warmed)
        return found[0] if found else {}


def cut(count: int, pieces: int) -> list[slice]:
    """Cut a range into that many pieces, or one, of about the same length and none of them empty.

    Examples
    --------
    >>> cut(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    pieces = max(min(count, pieces), 1)
    ends = [count * piece // pieces for piece in range(pieces + 1)] if count else []
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def whole_work(part: Callable[[], object], times: float) -> dict[str, float]:
    """Do a part of some work, and return how much all of it is, which is so many times as much.

    Where that is worth compiled kernels, they are compiled here and now.

    Returns
    -------
    dict of str to float
        Amounts by the kinds of `perfmodel.kernels.work`.
    """
    from perfmodel.kernels.work import amounts_so_far, compiling, expect

    before, compiled = amounts_so_far(), compiling()
    part()
    done = amounts_so_far()
    found = {kind: times * (done[kind] - before.get(kind, 0.0)) for kind in done}
    expect(**found)
    if compiling() and not compiled:
        part()
    return found


@contextlib.contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Give processes of this machine, of one thread each, until the work is over.

    Raises
    ------
    DataError
        Dask is not installed, or there are far more processes than cores.
    """
    _check_installed()
    most = EACH_CORE * (os.cpu_count() or 1)
    if count > most:
        raise DataError(
            f"{count:,} worker processes; at most {most:,} take turns on the cores of this machine"
        )
    from distributed import Client, LocalCluster

    # Of a run that a signal ends: what tidies up after it need not say that it does.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silent())
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="perfmodel-workers-", ignore_cleanup_errors=True)
        )
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            local_directory=folder,
        )
        stack.callback(_close, cluster)
        client = stack.enter_context(Client(cluster, direct_to_workers=True))
        yield Workers(client, shares_files=True, name=f"{count} workers")


def _close(cluster: Any) -> None:
    """Close a cluster; one whose workers were killed may wait for them for ever, so not longer."""
    with contextlib.suppress(TimeoutError):
        cluster.close(timeout=CLOSING)


@contextlib.contextmanager
def scheduler_workers(address: str) -> Iterator[Workers]:
    """Give the workers of a Dask scheduler, wherever they are.

    Raises
    ------
    DataError
        Dask is not installed, nothing answers at the address, or no worker is there.
    """
    _check_installed()
    from distributed import Client

    name = f"scheduler '{address}'"
    if not ADDRESS.fullmatch(address):
        raise DataError(f"{name} is no address, such as tcp://node1:8786")
    with _silent():
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError):
            raise DataError(f"{name} does not answer within {PATIENCE} s") from None
        with client:
            if not client.nthreads():
                raise DataError(f"{name} has no workers; 'dask worker {address}' starts one")
            yield Workers(client, shares_files=False, name=name)


def _check_installed() -> None:
    if importlib.util.find_spec("distributed") is None:
        raise DataError("workers need Dask: pip install 'perfmodel[dask]'")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's own words from standard error: what matters is raised."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            yield
    finally:
        logger.setLevel(before)


# ---------------------------------------------------------------- what workers run


def _versions() -> dict[str, str]:
    return versions("numpy", "numba")


def _holds(path: str) -> bool:
    """Whether a file is there and holds its own name."""
    return Path(path).read_text() == path


@functools.lru_cache(maxsize=1)
def _loaded(payload: bytes) -> Any:
    """Return what pieces share; a worker gets it with every one."""
    return pickle.loads(payload)


def _warmth(warm: Warm, payload: bytes) -> Mapping[str, float]:
    try:
        return warm(_loaded(payload))
    except PerfModelError:
        return {}  # pieces will say so


def _done(task: Task, payload: bytes, ahead: Mapping[str, float], piece: Any) -> Any:
    from perfmodel.kernels.work import expect

    expect(**ahead)
    return task(_loaded(payload), piece)
