"""Who answers whom, and when: one piece of work at a time, the latest question of a page first.

A page that drags a slider asks faster than answers come. Of the questions of one page only the
latest is worth answering: one that waits is dropped when the next arrives, one that is being
answered is given up at the next chunk of strategies.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from perfmodel.kernels import work
from perfmodel.kernels._jit import compile_kernels, mode
from perfmodel.report.server.answer import Answer, answer
from perfmodel.report.server.question import DEFAULTS, Offer, Question, read_question

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
    """Answers questions.

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
