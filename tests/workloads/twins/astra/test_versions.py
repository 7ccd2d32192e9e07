"""Which state of ASTRA-sim is repeated."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.twins.astra.versions import (
    ABORTED,
    ALL_FIGURES,
    CRASHED,
    DEFAULT_VERSION,
    LEAVING,
    NO_FIGURES,
    REPORTING,
    RUNNING,
    STARTING,
    VERSIONS,
    WALL_TIME,
    Stop,
    astra_version,
    expected_end,
)
from tests.workloads.twins.astra.stop_cases import ROOFLINE, everywhere, good, stops


def test_without_a_version_it_is_what_is_cloned_today():
    assert astra_version("astra-sim") is DEFAULT_VERSION is VERSIONS["main"]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=str)
def test_a_version_goes_by_its_name_and_by_its_commit(version):
    assert astra_version(str(version)) is version
    assert astra_version(f"astra-sim@{version.commit}") is version
    assert astra_version(version) is version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("astra-sim@mian", "no version 'mian'.*af2492b or astra-sim@main; did you mean main"),
        ("simai", "simulator 'simai' is not known; it should be astra-sim, "),
        ("", "simulator '' is not known"),
        ("astra-sim@", "no version ''"),
    ],
)
def test_another_is_refused_with_those_that_are_known(text, words):
    with pytest.raises(HardwareError, match=words):
        astra_version(text)


def test_a_version_reads_one_attribute_and_whatever_no_file_states():
    old, new = VERSIONS["af2492b"], VERSIONS["main"]
    names = [("involve_dims",), ("involved_dim",)]
    assert [old.reads(name) for name in names] == [True, False]
    assert [new.reads(name) for name in names] == [False, True]
    assert all(version.reads(()) for version in VERSIONS.values())
    assert all(version.reads(("involve_dims", "involved_dim")) for version in VERSIONS.values())


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
