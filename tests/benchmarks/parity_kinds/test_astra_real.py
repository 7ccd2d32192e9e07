"""The script that compares our exports with runs of the real ASTRA-sim."""

from __future__ import annotations

import csv
import tarfile

import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.chakra.files import write_traces
from perfmodel.workloads.trace import TraceSet
from tests.data import ASTRA, needed
from tests.workloads.simulation.made import TraceBuilder, micros, reduce_of

NETWORK = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
SYSTEM = """{"scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
"preferred-dataset-splits": 1, "all-reduce-implementation": ["ring"],
"all-gather-implementation": ["ring"], "reduce-scatter-implementation": ["ring"],
"all-to-all-implementation": ["ring"], "collective-optimization": "localBWAware",
"local-mem-bw": 1600, "roofline-enabled": 0, "peak-perf": 900}"""
KEYS = ("traces", "case", "network", "system", "engine", "version")
FIGURES = ("wall_ns", "communication_ns", "gpu_ns", "cpu_ns")
# By rank: wall and communication, one late rank (tests/workloads/simulation/test_run.py).
WALLS = (87_894, 93_276, 98_658, 82_512)
LATE = (1, 1, 31, 1)  # microseconds of work


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.astra_real")


def folder(path, walls=WALLS, code=0, packed=False):
    """Return a folder with one case on one network, as the reference has it."""
    place = path / ("content" if packed else "")
    (place / "config").mkdir(parents=True)
    (place / "as_written/late").mkdir(parents=True)
    (place / "config/ring_4.yml").write_text(NETWORK, encoding="utf-8")
    (place / "config/r1.json").write_text(SYSTEM, encoding="utf-8")
    traces = []
    for late in LATE:
        builder = TraceBuilder()
        work = micros(builder, "work", late)
        reduce_of(builder, "first", data=[work])
        reduce_of(builder, "second", data=[work])
        traces.append(builder.build())
    write_traces(TraceSet(tuple(traces)), place / "as_written/late/t")
    if packed:
        with tarfile.open(path / "traces.tar.xz", "w:xz") as archive:
            for item in place.iterdir():
                archive.add(item, item.name)
    with (path / "real_runs.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            [
                "traces",
                "case",
                "network",
                "system",
                "engine",
                "version",
                "exit_code",
                "rank",
                "wall_ns",
                "communication_ns",
                "gpu_ns",
                "cpu_ns",
            ]
        )
        for rank, wall in enumerate(walls):
            run = ["as_written", "late", "ring_4.yml", "r1.json", "congestion_unaware", "af2492b"]
            rows.writerow([*run, code, rank, wall, "", wall and 1000 * LATE[rank], ""])
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_is_exact_where_every_figure_of_every_rank_is(comparison, tmp_path, packed):
    found = comparison.compare(folder(tmp_path, packed=packed))
    assert (found["kind"], found["rows"], found["count"], found["exact"]) == ("astra-real", 4, 1, 1)
    assert found["worst_relative_error"] == 0.0
    assert found["by_figure"]["wall_ns"] == found["by_figure"]["gpu_ns"] == 0.0
    assert found["groups"]["system"]["r1.json"]["exact"] == 1
    assert comparison.table(found)


def test_one_rank_that_differs_is_a_run_that_differs(comparison, tmp_path):
    found = comparison.compare(folder(tmp_path, (*WALLS[:3], 2 * WALLS[3])))
    assert (found["count"], found["exact"]) == (1, 0)
    assert found["worst_wall_error"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("wall", "error", "words"),
    [("many", FormatError, "wall_ns 'many' should be a whole number"), (None, DataError, "has no")],
)
def test_what_cannot_be_compared_is_said(comparison, tmp_path, wall, error, words):
    where = tmp_path / "empty" if wall is None else folder(tmp_path, (wall, *WALLS[1:]))
    with pytest.raises(error, match=words):
        comparison.compare(where)


@pytest.mark.parametrize(
    ("code", "walls", "alike", "exact"),
    [
        ("0", WALLS, 1, 1),
        ("-6", WALLS, 0, 1),
        ("134", ("",) * 4, 0, 0),  # no figures, which is not foreseen
        ("0", ("", *WALLS[1:]), 0, 1),
    ],
)
def test_an_end_that_is_not_foreseen_is_counted(comparison, tmp_path, code, walls, alike, exact):
    place = folder(tmp_path, walls, code)
    found = comparison.compare(place)
    assert (found["ended_alike"], found["exact"]) == (alike, exact)
    assert found["groups"]["version"]["af2492b"]["ended_alike"] == alike


def test_a_run_without_figures_is_exact_where_that_is_foreseen(comparison, tmp_path):
    place = folder(tmp_path, ("",) * 4)
    system = place / "config/r1.json"
    system.write_text(SYSTEM.replace("{", '{"track-local-mem": 1, ', 1), encoding="utf-8")
    found = comparison.compare(place)
    assert (found["ended_alike"], found["count"], found["exact"]) == (1, 1, 1)
    assert found["stops"] == {"never ends": 1}


def test_development_runs_without_congestion_are_exact(comparison):
    """Runs of four ranks; `benchmarks/parity.py astra-real` compares all of them."""
    wanted = {"case": "d4_gpt2", "engine": "congestion_unaware", "version": "af2492b"}
    runs = {}
    rows = comparison.read_rows(needed(ASTRA / "real/real_runs.csv"), comparison.COLUMNS)
    for where, cells in rows:
        if wanted.items() <= cells.items():
            key = tuple(cells[name] for name in comparison.KEYS)
            runs.setdefault(key, []).append((where, cells))
    assert len(runs) >= 5
    with comparison.unpacked(ASTRA / "real") as place:
        assert {comparison.outcome(place, lines).error for lines in runs.values()} == {0.0}
