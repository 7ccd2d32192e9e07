"""``perfmodel workload show``: what a file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import assert_one_line, run
from tests.cli.workloads.workload.files import shown, workload

TEXT = "DATA\n1\nlayer\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"


def test_show_says_what_a_text_holds_alone_and_on_devices(folder: Path) -> None:
    (folder / "w.txt").write_text(TEXT, "utf-8")
    found = shown("w.txt")
    assert (found["format"], found["policy"], found["layers"]) == ("astra-text", "DATA", 1)
    times = {"forward": 1e-6, "input_gradient": 2e-6, "weight_gradient": 3e-6}
    assert found["compute_time"] == pytest.approx(times)
    assert found["collectives"] == {"ALLREDUCE": {"count": 1, "bytes": 2**20}}
    on_devices = shown("w.txt", "--devices", "4", "--passes", "2")
    assert on_devices["ranks"] == 4
    assert on_devices["collectives"]["all_reduce"] == {"count": 8, "bytes": 8 * 2**20}
    lines = workload("show", "w.txt").stdout.splitlines()
    assert lines[0] == "w.txt: ASTRA-sim 1.0 text workload"
    assert "compute time          forward 1.000 µs, input_gradient 2.000 µs" in "\n".join(lines)
    assert lines[-1].split() == ["ALLREDUCE", "1", "1.05", "MB"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("none.txt", "no workload at 'none.txt'"),
        ("w.txt --format aicb", "--format"),
        ("w.txt --format chakra-json", "w.txt"),
        ("w.txt --groups x.json", "--groups is for Chakra traces; 'w.txt' is of another kind"),
        ("w.txt --kineto x.json", "--kineto is for PyTorch"),
        ("broken.txt", "broken.txt"),
        ("empty.txt", "'empty.txt' is no workload that is known"),
        ("binary.et", "binary.et"),
        ("object.json", "object.json"),
    ],
)
def test_show_says_what_is_wrong_in_one_line(words: str, part: str, folder: Path) -> None:
    (folder / "w.txt").write_text(TEXT, "utf-8")
    (folder / "broken.txt").write_text(TEXT[:-20], "utf-8")
    (folder / "empty.txt").touch()
    (folder / "binary.et").write_bytes(b"\x00\xff" * 50)
    (folder / "object.json").write_text('{"a": NaN}', "utf-8")
    assert_one_line(run("workload", "show", *words.split(), "--json"), part)
