"""Launch commands of servers: set-ups checked by hand, round trips, refusals, bad input."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import pytest
import yaml

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.served import (
    SERVERS,
    Workers,
    find_server,
    format_served,
    parse_served,
    read_served,
    recognise_engine,
    workers_of,
)


def words(text: str) -> list[str]:
    """Words of a command, line ends and comments apart."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def workers(engine: str, part: str = "", count: int = 1, **fields: Any) -> Workers:
    return Workers(engine, "org/model", fields, part, count)


def test_llama_on_four_devices_of_vllm() -> None:
    text = format_served(
        [workers("vllm", tensor_parallel=4, max_sequences=256, kv_precision="fp8")],
        ["four devices"],
    )
    assert text.startswith("# four devices\nvllm serve org/model \\\n")
    assert words(text)[3:] == (
        ["--tensor-parallel-size", "4", "--max-num-seqs", "256", "--kv-cache-dtype", "fp8"]
    )


def test_deepseek_with_attention_data_parallelism_on_sglang() -> None:
    """Eight devices: SGLang counts them as tensor parallelism, and limits over all ranks."""
    found = words(
        format_served(
            [
                workers(
                    "sglang",
                    tensor_parallel=1,
                    attention_data_parallel=8,
                    expert_parallel=8,
                    max_sequences=128,
                    draft_length=3,
                )
            ]
        )
    )
    expected = (
        "--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8 --max-running-requests 1024 "
        "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4"
    )
    assert found[5:] == expected.split()


def test_tensorrt_llm_has_its_attention_ranks_in_the_file() -> None:
    text = format_served(
        [workers("trtllm", attention_data_parallel=8, expert_parallel=8, kv_precision="fp8")]
    )
    document = yaml.safe_load(text.split("<<'EOF'\n")[1].split("EOF")[0])
    assert document == {"kv_cache_config": {"dtype": "fp8"}, "enable_attention_dp": True}
    assert "--tp_size 8" in text
    assert "--ep_size 8" in text


@pytest.mark.parametrize("engine", SERVERS)
def test_pools_are_commands_of_their_own(engine: str) -> None:
    text = format_served(
        [
            workers(engine, "prefill", 3, tensor_parallel=4),
            workers(engine, "decode", 1, attention_data_parallel=8, expert_parallel=8),
        ]
    )
    assert "# prefill worker, 3 of them\n" in text
    first, second = text.split("# decode worker\n")
    assert parse_served(first, "a.sh").part == "prefill"
    assert parse_served(second, "b.sh").part == "decode"


def grid(engine: str) -> list[Workers]:
    axes: dict[str, tuple[Any, ...]] = {
        "tensor_parallel": (1, 4),
        "pipeline_parallel": (1, 2),
        "attention_data_parallel": (1, 8),
        "expert_parallel": (1, 8, 32),
        "token_budget": (None, 4096),
        "max_sequences": (None, 256),
        "kv_precision": (None, "fp8"),
        "memory_share": (None, 0.85),
        "draft_length": (None, 2),
        "prefix_caching": (None, False),
    }
    rows = itertools.product(*axes.values())
    return [workers(engine, **dict(zip(axes, row, strict=True))) for row in rows]


@pytest.mark.parametrize("engine", SERVERS)
def test_what_is_written_is_read(engine: str) -> None:
    done = 0
    for given in grid(engine)[::7]:
        if find_server(engine).table.broken(given):
            with pytest.raises(StrategyError, match=" cannot do "):
                format_served([given])
            continue
        text = format_served([given])
        found = parse_served(text, "run.sh")
        assert (found.engine, found.model, found.remarks) == (engine, "org/model", ())
        assert {name: found[name] for name in given.fields} == {
            name: given[name] for name in given.fields
        }
        done += 1
    assert done > 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "python -m vllm.entrypoints.openai.api_server --model a/b -tp 2 --data-parallel-size=4 "
            '--enable-expert-parallel --speculative-config \'{"method": "deepseek_mtp", '
            '"num_speculative_tokens": 1}\'',
            {
                "tensor_parallel": 2,
                "attention_data_parallel": 4,
                "expert_parallel": 8,
                "speculative_method": "mtp",
                "draft_length": 1,
            },
        ),
        (
            "python3 -m sglang.launch_server --model-path a/b --tp 8 --dp 8 --enable-dp-attention "
            "--max-running-requests 512 --mem-fraction-static 0.82 --disable-radix-cache",
            {
                "tensor_parallel": 1,
                "attention_data_parallel": 8,
                "max_sequences": 64,
                "memory_share": 0.82,
                "prefix_caching": False,
            },
        ),
        (
            "trtllm-serve a/b --tp_size 8 --ep_size 8 --max_batch_size 512 --max_num_tokens 2048",
            {
                "tensor_parallel": 8,
                "attention_data_parallel": 1,
                "expert_parallel": 8,
                "max_sequences": 512,
                "token_budget": 2048,
            },
        ),
    ],
)
def test_commands_as_people_write_them(text: str, expected: dict[str, Any]) -> None:
    found = parse_served(text, "run.sh")
    assert found.model == "a/b"
    assert dict(found.fields) == expected


def test_engines_are_told_by_their_programs() -> None:
    assert recognise_engine("exec vllm serve x") == "vllm"
    assert recognise_engine("mpirun trtllm-serve x") == "trtllm"
    assert recognise_engine("torchrun train.py") == ""


def test_what_nothing_follows_is_remarked() -> None:
    found = parse_served("vllm serve a/b --cpu-offload-gb 10", "run.sh")
    assert found.remarks == ("--cpu-offload-gb: offloading is not modelled",)
    copies = parse_served("python3 -m sglang.launch_server --model a/b --dp 4", "run.sh")
    assert copies["workers"] == 4
    assert "4 workers" in copies.remarks[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torchrun train.py", "run.sh: no command that starts a server; one of 'vllm serve'"),
        ("vllm serve a\n--tp x", "run.sh:2: --tensor-parallel-size 'x': should be a whole number"),
        ("vllm serve a --gpu-memory-utilization 1.5", "a share of memory, above 0 and at most 1"),
        ("vllm serve a --kv-cache-dtype fp7", "--kv-cache-dtype 'fp7': should be one of fp8"),
        ("vllm serve a --speculative-config {", "should be a JSON object"),
        (
            "python3 -m sglang.launch_server --tp 6 --dp 4 --enable-dp-attention",
            "a multiple of the 4 data-parallel ranks",
        ),
    ],
)
def test_wrong_input_is_one_line(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_served(text, "run.sh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [
        ("vllm", {"tensor_parallel": 8, "expert_parallel": 2}, "vLLM cannot do expert_parallel 2"),
        ("sglang", {"tensor_parallel": 4, "expert_parallel": 8}, "SGLang cannot do"),
        (
            "trtllm",
            {"tensor_parallel": 2, "attention_data_parallel": 4},
            "TensorRT-LLM cannot do attention_data_parallel 4, tensor_parallel 2",
        ),
    ],
)
def test_what_an_engine_cannot_run_is_refused(
    engine: str, fields: dict[str, int], message: str
) -> None:
    with pytest.raises(StrategyError) as caught:
        format_served([workers(engine, **fields)])
    assert message in str(caught.value)


def test_an_unknown_engine_names_those_there_are() -> None:
    with pytest.raises(StrategyError, match="did you mean vllm"):
        format_served([workers("vlm")])


def test_rows_of_results_are_pools() -> None:
    row = {
        "engine": "trtllm",
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "expert_parallel": 8,
        "attention_data_parallel": 8,
        "workers": 2,
        "kv_precision": "fp8",
        "weight_precision": "stated",
        "draft_length": 3,
        "input_length": 1024,
        "output_length": 512,
        "prefill_workers": 3,
        "prefill_tensor_parallel": 4,
        "prefill_pipeline_parallel": 0,
        "prefill_expert_parallel": 4,
        "prefill_attention_data_parallel": 1,
    }
    prompts, answers = workers_of(row, "a/b")
    assert (prompts.part, prompts.count, prompts["tensor_parallel"]) == ("prefill", 3, 4)
    assert prompts["attention_data_parallel"] == 1
    assert prompts["draft_length"] is None
    assert (answers.count, answers["draft_length"], answers["context_length"]) == (2, 3, 1536)
    assert "weight_precision" not in answers.fields
    alone = workers_of({**row, "prefill_workers": 0}, "a/b")
    assert [(it.part, it.count) for it in alone] == [("", 2)]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve a/b --kv-cache-dtype nvfp4",
        "python3 -m sglang.launch_server --model-path a/b --kv-cache-dtype nvfp4",
        "cat > x.yaml <<'EOF'\nkv_cache_config:\n  dtype: nvfp4\nEOF\n"
        "trtllm-serve a/b --extra_llm_api_options x.yaml",
    ],
)
def test_caches_in_four_bits_are_read_and_written(text: str) -> None:
    found = parse_served(text, "run.sh")
    assert (found["kv_precision"], found.remarks) == ("nvfp4", ())
    assert parse_served(format_served([found]), "run.sh")["kv_precision"] == "nvfp4"


def test_files_are_read(tmp_path: Any) -> None:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\nTP=8\nvllm serve a/b --tensor-parallel-size $TP\n")
    assert read_served(path)["tensor_parallel"] == 8


def test_what_sets_the_cache_is_read() -> None:
    text = (
        "vllm serve org/model --max-model-len 128k --kv-cache-memory-bytes 20G "
        "--num-gpu-blocks-override 5000 --enforce-eager --host 0.0.0.0 --some-new-option 3"
    )
    found = parse_served(text, "a.sh")
    fields = {name: found[name] for name in ("context_length", "cache_bytes", "cache_blocks")}
    assert fields == {
        "context_length": 128_000,
        "cache_bytes": 20 * 2**30,
        "cache_blocks": 5000,
    }
    assert found["tensor_parallel"] == 1
    assert found["software"] == {"graph_limit": 0, "mixed_graph_limit": 0}
    assert found.remarks == ("not modelled, and left out: --some-new-option",)
    auto = parse_served("vllm serve org/model --max-model-len auto", "a.sh")
    assert auto["context_length"] is None
    with pytest.raises(FormatError, match="a positive count"):
        parse_served("vllm serve org/model --max-model-len many", "a.sh")


def test_tokens_of_a_cache_are_blocks() -> None:
    text = (
        "python3 -m sglang.launch_server --model-path a/b --max-total-tokens 65536 --page-size 64"
    )
    assert parse_served(text, "a.sh")["cache_blocks"] == 1024


def test_kernels_of_experts_are_facts_of_the_engine() -> None:
    text = "python3 -m sglang.launch_server --model-path a/b --moe-runner-backend "
    found = parse_served(text + "triton --cuda-graph-max-bs 64", "a.sh")
    assert found["software"] == {
        "graph_limit": 64,
        "expert_kernel": "triton",
        "expert_kernel_blackwell": "triton",
    }
    assert "not modelled" in parse_served(text + "deep_gemm", "a.sh").remarks[0]
