"""How a run of the real ASTRA-sim ends, of which several stops are foreseen."""

from __future__ import annotations

import pytest

from perfmodel.workloads.twins.astra.endings import (
    ABORTED,
    ALL_FIGURES,
    CRASHED,
    LEAVING,
    NO_FIGURES,
    REPORTING,
    RUNNING,
    STARTING,
    WALL_TIME,
    Stop,
    expected_end,
)
from perfmodel.workloads.twins.astra.versions import VERSIONS
from tests.workloads.twins.astra.stop_cases import ROOFLINE, everywhere, good, stops


def made(stage, codes, printed, ranks=None):
    return Stop(
        kind="k",
        what="w",
        remedy="r",
        stage=stage,
        exit_codes=codes,
        printed=printed,
        ranks=ranks,
    )


LOST = made(REPORTING, (0,), WALL_TIME)
FREED = made(LEAVING, (ABORTED, CRASHED, 0), ALL_FIGURES)


@pytest.mark.parametrize(
    ("found", "codes", "printed"),
    [
        ((), (0,), [ALL_FIGURES] * 2),
        ((LOST,), (0,), [WALL_TIME] * 2),
        ((LOST, FREED), (ABORTED, CRASHED, 0), [WALL_TIME] * 2),
        # An abort leaves nothing to lose.
        ((FREED, made(STARTING, (1,), NO_FIGURES)), (1,), [NO_FIGURES] * 2),
        ((made(RUNNING, (), NO_FIGURES),), (), [NO_FIGURES] * 2),
        ((made(RUNNING, (0,), NO_FIGURES, (1,)), LOST), (0,), [WALL_TIME, NO_FIGURES]),
        # What may end the process may also let it get further.
        ((made(REPORTING, (0, ABORTED), WALL_TIME), FREED), (ABORTED, CRASHED, 0), [WALL_TIME] * 2),
    ],
)
def test_an_end_is_what_comes_first_and_all_that_is_not_printed(found, codes, printed):
    ending = expected_end(found, 2)
    assert (ending.exit_codes, list(ending.printed)) == (codes, printed)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("settings", [{}, ROOFLINE])
def test_what_runs_has_no_stops(version, settings):
    assert stops(everywhere(good), version, **settings) == ()


def test_a_stop_says_who_what_where_and_what_would_mend_it():
    stop = made(RUNNING, (0,), NO_FIGURES, (1,))
    assert stop.line(VERSIONS["main"]) == "astra-sim@main k: w; r"
    assert stop.document()["exit_codes"] == [0]
    assert stop.document()["ranks"] == [1]
