"""AICB's training files: the study's five executions, the quirks, and AICB's own files."""

from __future__ import annotations

import csv
import hashlib
import shlex
from pathlib import Path

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_text import format_aicb_text, parse_aicb_text
from perfmodel.workloads.formats.aiob import parse_aiob, read_aiob
from perfmodel.workloads.twins.aicb import parameters, training
from perfmodel.workloads.twins.aicb.arguments import AicbArguments, generate, parse_arguments
from perfmodel.workloads.twins.aicb.training import (
    file_name,
    training_text,
    training_times,
    training_workload,
)
from tests.workloads.twins.aicb.examples import AIOB, COMPUTATION


def arguments_of(options="", **changes):
    """Arguments of the study's fourth execution, with options added and fields changed."""
    values = {
        "world_size": 512, "tensor_model_parallel_size": 2, "global_batch": 1024,
        "num_layers": 36, "seq_length": 1024, "hidden_size": 4096, "num_attention_heads": 32,
        "vocab_size": 50257,
    } | changes  # fmt: skip
    words = [f"--{name}={value}" for name, value in values.items()]
    flags = "--aiob_enable --swiglu --gpu_type=None --model_name=gpt_7B"
    return parse_arguments([*words, *shlex.split(flags), *shlex.split(options)])


def text_of(options="", **changes):
    return training_text(arguments_of(options, **changes), COMPUTATION)


def cells(text, name, which=0):
    """Return the cells of the row of a name, without name, placeholder and process time."""
    found = [line.split("\t") for line in text.splitlines() if line.startswith(f"{name}\t")]
    return " ".join(found[which][2:-1])


# ga, rows, bytes of grad_gather, of an activation; SHA-256 of AICB's file (first 16 digits).
# Study: the five executions of the public AICB study; files made with AICB 23eec3c4.
EXECUTIONS = {
    1: ({"global_batch": 2048}, 8, 598, 6459228160, 8388608, "f5cd20bba653916d"),
    2: ({"global_batch": 2048, "seq_length": 2048}, 8, 598, 6467616768, 16777216,
        "53280ae2f34a544d"),
    3: ({"global_batch": 2048, "hidden_size": 2048, "num_attention_heads": 16}, 8, 598,
        1823473664, 4194304, "4ee572cd12f8844b"),
    4: ({}, 4, 306, 6459228160, 8388608, "c1d9d904494e2788"),
    5: ({"global_batch": 2048, "num_layers": 48, "seq_length": 4096, "hidden_size": 6144,
         "num_attention_heads": 48}, 8, 790, 18201182208, 50331648, "9d5c88355c66f0dd"),
}  # fmt: skip


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_studys_executions(execution):
    changes, micro_batches, count, gather, activation, digest = EXECUTIONS[execution]
    text = text_of(**changes)
    layers = changes.get("num_layers", 36)
    assert text.splitlines()[:2] == [
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 "
        f"vpp: {layers} ga: {micro_batches} all_gpus: 512 checkpoints: 0 "
        "checkpoint_initiates: 0 pp_comm: 0",
        str(count),
    ]
    assert cells(text, "grad_gather") == f"1 NONE 0 1 NONE 0 1 ALLGATHER {gather}"
    assert cells(text, "grad_param_comm") == f"1 NONE 0 1 NONE 0 1 REDUCESCATTER {2 * gather}"
    assert cells(text, "grad_param_compute") == "1 NONE 0 34021000 NONE 0 1 NONE 0"
    assert cells(text, "layernorm") == f"1 NONE 0 1 ALLREDUCE {gather} 1 NONE 0"
    for name, time in (("attention_layer", 1820000), ("mlp_layer", 2478000)):
        expected = f"{time} ALLREDUCE {activation} {time} NONE 0 {time} NONE 0"
        assert cells(text, name) == cells(text, name, which=-1) == expected
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


MIXTRAL = (
    "--enable_sequence_parallel --moe_enable --moe_grouped_gemm --ffn_hidden_size=14336 "
    "--num_experts=8 --moe_router_topk=2 "
)

MIXTRAL_SIZES = {"world_size": 128, "global_batch": 256, "num_layers": 32, "seq_length": 4096,
                 "vocab_size": 32000}  # fmt: skip

SIZES_175B = {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96,
              "seq_length": 2048, "vocab_size": 51200, "tensor_model_parallel_size": 8,
              "world_size": 1024}  # fmt: skip

DEEPSEEK = (
    "--frame=DeepSeek --enable_sequence_parallel --ffn_hidden_size=2048 --n_shared_expert=1 "
    "--expert_model_parallel_size=16 --num_experts=256 --moe_enable --moe_router_topk=8"
)

DEEPSEEK_SIZES = {"tensor_model_parallel_size": 4, "global_batch": 512, "num_layers": 61,
                  "seq_length": 4096, "hidden_size": 7168, "num_attention_heads": 128,
                  "vocab_size": 129280}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes", "digest"),
    [
        ("", {"tensor_model_parallel_size": 1, "world_size": 64, "global_batch": 256},
         "7701e98197fdcb50"),
        ("", {"tensor_model_parallel_size": 4, "pipeline_model_parallel": 2, "world_size": 64,
              "global_batch": 256, "seq_length": 2048}, "02e96ee061147c1f"),
        ("--enable_sequence_parallel --recompute_activations",
         SIZES_175B | {"pipeline_model_parallel": 2, "global_batch": 256}, "37ce6c07c0109d72"),
        (MIXTRAL + "--expert_model_parallel_size=8", MIXTRAL_SIZES, "a1726952cdbd7016"),
        (MIXTRAL, MIXTRAL_SIZES | {"tensor_model_parallel_size": 4, "world_size": 64,
                                   "global_batch": 64}, "7cf5f7b27e526c2e"),
        (DEEPSEEK, DEEPSEEK_SIZES, "5bd1fb5a596365cf"),
    ],
    ids=["tp1", "pp2", "recompute", "experts", "experts-ep1", "deepseek"],
)  # fmt: skip
def test_files_of_other_strategies(options, changes, digest):
    # SHA-256 of the files that AICB 23eec3c4 writes for these arguments.
    text = text_of(options, **changes)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("options", "changes", "digest"),
    [
        ("", {}, "5f06a8f261acde85"),
        (MIXTRAL + "--expert_model_parallel_size=8", MIXTRAL_SIZES, "63f4a304108f4e9d"),
    ],
)
def test_files_without_computation_times(options, changes, digest):
    text = training_text(replace_aiob(arguments_of(options, **changes)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def replace_aiob(arguments):
    """Return arguments without ``--aiob_enable``."""
    fields = {name: getattr(arguments, name) for name in arguments.__slots__}
    return AicbArguments(**fields | {"aiob_enable": False})


def test_every_training_file_is_equal_to_the_byte(development_table):
    computation = read_aiob(development_table("aicb/aiob_inputs/Example.txt"))
    manifest = development_table("aicb/manifest.csv")
    with manifest.open(encoding="utf-8", newline="") as file:
        commands = list(csv.DictReader(file))
    compared = 0
    for row in commands:
        arguments = parse_arguments(shlex.split(row["command"]))
        if arguments.generator != "training" or row["rc"] != "0":
            continue
        text = generate(arguments, computation)
        assert text.encode() == (manifest.parent / row["file"]).read_bytes(), row["id"]
        assert Path(row["original_name"]).name == file_name(arguments)
        compared += 1
    assert compared >= 32


def test_what_is_written_is_read_back():
    text = text_of(MIXTRAL, **MIXTRAL_SIZES)
    workload = parse_aicb_text(text)
    assert format_aicb_text(workload) == text
    assert workload.header.layers_per_stage == 32
    assert not training_workload(arguments_of(), COMPUTATION).forward.size.flags.writeable


def test_the_embeddings_weight_gradient_takes_the_last_backward_time():
    text = text_of()
    stale = [cells(text, "embedding_layer", i).split()[6] for i in range(4)]
    assert stale == ["17374000", "2478000", "2478000", "2478000"]
    with_sequence_parallel = text_of("--enable_sequence_parallel")
    assert cells(with_sequence_parallel, "embedding_layer", 1).split()[6] == "910000"


def test_sequence_parallelism_halves_times_and_leaves_the_columns_gradient_empty():
    text = text_of("--enable_sequence_parallel")
    assert "layernorm\t" not in text
    half, size = "910000", 8388608
    assert cells(text, "attention_column") == (
        f"{half} ALLGATHER {size} {half} REDUCESCATTER 0 {half} NONE 0"
    )
    assert cells(text, "attention_row") == (
        f"{half} REDUCESCATTER {size} {half} ALLGATHER {size} {half} NONE 0"
    )
    # The LM head takes half of attention's time, not the measured logit_time.
    assert cells(text, "final_column").startswith(f"{half} ALLGATHER {size}")


def test_recomputation_counts_flash_attention_twice():
    text = text_of("--enable_sequence_parallel --recompute_activations")
    # 1820 + 512 µs, halved, and the forward pass doubled once more.
    assert cells(text, "attention_row").split()[0::3] == ["2332000", "1166000", "1166000"]
    assert cells(text, "mlp_row").split()[0::3] == ["1239000"] * 3
    plain = text_of("--recompute_activations")
    assert cells(plain, "attention_layer").split()[0::3] == ["2332000"] * 3


def test_rows_of_experts_gradients_depend_on_ep_not_on_experts():
    dense = text_of()
    assert cells(dense, "moe_grad_norm1") == "1 NONE 0 1 NONE 0 1 ALLGATHER_DP_EP 0"
    assert "moe_grad_norm" not in text_of(world_size=2, global_batch=4)
    sizes = MIXTRAL_SIZES | {"world_size": 16, "global_batch": 32}
    equal = text_of(MIXTRAL + "--expert_model_parallel_size=8", **sizes)  # ep 8 = dp 8
    assert "moe_grad_norm" not in equal
    assert "ALLTOALL_EP" in equal


def test_groups_of_one_device_communicate_nothing():
    text = text_of(MIXTRAL, **MIXTRAL_SIZES | {"tensor_model_parallel_size": 1})
    experts = [line.split("\t") for line in text.splitlines() if line.startswith("mlp_moelayer")]
    assert {row[3] for row in experts} == {row[6] for row in experts} == {"NONE"}
    assert {row[4] for row in experts} == {row[7] for row in experts} == {"0"}
    # Tensor-parallel or expert-parallel alone: the counts are exchanged in the tensor group.
    counts = text_of(
        MIXTRAL + "--expert_model_parallel_size=8",
        **MIXTRAL_SIZES | {"tensor_model_parallel_size": 1},
    )
    assert cells(counts, "mlp_moelayer").split()[1:3] == ["ALLGATHER", "128"]


def test_layers_of_a_stage_are_floored_and_called_vpp():
    text = text_of(pipeline_model_parallel=8, global_batch=128)
    assert "pp: 8 vpp: 4 ga: 4" in text
    assert text.count("attention_layer") == 4 * 4


def test_pipeline_messages_are_a_float_with_sequence_parallelism():
    assert text_of(pipeline_model_parallel=2).splitlines()[0].endswith("pp_comm: 8388608")
    text = text_of("--enable_sequence_parallel", pipeline_model_parallel=2)
    assert text.splitlines()[0].endswith("pp_comm: 4194304.0")


def test_a_batch_too_small_leaves_head_and_tail():
    text = text_of(global_batch=128)
    assert " ga: 0 " in text
    assert len(text.splitlines()) == 2 + 7 + 7
    assert "attention_layer" not in text


@pytest.mark.parametrize(
    ("options", "computed"),
    [(DEEPSEEK, False), (DEEPSEEK.replace(" --moe_enable", ""), True)],
    ids=["deepseek-without-times", "experts-without-moe_enable"],
)
def test_a_batch_too_small_hides_what_aicb_fails_at(options, computed):
    """AICB fails while it writes a layer; here it comes to none."""
    few, enough = (
        arguments if computed else replace_aiob(arguments)
        for arguments in (
            arguments_of(options, **DEEPSEEK_SIZES | {"global_batch": batch}) for batch in (1, 512)
        )
    )
    text = training_text(few, COMPUTATION)
    assert " ga: 0 " in text
    assert "attention" not in text
    with pytest.raises(StrategyError, match="AICB"):
        training_text(enough, COMPUTATION)


def test_deepseek_without_sequence_parallelism_joins_its_layers():
    """Attention and MLPs become one row each; the experts' own row stays ahead of the shared."""
    options = "--frame=DeepSeek --ffn_hidden_size=2048 --num_experts=8 --n_shared_expert=1"
    text = text_of(options, **DEEPSEEK_SIZES | {"num_layers": 5, "global_batch": 128})
    names = [line.split("\t")[0] for line in text.splitlines() if "layer" in line.split("\t")[0]]
    experts = ["attention_layer_mla", "mlp_moelayer", "mlp_layer"]
    dense = ["attention_layer_mla", "mlp_layer"]
    assert names == ["layernorm", "embedding_layer", *dense * 3, *experts * 2]
    activation = 2 * 4096 * 7168
    for name, time in (("mlp_moelayer", 2478000), ("attention_layer_mla", 1820000)):
        assert cells(text, name) == f"{time} ALLREDUCE {activation} {time} NONE 0 {time} NONE 0"
    # Three matrices of 8 experts on a rank, and the two that are counted of the shared one.
    parameters_of_experts = 2 * (3 * 7168 * 2048 * 8 // 4 + 2 * 7168 * 2048 // 4)
    assert cells(text, "moe_grad_norm1").endswith(f"ALLGATHER_DP_EP {2 * parameters_of_experts}")


def test_micro_batches_repeat_and_the_count_is_announced():
    for options in ("", "--enable_sequence_parallel"):
        one, three = (text_of(options, global_batch=256 * n).splitlines() for n in (1, 3))
        per_micro_batch = (len(three) - len(one)) // 2
        assert int(three[1]) == len(three) - 2 == len(one) - 2 + 2 * per_micro_batch
        start = next(i for i, line in enumerate(three) if line.startswith("embedding_layer"))
        second = three[start + per_micro_batch : start + 2 * per_micro_batch]
        assert second == three[start + 2 * per_micro_batch : start + 3 * per_micro_batch]


@pytest.mark.parametrize(
    "options",
    [
        "--use-distributed-optimizer", "--use_flash_attn", "--num_experts=8",
        "--context-parallel-size=4", "--epoch_num=7", "--gpu_type=H800", "--model_name=other",
        "--max_position_embeddings=99", "--stage=1", "--frame=DeepSpeed",
    ],
)  # fmt: skip
def test_options_without_effect_on_the_text(options):
    arguments = arguments_of(options, global_batch=256)
    module = AicbArguments(**{name: getattr(arguments, name) for name in arguments.__slots__}
                           | {"module": "SimAI_training_workload_generator"})  # fmt: skip
    assert training_text(module, COMPUTATION) == text_of(global_batch=256)


def test_sections_with_a_layers_name_are_its_time():
    section = "attention_q_column:\n    time_gpu_max: 9\n    time_gpu_min: 7\n    time_gpu_avg: 8\n"
    times = training_times(parse_aiob(AIOB + section))
    assert times["attention_q_column"] == 8000
    assert times["attention_forward"] == 1828000  # counted there, too
    assert times["attention_o_row"] == 0
    text = training_text(
        arguments_of(DEEPSEEK, **DEEPSEEK_SIZES | {"num_layers": 4}), parse_aiob(AIOB + section)
    )
    assert cells(text, "attention_q_column").split()[0::3] == ["4000"] * 3
    assert cells(text, "attention_o_row").split()[0::3] == ["0"] * 3


def test_what_a_file_does_not_time_takes_a_nanosecond():
    times = parse_aiob("train_iter:1\n")
    text = training_text(arguments_of(global_batch=256), times)
    assert cells(text, "embedding_layer").split()[0] == "1"
    assert cells(text, "attention_layer").split()[0] == "0"
    assert cells(text, "grad_param_compute").split()[3] == "0"


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ("", {"num_attention_heads": 3, "hidden_size": 9, "tensor_model_parallel_size": 2},
         "the output of attention_column, 27, is no multiple of"),
        ("--ffn_hidden_size=7", {}, "the output of mlp_column, 7, is no multiple of"),
        ("--enable_sequence_parallel --moe_enable --ffn_hidden_size=7", {},
         "the experts' inner width, 7, is no multiple"),
        ("--frame=DeepSeek --enable_sequence_parallel", {}, "AICB needs --moe_enable for experts"),
        ("", {"global_batch": 2**60}, "at most 1000000 are written"),
        ("", {"num_layers": 2**60}, "layers of a stage; at most"),
        ("", {"seq_length": 2**60}, "more than SimAI can read"),
        ("", {"seq_length": 2**62, "tensor_model_parallel_size": 1, "vocab_size": 1,
              "pipeline_model_parallel": 2}, "more than SimAI can read"),
    ],
)  # fmt: skip
def test_arguments_that_aicb_fails_at_end_with_one_line(options, changes, message):
    with pytest.raises(StrategyError, match=message) as caught:
        text_of(options, **changes)
    assert "\n" not in str(caught.value)


def test_deepseek_without_computation_times_is_refused_where_aicb_breaks():
    arguments = replace_aiob(arguments_of(DEEPSEEK, **DEEPSEEK_SIZES))
    with pytest.raises(StrategyError, match="without computation times: give --aiob_enable"):
        training_text(arguments)


def test_computation_times_are_asked_for():
    with pytest.raises(StrategyError, match="--aiob_enable needs --comp_filepath=FILE"):
        training_text(arguments_of())
    inference = parse_aiob(AIOB.replace("train_iter:10", "inference_term:decode"))
    with pytest.raises(StrategyError, match="AIOB file of inference"):
        training_text(arguments_of(), inference)


def test_limits_are_far_beyond_real_models():
    # The largest published model has 128 layers a stage at most; a step of 5,000 micro-batches.
    assert parameters.MOST_LAYERS > 10_000
    assert training.LARGEST_FILE > 5_000 * 4 * 48


def test_names_are_aicbs():
    assert file_name(arguments_of("--use_flash_attn")) == (
        "None-gpt_7B-world_size512-tp2-pp1-ep1-gbs1024-mbs1-seq1024-MOE-False-GEMM-False-"
        "flash_attn-True.txt"
    )
