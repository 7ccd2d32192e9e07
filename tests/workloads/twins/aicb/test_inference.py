"""AICB's inference workloads for SimAI and for Vidur: its files byte for byte, sizes and times."""

from __future__ import annotations

import csv
import hashlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_text import parse_aicb_text
from perfmodel.workloads.formats.aiob import AiobFile, AiobTime
from perfmodel.workloads.twins.aicb import inference
from perfmodel.workloads.twins.aicb.arguments import AicbArguments, parse_arguments
from perfmodel.workloads.twins.aicb.inference import (
    inference_text,
    inference_workload,
    vidur_csv,
    vidur_parts,
)
from perfmodel.workloads.twins.aicb.inference_model import inference_times

SIMAI = "python -m workload_generator.SimAI_inference_workload_generator"
VIDUR = "python -m workload_generator.Vidur_workload_generator"
DEEPSEEK = "DeepSeek-671B scripts/inference_configs/deepseek_default.json"
QWEN3 = "Qwen3-Moe-235B scripts/inference_configs/qwen3_moe_default.json"

DECODE_8 = (
    "--phase decode --seq_length 1024 --micro_batch 32 --world_size 8 "
    "--tensor_model_parallel_size 1 --expert_model_parallel_size 8 --pipeline_model_parallel 1 "
    "--moe_enable --result_dir results/workload/"
)

PREFILL_32 = (
    "--phase prefill --seq_length 4096 --micro_batch 1 --world_size 32 "
    "--tensor_model_parallel_size 8 --expert_model_parallel_size 32 --pipeline_model_parallel 1 "
    "--moe_enable --result_dir results/workload/"
)

PREFILL_QWEN3 = (
    "--phase prefill --seq_length 1024 --micro_batch 4 --world_size 32 "
    "--tensor_model_parallel_size 1 --expert_model_parallel_size 32 --pipeline_model_parallel 1 "
    "--moe_enable --result_dir results/workload/"
)

# Command, SHA-256 and number of lines of the file that AICB 23eec3c4 wrote, and its name.
FILES = {
    "i01_deepseek_decode": (
        f"{SIMAI} {DEEPSEEK} {DECODE_8}",
        "00ab58e805a678feee8aa7ee62212bf5635c235a2f30ef9f96fddc693f283f9c",
        240,
        "DeepSeek-671B-world_size8-tp1-pp1-ep8-bs32-seq1024-decode.txt",
    ),
    "i02_deepseek_prefill_tp8_ep32": (
        f"{SIMAI} {DEEPSEEK} {PREFILL_32}",
        "e501fe0486fbe0400f73ac22f68f5a0a773f68a929a1f49d7987a7ff59f649ff",
        240,
        "DeepSeek-671B-world_size32-tp8-pp1-ep32-bs1-seq4096-prefill.txt",
    ),
    "i03_qwen3moe_prefill": (
        f"{SIMAI} {QWEN3} {PREFILL_QWEN3}",
        "8e9da2b6f7694410260326f1b77196faa78095056477947d47daa19651fe70e1",
        472,
        "Qwen3-Moe-235B-world_size32-tp1-pp1-ep32-bs4-seq1024-prefill.txt",
    ),
    "i06_vidur_deepseek_decode": (
        f"{VIDUR} {DEEPSEEK} {DECODE_8}",
        "3a66ca8baf72dbd24f4b01d3ee1a09d335165d508d04396b5a36d2704fb382f6",
        123,
        "vidur-DeepSeek-671B-world_size8-tp1-pp1-ep8-bs32-seq1024-decode.csv",
    ),
    "i07_vidur_qwen3moe_prefill": (
        f"{VIDUR} {QWEN3} {PREFILL_QWEN3}",
        "aa64823606e5e7507db67e0d257a37b82646bb9e61419436672c4178f2c15d71",
        189,
        "vidur-Qwen3-Moe-235B-world_size32-tp1-pp1-ep32-bs4-seq1024-prefill.csv",
    ),
}

# Times of a decode step [µs], with AIOB's section names of all three families.
AVERAGES = {
    "atten_norm": 4,
    "gdn_in_proj": 5,
    "gdn_core": 2.5,
    "atten_qkv": 30,
    "atten_flash": 12.0004,
    "shared_mlp_1": 8,
    "moe_norm_2": 3,
    "moe_route": 6,
    "moe_gemm": 70,
    "logit": 1000,
}

TIMES = AiobFile(
    {name: AiobTime(time, time, time) for name, time in AVERAGES.items()}, inference_term="decode"
)


def command(model="DeepSeek-671B", **changes):
    values = {"module": "SimAI_inference_workload_generator", "model_name": model, "seq_length": 1}
    return AicbArguments(**{**values, "moe_enable": True, **changes})


def write_files(arguments):
    """Text and name of the file that a command asks for."""
    if arguments.generator == "vidur":
        return vidur_csv(arguments), inference.vidur_file_name(arguments)
    return inference_text(arguments), inference.inference_file_name(arguments)


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_aicb_byte_for_byte(name):
    words, digest, lines, original_name = FILES[name]
    text, file_name = write_files(parse_arguments(shlex.split(words)))
    assert text.count("\n") == lines
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert file_name == original_name


def test_files_by_their_own_commands(development_table):
    with development_table("aicb/manifest.csv").open(encoding="utf-8", newline="") as table:
        rows = [row for row in csv.DictReader(table) if row["id"].startswith("i0")]
    assert len(rows) == 5
    for row in rows:
        text, _ = write_files(parse_arguments(shlex.split(row["command"])))
        assert text.encode() == development_table(f"aicb/{row['file']}").read_bytes(), row["file"]


def test_a_layer_with_experts_by_hand():
    # Prefill of 2 tokens on 8 tensor-parallel ranks: 2 · 2 · 7168 bytes of activations, 8
    # experts per token, in FP8 with scales 33/64 of the bytes.
    arguments = command(
        phase="prefill", seq_length=2, micro_batch=3, world_size=8, tensor_model_parallel_size=8
    )
    lines = inference_text(arguments).split("\n")
    assert lines[0] == (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 all_gpus: 8 "
        "mode: 1 vpp: 1 ga: 1 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    assert lines[1] == "238"  # 3 · 2 and 58 · 4
    assert lines[2:4] == [
        "attention_layer\t-1\t1\tALLREDUCE\t28672\t0\tNONE\t0\t0\tNONE\t0\t100",
        "dense_mlp\t-1\t1\tALLREDUCE\t28672\t0\tNONE\t0\t0\tNONE\t0\t100",
    ]
    assert lines[8:12] == [
        "attention_layer\t-1\t1\tALLREDUCE\t28672\t0\tNONE\t0\t0\tNONE\t0\t100",
        "shared_experts\t-1\t1\tNONE\t0\t0\tNONE\t0\t0\tNONE\t0\t100",
        "moe_route\t-1\t1\tALLTOALL_EP\t14784\t1\tNONE\t0\t1\tNONE\t0\t100",
        "moe_expert\t-1\t1\tALLTOALL_EP\t28672\t1\tNONE\t0\t1\tNONE\t0\t100",
    ]


def test_only_decoding_counts_the_batch():
    decode = [inference_text(command(micro_batch=batch)) for batch in (1, 2)]
    prefill = [inference_text(command(micro_batch=batch, phase="prefill")) for batch in (1, 2)]
    assert decode[0] != decode[1]
    assert prefill[0] == prefill[1]


def test_a_pipeline_is_in_the_header_only():
    piped = command(pipeline_model_parallel=2, world_size=2, micro_batch=3, seq_length=5)
    assert inference_workload(piped).header.pipeline_message == 2 * 3 * 5 * 7168
    assert inference_workload(piped).rows == 238


def test_times_come_from_the_sections_of_their_names():
    assert inference_times(TIMES, "decode") == {
        "attention_norm": 4_000,
        "attention_gdn": 7_500,
        "attention_layer": 42_000,
        "mlp": 8_000,
        "moe_norm": 3_000,
        "moe_route": 6_000,
        "moe_expert": 70_000,
    }
    assert inference_times(None, "decode") == {}


def test_a_time_of_nothing_is_unknown():
    nothing = AiobFile({"moe_gemm": AiobTime(0, 0, 0.0004)}, inference_term="decode")
    assert inference_times(nothing, "decode") == {}


def test_rows_have_their_times():
    names = {}
    for model in ("DeepSeek-671B", "Qwen3-Next-80B"):
        workload = inference_workload(command(model), TIMES)
        times = zip(workload.name.tolist(), workload.forward.compute_time.tolist(), strict=True)
        names[model] = dict(times)
    assert names["DeepSeek-671B"] == {
        "attention_layer": 42_000,
        "dense_mlp": 8_000,
        "shared_experts": 8_000,
        "moe_route": 1,  # AICB's own time, whatever is measured
        "moe_expert": 70_000,
    }
    assert names["Qwen3-Next-80B"] == {
        "attention_norm": 4_000,
        "attention_gdn": 7_500,
        "attention_layer": 42_000,
        "moe_norm": 3_000,
        "moe_route": 6_000,
        "moe_expert": 70_000,
    }


@given(
    st.sampled_from(["DeepSeek-671B", "Qwen3-Moe-235B", "Qwen3-Next-80B"]),
    st.sampled_from(["decode", "prefill"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 9000),
    st.booleans(),
)
def test_both_files_say_the_same(model, phase, split, tokens, timed):
    arguments = command(
        model, phase=phase, seq_length=tokens, micro_batch=tokens, world_size=split,
        tensor_model_parallel_size=split,
    )  # fmt: skip
    times = TIMES if timed and phase == "decode" else None
    workload = inference_workload(arguments, times)
    parts = vidur_parts(arguments, times)
    assert sum(part.message_size for part in parts) == int(workload.forward.size.sum())
    # DeepSeek's router has a row and no piece.
    routers = int((workload.name == "moe_route").sum()) if "DeepSeek" in model else 0
    time = int(workload.forward.compute_time.sum())
    assert sum(part.compute_time for part in parts) == time - routers
    assert parse_aicb_text(inference_text(arguments, times)).rows == workload.rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (command("Llama-7B"), "unknown inference model 'Llama-7B'; known: DeepSeek-671B"),
        (command("Qwen3-Moe-235B", config_file="deepseek_default.json"), "is a model of DeepSeek"),
        (command(micro_batch=2**62), "messages of more than 9223372036854775807 bytes"),
        (
            command(pipeline_model_parallel=2, seq_length=2**40, micro_batch=2**20),
            "messages of more than",
        ),
    ],
)
def test_commands_that_no_file_holds_are_refused(arguments, message):
    for write in (inference_text, vidur_csv):
        with pytest.raises(StrategyError, match=message) as raised:
            write(arguments)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (AiobFile({}, inference_term="prefill"), "is of prefill; one of decode is needed"),
        (AiobFile({}, train_iter=10), "is of training; one of decode is needed"),
        (
            AiobFile({"moe": AiobTime(1, 1, 1e300)}, inference_term="decode"),
            "times of more than 9223372036854775807 ns",
        ),
    ],
)
def test_computation_files_of_something_else_are_refused(file, message):
    for write in (inference_text, vidur_csv):
        with pytest.raises(StrategyError, match=message):
            write(command(), file)
