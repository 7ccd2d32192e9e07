"""Where things are: the one place that knows the repository and the development data.

The data are third parties' measurements and outputs; they lie beside the repository and are
not part of it. Tests that need them skip, with `MISSING` as the reason, where they are absent.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
BASELINES = ROOT / "tests/baselines"
PYPROJECT = ROOT / "pyproject.toml"

SHARED = ROOT.parent / "shared/data"
MISSING = "the development data are not beside this checkout"
TRAINING_RUNS = SHARED / "e2e/dev_training_runs.csv"
MEASURED = SHARED / "measured"
MODEL_CONFIGS = SHARED / "model_configs"
ASTRA = SHARED / "astra"
AICB = SHARED / "aicb"
ROUTING_COUNTS = SHARED / "wse/bincounts.json"
