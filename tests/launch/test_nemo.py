"""NeMo's configurations and MLPerf's scripts: samples, both generations, bad input."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.launch.software import parse_launch, read_launch
from tests.data import launch_sample, table_of

SECOND = """\
torchrun pretrain.py trainer.num_nodes=2 trainer.devices=8 data.global_batch_size=128 \\
    data.micro_batch_size=1 data.seq_length=8192 trainer.strategy.tensor_model_parallel_size=2 \\
    trainer.strategy.sequence_parallel=true trainer.plugins.precision=bf16-mixed \\
    model.config._target_=nemo.collections.llm.Llama31Config8B
"""


def test_the_first_generation() -> None:
    name, launch = read_launch(launch_sample("nemo.yaml"))
    assert name == "nemo"
    assert launch.framework.name.partition("[")[0].startswith("nemo@")
    assert launch.model is not None
    assert (launch.model.num_layers, launch.model.vocab_size) == (24, 50257)
    assert launch.model.layers[0].mlp.intermediate_size == 4 * 4096
    expected = {
        "data_parallel": 16,
        "micro_batch_size": 4,
        "sequence_length": 2048,
        "recompute": "selective",
        "zero_stage": 1,
        "precision": "bf16",
    }
    assert {key: launch[key] for key in expected} == expected
    assert launch.framework.overlap_gradient_reduce
    assert not launch.framework.overlap_parameter_gather
    assert launch.framework.dropout


def test_the_second_generation() -> None:
    name, launch = parse_launch(SECOND, "run.sh")
    assert name == "nemo"
    assert launch.model is not None
    assert launch.model.name == "llama-3.1-8b"
    assert (launch.devices, launch["data_parallel"]) == (16, 8)
    assert (launch["global_batch_size"], launch["sequence_length"]) == (128, 8192)
    assert launch["sequence_parallel"]


ROUND = """source $(dirname ${{BASH_SOURCE[0]}})/config_common.sh
{lines}
export MINIBS=8
export TENSOR_MODEL_PARALLEL=4
export DGXNNODES=8
export DGXNGPU=4
"""


@pytest.mark.parametrize(
    ("path", "lines", "framework", "precision", "scaling"),
    [
        # Rounds differ in how scripts name the model, and in the recipe of fp8.
        ("run.sh", 'export MODEL_SIZE="405b"', "nvidia-mlperf@3.1", "fp8", "delayed"),
        ("run.sh", "source config_common_405b.sh", "nvidia-mlperf@5.1", "fp8", "current"),
        ("gpt3/run.sh", "", "nvidia-mlperf@3.1", "fp8", "delayed"),
        ("run.sh", "source config_common_405b_fp4.sh", "nvidia-mlperf@5.1", "nvfp4", "current"),
        (
            "gpt_oss_20b/run.sh",
            "source config_common_mxfp8.sh\nexport EXPERT_PARALLEL=4",
            "nvidia-mlperf@6.0",
            "mxfp8",
            "current",
        ),
    ],
)
def test_rounds_of_mlperf(
    path: str, lines: str, framework: str, precision: str, scaling: str
) -> None:
    _, launch = parse_launch(ROUND.format(lines=lines), path)
    assert launch.framework.name.partition("[")[0] == framework
    assert (launch["precision"], launch.framework.scaling) == (precision, scaling)
    assert launch["expert_parallel"] == (4 if "EXPERT" in lines else 1)


def test_a_script_of_mlperf() -> None:
    name, launch = read_launch(launch_sample("mlperf.sh"))
    assert name == "nemo"
    assert launch.framework.name.startswith("nvidia-mlperf@5.1")
    assert launch.model is not None
    assert launch.model.name == "llama-3.1-405b"
    assert launch.devices == 512
    expected = {
        "global_batch_size": 144 * 8,
        "context_parallel": 2,
        "virtual_pipeline": 8,
        "sequence_length": 8192,
        "precision": "fp8",
    }
    assert {key: launch[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    table_of(__file__, "bad_input_is_one_line_with_the_key"),
)
def test_bad_input_is_one_line_with_the_key(old: str, new: str, message: str) -> None:
    text = launch_sample("nemo.yaml").read_text(encoding="utf-8").replace(old, new)
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "x.yaml")
    assert message in str(caught.value)
