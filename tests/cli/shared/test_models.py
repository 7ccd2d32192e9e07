"""Options that say how a model is read, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel import AdapterSpec, project
from perfmodel.cli.shared.models import reading_document, reading_words
from perfmodel.model.presets import load_model
from perfmodel.store.results import open_table
from tests.cli.projecting import PROBLEMS, document, run
from tests.data import table_of

PROBLEM = "--model llama-3.1-8b --hardware dgx-h100 --devices 8 --global-batch 32 --seq-len 4096"


def test_options_say_what_python_says() -> None:
    model = load_model("llama-3.1-8b", adapters=AdapterSpec(8, ("q_proj", "v_proj"), "nf4"))
    expected = project(
        model, "dgx-h100", 8, sequence_length=4096, global_batch_size=32, document_length=512
    )
    found = document(
        "project",
        f"{PROBLEM} --lora-rank 8 --lora-targets q_proj,v_proj --lora-frozen nf4 "
        "--document-length 512",
    )
    for name in ("step_time", "memory_total", "model_flops_utilization"):
        assert found[name] == expected[name]
    assert found["model"].startswith("llama-3.1-8b[lora_rank=8")


def test_explain_lists_adapters_and_no_gradients_of_frozen_weights() -> None:
    found = document("explain", f"{PROBLEM} --lora-rank 16 --lora-targets linear_qkv")
    names = {it["name"] for it in found["operations"] if it["phase"] == "backward_weight"}
    assert names == {"attention.qkv.lora_down", "attention.qkv.lora_up"}


def test_sweeps_name_the_adapters_in_what_to_try_next() -> None:
    result = run("sweep", f"{PROBLEM} --tp 1,2 --pp 1 --vpp 1 --lora-rank 16 --lora-frozen nf4")
    assert result.exit_code == 0, result.stderr
    assert "--lora-rank 16 --lora-frozen nf4" in result.stderr


def test_a_recipe_of_megatron_bridge_states_its_adapters(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model:\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 1\n"
        "  seq_length: 4096\ntrain:\n  global_batch_size: 32\n  micro_batch_size: 1\n"
        "peft:\n  dim: 16\n  alpha: 32\n  target_modules: [linear_qkv]\n"
    )
    text = f"--from {path} --model llama-3.1-8b --hardware dgx-h100 --devices 8"
    assert document("project", text)["model"].endswith("[lora_rank=16,lora_targets=linear_qkv]")
    written = run("launch", f"{text} --for megatron")
    assert written.exit_code == 2
    assert "adapters (peft) are for 'perfmodel project'" in written.stderr
    path.write_text(path.read_text().replace("[linear_qkv]", "[qkv]"))
    refused = run("project", text)
    assert refused.exit_code == 2
    assert "peft.target_modules" in refused.stderr
    assert "not 'qkv'" in refused.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    table_of(__file__, "bad_input_is_one_line_and_exit_code_2"),
)
def test_bad_input_is_one_line_and_exit_code_2(more: str, message: str) -> None:
    result = run("project", f"{PROBLEM} {more}")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_model_show_counts_the_adapters() -> None:
    result = run("model", "show llama-3.1-8b --lora-rank 16 --json")
    assert json.loads(result.stdout)["adapters"] == {"parameters": 35651584, "rank": 16}


def test_offload_shows_in_time_and_in_the_hosts_memory() -> None:
    result = run("project", f"{PROBLEM} --offload-optimizer 1 --zero 2")
    assert result.exit_code == 0, result.stderr
    assert "copies to where state waits" in result.stdout
    assert "per device wait in the host's memory" in result.stdout
    full = run(
        "project", f"{PROBLEM} --offload-optimizer 1 --set system.host.memory_capacity=1e9 --zero 2"
    )
    assert full.exit_code == 3
    assert "of the host's memory capacity needed per device, 0.9 GiB there" in full.stderr
    refused = run("project", f"{PROBLEM} --offload-parameters 0.5".replace("dgx-h100", "l4-server"))
    assert refused.exit_code == 2
    assert "offload_parameters: offload without a host: l4-server" in refused.stderr


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
