"""Megatron Bridge's overrides: set-ups checked by hand, its own recipes, round trips, bad input."""

from __future__ import annotations

import ast
import csv
import json
import re

import pytest
import yaml

from perfmodel.base.errors import FormatError
from perfmodel.launch.software import format_launch, parse_launch
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.presets import load_model
from tests import data
from tests.launch.launches import MODELS, one_launch, round_trips

RECIPES = data.SHARED / "e2e/aux_megatron_bridge_recipes_head.csv"


def test_llama_70b_as_its_recipe_on_h100() -> None:
    """Degrees of llama3_70b_pretrain_config_h100 of the performance recipes."""
    launch = one_launch(
        "llama-3-70b",
        "megatron-tuned",
        devices=64,
        tensor_parallel=4,
        context_parallel=2,
        pipeline_parallel=4,
        virtual_pipeline=5,
        global_batch_size=128,
        sequence_length=8192,
        precision="fp8",
    )
    text = format_launch("megatron-bridge", launch)
    found = yaml.safe_load(text)
    model = found["model"]
    expected = {
        "tensor_model_parallel_size": 4,
        "context_parallel_size": 2,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 5,
        "expert_model_parallel_size": 1,
        "sequence_parallel": True,
        "cp_comm_type": "p2p",
        "seq_length": 8192,
        "recompute_granularity": None,
        "num_layers": 80,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False},
    }
    assert {key: model[key] for key in expected} == expected
    assert found["train"] == {"micro_batch_size": 1, "global_batch_size": 128}
    assert found["mixed_precision"] == "bf16_with_fp8_current_scaling_mixed"
    assert found["comm_overlap"]["tp_comm_overlap"] is True
    assert found["ddp"]["use_distributed_optimizer"] is True
    assert "--nnodes 8 --nproc-per-node 8" in text


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read(name: str) -> None:
    done, refused = round_trips("megatron-bridge", "megatron-deepep", name, 30)
    assert done > 5
    assert all(text.startswith("Megatron Bridge cannot do ") for text in refused)


def test_words_on_a_command_line() -> None:
    name, launch = parse_launch(
        "torchrun --nnodes=2 --nproc_per_node=8 run.py \\\n"
        "  model.tensor_model_parallel_size=2 +model.sequence_parallel=true \\\n"
        "  train.global_batch_size=64 train.micro_batch_size=2 model.seq_length=4096 \\\n"
        "  model.pipeline_model_parallel_size=1 model.context_parallel_size=1 \\\n"
        "  mixed_precision=bf16-with-mxfp8-mixed 'model.recompute_modules=[mlp]'\n",
        "run.sh",
    )
    assert name == "megatron-bridge"
    assert (launch["tensor_parallel"], launch["sequence_parallel"]) == (2, True)
    assert (launch["data_parallel"], launch.devices) == (8, 16)
    assert (launch["micro_batch_size"], launch["global_batch_size"]) == (2, 64)
    assert launch["precision"] == "mxfp8"
    assert launch.model is None
    assert launch.framework.selective_recompute == "mlp"


@pytest.mark.parametrize(
    ("modules", "repeated", "remarked"),
    [
        ("[core_attn, moe]", "core_attn moe", False),
        ("[layernorm, mlp, moe]", "layernorm mlp moe", False),
        ("[moe_act, mla_up_proj]", "mla_up_proj moe_act", False),
        ("[moe_act, mhc]", "moe_act", True),
    ],
)
def test_modules_that_are_recomputed(modules: str, repeated: str, remarked: bool) -> None:
    text = f"model:\n  tensor_model_parallel_size: 2\n  recompute_modules: {modules}\n"
    _, launch = parse_launch(text, "x.yaml")
    assert launch.framework.selective_recompute == repeated
    assert any("model.recompute_modules" in text for text in launch.remarks) == remarked


def test_what_the_recipe_decides_is_remarked() -> None:
    _, launch = parse_launch("model:\n  tensor_model_parallel_size: 2\n", "x.yaml")
    assert "global_batch_size" not in launch.strategy
    assert any("is not in the file: taken as 1" in text for text in launch.remarks)


def test_a_precision_field_by_field() -> None:
    text = (
        "ConfigContainer:\n  model: {tensor_model_parallel_size: 1}\n"
        "  mixed_precision:\n    bf16: true\n    fp8: hybrid\n    fp8_recipe: delayed\n"
    )
    _, launch = parse_launch(text, "x.yaml")
    assert launch["precision"] == "fp8"
    assert launch.framework.scaling == "delayed"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("mixed_precision: bf16_with_fp8_subchannel_scaling_mixed", "x.yaml:3: mixed_precision 'b"),
        ("mixed_precision: {fp8_recipe: blockwise}", "mixed_precision.fp8_recipe 'blockwise'"),
        ("model: {tensor_model_parallel_size: 2}", "is given twice (first on line 2); it should"),
        ("train: {global_batch_size: many}", "x.yaml:3: train.global_batch_size 'many': should be"),
        ("train: *alias", "x.yaml:3: no valid YAML: found undefined alias"),
        ("train: [", "x.yaml:3: no valid YAML"),
        ("? [a]\n: b", "x.yaml:3: a key is itself a list"),
        ("train: " + "{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
    ],
)
def test_wrong_values_are_one_line_with_the_key(more: str, message: str) -> None:
    text = "model:\n  tensor_model_parallel_size: 1\n" + more
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "x.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def literal(text: str) -> bool:
    """Tell whether a setting is a plain value: calls of Python stand in no file of overrides."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


@pytest.mark.skipif(not RECIPES.exists(), reason=data.MISSING)
def test_recipes_of_the_project_itself() -> None:
    """Every recipe's own settings are read as they stand."""
    names = {
        "train.micro_batch_size": "micro_batch_size",
        "train.global_batch_size": "global_batch_size",
        "model.tensor_model_parallel_size": "tensor_parallel",
        "model.pipeline_model_parallel_size": "pipeline_parallel",
        "model.context_parallel_size": "context_parallel",
        "model.expert_model_parallel_size": "expert_parallel",
        "model.virtual_pipeline_model_parallel_size": "virtual_pipeline",
        "model.seq_length": "sequence_length",
    }
    count = 0
    with RECIPES.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            settings = json.loads(row["settings"])
            plain = {key: text for key, text in settings.items() if "." in key and literal(text)}
            if plain.get("mixed_precision.fp8_recipe") == '"blockwise"':
                continue
            if "model.tensor_model_parallel_size" not in plain:
                continue
            text = "\n".join(f"{key}={value.replace(' ', '')}" for key, value in plain.items())
            _, launch = parse_launch(text, row["recipe"], "megatron-bridge")
            for key, field in names.items():
                if re.fullmatch(r"\d+", plain.get(key, "")) and "layout" not in text:
                    assert launch[field] == int(plain[key]), (row["recipe"], key)
            count += 1
    assert count > 200


MOE = (
    "model:\n  tensor_model_parallel_size: 2\n  num_layers: 2\n  hidden_size: 512\n"
    "  num_attention_heads: 8\n  ffn_hidden_size: 1024\n  vocab_size: 32000\n"
    "  num_moe_experts: 8\n  moe_router_topk: 2\n  seq_length: 1024\n"
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", AdapterSpec(16, share_experts=True)),
        ("  share_expert_adapters: false\n", AdapterSpec(16)),
        ("  normalize_moe_lora: true\n", AdapterSpec(16, share_experts=True, expert_rank=8)),
    ],
)
def test_adapters_of_experts(more: str, expected: AdapterSpec) -> None:
    """One for all experts of a device unless a file says otherwise (docs/training/peft.md)."""
    _, launch = parse_launch(f"{MOE}peft:\n  dim: 16\n{more}", "x.yaml")
    assert launch.adapters == expected
    dense = load_model("llama-3.1-8b", adapters=launch.adapters)
    assert dense.adapters == AdapterSpec(16)


def test_a_rank_that_does_not_divide_over_experts_is_one_line() -> None:
    with pytest.raises(FormatError, match=r"peft\.dim .*a multiple of the 2 experts of a token"):
        parse_launch(f"{MOE}peft:\n  dim: 7\n  normalize_moe_lora: true\n", "x.yaml")
    _, launch = parse_launch(
        "model: {tensor_model_parallel_size: 2}\npeft: {dim: 7, normalize_moe_lora: true}\n", "x"
    )
    assert any("--lora-expert-rank" in remark for remark in launch.remarks)
