"""MaxText's configuration: set-ups checked by hand, round trips, refusals, bad input."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.software import format_launch, keys_of, parse_launch, prepared
from perfmodel.model.presets import load_model
from tests.launch.launches import one_launch, round_trips


def test_llama_70b_on_four_slices() -> None:
    launch = one_launch(
        "llama-3.1-70b",
        "maxtext",
        devices=1024,
        tensor_parallel=4,
        zero_stage=3,
        shard_group=64,
        global_batch_size=1024,
        micro_batch_size=2,
        sequence_length=8192,
        recompute="full",
    )
    launch = dataclasses.replace(launch, domain=256)
    found = yaml.safe_load(format_launch("maxtext", launch))
    assert found == {
        "base_config": "base.yml",
        "model_name": "llama3.1-70b",
        "max_target_length": 8192,
        "per_device_batch_size": 0.5,
        "gradient_accumulation_steps": 2,
        "ici_tensor_sequence_parallelism": 4,
        "dcn_tensor_sequence_parallelism": 1,
        "ici_context_parallelism": 1,
        "dcn_context_parallelism": 1,
        "ici_expert_parallelism": 1,
        "dcn_expert_parallelism": 1,
        "ici_fsdp_parallelism": 64,
        "dcn_fsdp_parallelism": 1,
        "ici_data_parallelism": 1,
        "dcn_data_parallelism": 4,
        "ici_pipeline_parallelism": 1,
        "dcn_pipeline_parallelism": 1,
        "remat_policy": "full",
        "dtype": "bfloat16",
        "quantization": "",
    }


def test_a_repeated_pipeline() -> None:
    launch = one_launch(
        "llama-3.1-8b",
        "maxtext",
        devices=64,
        pipeline_parallel=4,
        virtual_pipeline=2,
        zero_stage=1,
        global_batch_size=256,
        micro_batch_size=2,
        sequence_length=4096,
    )
    keys = keys_of("maxtext", launch)
    assert keys["num_pipeline_microbatches"] == 8
    assert keys["num_pipeline_repeats"] == 2
    assert keys["num_layers_per_pipeline_stage"] == 4
    assert keys["per_device_batch_size"] == 4
    assert keys["shard_optimizer_over_data"] is True
    assert any("repeated pipeline" in text for text in prepared("maxtext", launch)[1])


@pytest.mark.parametrize(
    ("name", "least"),
    [("llama-3.1-8b", 20), ("gpt3-175b", 10), ("mixtral-8x7b", 5), ("qwen3-30b-a3b", 5)],
)
def test_what_is_written_is_read(name: str, least: int) -> None:
    done, refused = round_trips(
        "maxtext",
        "maxtext",
        name,
        100,
        mapping=("tensor-context-data-pipeline",),
        zero_stage=(3, 3, 1, 0),
        precision=("bf16", "fp8", "mxfp8"),
        recompute=("selective", "full", "full"),
        recompute_method=("single",),
    )
    assert done > least
    assert all(text.startswith("MaxText cannot do ") for text in refused)


@pytest.mark.parametrize("name", ["codellama-34b", "mistral-7b-v0.3"])
def test_models_without_a_name_are_spelled_out(name: str) -> None:
    launch = one_launch(
        name, "maxtext", devices=8, zero_stage=3, global_batch_size=8, sequence_length=4096
    )
    _, read = parse_launch(format_launch("maxtext", launch), "x.yml")
    model = load_model(name)
    assert read.model is not None
    assert read.model.layers == model.layers
    assert read.model.parameter_count() == model.parameter_count()


@pytest.mark.parametrize("mtp", ["none", "stated"])
def test_prediction_modules_are_written_where_they_are_trained(mtp: str) -> None:
    launch = one_launch(
        "deepseek-v3",
        "maxtext",
        devices=64,
        expert_parallel=64,
        zero_stage=3,
        global_batch_size=64,
        sequence_length=4096,
    )
    model = load_model("deepseek-v3", mtp=mtp)
    text = format_launch("maxtext", dataclasses.replace(launch, model=model))
    assert ("mtp_num_layers: 1" in text) == (mtp == "stated")
    _, read = parse_launch(text, "x.yml")
    assert read.model is not None
    assert read.model.mtp_layers == model.mtp_layers


def test_what_is_left_of_the_devices_is_not_guessed() -> None:
    _, launch = parse_launch(
        "python3 -m maxtext.train base.yml model_name=llama2-7b ici_tensor_parallelism=4 "
        "per_device_batch_size=0.5 max_target_length=4096 remat_policy=save_qkv_proj",
        "run.sh",
    )
    assert launch.model is not None
    assert launch.model.name == "llama-2-7b"
    assert (launch["tensor_parallel"], launch["micro_batch_size"]) == (4, 2)
    assert launch["zero_stage"] == 3
    assert "data_parallel" not in launch.strategy
    assert launch["recompute"] == "selective"
    assert launch.framework.selective_recompute == "save_qkv_proj"
    assert any("takes what is left of the devices" in x for x in launch.remarks)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_stage": 2}, "MaxText cannot do zero_stage 2; it offers 3, 0, 1"),
        ({"zero_stage": 1, "context_parallel": 2}, "context and expert ranks share parameters"),
        ({"pipeline_parallel": 2}, "pipeline_schedule 1f1b; it offers gpipe, interleaved"),
        ({"precision": "nvfp4"}, "precision nvfp4; it offers bf16, fp8, mxfp8"),
        (
            {"pipeline_parallel": 8, "pipeline_schedule": "gpipe", "global_batch_size": 12},
            "micro-batches have to be a multiple of the stages",
        ),
    ],
)
def test_what_maxtext_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    axes = {"zero_stage": 3, "global_batch_size": 64, "sequence_length": 4096, **changes}
    axes |= {"recompute": "full"}
    with pytest.raises(StrategyError) as caught:
        format_launch("maxtext", one_launch("llama-3.1-8b", devices=32, **axes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ici_fsdp_parallelism: 0", "x.yml:1: ici_fsdp_parallelism '0': should be a degree, or -1"),
        ("per_device_batch_size: 0.3", "a whole number of sequences on a replica"),
        ("per_device_batch_size: -1", "x.yml:1: per_device_batch_size '-1': should be a positive"),
        ("quantization: int4", "x.yml:1: quantization 'int4': should be one of"),
        ("remat_policy: some", "remat_policy 'some': should be one of full, minimal"),
        ("dcn_pipeline_parallelism: 2", "num_pipeline_repeats is needed"),
    ],
)
def test_wrong_values_are_one_line_with_the_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "x.yml", "maxtext")
    assert message in str(caught.value)


SCRIPT = """\
export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true TPU_MEGACORE=MEGACORE_DENSE"
BATCH=${BATCH:-4}
python3 MaxText/train.py MaxText/configs/base.yml run_name=$USER-1 model_name=llama2-7b \\
    ici_fsdp_parallelism=-1 dcn_data_parallelism=2 per_device_batch_size=${BATCH} \\
    remat_policy=full compile_topology=v5p-128 compile_topology_num_slices=2
"""


def test_a_script_with_what_it_is_compiled_for() -> None:
    name, launch = parse_launch(SCRIPT, "run.sh")
    assert name == "maxtext"
    assert (launch.devices, launch.domain) == (128, 64)  # two cores of a v5p chip
    assert (launch["data_parallel"], launch["shard_group"]) == (128, 64)
    assert launch["global_batch_size"] == 512


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "dcn_data_parallelism=2",
            "ici_data_parallelism=-1",
            "only one axis can take what",
        ),
        (
            "dcn_data_parallelism=2",
            "dcn_data_parallelism=3",
            "128 devices: should be a mult",
        ),
        (
            "remat_policy",
            "remat_polcy",
            "run.sh:5: unknown key remat_polcy; should be",
        ),
    ],
)
def test_meshes_that_cannot_be(old: str, new: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(SCRIPT.replace(old, new), "run.sh")
    assert message in str(caught.value)


MIXTRAL = """\
model_name: mixtral-8x7b
ici_fsdp_parallelism: 8
ici_expert_parallelism: 8
per_device_batch_size: 4
max_target_length: 4096
"""


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ({}, {"expert_dispatch": "all_to_all", "capacity_factor": 0.0, "expert_buffer": 1e9}),
        ({"sparse_matmul": False, "capacity_factor": 1.25}, {"expert_dispatch": "einsum"}),
        ({"sparse_matmul": False, "capacity_factor": 1.25}, {"capacity_factor": 1.25}),
        ({"sparse_matmul": False, "capacity_factor": -1.0}, {"capacity_factor": 0.0}),
        ({"sparse_matmul": False, "megablox": False}, {"expert_dispatch": "einsum"}),
        ({"use_ring_of_experts": True}, {"expert_dispatch": "all_gather"}),
        ({"capacity_factor": 1.25}, {"expert_dispatch": "all_to_all", "capacity_factor": 0.0}),
        ({"ragged_buffer_factor": 1.5}, {"expert_buffer": 1.5}),
        ({"wi_tile_fwd_batch_seq": 256}, {"expert_tile_rows": 256.0}),
        ({"tile_batch_seq": 256}, {"expert_tile_rows": 256.0}),
        ({"use_random_routing": True}, {"routing": "uniform"}),
    ],
)
def test_experts_run_as_the_file_says(words: dict[str, Any], facts: dict[str, Any]) -> None:
    text = MIXTRAL + "".join(f"{key}: {value}\n" for key, value in words.items())
    _, read = parse_launch(text, "x.yml", typed={"devices": 64})
    assert {key: getattr(read.framework, key) for key in facts} == facts
    ignored = "capacity_factor" in words and "sparse_matmul" not in words
    assert any("capacity_factor" in remark for remark in read.remarks) == ignored
    _, again = parse_launch(format_launch("maxtext", read), "y.yml")
    assert {key: getattr(again.framework, key) for key in facts} == facts
