"""Megatron-LM's arguments: set-ups checked by hand, round trips, refusals, bad input."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError, ModelError, StrategyError
from perfmodel.launch.software import format_launch, parse_launch
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from tests.data import table_of
from tests.launch.launches import MODELS, one_launch, plain_model, round_trips


def arguments(text: str) -> dict[str, str]:
    """Return options and values as argparse sees them."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    words = words[words.index("pretrain_gpt.py") + 1 :]
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            key = word
            found[key] = ""
        elif word != "$@":
            found[key] = word
    return found


def test_llama_405b_as_it_was_trained() -> None:
    """Llama 3 405B: tp 8, pp 16, 126 layers in 128 places (arXiv:2407.21783, section 3.3.2)."""
    launch = one_launch(
        "llama-3.1-405b",
        devices=8192,
        tensor_parallel=8,
        pipeline_parallel=16,
        virtual_pipeline=8,
        global_batch_size=2048,
        sequence_length=8192,
    )
    text = format_launch("megatron", launch)
    assert "torchrun --nnodes 1024 --nproc-per-node 8 pretrain_gpt.py" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert arguments(text) == {
        "--tensor-model-parallel-size": "8",
        "--context-parallel-size": "1",
        "--pipeline-model-parallel-size": "16",
        "--micro-batch-size": "1",
        "--global-batch-size": "2048",
        "--seq-length": "8192",
        "--sequence-parallel": "",
        "--use-distributed-optimizer": "",
        "--bf16": "",
        "--num-virtual-stages-per-pipeline-rank": "8",
        "--account-for-embedding-in-pipeline-split": "",
        "--account-for-loss-in-pipeline-split": "",
        "--overlap-grad-reduce": "",
        "--overlap-param-gather": "",
        "--cross-entropy-loss-fusion": "",
        "--hidden-dropout": "0.0",
        "--attention-dropout": "0.0",
        "--num-layers": "126",
        "--hidden-size": "16384",
        "--num-attention-heads": "128",
        "--kv-channels": "128",
        "--group-query-attention": "",
        "--num-query-groups": "8",
        "--swiglu": "",
        "--ffn-hidden-size": "53248",
        "--normalization": "RMSNorm",
        "--disable-bias-linear": "",
        "--position-embedding-type": "rope",
        "--max-position-embeddings": "131072",
        "--vocab-size": "128256",
        "--untie-embeddings-and-output-weights": "",
        "--make-vocab-size-divisible-by": "128",
    }


def test_deepseek_v3_with_experts_and_latent_attention() -> None:
    launch = one_launch(
        "deepseek-v3",
        "megatron-deepep",
        devices=1024,
        tensor_parallel=2,
        pipeline_parallel=16,
        expert_parallel=64,
        global_batch_size=8192,
        sequence_length=4096,
        precision="fp8",
    )
    found = arguments(format_launch("megatron", launch))
    expected = {
        "--expert-model-parallel-size": "64",
        "--expert-tensor-parallel-size": "1",
        "--fp8-format": "hybrid",
        "--fp8-recipe": "tensorwise",
        "--fp8-param-gather": "",
        "--tp-comm-overlap": "",
        "--overlap-moe-expert-parallel-comm": "",
        "--moe-token-dispatcher-type": "flex",
        "--moe-enable-deepep": "",
        "--moe-grouped-gemm": "",
        "--pipeline-model-parallel-layout": "Et*4|" + "t*4|" * 14 + "tmL".replace("t", "t*1"),
        "--multi-latent-attention": "",
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--num-experts": "256",
        "--moe-router-topk": "8",
        "--moe-ffn-hidden-size": "2048",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-router-num-groups": "8",
        "--moe-router-group-topk": "4",
        "--moe-router-enable-expert-bias": "",
        "--moe-router-score-function": "sigmoid",
        "--moe-layer-freq": "([0]*3+[1]*58)",
        "--mtp-num-layers": "1",
    }
    assert {key: found.get(key) for key in expected} == expected


def test_zero_3_is_megatron_fsdp() -> None:
    launch = one_launch(
        "llama-3.1-8b",
        devices=64,
        zero_stage=3,
        shard_group=8,
        recompute="full",
        global_batch_size=64,
        sequence_length=8192,
    )
    text = format_launch("megatron", launch)
    found = arguments(text)
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
    assert found["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert found["--ckpt-format"] == "fsdp_dtensor"
    assert {"--use-megatron-fsdp", "--no-gradient-accumulation-fusion"} <= set(found)
    assert found["--num-distributed-optimizer-instances"] == "8"
    assert found["--recompute-granularity"] == "full"
    assert (found["--recompute-method"], found["--recompute-num-layers"]) == ("uniform", "1")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("framework", ["megatron", "megatron-deepep"])
def test_what_is_written_is_read(name: str, framework: str) -> None:
    done, refused = round_trips("megatron", framework, name, 30)
    assert done > 5
    assert all(text.startswith("Megatron-LM cannot do ") for text in refused)


# The arguments of examples/gpt3/train_gpt3_175b_distributed.sh, in words of our own.
SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NODES:-2}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL="--num-layers 96 --hidden-size 12288
  --num-attention-heads 96 \\
  --seq-length 2048 --max-position-embeddings 2048"  # a comment with an apostrophe's end
OTHER=(
    --micro-batch-size 1
    --global-batch-size=1536
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2
    --num-layers-per-virtual-pipeline-stage 6
    --sequence-parallel --bf16 --vocab-size 50257
    --recompute-activations
    --cpu-offloading-num-layers 2
    --lr $LEARNING_RATE
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${OTHER[@]} $MODEL
"""


def test_a_script_with_variables() -> None:
    name, launch = parse_launch(SCRIPT.replace("apostrophe's", "apostrophe"), "run.sh")
    assert name == "megatron"
    assert launch.devices == 16
    assert launch.devices_per_node == 8
    expected = {
        "tensor_parallel": 8,
        "sequence_parallel": True,
        "pipeline_parallel": 2,
        "virtual_pipeline": 8,
        "pipeline_schedule": "interleaved",
        "zero_stage": 0,
        "data_parallel": 1,
        "micro_batch_size": 1,
        "global_batch_size": 1536,
        "sequence_length": 2048,
        "recompute": "selective",
        "precision": "bf16",
    }
    assert {key: launch[key] for key in expected} == expected
    preset = plain_model(load_model("gpt3-175b"))
    assert launch.model is not None
    assert launch.model.layers[0].attention == preset.layers[0].attention
    assert launch.model.vocab_size == 50257
    assert launch.model.tied_embeddings
    # What Megatron-LM leaves off without its switch.
    assert not launch.framework.overlap_gradient_reduce
    assert launch.framework.dropout
    assert launch.strategy["offload_activations"] == 2 / 96


BASE = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 "
)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        *table_of(__file__, "wrong_values_are_one_line_with_the_option"),
        ("--hidden-size " + "9" * 400, "at most 2^40"),
    ],
)
def test_wrong_values_are_one_line_with_the_option(more: str, message: str) -> None:
    with pytest.raises((FormatError, ModelError)) as caught:
        parse_launch(BASE + more, "run.sh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_vocabulary_that_is_the_tokenizers() -> None:
    text = BASE.replace("--vocab-size 32000", "--tokenizer-type HuggingFaceTokenizer")
    _, launch = parse_launch(
        "if [ $X ]; then\n  echo\nfi\n" + text + "--pipeline-model-parallel-size 2 "
        "--num-layers-per-virtual-pipeline-stage 4",
        "run.sh",
    )
    assert launch.model is None
    assert launch["virtual_pipeline"] == 4
    assert "no --vocab-size in the file; --model names the model" in launch.remarks
    assert any("conditions are not evaluated" in text for text in launch.remarks)


def test_missing_options_are_named() -> None:
    with pytest.raises(FormatError, match="no --global-batch-size"):
        parse_launch(BASE.replace("--global-batch-size 64", ""), "run.sh")


def test_single_precision_is_not_modelled() -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(BASE.replace("--bf16", ""), "run.sh")
    assert str(caught.value) == "run.sh: nothing says the precision; --bf16 or --fp16 would"


def test_other_text_is_no_launch_file() -> None:
    with pytest.raises(FormatError, match="no launch file"):
        parse_launch("dear diary", "diary.txt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pipeline_parallel": 2, "pipeline_schedule": "gpipe"},
            "Megatron-LM cannot do pipeline_schedule gpipe: it offers 1f1b, interleaved",
        ),
        (
            {"mapping": "data-tensor-context-pipeline", "tensor_parallel": 2},
            "mapping data-tensor-context-pipeline; it offers tensor-context-data-pipeline, tensor",
        ),
        (
            {"context_parallel": 8, "context_parallel_kind": "all_gather", "sequence_length": 4104},
            "multiple of twice",
        ),
    ],
)
def test_what_megatron_cannot_do_is_refused(changes: dict[str, object], message: str) -> None:
    axes = {"global_batch_size": 64, "sequence_length": 4096, **changes}
    launch = one_launch("llama-3.1-8b", devices=16, **axes)
    with pytest.raises(StrategyError) as caught:
        format_launch("megatron", launch)
    assert message in str(caught.value)


def test_the_deterministic_mode_is_that_of_attention_without_a_fused_loss() -> None:
    launch = one_launch("llama-3.1-8b", devices=16, global_batch_size=64, sequence_length=4096)

    def written(**changes: bool) -> str:
        return format_launch(
            "megatron", replace(launch, framework=load_framework("megatron", **changes))
        )

    text = written(deterministic_attention=True, fused_cross_entropy=False)
    assert "--deterministic-mode" in arguments(text)
    assert parse_launch(text, "run.sh")[1].framework.deterministic_attention
    assert not parse_launch(written(), "run.sh")[1].framework.deterministic_attention
    with pytest.raises(StrategyError) as caught:
        written(deterministic_attention=True)
    assert str(caught.value) == (
        "Megatron-LM cannot do deterministic_attention true, fused_cross_entropy true: its "
        "deterministic mode has no fused cross entropy"
    )


def test_architectures_that_megatron_lacks_are_refused() -> None:
    launch = one_launch("gpt-j-6b", devices=8, global_batch_size=8, sequence_length=2048)
    with pytest.raises(StrategyError, match="cannot do gpt-j-6b: attention and MLP side by side"):
        format_launch("megatron", launch)


RECIPE = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
ARGS:
  bf16: true
  fp16: false
  micro_batch_size: 1
  global_batch_size: 64
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  recompute_granularity: selective
  recompute_modules: moe_act layernorm
"""


@pytest.mark.parametrize(
    "text",
    [
        RECIPE,
        RECIPE.replace("ARGS:", "MODEL_ARGS:"),
        RECIPE.replace("  tensor_model_parallel_size", "  --tensor-model-parallel-size"),
        RECIPE.replace("moe_act layernorm", "[moe_act, layernorm]"),
    ],
)
def test_a_recipe_in_yaml_holds_arguments(text: str) -> None:
    name, launch = parse_launch(text, "recipe.yaml", typed={"devices": 16})
    assert name == "megatron"
    assert launch.strategy["tensor_parallel"] == 2
    assert launch.strategy["pipeline_parallel"] == 4
    assert launch.strategy["data_parallel"] == 2
    assert launch.framework.selective_recompute == "layernorm moe_act"


def test_a_wrong_argument_of_a_recipe_is_named_with_its_line() -> None:
    with pytest.raises(FormatError, match=r"recipe.yaml:6: micro-batch-size '0': should be"):
        parse_launch(RECIPE.replace("micro_batch_size: 1", "micro_batch_size: 0"), "recipe.yaml")


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("", 12.0),
        ("--use-precision-aware-optimizer", 12.0),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 8.0),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16", 7.0),
    ],
)
def test_moments_are_as_wide_as_a_file_states(flags: str, size: float) -> None:
    launch = one_launch("llama-3.1-8b", devices=8, global_batch_size=64, sequence_length=8192)
    _, found = parse_launch(format_launch("megatron", launch).replace('"$@"', flags), "run.sh")
    assert found.framework.optimizer_bytes == size
    moments = load_framework(launch.framework, optimizer_bytes=size)
    _, again = parse_launch(format_launch("megatron", replace(launch, framework=moments)), "run.sh")
    assert again.framework.optimizer_bytes == size
