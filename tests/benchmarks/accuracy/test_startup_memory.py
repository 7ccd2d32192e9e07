"""The score of memory at start: rows that are told apart, and what is printed."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.startup_memory import compare, device_of, markdown, score
from perfmodel.measured.rows import MeasuredRow, Skip

ROW = {
    "id": "M-00",
    "engine": "vLLM",
    "release": "0.10.1 (2025-08)",
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100 80GB",
    "n_gpus": "1",
    "tp": "1",
    "available_kv_gib": "50",
    "kv_tokens": "409600",
    "started": "yes",
    "scoreable": "available_kv_gib; kv_tokens",
}


def test_tokens_follow_from_the_memory_that_was_logged() -> None:
    found = compare(MeasuredRow(ROW, "logs.csv", 2))
    assert found["projected"]["kv_tokens"] == pytest.approx(409_600, rel=1e-3)
    assert found["starts"]
    assert set(found["errors"]) == {"available_kv_gib", "kv_tokens"}


def test_a_device_without_a_profile_has_a_stand_in_with_its_memory() -> None:
    found = device_of(MeasuredRow({**ROW, "gpu": "RTX 3090 24GB"}, "logs.csv", 2))
    assert found.device.memory.capacity == pytest.approx(24 * 2**30, rel=0.03)
    with pytest.raises(Skip):
        device_of(MeasuredRow({**ROW, "gpu": "not stated (DGX)"}, "logs.csv", 2))


def test_a_table_is_scored(tmp_path) -> None:
    rows = [ROW | {"weights_gib": "14.96", "scoreable": "weights_gib; kv_tokens; available_kv_gib"}]
    path = tmp_path / "logs.csv"
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = score(path)
    assert found["starts"] == {"count": 1, "right": 1.0}
    assert "weights_gib: median 0.0" in markdown(found)
