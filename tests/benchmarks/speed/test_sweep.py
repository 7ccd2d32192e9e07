"""The benchmark of sweeps: what it counts, and the loop in C that it compares with."""

from __future__ import annotations

import json
import shutil

import pytest

TINY = {
    "tensor_parallel": [8],
    "virtual_pipeline": [1],
    "pipeline_parallel": [1, 8],
    "micro_batch_size": [1],
    "precision": ["bf16"],
    "zero_stage": [1],
}


@pytest.fixture
def speed(script):
    return script.load("speed.sweep")


@pytest.mark.parametrize("keep", ["all", "best"])
def test_both_ways_to_keep_print_the_same_count(script, speed, monkeypatch, keep):
    monkeypatch.setattr(speed, "GROWTH", [(2, TINY)])
    monkeypatch.setattr(speed, "FEW", TINY)
    _, out, _ = script("speed.sweep", "--warm", "--size", 0, "--keep", keep, "--json")
    document = json.loads(out)
    # Batches, lengths, pipelines, sequence parallelism, recomputation and mappings.
    assert document["count"] == 2 * 2 * 2 * 2 * 3 * 2
    assert document["rate_per_core"] * document["cpu_seconds"] == pytest.approx(document["count"])
    assert "first sweep of a process" in document["unit"]


def test_what_is_timed_grows_from_thousands_to_a_hundred_millions(speed):
    assert [batches for batches, _ in speed.GROWTH] == sorted(it for it, _ in speed.GROWTH)
    assert speed.GROWTH[-1] == (600, {})


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler of C")
def test_the_loop_in_c_closes_something(speed):
    assert speed.c_rate() > 1e6
