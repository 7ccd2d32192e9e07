"""Blocks of a sweep on the workers of a Dask cluster: of this machine, or of several."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, MachineError, PerfModelError
from perfmodel.base.provenance import versions
from perfmodel.base.table import Table
from perfmodel.sweeps.blocks import BlockSweep
from perfmodel.sweeps.store import Store
from perfmodel.sweeps.stored import project_block
from perfmodel.sweeps.winners import BlockResult

if TYPE_CHECKING:
    from distributed import Client

PATIENCE = 10  # s, until a scheduler has answered
ADDRESS = re.compile(r"(tcp|tls|ucx|wss?)://\S+:\d{1,5}")
AHEAD = 2  # blocks per worker that are asked for, so that none waits and no results pile up
WARM = 512  # strategies; enough to run every kernel that their sweep needs


class Workers:
    """Workers as something that projects blocks (`perfmodel.sweeps.stored.Run`).

    A block whose worker dies is projected by another one, up to Dask's
    ``distributed.scheduler.allowed-failures`` times.

    Parameters
    ----------
    client : distributed.Client
    shares_files : bool
        Whether workers see the files of this process, and so store what they project; else they
        send it.
    name : str
        What errors call them.
    """

    def __init__(self, client: Client, shares_files: bool, name: str) -> None:
        self.client, self.shares_files, self.name = client, shares_files, name

    def __call__(
        self,
        sweep: BlockSweep,
        numbers: Sequence[int],
        store: Store | None,
        top: int,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[BlockResult]:
        """Yield blocks that are stored, in the order in which they are done."""
        from distributed import KilledWorker

        if not numbers:
            return
        try:
            for result, table in self._results(sweep, numbers, store, top):
                start, stop = sweep.bounds(result.number)
                if store is not None and table is not None:
                    store.write(result.number, start, table)
                if advance is not None:
                    advance((stop - start) * len(sweep.hardware))
                yield result
        except (PerfModelError, OSError):
            raise
        except KilledWorker:
            raise MachineError(
                f"{self.name}: a block was given up, as every worker that tried it was killed; "
                "memory may be short"
            ) from None
        except Exception as error:  # whatever a worker, or the way to it, lacks
            reason = str(error) or type(error).__name__
            raise MachineError(f"{self.name}: cannot run a sweep: {reason}") from None

    def _results(
        self, sweep: BlockSweep, numbers: Sequence[int], store: Store | None, top: int
    ) -> Iterator[tuple[BlockResult, Table | None]]:
        from distributed import as_completed

        self._check_versions()
        threads = sweep.threads or 1
        payload = pickle.dumps(dataclasses.replace(sweep, threads=threads))
        self._warm(payload)
        wanted = iter(numbers)
        own = store if self.shares_files else None

        def asked(count: int) -> list[Any]:
            chosen = [number for number, _ in zip(wanted, range(count), strict=False)]
            sends = store is not None and own is None
            return [
                self.client.submit(_block, payload, number, own, top, sends, pure=False)
                for number in chosen
            ]

        futures = as_completed(asked(max(AHEAD * len(self.client.nthreads()), 1)))
        for future in futures:
            yield future.result()
            future.release()
            futures.update(asked(1))

    def _check_versions(self) -> None:
        """Refuse workers that would not give the same digits."""
        ours = _versions()
        for worker, theirs in self.client.run(_versions).items():
            for name, version in ours.items():
                if theirs.get(name) != version:
                    raise DataError(
                        f"{self.name}: worker {worker} has {name} {theirs.get(name)}, and here is "
                        f"{version}; results would differ"
                    )

    def _warm(self, payload: bytes) -> None:
        """Compile kernels once per host: its other workers find them in the cache."""
        first: dict[str, str] = {}
        for address in self.client.nthreads():
            first.setdefault(address.rpartition(":")[0], address)
        warmed = [
            self.client.submit(
                _warm, payload, workers=[address], allow_other_workers=True, pure=False
            )
            for address in first.values()
        ]
        self.client.gather(warmed)


@contextlib.contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Give processes of this machine, of one thread each, until the work is over.

    Raises
    ------
    DataError
        Dask is not installed.
    """
    _check_installed("--workers")
    from distributed import Client, LocalCluster

    # Of a run that a signal ends: what tidies up after it need not say that it does.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    with (
        _silent(),
        tempfile.TemporaryDirectory(prefix="perfmodel-workers-") as folder,
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Workers(client, shares_files=True, name=f"{count} workers")


@contextlib.contextmanager
def scheduler_workers(address: str) -> Iterator[Workers]:
    """Give the workers of a Dask scheduler, wherever they are.

    Raises
    ------
    DataError
        Dask is not installed, nothing answers at the address, or no worker is there.
    """
    _check_installed("--scheduler")
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


def _check_installed(option: str) -> None:
    if importlib.util.find_spec("distributed") is None:
        raise DataError(f"{option} needs Dask: pip install 'perfmodel[dask]'")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's own log from standard error: what matters is raised."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


# ---------------------------------------------------------------- what workers run


def _versions() -> dict[str, str]:
    return versions("numpy", "numba")


@functools.lru_cache(maxsize=1)
def _loaded(payload: bytes) -> BlockSweep:
    """Return a sweep that was sent; one worker gets it with every block."""
    from perfmodel.kernels.work import expect

    sweep: BlockSweep = pickle.loads(payload)
    expect(strategies=sweep.count * len(sweep.hardware))
    return sweep


def _warm(payload: bytes) -> None:
    sweep = _loaded(payload)
    sweep.table(0, min(WARM, sweep.count))


def _block(
    payload: bytes, number: int, store: Store | None, top: int, sends: bool
) -> tuple[BlockResult, Table | None]:
    result, table = project_block(_loaded(payload), number, store, top)
    return result, table if sends else None
