"""Where things are: the one place that knows the repository and the development data.

The data are third parties' measurements and outputs; they lie beside the repository and are
not part of it. Tests that need them skip where they are absent, and say so (`MISSING`).
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
PUBLISHED_RUNS = BENCHMARKS / "published_training_runs.csv"
PUBLISHED_COLLECTIVES = BENCHMARKS / "published_collectives.csv"
PUBLISHED_WAFERS = BENCHMARKS / "published_wafer_runs.csv"
BASELINES = ROOT / "tests/baselines"
PYPROJECT = ROOT / "pyproject.toml"

SHARED = ROOT.parent / "shared/data"
MISSING = "the development data are not beside this checkout"
in_repository = pytest.mark.skipif(
    not (ROOT / "perfmodel").is_dir(), reason="an installed package has no sources beside the tests"
)
"""Mark of tests that read or copy the sources."""
NO_BENCHMARKS = "an installed package has no benchmarks"
NO_DOCUMENTS = "an installed package has no documents"
TRAINING_RUNS = SHARED / "e2e/dev_training_runs.csv"
SERVING_RUNS = SHARED / "e2e/dev_serving_runs.csv"
INFERENCE_RUNS = SHARED / "e2e/dev_inference_runs.csv"
MEASURED = SHARED / "measured"
MODEL_CONFIGS = SHARED / "model_configs"
ASTRA = SHARED / "astra"
AICB = SHARED / "aicb"
WAFER = SHARED / "wse"
TORCH_SCHEDULES = SHARED / "schedules/torch_schedules_dev.json.gz"
ROUTING_COUNTS = WAFER / "bincounts.json"


def needed(path: Path) -> Path:
    """Return a file or folder of the development data; a test skips where it is not there."""
    if not path.exists():
        name = path.relative_to(SHARED) if path.is_relative_to(SHARED) else path
        pytest.skip(f"{MISSING}: {name}")
    return path


def table_of(test_file: str, name: str) -> Any:
    """Return a table of the TOML file beside a test: rows and their lists as tuples."""

    def tuples(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tuples(item) for key, item in value.items()}
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    table = tomllib.loads(Path(test_file).with_suffix(".toml").read_text(encoding="utf-8"))[name]
    return list(tuples(table)) if isinstance(table, list) else tuples(table)


def launch_sample(name: str) -> Path:
    """Return a launch file of the documents; a test skips where there are no documents."""
    if not DOCS.is_dir():
        pytest.skip(NO_DOCUMENTS)
    return DOCS / "samples/launch" / name


def training_runs() -> list[dict[str, str]]:
    """Return the rows of the table of measured training runs."""
    with needed(TRAINING_RUNS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
