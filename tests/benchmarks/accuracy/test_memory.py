"""Peaks of FSDP2 as torch's MemTracker counts them."""

from __future__ import annotations

import pytest

from tests.data import SHARED, needed

memory = pytest.importorskip(
    "benchmarks.accuracy.memory", reason="an installed package has no benchmarks beside the tests"
)


def test_peaks_of_fsdp2_by_category_and_in_all():
    rows = memory.torch_rows(needed(SHARED / "e2e/dev_memory_torch.csv"))
    large = [row for row in rows if row["model"] == "llama-3.1-8b"]
    assert len(large) >= 16
    for row in large:
        for name, (projected, measured) in row["pairs"].items():
            limit = 0.02 if name == "total" else 0.03
            assert projected == pytest.approx(measured, rel=limit), (row["sharding"], name)
