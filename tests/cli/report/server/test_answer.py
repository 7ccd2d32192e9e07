"""What the page is answered, and the files of it: the same as the commands'."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from perfmodel import open_results, strategy_grid, sweep
from perfmodel.cli.report.server import answer as module
from perfmodel.cli.report.server.answer import (
    Answer,
    Desk,
    Superseded,
    answer,
    answer_json,
    in_thread,
)
from perfmodel.cli.report.server.question import ControlError, Offer, Question, read_question
from perfmodel.store.results import best
from tests.cli.report.server.loops import finished
from tests.cli.running import document as printed

SMALL = {
    "model": "llama-3.1-8b",
    "devices": 8,
    "sequence_length": 2048,
    "global_batch_size": 16,
}
SERVED = {
    "kind": "serving",
    "model": "llama-3.1-8b",
    "devices": 2,
    "concurrency": 8,
    "input_length": 256,
    "output_length": 64,
}


def asked(**more) -> Answer:
    return answer(read_question({**SMALL, **more}, Offer()))


@pytest.fixture(scope="module")
def small() -> Answer:
    return asked()


def test_strategies_are_those_of_a_sweep(small) -> None:
    run = {"sequence_length": 2048, "global_batch_size": 16, "precision": ["bf16"]}
    grid = strategy_grid("llama-3.1-8b", 8, hardware="dgx-h100", **run)
    found = sweep("llama-3.1-8b", grid, "dgx-h100")
    assert small.count == found.sizes["strategy"]
    assert best(small.table, 3) == best(found, 3)


def test_the_document_holds_all_rows_and_pictures_where_they_are_asked_for(small) -> None:
    (population,) = small.document(0)["populations"]
    assert population["rows"] == small.count
    assert population["pictures"] == {}
    (population,) = small.document(1)["populations"]
    assert population["pictures"]
    found = json.loads(answer_json(small, 0))
    assert found["count"] == small.count
    assert found["seconds"] > 0


def test_machines_stand_side_by_side() -> None:
    found = asked(hardware=["dgx-h100", "dgx-b200"])
    assert found.table.sizes["hardware"] == 2
    (population,) = found.document(0)["populations"]
    assert population["rows"] == found.count


def test_limits_filter_what_is_shown(small) -> None:
    found = asked(where="tp == 2", memory=40e9)
    (population,) = found.document(0)["populations"]
    assert 0 < population["rows"] < small.count
    assert population["where"] == "(tp == 2) and memory_total <= 40000000000.0"


@pytest.mark.parametrize(
    ("given", "control", "told"),
    [
        ({"where": "tp <="}, "where", "tp <="),
        ({"where": "nothing == 1"}, "where", "no column 'nothing'"),
        ({"where": "tp == 3"}, "where", "passes the filter"),
        ({"devices": 7, "global_batch_size": 16}, "devices", "no strategy"),
    ],
)
def test_what_finds_nothing_is_said_beside_its_control(given, control, told) -> None:
    with pytest.raises(ControlError, match=told) as caught:
        asked(**given).document(0)
    assert caught.value.control == control


def test_more_than_a_page_holds_is_refused_before_it_is_projected(monkeypatch) -> None:
    monkeypatch.setattr("perfmodel.cli.report.server.answer.MOST_PAIRS", 3)
    with pytest.raises(ControlError, match="more than a page answers"):
        asked()


def test_the_dataset_is_what_best_reads(small, tmp_path) -> None:
    path = tmp_path / "results.nc"
    path.write_bytes(small.dataset())
    assert best(open_results(path), 1) == best(small.table, 1)


def test_the_launch_file_starts_the_row_that_the_page_shows(small, tmp_path) -> None:
    path = tmp_path / "run.sh"
    shown = small.question.filter
    assert shown is None
    (first,) = best(small.table, 1, fitting=False)
    path.write_text(small.launch(int(first["strategy"]), "megatron"), encoding="utf-8")
    again = printed("project", "--from", path, "--hardware", "dgx-h100")
    assert again["tensor_parallel"] == first["tensor_parallel"]
    assert again["step_time"] == pytest.approx(first["step_time"], rel=1e-6)
    with pytest.raises(ControlError, match="there is no row"):
        small.launch(10**9, "megatron")


def test_rows_of_a_filtered_page_are_those_that_passed() -> None:
    found = asked(where="tp == 4")
    assert "--tensor-model-parallel-size 4" in found.launch(0, "megatron")


def test_the_report_is_a_page_of_its_own(small) -> None:
    text = small.report()
    assert text.startswith("<!doctype html>")
    assert "ask-grid" not in text


def test_served_models_are_answered_and_launched_too() -> None:
    found = answer(read_question(SERVED, Offer()))
    (population,) = found.document(0)["populations"]
    assert population["kind"] == "serving"
    assert population["rows"] == found.count > 4
    assert "vllm serve" in found.launch(0, "megatron")


def test_progress_may_end_the_work() -> None:
    class Enough(Exception):
        pass

    def progress(_: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        answer(read_question(SMALL, Offer()), progress)


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
