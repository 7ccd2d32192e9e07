"""Answers: results, the document that shows them and files of both; who is answered, and when."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from perfmodel.base.table import Table
from perfmodel.base.version import __version__
from perfmodel.cli.report.server.question import (
    DEFAULTS,
    SERVING,
    ControlError,
    Offer,
    Question,
    blamed_on,
    read_question,
)
from perfmodel.kernels import work
from perfmodel.kernels._jit import compile_kernels, mode
from perfmodel.report.document import PICTURES, NothingSelected, document
from perfmodel.report.packing import EFFORT
from perfmodel.report.page_text import page_html
from perfmodel.report.rows import population_of

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.framework import Framework

MOST_PAIRS = 400_000
"""Strategies times hardware that a page is answered with."""
LITTLE = 1
"""Effort that goes into the size of what only this machine reads."""
CONCURRENCIES = 24
"""Loads up to the one that is asked for, from one request on, evenly in the logarithm."""


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes
    ----------
    question : Question
    table : Table
    seconds : float
        How long it took.
    """

    question: Question
    table: Table
    seconds: float

    @property
    def count(self) -> int:
        """Rows that were projected."""
        return int(np.prod([self.table.sizes[dim] for dim in self.table["status"].dims]))

    def document(self, pictures: int = PICTURES) -> dict[str, Any]:
        """Return what the page shows, with pictures of the pipelines of the best.

        Raises
        ------
        ControlError
            The filter is malformed, or nothing passes it.
        """
        where = self.question.filter
        try:
            with blamed_on("where"):
                return document([self.table], where=where, pictures=pictures)
        except NothingSelected as error:
            raise ControlError("where" if where else "", str(error)) from None

    def dataset(self) -> bytes:
        """Return the results as a netCDF file."""
        from perfmodel.store.files import save_results

        with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
            path = Path(folder, "results.nc")
            save_results(self.table, path)
            return path.read_bytes()

    def report(self) -> str:
        """Return the page of `perfmodel report`."""
        return page_html(self.document())

    def launch(self, row: int, software: str) -> str:
        """Return what starts a row of the document, as `perfmodel launch` writes it.

        Raises
        ------
        PerfModelError
            There is no such row, or the software cannot run it.
        """
        from perfmodel.store import results

        population = population_of(self.table, self.question.filter)
        answer = population.figures[population.kind.rank].values.astype(float)
        flat = population.flat[np.isfinite(answer)]
        if not 0 <= row < flat.size:
            raise ControlError("", f"there is no row {row}; there are {flat.size:,}")
        (found,) = results.rows(self.table, flat[[row]])
        written = f"written by perfmodel {__version__}"
        what = "the page's results"
        if self.question.kind == SERVING:
            from perfmodel.launch.served import format_served, pools_of_row, served_lines

            pools = pools_of_row(found, self.table.attrs, what)
            lines = served_lines(found, pools[0].model, "chosen on the page")
            return format_served(pools, [*lines, written])
        from perfmodel.launch.software import format_launch, launch_of_row, prepared

        launch, lines = launch_of_row(self.table, found, what, "chosen on the page")
        launch, notes = prepared(software, launch)
        return format_launch(software, launch, [*lines, *notes, written])


def answer(question: Question, progress: Callable[[int], None] | None = None) -> Answer:
    """Project what is asked.

    Parameters
    ----------
    question : Question
    progress : callable, optional
        Called now and then; what it raises ends the work.

    Raises
    ------
    ControlError
        Nothing is possible, or more than `MOST_PAIRS`.
    """
    began = time.perf_counter()
    table = (_served if question.kind == SERVING else _trained)(question, progress)
    return Answer(question, table, time.perf_counter() - began)


def _trained(question: Question, progress: Callable[[int], None] | None) -> Table:
    from perfmodel.strategy.enumerate import describe_rejected
    from perfmodel.sweeps.several import enumerate_problems
    from perfmodel.sweeps.sweep import sweep_problems

    rows = _hardware(question.hardware)
    with blamed_on("model"):
        model = _model(question.model)
    with blamed_on("devices"):
        found = enumerate_problems(
            [model],
            [_framework(question.framework)],
            [question.devices],
            {
                "sequence_length": [question.sequence_length],
                "global_batch_size": [question.global_batch_size],
                "precision": list(question.precision),
            },
            hardware=rows,
            dtype=np.float32,
        )
    if not found.possible:
        text = describe_rejected(found.rejected, question.devices)
        raise ControlError("devices", text)
    _check_count(found.possible * len(rows), "strategies")
    return sweep_problems(found.problems, rows, dtype=np.float32, progress=progress)


def _served(question: Question, progress: Callable[[int], None] | None) -> Table:
    from perfmodel.serving.enumerate import load_grid, serving_grid
    from perfmodel.sweeps.serving import serve_table

    rows = _hardware(question.hardware)
    with blamed_on("model"):
        model = _model(question.model, mtp="stated")
    with blamed_on("devices"):
        grid = serving_grid(
            model,
            rows,
            engine=question.engine,
            devices=question.devices,
            weight_precision=question.served_precision,
            activation_precision=question.served_precision,
        )
    clients = np.unique(np.geomspace(1, question.concurrency, CONCURRENCIES).round())
    with blamed_on("concurrency"):
        loads = load_grid(
            input_length=question.input_length,
            output_length=question.output_length,
            concurrency=clients.tolist(),
        )
    _check_count(len(grid) * len(loads) * len(rows), "operating points")
    return serve_table(model, grid, loads, rows, dtype=np.float32, progress=progress)


def _check_count(count: int, what: str) -> None:
    if count > MOST_PAIRS:
        raise ControlError(
            "", f"{count:,} {what} are more than a page answers ({MOST_PAIRS:,}): name fewer "
            "machines or precisions, or use 'perfmodel sweep'"
        )  # fmt: skip


@functools.lru_cache(maxsize=16)
def _model(name: str, mtp: str = "none") -> ModelSpec:
    from perfmodel.model.presets import load_model

    return load_model(name, mtp=mtp)


def _hardware(names: tuple[str, ...]) -> list[Hardware]:
    with blamed_on("hardware"):
        return [_profile(name) for name in names]


@functools.lru_cache(maxsize=32)
def _profile(name: str) -> Hardware:
    from perfmodel.hwprofiles import load_hardware

    return load_hardware(name)


@functools.lru_cache(maxsize=32)
def _framework(name: str) -> Framework:
    from perfmodel.software.framework import load_framework

    return load_framework(name)


def answer_json(found: Answer, pictures: int) -> bytes:
    """Return an answer as the page takes it: ``count``, ``seconds`` and ``document``."""
    began = time.perf_counter()
    token = EFFORT.set(LITTLE)
    try:
        shown = found.document(pictures)
    finally:
        EFFORT.reset(token)
    seconds = found.seconds + time.perf_counter() - began
    text = json.dumps(
        {"count": found.count, "seconds": round(seconds, 4), "document": shown},
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return text.encode("utf-8", "backslashreplace")


Result = TypeVar("Result")
KEPT = 4
"""Answers that are kept for files of them."""
PAGES = 256
"""Pages whose latest question is known."""
MUCH = 1e9
"""Strategies for which compiling pays."""


class Superseded(Exception):
    """The page asked something else meanwhile."""


class Desk:
    """Answers questions: one piece of work at a time, the latest question of a page first.

    A page that drags a slider asks faster than answers come. Of the questions of one page only the
    latest is worth answering: one that waits is dropped when the next arrives, one that is being
    answered is given up at the next chunk of strategies.

    Attributes
    ----------
    offer : Offer
        What may be asked for.
    """

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._free = asyncio.Lock()
        self._latest: OrderedDict[str, threading.Event] = OrderedDict()
        self._kept: OrderedDict[Question, Answer] = OrderedDict()
        self._doing = ""
        self._since = 0.0

    def status(self) -> dict[str, Any]:
        """Return what is being done, in words ("" for nothing), and for how long [s]."""
        doing = self._doing
        return {"doing": doing, "seconds": time.monotonic() - self._since if doing else 0.0}

    async def warm(self) -> None:
        """Load compiled kernels, or compile them where no cache has them, and answer once."""
        cached = work.choice({"strategies": MUCH}).cached
        doing = "loading kernels" if cached else "compiling kernels, the first time only"
        question = read_question(DEFAULTS, self.offer)
        async with self._free:
            await self._run(doing, lambda: self._answer(question, threading.Event(), compiled=True))

    async def ask(self, page: str, question: Question, then: Callable[[Answer], Result]) -> Result:
        """Return what becomes of the answer to a question.

        Parameters
        ----------
        page : str
            Who asks; "" for one whose questions do not replace each other.
        question : Question
        then : callable
            Made of the answer, where it was found.

        Raises
        ------
        Superseded
            The page has asked again.
        PerfModelError
            As of `answer`.
        """
        gone = threading.Event()
        if page:
            if before := self._latest.pop(page, None):
                before.set()
            self._latest[page] = gone
            while len(self._latest) > PAGES:
                self._latest.popitem(last=False)
        async with self._free:
            if gone.is_set():
                raise Superseded
            return await self._run("projecting", lambda: then(self._answer(question, gone)))

    async def _run(self, doing: str, task: Callable[[], Result]) -> Result:
        self._doing, self._since = doing, time.monotonic()
        try:
            return await in_thread(task)
        finally:
            self._doing = ""

    def _answer(
        self, question: Question, gone: threading.Event, *, compiled: bool = False
    ) -> Answer:
        if question in self._kept:
            self._kept.move_to_end(question)
            return self._kept[question]
        if compiled and mode() != "never":
            compile_kernels()

        def progress(_: int) -> None:
            if gone.is_set():
                raise Superseded

        found = answer(question, progress)
        self._kept[question] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found


async def in_thread(task: Callable[[], Result]) -> Result:
    """Return what a task returns that runs in a thread, for which the process does not wait to end.

    (It would with `asyncio.to_thread`, and compiling takes half a minute.)
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Result] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not found.done():
            set_it(value)

    def run() -> None:
        try:
            result = task()
        except BaseException as error:
            outcome: tuple[Callable[[Any], None], Any] = (found.set_exception, error)
        else:
            outcome = (found.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await found
