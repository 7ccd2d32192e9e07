"""AICB's training files: the study's five executions, the quirks, and AICB's own files."""

from __future__ import annotations

import csv
import hashlib
import importlib
import shlex
import sys
from pathlib import Path

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.formats.aicb.aiob import parse_aiob, read_aiob
from perfmodel.formats.aicb.text import format_aicb_text, parse_aicb_text
from perfmodel.parity.aicb import parameters, rows
from perfmodel.parity.aicb.arguments import AicbArguments, parse_arguments
from perfmodel.parity.aicb.generate import generate
from perfmodel.parity.aicb.parameters import layers_of_stage, total_parameters
from perfmodel.parity.aicb.row_times import training_times
from perfmodel.parity.aicb.training import file_name, training_text, training_workload
from tests.data import BENCHMARKS

# Sums as of AICB's Example.txt (23eec3c4): attention 70 + 889 + 512 + 349 = 1820 µs, of which
# flash 512; MLP 71 + 1408 + 257 + 742 = 2478 µs; the optimizer's pass 16647 and 17374 µs.
AIOB = """train_iter:10
Emb:
    time_gpu_max: 857
    time_gpu_min: 782
    time_gpu_avg: 799
layernorm:
    time_gpu_max: 84
    time_gpu_min: 43
    time_gpu_avg: 70
atten_qkv:
    time_gpu_max: 1255
    time_gpu_min: 862
    time_gpu_avg: 1238
atten_flash:
    time_gpu_max: 786
    time_gpu_min: 460
    time_gpu_avg: 512
layernorm2:
    time_gpu_max: 116
    time_gpu_min: 67
    time_gpu_avg: 71
mlp_linear_1:
    time_gpu_max: 3000
    time_gpu_min: 1372
    time_gpu_avg: 2407
logit_time:
    time_gpu_max: 15476
    time_gpu_min: 12435
    time_gpu_avg: 12824
param_time:
    time_gpu_max: 23746
    time_gpu_min: 16647
    time_gpu_avg: 17374
"""
COMPUTATION = parse_aiob(AIOB)


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


# --- What AICB does with its arguments ---------------------------------------------------


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


def test_the_gates_matrix_is_not_counted():
    sizes = {"hidden_size": 4096, "ffn_hidden_size": 8192}
    gated, plain = (AicbArguments(**sizes, swiglu=swiglu) for swiglu in (True, False))
    assert layers_of_stage(gated) == layers_of_stage(plain)
    assert layers_of_stage(gated)[2] == ("mlp_layer", 2 * 4096 * 8192)


def test_parameters_counted_by_hand():
    # h 4, 2 heads, f 6, tp 2, s 8, V' 256: every count small enough for the head.
    sizes = {
        "hidden_size": 4,
        "num_attention_heads": 2,
        "ffn_hidden_size": 6,
        "num_layers": 1,
        "seq_length": 8,
        "vocab_size": 3,
        "tensor_model_parallel_size": 2,
        "world_size": 2,
    }
    counts = layers_of_stage(AicbArguments(**sizes))
    assert counts == [
        ("embedding_layer", 4 * 128 * 4 + 8 * 4),
        ("attention_layer", 4 * 6 + 2 * 4),
        ("mlp_layer", 4 * 3 + 3 * 4),
    ]
    biased = layers_of_stage(
        AicbArguments(**sizes, add_bias_linear=True, enable_sequence_parallel=True)
    )
    assert biased == [
        ("embedding_layer", 4 * 128 * 4 + 8 * 4),
        ("attention_column", 4 * 6 + 6),
        ("attention_row", 2 * 4 + 4),
        ("fused", 8),
        ("mlp_column", 4 * 3 + 3),
        ("mlp_row", 3 * 4 + 4),
        ("final_column", 4 * 128 + 128),
    ]
    assert total_parameters(biased) == (sum(count for _, count in biased), 0)


def test_shared_experts_of_deepseek_are_counted_twice():
    sizes = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "ffn_hidden_size": 6,
        "num_layers": 2,
        "seq_length": 4,
        "vocab_size": 3,
        "num_experts": 4,
        "n_dense_layers": 1,
        "expert_model_parallel_size": 2,
        "world_size": 2,
        "q_lora_rank": 3,
        "kv_lora_rank": 5,
        "qk_nope_dim": 2,
        "qk_rope_dim": 1,
        "v_head_dim": 2,
    }
    apart = layers_of_stage(AicbArguments(
        **sizes, frame="DeepSeek", moe_enable=True, enable_sequence_parallel=True))  # fmt: skip
    attention = [
        ("attention_linear_q_lora", 8 * 3), ("fused", 6), ("attention_q_column", 3 * 6),
        ("attention_linear_kv_lora", 8 * 6), ("fused", 10), ("attention_kv_column", 5 * 8),
        ("attention_o_row", 4 * 8), ("fused", 16),
    ]  # fmt: skip
    mlp = [("mlp_column", 48), ("mlp_row", 48)]
    experts = ("mlp_moelayer", 3 * 8 * 6 * 2 + 96)
    assert apart[1:-1] == [*attention, *mlp, *attention, experts, *mlp]
    assert total_parameters(apart)[1] == experts[1]
    joined = layers_of_stage(AicbArguments(**sizes, frame="DeepSeek"))
    mla = ("attention_layer_mla", sum(count for _, count in attention[:-1]))
    assert joined[1:] == [mla, ("mlp_layer", 96), mla, experts, ("mlp_layer", 96)]


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


# --- What is refused ----------------------------------------------------------------------


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
    assert rows.LARGEST_FILE > 5_000 * 4 * 48


def test_names_are_aicbs():
    assert file_name(arguments_of("--use_flash_attn")) == (
        "None-gpt_7B-world_size512-tp2-pp1-ep1-gbs1024-mbs1-seq1024-MOE-False-GEMM-False-"
        "flash_attn-True.txt"
    )


# --- The parity script --------------------------------------------------------------------


@pytest.fixture
def parity(monkeypatch):
    """Return the module ``parity_aicb``."""
    if not BENCHMARKS.exists():
        pytest.skip("an installed package has no benchmarks")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("parity_kinds.aicb")
    sys.modules.pop("parity_kinds.aicb", None)


COMMAND = (
    "python -m workload_generator.SimAI_training_workload_generator --num_layers=2 "
    "--aiob_enable --comp_filepath=workload/aiob_inputs/Example.txt"
)


def test_parity_counts_files_failures_and_what_is_not_covered(parity, tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "aiob_inputs").mkdir()
    (tmp_path / "aiob_inputs/Example.txt").write_text(AIOB, encoding="utf-8")
    arguments = parse_arguments(shlex.split(COMMAND))
    good = training_text(arguments, COMPUTATION)
    (tmp_path / "workloads/good.txt").write_text(good, encoding="utf-8")
    bad = good.replace("ga: 4", "ga: 5")
    assert bad != good
    (tmp_path / "workloads/bad.txt").write_text(bad, encoding="utf-8")
    failing = COMMAND + " --ffn_hidden_size=7 --tensor_model_parallel_size=2 --world_size=2"
    lines = [
        ("good", COMMAND, "0", ""),
        ("bad", COMMAND, "0", ""),
        ("gone", COMMAND, "0", ""),
        ("failed", failing, "1", "AssertionError"),
        ("refused", COMMAND + " --nonsense", "2", "no such option"),
        ("unknown", COMMAND + " --nonsense", "0", ""),
        ("wrongly", failing, "0", ""),
    ]
    with (tmp_path / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "id", "original_name", "command", "rc", "error"])
        writer.writerows(
            [f"workloads/{name}.txt", name, f"results/{file_name(arguments)}", command, rc, error]
            for name, command, rc, error in lines
        )
    document = parity.compare(tmp_path)
    assert (document["count"], document["exact"]) == (4, 3)
    assert document["worst_relative_error"] == pytest.approx(1 / (good.count("\n") + 1))
    assert document["median_relative_error"] == 0.0
    assert sum(document["uncovered"].values()) == 3
    assert document["differing"]["workloads/bad.txt"].startswith("line 1: 'HYBRID")
    assert document["names"] == {"count": 2, "exact": 2}
    table = "\n".join(parity.table(document))
    assert "training" in table
    assert "names: 2 of 2" in table


def test_parity_of_aicbs_own_files(parity, development_table):
    document = parity.compare(development_table("aicb/manifest.csv").parent)
    training = document["generators"]["training"]
    assert training["count"] == training["exact"] >= 32
    assert document["count"] == document["exact"]
    assert document["names"]["count"] == document["names"]["exact"]
