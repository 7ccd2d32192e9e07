"""What a question is answered with: results, the document that shows them, and files of both."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.table import Table
from perfmodel.base.version import __version__
from perfmodel.report.document import PICTURES, NothingSelected, document
from perfmodel.report.packing import EFFORT
from perfmodel.report.page_text import page_html
from perfmodel.report.rows import population_of
from perfmodel.report.server.question import SERVING, ControlError, Question, blamed_on

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
