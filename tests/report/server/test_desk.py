"""One question at a time, and of one page the latest alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perfmodel.report.server import desk as module
from perfmodel.report.server.desk import Desk, Superseded, in_thread
from perfmodel.report.server.question import Offer, Question, read_question
from tests.report.server.loops import finished


def question(devices: int) -> Question:
    return read_question({"devices": devices}, Offer())


class Slow:
    """Answers that wait until they are let go, and look whether they are still wanted."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go = threading.Event()
        self.running = 0

    def __call__(self, asked: Question, progress: Any) -> Any:
        self.begun.append(asked.devices)
        self.running += 1
        assert self.running == 1
        try:
            while not self.go.wait(0.005):
                progress(1)
            return asked.devices
        finally:
            self.running -= 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    found = Slow()
    monkeypatch.setattr(module, "answer", found)
    return found


def test_the_latest_question_of_a_page_wins(slow: Slow) -> None:
    async def run() -> None:
        desk = Desk(Offer())
        asks = [asyncio.create_task(desk.ask("a", question(8), str))]
        await asyncio.sleep(0.05)
        asks += [asyncio.create_task(desk.ask("a", question(it), str)) for it in (16, 32)]
        await asyncio.sleep(0.05)
        slow.go.set()
        found = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(it) for it in found] == [Superseded, Superseded, str]
        assert found[2] == "32"
        assert slow.begun == [8, 32]  # 8 was given up, 16 never begun

    finished(run())


def test_pages_wait_for_each_other_and_are_all_answered(slow: Slow) -> None:
    async def run() -> None:
        desk = Desk(Offer())
        asks = [
            asyncio.create_task(desk.ask(page, question(8 * number), str))
            for number, page in enumerate(("a", "b", "", ""), start=1)
        ]
        await asyncio.sleep(0.05)
        assert desk.status()["doing"] == "projecting"
        slow.go.set()
        assert await asyncio.gather(*asks) == ["8", "16", "24", "32"]
        assert desk.status() == {"doing": "", "seconds": 0.0}

    finished(run())


def test_answers_are_kept_for_files_of_them(slow: Slow) -> None:
    async def run() -> None:
        desk = Desk(Offer())
        slow.go.set()
        for _ in range(2):
            assert await desk.ask("a", question(8), str) == "8"
        assert slow.begun == [8]
        for devices in range(9, 9 + module.KEPT):
            await desk.ask("a", question(devices), str)
        await desk.ask("a", question(8), str)
        assert slow.begun.count(8) == 2

    finished(run())


def test_warming_says_what_it_does(slow: Slow) -> None:
    async def run() -> None:
        desk = Desk(Offer())
        warming = asyncio.create_task(desk.warm())
        await asyncio.sleep(0.05)
        assert "kernels" in desk.status()["doing"]
        slow.go.set()
        await warming

    finished(run())


def test_a_failure_in_a_thread_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        finished(in_thread(fail))
