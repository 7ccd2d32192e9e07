"""Fixtures that tests of several modules share: models, profiles, single projections."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Tests run compiled kernels, however small the work. Read when the first kernel is imported,
# which some module of ours does.
os.environ.setdefault("PERFMODEL_JIT", "always")
# Dask's workers that wait for work watch themselves, for a tenth of a core, unless told otherwise
# before Dask is imported.
for name, value in {
    "WORKER__PROFILE__ENABLED": "False",
    "ADMIN__TICK__INTERVAL": "5s",
    "ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
}.items():
    os.environ.setdefault(f"DASK_DISTRIBUTED__{name}", value)

import numpy as np
import pytest
from hypothesis import settings

from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.variables import STEP_VARIABLES
from perfmodel.model.build import dense_model, moe_model
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID
from perfmodel.training.project import project_grid
from perfmodel.training.workload import Workload
from tests import amount, data
from tests.wings import CORE, WINGS, wing_of

if TYPE_CHECKING:
    from perfmodel.sweeps.workers import Workers

OTHERS = ("skipped", "failed", "error", "xfailed", "xpassed")
"""What may become of a test that does not pass."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-baselines",
        action="store_true",
        help="rewrite tests/baselines from what is computed now",
    )
    parser.addoption("--passed-to", metavar="FILE", help="write which tests passed to a file")
    parser.addoption(
        "--leave-out", metavar="FILE", help="leave out what another run wrote with --passed-to"
    )
    parser.addoption(
        "--one-case", action="store_true", help="run one case of each test that has several"
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="try all random cases, and kernels that only kernels call compiled by themselves",
    )
    parser.addoption(
        "--wing", choices=(CORE, *WINGS), help="run the tests of one wing, or of the core"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say how many cases there are, before a test is imported."""
    amount.LONG = config.getoption("--long")
    # No deadline: the first example may compile a kernel. The same examples on every run.
    given = {"deadline": None, "derandomize": True, "max_examples": amount.cases(100)}
    settings.register_profile("perfmodel", **given)
    settings.load_profile("perfmodel")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files that passed as a whole, or that are another wing's."""
    wing = config.getoption("--wing")
    if wing and collection_path.name.startswith("test_") and wing_of(collection_path) != wing:
        return True
    file = config.getoption("--leave-out")
    if file and collection_path.is_relative_to(data.ROOT):
        return collection_path.relative_to(data.ROOT).as_posix() in done(file)["files"] or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = items
    if file := config.getoption("--leave-out"):
        passed = set(done(file)["tests"])
        kept = [item for item in kept if item.nodeid not in passed]
    if config.getoption("--one-case"):
        kept = list({item.nodeid.partition("[")[0]: item for item in reversed(kept)}.values())[::-1]
    if len(kept) < len(items):
        left_out = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept


@functools.cache
def done(file: str) -> dict[str, list[str]]:
    """Return the tests that passed elsewhere, and the files of which all did."""
    found: dict[str, list[str]] = json.loads(Path(file).read_text(encoding="utf-8"))
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if file := config.getoption("--passed-to"):
        stats = terminalreporter.stats
        passed = [report.nodeid for report in stats.get("passed", ())]
        others = [report.nodeid for kind in OTHERS for report in stats.get(kind, ())]
        files = set(map(file_of, passed)) - set(map(file_of, others))
        written = {"tests": passed, "files": sorted(files)}
        Path(file).write_text(json.dumps(written), encoding="utf-8")


def file_of(test: str) -> str:
    """Return the file of a test by its name."""
    return test.partition("::")[0]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are as long as they are, whatever the terminal of who runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Workers]:
    """Two processes, for all tests: a cluster takes seconds to start."""
    pytest.importorskip("distributed", reason="Dask (the extra 'dask') is not installed")
    from perfmodel.sweeps.workers import local_workers

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # what tests send
        with local_workers(2) as found:
            yield found


@pytest.fixture(scope="session")
def h100():
    return load_hardware("dgx-h100")


@pytest.fixture(scope="session")
def a100():
    return load_hardware("dgx-a100")


@pytest.fixture(scope="session")
def llama_8b():
    return load_model("llama-3.1-8b")


@pytest.fixture(scope="session")
def small_dense():
    """8 layers, 8 key-value heads, vocabulary a multiple of 128 × 8: nothing is padded."""
    return dense_model(
        "small-dense",
        layers=8,
        hidden_size=2048,
        heads=16,
        key_value_heads=8,
        intermediate_size=5632,
        vocab_size=32768,
    )


@pytest.fixture(scope="session")
def small_moe():
    """As `small_dense`, but the last 7 of 8 layers have 16 experts and a shared one."""
    return moe_model(
        "small-moe",
        layers=8,
        hidden_size=2048,
        heads=16,
        key_value_heads=8,
        vocab_size=32768,
        experts=16,
        experts_per_token=4,
        expert_intermediate_size=1024,
        shared_intermediate_size=1024,
        first_dense_layers=1,
        intermediate_size=5632,
    )


@pytest.fixture
def realistic() -> np.ndarray:
    """Network table of two levels like nodes of H100; a test may change it."""
    from tests.kernels.collective.networks import realistic_network

    return realistic_network()


def complete(fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Number of devices of a strategy, and its fields with the batch given as micro-batches."""
    row = {"sequence_length": 2048, "data_parallel": 1, **fields}
    batches = row.pop("micro_batches", 4)
    row.setdefault(
        "global_batch_size", batches * row["data_parallel"] * row.get("micro_batch_size", 1)
    )
    degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
    return int(np.prod([row.get(name, 1) for name in degrees])), row


@pytest.fixture(scope="session")
def grid_of() -> Callable[..., Any]:
    """Return a function that makes the grid of one strategy from its fields."""

    def make(model, **fields):
        devices, row = complete(fields)
        grid = strategies_from_rows(model, devices, [row])
        assert grid.status[0] == VALID, grid.row(0)
        return grid

    return make


@pytest.fixture(scope="session")
def project(grid_of) -> Callable[..., dict[str, float]]:
    """Return a function that projects one strategy: variable name to value.

    Hardware may be a profile's name: property tests print shorter counterexamples so.
    """
    profiles = functools.cache(load_hardware)

    def run(model, hardware, framework="megatron", **fields):
        hardware = profiles(hardware) if isinstance(hardware, str) else hardware
        out = np.empty((len(STEP_VARIABLES), 1))
        work = Workload(model, grid_of(model, **fields))
        project_grid(work, hardware, load_framework(framework), out, threads=1)
        return {item.name: float(out[i, 0]) for i, item in enumerate(STEP_VARIABLES)}

    return run


@pytest.fixture(scope="session")
def development_table() -> Callable[[str], Path]:
    """Return a function that finds a file by its path among the development data, or skips."""
    return lambda name: data.needed(data.SHARED / name)


@pytest.fixture(scope="session")
def training_runs() -> list[dict[str, str]]:
    """Rows of the table of measured training runs."""
    return data.training_runs()
