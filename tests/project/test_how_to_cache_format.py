"""Who follows the pages on cache formats and engines' features gets what they promise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.data import in_repository
from tests.how_to import copy_sources, follow, run_python

pytestmark = in_repository


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources."""
    return copy_sources(tmp_path)


def serve(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Serve Llama-3.1-8B with the copy of the sources, without compiling."""
    model = ("--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--tp", "1")
    load = ("--isl", "256", "--osl", "2", "--concurrency", "2")
    return run_python(tree, "-m", "perfmodel", "serve", *model, *load, "--json", *options)


def answer(tree: Path, *options: str) -> dict[str, float]:
    found = serve(tree, *options)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_a_cache_format_takes_at_most_three_source_files(tree: Path):
    assert 1 <= len(follow("add-a-cache-format.md", tree)) <= 3
    found = {name: answer(tree, "--kv-precision", name) for name in ("bf16", "kivi4")}
    assert found["kivi4"]["kv_bytes_per_token"] == 0.3125 * found["bf16"]["kv_bytes_per_token"]
    times = {name: it["attention_time"] for name, it in found.items()}
    assert times["kivi4"] != times["bf16"]  # its own time, not that of 16 bits
    refused = serve(tree, "--kv-precision", "kivi4", "--engine", "sglang")
    assert refused.returncode == 2
    assert "has no cache in kivi4; possible with vllm" in refused.stderr


def test_a_cache_format_without_a_rule_is_refused(tree: Path):
    path = tree / "perfmodel/base/precisions.py"
    text = path.read_text(encoding="utf-8")
    assert "CACHE_FORMATS = (\n" in text
    path.write_text(text.replace("CACHE_FORMATS = (\n", 'CACHE_FORMATS = (\n    "mxfp4",\n'))
    refused = serve(tree, "--kv-precision", "mxfp4")
    assert refused.returncode == 2
    assert "a cache in 'mxfp4' has no rule for its time" in refused.stderr


def test_an_engine_s_feature_takes_at_most_three_source_files(tree: Path):
    before = answer(tree)["other_time"]
    assert 1 <= len(follow("add-an-engine-feature.md", tree)) <= 3
    without = answer(tree, "--set", "software.sampling_time=0")["other_time"]
    assert without == before
    assert answer(tree)["other_time"] > before
