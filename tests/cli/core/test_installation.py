"""``perfmodel completion``: scripts of shells, and what they complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.analysis import doctor
from perfmodel.analysis.doctor import Finding
from perfmodel.cli.main import cli
from perfmodel.software.engine import ENGINES
from perfmodel.software.framework import releases_of
from tests.cli.running import assert_one_line, document, run

TTFT = "time_to_first_token"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str) -> None:
    script = run("completion", shell).stdout
    assert "_PERFMODEL_COMPLETE" in script
    assert f"{shell}_complete" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("perfmodel ex", {"explain"}),
        ("perfmodel model show llama-3.1-4", {"llama-3.1-405b"}),
        ("perfmodel project --model llama-3.1-4", {"llama-3.1-405b"}),
        (
            "perfmodel project --model meta-llama/Llama-3.1-4",
            {"meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct"},
        ),
        ("perfmodel sweep --hardware dgx-b2", {"dgx-b200"}),
        ("perfmodel sweep --framework megatron-t", {"megatron-tuned"}),
        ("perfmodel sweep --framework megatron,megatron-t", {"megatron,megatron-tuned"}),
        ("perfmodel explain --framework nem", {"nemo", *releases_of("nemo")}),
        ("perfmodel sweep --framework fsdp,torchtitan@", {"fsdp,torchtitan@0.1"}),
        ("perfmodel sweep --hardware h200,dgx-b2", {"h200,dgx-b200"}),
        ("perfmodel sweep --model gpt2,llama-3.1-4", {"gpt2,llama-3.1-405b"}),
        ("perfmodel sweep --set software.optim", {"software.optimizer_bytes="}),
        ("perfmodel serve --engine sg", {name for name in ENGINES if name.startswith("sg")}),
        ("perfmodel serve --set software.pass_h", {"software.pass_host="}),
        ("perfmodel serve --prefill tp=4,wor", {"tp=4,workers="}),
        ("perfmodel serve --speculative m", {"mtp:"}),
        ("perfmodel serve --kv-precision bf16,f", {"bf16,fp16", "bf16,fp8"}),
        ("perfmodel best x.nc --by time_to_first_token_p9", {f"{TTFT}_p95", f"{TTFT}_p99"}),
        ("perfmodel best x.nc --by step", {"step_time", "step_time_low", "step_time_high"}),
        ("perfmodel best x.nc --pareto step_time,memory_to", {"step_time,memory_total"}),
        ("perfmodel sweep --recompute none,f", {"none,full"}),
        ("perfmodel sweep --sp f", {"false"}),
        (
            "perfmodel project --hardware dgx-h100 --set device.memory.capa",
            {"device.memory.capacity="},
        ),
    ],
)
def test_completion_knows_commands_models_profiles_and_variables(
    words: str, expected: set[str]
) -> None:
    typed = words.split(" ")
    environment = {
        "_PERFMODEL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
    }
    result = CliRunner().invoke(cli, [], prog_name="perfmodel", env=environment)
    found = {line.partition(",")[2] for line in result.stdout.splitlines()}
    assert found == expected


def test_what_is_found_is_listed_by_group_with_what_to_do():
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for group in ("Versions", "Extras", "Caches", "Machine", "Terminal", "Self-check"):
        assert f"{group}\n" in result.stdout
    assert result.stdout.endswith("\nall is well\n")


def test_json_has_every_finding():
    found = document("doctor")
    assert found["healthy"] is True
    assert {it["state"] for it in found["findings"]} <= {"ok", "warn"}
    assert {"group", "name", "state", "text", "advice"} == set(found["findings"][0])


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_failed_ends_with_1(words, monkeypatch):
    broken = [Finding("caches", "kernels", "fail", "gone", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(broken))
    result = run("doctor", *words)
    assert result.exit_code == 1
    assert "do this" in result.stdout
    assert ("1 of 1 failed" in result.stdout) is not bool(words)


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
