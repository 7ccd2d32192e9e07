"""The core works where the folders of the wings are absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data import ROOT, in_repository
from tests.how_to import copy_sources, run_python
from tests.wings import CORE, WINGS, wing_of

pytestmark = in_repository
STRATEGY = (
    "--model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 2 --global-batch 16 --seq-len 4096"
)
COMMANDS = f"""
--help
project {STRATEGY} --json
explain {STRATEGY} --json
sweep {STRATEGY} -o sweep.nc
best sweep.nc --json
diff sweep.nc#1 zero=3 {STRATEGY} --json
sensitivity {STRATEGY} --kind strategy --json
launch sweep.nc --for torchtitan
search {STRATEGY} --json
serve --model llama-3.1-8b --hardware dgx-h100 --isl 512 --osl 64 --concurrency 8 --json
size --model llama-3.1-8b --hardware dgx-h100 --rate 1 --isl 512 --osl 64 --ttft-p95 2 --json
kernel gemm --hardware dgx-h100 --m 64 --n 64 --k 64 --json
collective all_reduce --hardware dgx-h100 --size 1MiB --members 8 --json
hardware show dgx-h100
model show llama-3.1-8b
software list
completion bash
"""
RUN_ALL = """
import json, sys
from click.testing import CliRunner
from perfmodel.cli.main import cli
for line in sys.argv[1:]:
    done = CliRunner().invoke(cli, line.split(), prog_name="perfmodel")
    print(json.dumps([line, done.exit_code, done.stdout, done.stderr + repr(done.exception or "")]))
"""
"""One process for all: each would spend most of its time on imports."""
FUNCTIONS = """
import perfmodel
model = perfmodel.load_model("llama-3.1-8b")
grid = perfmodel.strategy_grid(model, 8, sequence_length=4096, global_batch_size=16,
                               tensor_parallel=[1, 2])
results = perfmodel.sweep(model, grid, "dgx-h100")
assert perfmodel.best(results, 1)
perfmodel.save_results(results, "again.nc")
assert perfmodel.open_results("again.nc").perfmodel.breakdown(1).shape[0] == 1
perfmodel.add_cost(results, price=2.0, tokens=1e9)
perfmodel.gemm_times("dgx-h100", "bf16", 64, 64, 64)
try:
    perfmodel.simulate
except perfmodel.PerfModelError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree without the wings."""
    return copy_sources(tmp_path_factory.mktemp("core"), *WINGS)


def test_commands_of_the_core_work_without_the_wings(core: Path) -> None:
    done = run_python(core, "-c", RUN_ALL, *COMMANDS.strip().splitlines())
    ran = {line: output for line, *output in map(json.loads, done.stdout.splitlines())}
    assert list(ran) == COMMANDS.strip().splitlines(), done.stderr
    for line, (code, _, errors) in ran.items():
        assert code == 0, f"{line}: {errors}"
        assert "Traceback" not in errors
    assert "sweep" in ran["--help"][1]
    assert "simulate" not in ran["--help"][1]


def test_functions_of_the_core_work_without_the_wings(core: Path) -> None:
    done = run_python(core, "-c", FUNCTIONS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wing 'workloads'" in done.stdout


def test_an_option_that_needs_a_wing_says_which(core: Path) -> None:
    words = (
        "serve --model llama-3.1-8b --hardware dgx-h100 --tp 1 --isl 512 --osl 64 --concurrency 8 "
        "--timeline passes.json"
    )
    done = run_python(core, "-m", "perfmodel", *words.split())
    assert done.returncode == 2
    assert "needs the wing 'report'" in done.stderr


def test_every_test_of_a_wing_is_found_by_its_folder() -> None:
    found = {wing_of(path) for path in (ROOT / "tests").rglob("test_*.py")}
    assert found >= {CORE, *WINGS}
    assert wing_of(ROOT / "tests/kernels/step/test_memory.py") == CORE
    assert wing_of(ROOT / "tests/cli/test_wafer.py") == "wafer"
