"""Work that needs more memory than there is ends before it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.base import memory
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.memory import check_memory, memory_limit


def test_the_machine_has_memory():
    limit = memory_limit()
    assert limit is None or limit > 2**27


def test_a_container_may_have_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    second, first = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (str(second), str(first)))
    alone = memory_limit()
    second.write_text("max\n")
    assert memory_limit() == alone
    first.write_text("1000\n")
    assert memory_limit() == 1000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc: addresses unknown")
def test_a_limit_of_addresses_counts_what_is_left():
    text = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from perfmodel.base.memory import memory_limit; print(memory_limit())"
    )
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) < 2**30


def test_what_exceeds_it_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 10**9)
    check_memory("7 rows", 1e9, "take fewer")
    with pytest.raises(
        StrategyError, match=r"^8 rows need about 1.1 GB of memory, and there are 1 GB; take fewer$"
    ):
        check_memory("8 rows", 1.1e9, "take fewer", StrategyError)
    monkeypatch.setattr(memory, "memory_limit", lambda: None)
    check_memory("8 rows", 1e30, "take fewer", DataError)


def test_more_than_was_meant_is_refused_until_told_to_go_on(monkeypatch) -> None:
    monkeypatch.delenv(memory.MUCH, raising=False)
    memory.check_amount("work", "do less", seconds=60, size=1e9, files=100)
    words = "work would take about .* of a core and 8 GB of disk and 20,000 files; do less, or"
    with pytest.raises(DataError, match=words):
        memory.check_amount("work", "do less", seconds=6000, size=8e9, files=20_000)
    monkeypatch.setenv(memory.MUCH, "1")
    memory.check_amount("work", "do less", seconds=6000, size=8e9, files=20_000)
