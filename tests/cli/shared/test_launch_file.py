"""``--from``: what a file leaves to the number of devices that the command line says."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.launch.served import parse_served
from perfmodel.store.files import save_results
from perfmodel.sweeps.serving import serve_table
from tests.cli.running import document, run
from tests.data import launch_sample

ON = ("--hardware", "dgx-h100")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("maxtext.sh", ("--devices", "16"), {"data_parallel": 16, "global_batch_size": 32}),
        ("torchtitan.toml", (), {"data_parallel": 8, "global_batch_size": 64}),
        ("torchtitan.toml", ("--devices", "128"), {"data_parallel": 16, "global_batch_size": 128}),
        ("nanotron.yaml", ("--global-batch", "256"), {"global_batch_size": 256, "zero_stage": 1}),
    ],
)
def test_degrees_and_batches_follow_the_devices(
    name: str, arguments: tuple[str, ...], expected: dict[str, int]
) -> None:
    found = document("project", *arguments, "--from", str(launch_sample(name)), *ON)
    assert {key: found[key] for key in expected} == expected


def test_software_that_is_typed_says_what_of_the_file_it_replaces() -> None:
    sample = str(launch_sample("torchtitan.toml"))
    own = run("project", "--from", sample, *ON)
    assert "replaces what the file says" not in own.stderr
    typed = run("project", "--from", sample, *ON, "--framework", "megatron")
    assert typed.exit_code == 0, typed.stderr
    assert "--framework megatron replaces what the file says: " in typed.stderr
    assert " → " in typed.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of four deployments under two loads."""
    path = tmp_path_factory.mktemp("served") / "serve.nc"
    deployments = {"tensor_parallel": [1, 2], "max_sequences": [0, 32], "kv_precision": ["fp8"]}
    loads = {"input_length": 1024, "output_length": 256, "concurrency": [4, 16]}
    save_results(serve_table("llama-3.1-8b", deployments, loads, "dgx-h100"), path)
    return path


def test_the_command_is_that_of_the_chosen_row(served: Path) -> None:
    result = run("launch", served, "--where", "tp == 2 and max_sequences == 32", "--for", "vllm")
    assert result.exit_code == 0, result.stderr
    assert "vllm serve meta-llama/" in result.stdout
    assert "by tokens_per_second_per_device where tp == 2" in result.stdout
    found = parse_served(result.stdout, "run.sh")
    assert found["tensor_parallel"] == 2
    assert found["max_sequences"] == 32
    assert found["kv_precision"] == "fp8"
    assert found["context_length"] == 1280


def test_another_engine_is_said_to_run_it_otherwise(served: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.sh"
    result = run("launch", served, "--for", "tensorrt-llm", "-o", target)
    assert result.exit_code == 0, result.stderr
    assert "schedules and computes otherwise" in result.stderr
    assert parse_served(target.read_text(), "run.sh").engine == "trtllm"


def test_json_has_the_settings_of_every_pool(served: Path) -> None:
    found = document("launch", served, "--for", "sglang", "--pick", "2")
    assert [pool["workers"] for pool in found["pools"]] == [1]
    assert found["pools"][0]["settings"]["kv-cache-dtype"] == "fp8_e4m3"
    assert found["text"].splitlines()[0].startswith("# meta-llama/")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "megatron"], "holds served models; --for vllm, sglang, tensorrt-llm"),
        (["--for", "vllm", "--pick", "99"], "operating points fit in memory, not 99"),
    ],
)
def test_what_cannot_be_is_one_line(served: Path, arguments: list[str], message: str) -> None:
    result = run("launch", served, *arguments)
    assert result.exit_code in (2, 3)
    assert message in result.stderr


def test_a_server_needs_results() -> None:
    result = run("launch", "--for", "vllm", "--model", "llama-3.1-8b")
    assert result.exit_code == 2
    assert "needs a FILE that 'perfmodel serve -o' wrote" in result.stderr


def test_a_command_is_served_as_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4 "
        "--max-running-requests 16 --kv-cache-dtype fp8_e4m3 --quantization fp8\n"
    )
    words = ("serve", "--from", script, "--hardware", "dgx-h200", "--isl", "1024", "--concurrency")
    found = document(*words, "8")
    text = str(found)
    assert "qwen3-32b" in text
    assert "sglang" in text
    result = run(*words, "8", "--tp", "2")
    assert result.exit_code == 0, result.stderr
    assert "tp 2" in result.stdout
    assert "max-sequences 16" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torchrun train.py", "no command that starts a server"),
        ("vllm serve a/b --tp x", "--tensor-parallel-size 'x': should be a whole number"),
        (
            "python3 -m sglang.launch_server --model a/b --disaggregation-mode decode",
            "a decode worker of two pools",
        ),
    ],
)
def test_what_is_no_command_of_one_pool_is_refused(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(text)
    result = run("serve", "--from", script, "--hardware", "dgx-h200", "--concurrency", "8")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --micro-batch-size 3 --global-batch-size 64
  --seq-length 4096 --tensor-model-parallel-size 2 --use-distributed-optimizer
"""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--devices 32 --micro-batch 1", {"data_parallel": 16, "micro_batch_size": 1}),
        ("--micro-batch 2 --tp 8 --devices 64", {"data_parallel": 8, "tensor_parallel": 8}),
        ("--global-batch 24", {"data_parallel": 4, "global_batch_size": 24}),
        ("--micro-batch 4 --zero 0 --sp true", {"zero_stage": 0, "sequence_parallel": True}),
    ],
)
def test_typed_options_win_before_anything_is_checked(
    typed: str, expected: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.replace("\n  ", " "), encoding="utf-8")
    words = ("--from", file, "--model", "llama-3.2-1b", *ON, *typed.split())
    found = document("project", *words)
    assert {key: found[key] for key in expected} == expected


def test_without_them_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.replace("\n  ", " "), encoding="utf-8")
    result = run("project", "--from", file, "--model", "llama-3.1-8b", *ON)
    assert result.exit_code == 2
    assert "the batch should be a multiple of 12" in result.stderr
