"""``perfmodel samples``: the files of the documentation, from wherever perfmodel is installed."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import assert_one_line, run


def test_samples_are_named_and_copied(tmp_path: Path) -> None:
    names = run("samples").stdout.split()
    assert {"README.md", "gemm.csv", "launch/nemo.yaml"} <= set(names)
    result = run("samples", tmp_path / "here")
    assert result.exit_code == 0, result.stderr
    assert f"copied {len(names)} files" in result.stderr
    copied = {
        path.relative_to(tmp_path / "here").as_posix()
        for path in (tmp_path / "here").rglob("*")
        if path.is_file()
    }
    assert copied == set(names)
    assert run("compare", "gemm", tmp_path / "here/gemm.csv").exit_code == 0


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x", encoding="utf-8")
    assert_one_line(run("samples", tmp_path / "f"), "is a file; name a folder")
