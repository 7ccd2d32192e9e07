"""torchtitan's job configuration: set-ups checked by hand, round trips, refusals, bad input."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.software import format_launch, keys_of, parse_launch, prepared
from perfmodel.launch.torchtitan import usual_layers
from perfmodel.model.presets import load_model
from tests.data import table_of
from tests.launch.launches import TITAN, one_launch, round_trips, split_of


def test_llama_405b_on_512_devices() -> None:
    """Interleaved pipeline, async tensor parallelism and float8, as in its README's tables."""
    launch = one_launch(
        "llama-3.1-405b",
        "torchtitan",
        devices=512,
        tensor_parallel=8,
        pipeline_parallel=8,
        virtual_pipeline=2,
        zero_stage=2,
        global_batch_size=256,
        sequence_length=8192,
        precision="fp8",
        recompute="full",
    )
    found = tomllib.loads(format_launch("torchtitan", launch))
    assert found["model"] == {
        "name": "llama3",
        "flavor": "405B",
        "converters": ["quantize.linear.float8"],
    }
    assert found["training"] == {
        "seq_len": 8192,
        "local_batch_size": 32,
        "global_batch_size": 256,
        "mixed_precision_reduce": "float32",
    }
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 8,
        "tensor_parallel_degree": 8,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": 8,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 1,
        "pipeline_parallel_layers_per_stage": 8,  # 126 + 2 layers on 16 stages
        "fsdp_reshard_after_forward": "never",
        "enable_async_tensor_parallel": False,
    }
    assert found["activation_checkpoint"] == {"mode": "full"}
    assert found["compile"] == {"enable": True}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-405b", "deepseek-v3", "qwen3-30b-a3b"])
def test_what_is_written_is_read(name: str) -> None:
    done, refused = round_trips(
        "torchtitan",
        "torchtitan",
        name,
        60,
        mapping=("tensor-context-data-pipeline",),
        zero_stage=(2, 3),
        precision=("bf16", "fp8", "mxfp8"),
    )
    assert done > 8
    assert all(text.startswith("torchtitan cannot do ") for text in refused)


def test_prediction_modules_are_refused() -> None:
    launch = one_launch(
        "deepseek-v3",
        "torchtitan",
        devices=64,
        expert_parallel=64,
        zero_stage=3,
        global_batch_size=64,
        sequence_length=4096,
    )
    stated = replace(launch, model=load_model("deepseek-v3", mtp="stated"))
    with pytest.raises(StrategyError, match="torchtitan cannot do deepseek-v3: modules that"):
        format_launch("torchtitan", stated)
    _, read = parse_launch(format_launch("torchtitan", launch), "x.toml")
    assert read.model is not None
    assert (read.model.mtp_layers, read.model.remarks) == ((), ())


def test_hybrid_sharding_and_groups_of_experts() -> None:
    launch = one_launch(
        "deepseek-v3",
        "torchtitan",
        devices=256,
        tensor_parallel=2,
        context_parallel=2,
        data_parallel=64,
        expert_parallel=16,
        zero_stage=3,
        shard_group=32,
        global_batch_size=128,
        sequence_length=4096,
    )
    found = tomllib.loads(format_launch("torchtitan", launch))["parallelism"]
    assert found["data_parallel_replicate_degree"] == 4
    assert found["data_parallel_shard_degree"] == 16
    assert (found["expert_parallel_degree"], found["expert_tensor_parallel_degree"]) == (16, 1)
    assert found["context_parallel_rotate_method"] == "alltoall"


# A file in the form of v0.1, in words of our own.
OLD = """
[model]
name = "llama3"
flavor = "70B"
converters = "float8"
[training]
batch_size = 4
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "selective"
[optimizer]
lr = 8e-5
early_step_in_backward = true
"""


def test_a_file_of_an_earlier_version() -> None:
    name, launch = parse_launch(OLD, "job.toml")
    assert name == "torchtitan"
    assert launch.model is not None
    assert launch.model.name == "llama-3.1-70b"
    expected = {
        "tensor_parallel": 8,
        "sequence_parallel": True,
        "micro_batch_size": 4,
        "sequence_length": 8192,
        "recompute": "selective",
        "precision": "fp8",
        "zero_stage": 3,
    }
    assert {key: launch[key] for key in expected} == expected
    assert launch.framework.overlap_tensor_parallel == "full"
    assert launch.framework.fused_elementwise
    assert "data_parallel" not in launch.strategy  # how many devices, the file does not say
    assert any("what is left of the devices" in text for text in launch.remarks)
    assert any("optimizer.early_step_in_backward" in text for text in launch.remarks)


def test_words_on_a_command_line() -> None:
    _, launch = parse_launch(
        "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --model.name llama3 "
        "--model.flavor 8B --training.local_batch_size 2 --training.seq_len 4096 "
        "--parallelism.tensor_parallel_degree 2 --compile.enable "
        "--activation_checkpoint.mode none",
        "run.sh",
    )
    assert (launch["data_parallel"], launch["global_batch_size"]) == (8, 16)
    assert launch["recompute"] == "none"
    assert launch.devices == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    table_of(__file__, "what_torchtitan_cannot_do_is_refused"),
)
def test_what_torchtitan_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    axes = {"zero_stage": 3, "global_batch_size": 64, "sequence_length": 4096, **changes}
    with pytest.raises(StrategyError) as caught:
        format_launch("torchtitan", one_launch("llama-3.1-8b", devices=32, **axes))
    assert message in str(caught.value)


def test_a_model_without_a_flavor_is_said() -> None:
    launch = one_launch(
        "mistral-7b", devices=8, zero_stage=3, global_batch_size=8, sequence_length=4096
    )
    _, notes = prepared("torchtitan", launch)
    assert any("torchtitan has no flavor of mistral-7b" in text for text in notes)
    assert "name" not in tomllib.loads(format_launch("torchtitan", launch)).get("model", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *table_of(__file__, "wrong_values_are_one_line_with_the_key"),
        ("[training]\nx = " + "[" * 900 + "]" * 900, "no valid TOML"),
    ],
)
def test_wrong_values_are_one_line_with_the_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "job.toml", "torchtitan")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


WILD = """\
# NOTE: this toml config is a preset for 128 H100 GPUs.
[model]
name = "llama3"
flavor = "405B"
[training]
batch_size = 1
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 8
enable_float8_linear = true
[experimental]
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = 'full'
"""


@pytest.mark.parametrize("table", ["float8", "quantize.linear.float8"])
def test_recipes_of_float8(table: str) -> None:
    """One scale per tensor is the default; of scales per row nothing is gathered in 8 bits."""
    for recipe, facts in (("tensorwise", ("current", True)), ("rowwise", ("rows", False))):
        text = f'{OLD}[{table}]\nrecipe_name = "{recipe}"\n'
        launch = parse_launch(text, "job.toml", typed={"devices": 64})[1]
        assert (launch.framework.scaling, launch.framework.gathers_quantised) == facts
        written = tomllib.loads(format_launch("torchtitan", launch))
        assert written["quantize"]["linear"]["float8"]["recipe_name"] == recipe
    assert parse_launch(OLD, "job.toml", typed={"devices": 64})[1].framework.scaling == "current"


def test_keys_of_the_first_releases() -> None:
    _, launch = parse_launch(WILD, "job.toml")
    assert (launch.devices, launch["data_parallel"], launch["tensor_parallel"]) == (128, 8, 8)
    assert (launch["pipeline_parallel"], launch["precision"]) == (2, "fp8")
    assert launch["global_batch_size"] == 8
    _, launch = parse_launch(WILD, "job.toml", typed={"devices": 256})
    assert launch["data_parallel"] == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "local_batch_size = 2",
            "training.local_batch_size 2 (line 11), two names of",
        ),
        (
            "tensor_paralel_degree = 2",
            "job.toml:11: unknown key training.tensor_paralel_",
        ),
        ("[parallelism]\ndepth = 2", "job.toml:12: unknown key parallelism.depth"),
        ("data_parallel_shard_degree = 4", "data_parallel_degree -1"),
        ("[parallelism]\ndata_parallel_replicate_degree = 3", "job.toml:12: "),
    ],
)
def test_keys_that_contradict_each_other_or_are_none(line: str, message: str) -> None:
    text = WILD.replace("[experimental]", line + "\n[experimental]")
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "job.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # 32 layers and two more on four stages: torchtitan puts the rest on the first ones.
        ("", (1, "8,9,8,7")),
        (
            "pipeline_parallel_first_stage_less_layers = 0\n"
            "pipeline_parallel_last_stage_less_layers = 0\n",
            (1, "even"),
        ),
        ("pipeline_parallel_split_points = ['layers.6', 'layers.14', 'layers.24']\n",
         (1, "6,8,10,8")),
        ("pipeline_parallel_schedule = 'zbvzerobubble'\n", (2, "4,5,4,4,4,4,4,3")),
        ("pipeline_parallel_schedule = 'LoopedBFS'\npipeline_parallel_layers_per_stage = 3\n",
         (3, "2,3,3,3,3,3,3,3,3,3,2,1")),
    ],
)  # fmt: skip
def test_how_torchtitan_cuts(keys: str, expected: tuple[int, str]) -> None:
    assert split_of(TITAN + keys, "torchtitan") == expected


def test_modules_of_torchtitan() -> None:
    launch = one_launch(
        "llama-3.1-8b",
        "torchtitan",
        devices=16,
        split="Et*2|t*10|t*10|t*10L",
        zero_stage=2,
        pipeline_parallel=4,
        global_batch_size=256,
        sequence_length=4096,
    )
    parts = keys_of("torchtitan", launch)["parallelism.module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1"]
    assert parts[3][-2:] == ["norm", "output"]
    _, read = parse_launch(format_launch("torchtitan", launch), "x.toml")
    assert read.framework.stage_split == "2,10,10,10"


@pytest.mark.parametrize(("layers", "stages"), [(32, 4), (126, 16), (61, 16), (28, 3), (5, 2)])
def test_torchtitans_rule_keeps_all_layers(layers: int, stages: int) -> None:
    sizes = usual_layers(layers, stages, 1, 1)
    assert sizes is not None
    assert sum(sizes) == layers
    places = [sizes[0] + 1, *sizes[1:-1], sizes[-1] + 1]
    assert places == sorted(places, reverse=True)
    assert places[0] - places[-1] <= 1
    assert usual_layers(layers, layers + 3, 1, 1) is None
