"""What is shown while work runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.cli.shared.printing import laid_out, terminal_width, wrapped
from tests.cli.running import run
from tests.data import ROOT

HEADERS = ["layer", "memory GiB", "tok/s/device", "why"]
ROWS = [
    ["first", "74.0", "1,129", "it is short"],
    ["second", "9.5", "58", "it runs the algorithm that the system file states, chunk by chunk"],
]


def lines(width: int | None, headers=HEADERS, rows=ROWS) -> list[str]:
    found = laid_out(headers, rows, (0, 3), width)
    return [line for heads, body in found.blocks for line in (*heads, *body)]


def test_without_a_width_a_row_is_a_line():
    assert lines(None) == [
        "layer   memory GiB  tok/s/device  why",
        "first         74.0         1,129  it is short",
        "second         9.5            58  it runs the algorithm that the system file states, "
        "chunk by chunk",
    ]
    assert lines(200) == lines(None)


def test_headings_break_before_text_does():
    found = lines(80)
    assert found[:4] == [
        "       memory tok/s/",
        "layer     GiB device why",
        "first    74.0  1,129 it is short",
        "second    9.5     58 it runs the algorithm that the system file states, chunk by",
    ]
    assert found[4].strip() == "chunk"


@pytest.mark.parametrize("width", range(40, 120))
def test_nothing_is_lost_or_wider(width):
    found = lines(width)
    assert max(map(len, found)) <= width
    words = " ".join(" ".join(found).split())
    for cell in ("first", "74.0", "1,129", "9.5", "58", "chunk"):
        assert cell in words


@pytest.mark.parametrize("width", range(40, 80, 7))
def test_columns_without_a_place_follow_below_with_the_first(width):
    headers = ["rank", *(f"column {i}" for i in range(12))]
    rows = [[str(r), *(f"{r * 100 + i} ms" for i in range(12))] for r in (1, 2)]
    found = laid_out(headers, rows, (0,), width).blocks
    assert len(found) > 1
    for heads, body in found:
        assert heads[-1].startswith("rank")
        assert [line.split()[0] for line in body] == ["1", "2"]
        assert max(map(len, (*heads, *body))) <= width
    text = " ".join(line for _, body in found for line in body)
    assert all(cell in text for row in rows for cell in row)


def test_columns_that_may_be_spared_go_first_and_are_named():
    headers = ["operation", "shape", "time", "rate"]
    rows = [["attention.output.reduce_scatter", "4096×4096×12288", "106 µs", "281 GB/s"]]
    assert laid_out(headers, rows, (0, 1), 80, (3, 1)).left_out == []
    found = laid_out(headers, rows, (0, 1), 60, (3, 1))
    assert found.left_out == ["rate"]
    assert found.blocks == [
        (
            ["operation                        shape              time"],
            ["attention.output.reduce_scatter  4096×4096×12288  106 µs"],
        )
    ]
    assert laid_out(headers, rows, (0, 1), 40, (3, 1)).left_out == ["shape", "rate"]


def test_units_in_headings_stay_whole():
    found = laid_out(["device", "bf16 TFLOP/s", "GiB per node"], [["a", "1", "2"]], (0,), 24)
    assert [heads for heads, _ in found.blocks] == [
        ["                  GiB", "           bf16   per", "device  TFLOP/s  node"]
    ]


def test_names_break_behind_underscores():
    rows = [["1 GiB", "double_binary_tree"], ["2 GiB", "ring"]]
    ((_, body),) = laid_out(["size" * 8, "algorithm"], rows, (1,), 46).blocks
    assert [line.split()[-1] for line in body] == ["double_", "binary_tree", "ring"]


def test_a_table_without_rows_is_its_heading():
    assert lines(None, rows=[]) == ["layer  memory GiB  tok/s/device  why"]
    assert lines(40, rows=[])[0].startswith("layer")


def test_sentences_are_broken_at_words_and_indented():
    text = "all: dgx-h100 · global-batch 2,048 · seq-len 8,192 · recompute selective"
    assert wrapped(text) == text
    assert wrapped(text, 5, 40).splitlines() == [
        "all: dgx-h100 · global-batch 2,048 ·",
        "     seq-len 8,192 · recompute selective",
    ]


def test_the_width_is_the_terminal_s_or_what_columns_says(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: type("Size", (), {"columns": 90})())
    assert terminal_width() == 90
    for text, width in (("132", 132), ("5", 40), ("wide", 90), ("", 90), ("0", 90)):
        monkeypatch.setenv("COLUMNS", text)
        assert terminal_width() == width


@pytest.mark.parametrize(
    "arguments",
    [
        "kernel attention --hardware dgx-h100 --hardware dgx-b200 --heads 32 --q-len 512,1024",
        "collective all_reduce --hardware dgx-h100 --size 64KiB,1GiB --members 8,64",
        "hardware show dgx-h100",
        "hardware list",
        "model list",
        "explain --model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 8 --global-batch 8 "
        "--seq-len 4096",
        "sweep --model llama-3.1-8b --hardware dgx-h100 --devices 64 --tp 1,8 --pp 1,2 "
        "--global-batch 256 --seq-len 4096",
    ],
)
def test_commands_keep_to_80_columns(arguments, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*arguments.split())
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout


CHAIN = ("workload", "synthetic", "chained", "--count", "2", "--devices")


def on_terminal(*arguments: str) -> tuple[str, str]:
    """Run the program with a terminal as stderr; return stdout and what was on it."""
    pty = pytest.importorskip("pty", reason="terminals are tested where there are any")
    ours, theirs = pty.openpty()
    # Read while it runs: a terminal holds a few kilobytes, and then whoever writes waits.
    with subprocess.Popen(
        [sys.executable, "-m", "perfmodel", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
    ) as program:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed and everything was read
                break
            if not part:
                break
            seen += part
        assert program.stdout is not None
        stdout = program.stdout.read()
    assert program.returncode == 0
    os.close(ours)
    return stdout.decode(), seen.decode()


def test_progress_is_shown_on_a_terminal_and_to_nobody_else(folder: Path) -> None:
    chain = (*CHAIN, "8", "-o", "x")
    stdout, stderr = on_terminal(*chain)
    assert stdout == ""
    assert "writing x" in stderr
    assert "8/8" in stderr
    assert "writing x" not in on_terminal(*chain, "--quiet")[1]
    assert "writing x" not in run(*chain).stderr
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100")
    assert "reading x" in stderr
    assert "running 16 nodes of 8 ranks" in stderr
    assert "reading" not in stdout
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100", "--json")
    assert json.loads(stdout)["ranks"] == 8
    assert "reading" not in stderr
