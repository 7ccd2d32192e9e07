"""Options that say how a model is read, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cli.shared.models import reading_document, reading_words
from perfmodel.model.presets import load_model
from perfmodel.store.results import open_table
from tests.cli.projecting import PROBLEMS, document, run

NONE = PROBLEMS["latent"].replace(" --mtp stated", "")
NOTE = "note: 1 multi-token-prediction module left out: --mtp stated counts it"


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    words = NONE.replace("--pp 16 ", "")  # one stage: it is the fullest and the slowest
    return document("project", words), document("project", f"{words} --mtp stated")


def test_modules_count_in_flop_time_and_memory_alike(both: tuple[Any, Any]) -> None:
    none, stated = both
    assert (none["mtp_layers"], stated["mtp_layers"]) == (0, 1)
    for name in ("model_flops_per_token", "step_time", "memory_total"):
        assert stated[name] > none[name], name
    assert none["remarks"] == [NOTE.removeprefix("note: ")]
    assert stated["remarks"] == []


@pytest.mark.parametrize("command", ["project", "explain"])
def test_what_was_left_out_is_said_once(command: str) -> None:
    assert run(command, NONE).stderr.count(NOTE) == 1
    assert NOTE not in run(command, PROBLEMS["latent"]).stderr


def test_a_launch_file_is_read_with_the_modules_that_it_states(tmp_path: Path) -> None:
    for mtp, count in (("none", 0), ("stated", 1)):
        file = tmp_path / f"{mtp}.sh"
        written = run("launch", NONE, "--mtp", mtp, "--for", "megatron", "-o", str(file))
        assert written.exit_code == 0, written.stderr
        assert ("--mtp-num-layers" in file.read_text()) == bool(count)
        words = f"--from {file} --hardware dgx-h100"
        assert document("project", words)["mtp_layers"] == count
        assert document("project", f"{words} --mtp none")["mtp_layers"] == 0


def test_a_sweep_and_its_file_keep_how_the_model_was_read(tmp_path: Path) -> None:
    words = NONE.replace("--recompute full", "--recompute full --micro-batch 1 --zero 1 --tp 1")
    for mtp, count in (("none", 0), ("stated", 1)):
        file = tmp_path / f"{mtp}.nc"
        swept = run("sweep", words, "--mtp", mtp, "--vpp", "1", "--cp", "1", "-o", str(file))
        assert swept.exit_code in (0, 3), swept.stderr
        assert swept.stderr.count(NOTE) == 1 - count
        assert open_table(str(file)).attrs["mtp_layers"] == count
        written = run("launch", f"{file} --all --for megatron")
        assert written.exit_code == 0, written.stderr
        assert ("--mtp-num-layers" in written.stdout) == bool(count)


def test_two_sides_may_differ_in_the_modules() -> None:
    found = json.loads(run("diff", f"mtp=none mtp=stated {NONE} --json").stdout)
    assert found["changed"] == {"mtp_layers": {"a": 0, "b": 1}}


def test_words_read_the_model_again() -> None:
    assert reading_words({"mtp": "none", "family": ""}) == ""
    assert reading_words({"mtp": "stated", "family": "llama"}) == "--mtp stated --as llama"


def test_a_file_is_read_as_the_family_that_is_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "newcomer", "intermediate_size": 128, "vocab_size": 100, **sizes}
    file = tmp_path / "new.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    words = f"--model {file} --hardware dgx-h100 --devices 1 --seq-len 128 --global-batch 1"
    guessed = run("project", words)
    assert "note: model_type 'newcomer' is unknown: read as llama" in guessed.stderr
    named = document("project", f"{words} --as gpt_neox")
    assert named["remarks"][0] == "read as gpt_neox (model_type 'newcomer')"
    wrong = run("project", f"{words} --as lama")
    assert (wrong.exit_code, "did you mean llama" in wrong.stderr) == (2, True)


def test_several_models_are_told_apart() -> None:
    models = [load_model("deepseek-v3", mtp="stated"), load_model("llama-3.1-8b")]
    assert reading_document(models) == {
        "mtp_layers": {"deepseek-v3": 1, "llama-3.1-8b": 0},
        "remarks": {"deepseek-v3": [], "llama-3.1-8b": []},
    }
