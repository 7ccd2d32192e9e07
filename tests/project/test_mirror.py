"""Tests stand where one looks for them: ``perfmodel/a/b.py`` is tested in ``tests/a/test_b.py``.

Folders at top level keep their names: ``kernels/a/b.py`` in ``tests/kernels/a/test_b.py``. A
folder of small sources may have one file of its name: ``tests/model/test_families.py``.
What is no one source's has a folder of its own: oracles, properties, published tables, and
what holds of the project.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data import ROOT, in_repository

pytestmark = in_repository

TESTS = ROOT / "tests"
TOPS = ("cli", "hwprofiles", "kernels", "benchmarks")
OWN_ROOMS = ("browser", "oracles", "properties", "published", "project")
LONG = 100  # lines from which a source has a test file of its name

# Longer sources without one, by what tests them instead. The list may only get shorter.
ELSEWHERE: dict[tuple[str, str], tuple[str, ...]] = {
    ("report/plots/test_figure.py", "what figures consist of, drawn and written there"): (
        "perfmodel/report/plots/marks.py",
    ),
    ("report/test_document.py", "the page that a report is, read there as a browser does"): (
        "perfmodel/report/page_text.py",
    ),
    ("cli/core/test_installation.py", "what a shell proposes, asked there as a shell asks"): (
        "cli/shared/completions.py",
    ),
    ("oracles/test_step.py", "parts of one compiled pass, which is retold there in loops"): (
        "kernels/step/close.py",
        "kernels/step/sharding.py",
        "kernels/step/stages.py",
        "kernels/step/tables.py",
    ),
    (
        "oracles/test_collectives.py",
        "the cost of a group, which schedules message by message confirm",
    ): ("kernels/collective/cost.py",),
    ("strategy/test_mapping.py", "groups of every axis, written out device by device there"): (
        "kernels/step/placement.py",
    ),
    ("workloads/twins/astra", "one compiled simulator: its runs equal ASTRA-sim's"): (
        "kernels/workloads/astra/machine.py",
        "kernels/workloads/astra/machine_state.py",
        "kernels/workloads/astra/phase.py",
    ),
    (
        "workloads/twins/astra_text/test_native.py",
        "one compiled simulator: its runs equal those of ASTRA-sim 1.0",
    ): (
        "kernels/workloads/astra_text/cost.py",
        "kernels/workloads/astra_text/machine.py",
        "kernels/workloads/astra_text/queue.py",
        "kernels/workloads/astra_text/state.py",
        "perfmodel/workloads/twins/astra_text/loop.py",
    ),
    ("workloads/twins/astra_text/test_physical.py", "the network half of one model"): (
        "perfmodel/workloads/twins/astra_text/physical_network.py",
    ),
    (
        "cli/workloads/test_simulate.py",
        "what `simulate` prints and stores, read where it is asked for",
    ): ("cli/workloads/simulated.py",),
    (
        "training/step/test_workload.py",
        "types and data-parallel operations of a projection, added up there",
    ): (
        "perfmodel/training/step/types.py",
        "perfmodel/training/step/data_parallel.py",
    ),
    ("oracles/test_chakra_wire.py", "messages and schema, read there by a decoder of its own"): (
        "perfmodel/workloads/formats/chakra/schema.py",
    ),
    ("hwprofiles/test_loader.py", "what a profile may hold, refused file by file there"): (
        "hwprofiles/build.py",
        "hwprofiles/schema.py",
    ),
    (
        "workloads/simulation/test_plan.py",
        "the event loop of communication that shares ports",
    ): ("kernels/workloads/trace/contention.py",),
    ("compute/test_attention_device.py", "what attention kernels read of a device"): (
        "kernels/attention/device.py",
    ),
    ("benchmarks", "scripts that measure or draw up tables, run by hand"): (
        "benchmarks/accuracy/aiob.py",
        "benchmarks/accuracy/traces.py",
        "benchmarks/measure/gemm.py",
        "benchmarks/measure/stream.py",
        "benchmarks/parity_kinds/modes.py",
        "benchmarks/speed/chakra.py",
        "benchmarks/speed/kernels.py",
        "benchmarks/speed/simulate.py",
        "benchmarks/unchanged.py",
    ),
    ("properties/test_damaged_files.py", "the driver of the fuzzer, run there"): (
        "benchmarks/fuzz/fuzz_formats.py",
    ),
}
MOST = 36  # may only fall


def mirror(source: Path) -> str:
    """Return the place of a source's tests, below the folder of tests."""
    top = ROOT / "perfmodel" if ROOT / "perfmodel" in source.parents else ROOT
    return source.with_name(f"test_{source.stem.lstrip('_')}.py").relative_to(top).as_posix()


def sources() -> dict[str, Path]:
    """Return every source, and every folder of sources, by the place of its tests."""
    found = {}
    for top in ("perfmodel", *TOPS):
        for path in (ROOT / top).rglob("*.py"):
            if any(ROOT / "perfmodel" / name in path.parents for name in TOPS):
                continue  # links to the folders at top level
            if path.name == "__init__.py":
                found[mirror(path.parent)] = path.parent
            elif not path.name.startswith("__"):
                found[mirror(path)] = path
    return found


def files() -> set[str]:
    """Return the test files, below the folder of tests."""
    return {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}


def untested() -> set[str]:
    """Return the long sources without a test file of their name or of their folder's."""
    tests, found = files(), set()
    for place, source in sources().items():
        if source.is_dir() or {place, mirror(source.parent)} & tests:
            continue
        if len(source.read_text(encoding="utf-8").splitlines()) > LONG:
            found.add(source.relative_to(ROOT).as_posix())
    return found


def exceptions() -> list[str]:
    return [name for names in ELSEWHERE.values() for name in names]


def test_every_long_source_has_a_test_file_of_its_name():
    missing = untested() - set(exceptions())
    assert not {f"{name}: write tests/{mirror(ROOT / name)}" for name in missing}


def test_the_list_of_exceptions_only_gets_shorter():
    listed = exceptions()
    assert len(listed) == len(set(listed)) <= MOST
    assert not set(listed) - untested(), "tested, short or gone: take them off the list"


@pytest.mark.parametrize("covering", [place for place, _ in ELSEWHERE])
def test_what_tests_an_exception_is_there(covering):
    assert (TESTS / covering).exists()


def test_every_test_file_names_a_source():
    mirrored = {place for place in files() if place.split("/")[0] not in OWN_ROOMS}
    assert not mirrored - set(sources()), "rename them, or move them to a room of their own"
