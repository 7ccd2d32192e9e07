"""Schedules and layouts of pipelines in launch files: what each software has, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES, WAVE
from perfmodel.launch.describe import Launch, settled
from perfmodel.launch.software import format_launch, parse_launch
from perfmodel.launch.torchtitan import NAMES
from perfmodel.training.layout import stage_layout
from tests.data import table_of
from tests.launch.launches import BRIDGE, MEGATRON, TITAN, one_launch, split_of

PRIMUS = (
    "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
    "    model: llama3.1_8B.yaml\n    overrides:\n      pipeline_model_parallel_size: 4\n"
)


def primus(*overrides: str) -> str:
    """Return an experiment with more overrides."""
    return PRIMUS + "".join(f"      {line}\n" for line in overrides)


ASKED: dict[str, Any] = {"pipeline_parallel": 4, "global_batch_size": 256, "sequence_length": 4096}
OFFERED = {
    "megatron": {"1f1b", "interleaved"},
    "megatron-bridge": {"1f1b", "interleaved"},
    "torchtitan": set(NAMES),
    "primus": {"1f1b", "interleaved", "zb_h1", "zb_v", "v_half", "v_min"},
    "maxtext": {"gpipe", "interleaved"},
    "deepspeed": {"1f1b"},
}


def scheduled(software: str, schedule: str) -> Launch:
    """Return a launch of a schedule, all else such as the software has."""
    kind = SCHEDULE_FACTS[schedule]
    chunks = max(kind.fewest_chunks, 2 if kind.chunk_step else 1)
    framework = {"megatron-bridge": "megatron", "deepspeed": "megatron-deepspeed"}
    return one_launch(
        "llama-3.1-8b",
        framework.get(software, software),
        devices=16,
        pipeline_schedule=schedule,
        virtual_pipeline=chunks,
        zero_stage={"torchtitan": 2, "maxtext": 3}.get(software, 1),
        **ASKED,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("software", OFFERED)
def test_every_schedule_is_written_or_refused_by_name(software: str, schedule: str) -> None:
    launch = scheduled(software, schedule)
    if schedule not in OFFERED[software]:
        with pytest.raises(StrategyError) as caught:
            format_launch(software, launch)
        assert f"cannot do pipeline_schedule {schedule}" in str(caught.value)
        assert "it offers " in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    text = format_launch(software, launch)
    found, read = parse_launch(text, "launch")
    assert found == software
    assert dict(read.strategy) == settled(launch.strategy, launch.model)
    assert read.framework.stage_split == "even"


@pytest.mark.parametrize("split", ["7,9,9,7", "first=5", "last=2", "Et*9|t*9|t*14|L", "by_cost"])
@pytest.mark.parametrize("software", ["megatron", "megatron-bridge", "torchtitan", "primus"])
def test_layouts_come_back(software: str, split: str) -> None:
    framework = "megatron" if software == "megatron-bridge" else software
    launch = one_launch(
        "llama-3.1-8b", framework, devices=16, split=split, zero_stage=2, **ASKED
    )  # fmt: skip
    _, read = parse_launch(format_launch(software, launch), "launch")
    assert launch.model is not None
    layouts = [stage_layout(launch.model, 4, 1, it) for it in (split, read.framework.stage_split)]
    assert layouts[0] == layouts[1]


def test_a_layout_goes_to_other_software() -> None:
    launch = one_launch("llama-3.1-8b", devices=16, split="7,9,9,7", zero_stage=2, **ASKED)
    assert "module_fqns_per_model_part" in format_launch("torchtitan", launch)
    for software in ("maxtext", "deepspeed"):
        other = scheduled(software, "gpipe" if software == "maxtext" else "1f1b")
        stated = Launch(other.strategy, launch.framework, launch.model, 16, 8, 8)
        with pytest.raises(StrategyError, match="stage_split 7,9,9,7: its stages hold equally"):
            format_launch(software, stated)


def test_no_file_asks_for_the_best_layout() -> None:
    launch = one_launch("llama-3.1-8b", devices=16, split="best", **ASKED)
    for software in ("megatron", "megatron-bridge", "primus"):
        with pytest.raises(StrategyError, match="cannot do stage_split best: a file states the"):
            format_launch(software, launch)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["patch_primus_pipeline: true", "pp_algorithm: zero-bubble"], "zb_h1"),
        (["patch_primus_pipeline: true", "pp_algorithm: zbv-formatted"], "zb_v"),
        (["patch_primus_pipeline: true", "pp_algorithm: v-half"], "v_half"),
        (["patch_primus_pipeline: true", "pp_algorithm: v-min"], "v_min"),
        (["patch_primus_pipeline: true", "pp_algorithm: 1f1b"], "1f1b"),
        (["pp_algorithm: v-min"], "1f1b"),
        (["patch_zero_bubble: true", "zero_bubble_max_pending_backward: 4"], "zb_h1"),
        (["patch_zero_bubble: true", "zero_bubble_max_pending_backward: 8"], "zb_h2"),
        (["patch_zero_bubble: true"], "zb_h1"),
        (["patch_zero_bubble: true", "enable_zero_bubble: false"], "1f1b"),
        (["patch_zero_bubble: true", "zero_bubble_v_schedule: true"], "v_half"),
        (
            ["patch_zero_bubble: true", "zero_bubble_v_schedule: true",
             "zero_bubble_v_schedule_mem_setup: zb"],
            "zb_v",
        ),
        (
            ["patch_zero_bubble: true", "zero_bubble_v_schedule: true",
             "num_virtual_stages_per_pipeline_rank: 2", "zero_bubble_v_schedule_mem_setup: min"],
            "v_min",
        ),
    ],
)  # fmt: skip
def test_schedules_of_primus(overrides: list[str], expected: str) -> None:
    _, launch = parse_launch(primus(*overrides), "x.yaml")
    assert launch["pipeline_schedule"] == expected
    assert (launch["virtual_pipeline"] == 2) == (SCHEDULE_FACTS[expected].placement == WAVE)
    solved = expected == "zb_h1" and overrides == ["patch_zero_bubble: true"]
    assert any("a solver finds the schedule" in text for text in launch.remarks) == solved


def test_layouts_of_primus() -> None:
    _, launch = parse_launch(primus("decoder_first_pipeline_num_layers: 5"), "x.yaml")
    assert launch.framework.stage_split == "first=5"
    _, launch = parse_launch(primus("pipeline_model_parallel_layout: Et*7|(t*9|)*2t*7L"), "x.yaml")
    assert launch.framework.stage_split == "7,9,9,7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MEGATRON + "--pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*8L'",
            "run.sh:1: --pipeline-model-parallel-layout: the stages hold 31 layers, and the model "
            "has 32",
        ),
        (
            MEGATRON + "--pipeline-model-parallel-layout 'Et*7|t*8|tL'",
            "--pipeline-model-parallel-layout 'Et*7|t*8|tL': should be a multiple of 4 stages",
        ),
        (
            MEGATRON + "--pipeline-model-parallel-layout 't*7|Et*9|t*8|t*8L'",
            "--pipeline-model-parallel-layout: E, t, m and L of",
        ),
        (
            MEGATRON + "--decoder-first-pipeline-num-layers 6",
            "--decoder-first-pipeline-num-layers: 26 layers are left for the 3 other stages",
        ),
        (
            f"{BRIDGE}  pipeline_model_parallel_layout: [[embedding, banana], [loss]]\n",
            "model.pipeline_model_parallel_layout '[['embedding', 'banana'], ['loss']]': should be "
            "a multiple of 4 stages such as Et|tL",
        ),
        (
            TITAN + "module_fqns_per_model_part = [['layers.0'], ['layers.2']]\n",
            "parallelism.module_fqns_per_model_part '[['layers.0'], ['layers.2']]': should be all "
            "layers, each once and in order",
        ),
        (
            TITAN + "module_fqns_per_model_part = [['layers.0', 'tower'], ['layers.1']]\n",
            "should be lists of modules such as tok_embeddings, layers.0, norm",
        ),
        (
            TITAN + "module_fqns_per_model_part = true\n",
            "should be lists of modules such as tok_embeddings, layers.0, norm",
        ),
        (
            TITAN + "module_fqns_per_model_part = 'layers.0'\n",
            "should be lists of modules such as tok_embeddings, layers.0, norm",
        ),
        (
            TITAN + "module_fqns_per_model_part = [['layers.0'], ['layers.1']]\n",
            "should be a multiple of 4 stages, one a rank; it makes 2",
        ),
        (
            TITAN + "pipeline_parallel_split_points = ['layers.8', 'layers.4', 'layers.30']\n",
            "should be layers in order, up to the model's 32",
        ),
        (
            TITAN + "pipeline_parallel_schedule = 'Eager'\n",
            "parallelism.pipeline_parallel_schedule 'Eager': should be one of 1F1B, GPipe, "
            "Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV",
        ),
        (
            primus("patch_primus_pipeline: true", "pp_algorithm: zbv-greedy"),
            "pp_algorithm 'zbv-greedy': should be one of 1f1b, 1f1b-interleaved, zero-bubble, "
            "zbv-formatted, v-half, v-min (others are not modelled)",
        ),
        (
            primus("patch_primus_pipeline: true", "patch_zero_bubble: true"),
            "only one scheduler can be on",
        ),
        (
            primus("patch_zero_bubble: true", "enable_1f1b_v: true"),
            "enable_1f1b_v 'True': should be false (1F1B in a V is not modelled)",
        ),
        (
            primus("patch_zero_bubble: true", "zero_bubble_max_pending_backward: 5"),
            "zero_bubble_max_pending_backward '5': should be auto, 4 or 8 micro-batches",
        ),
        (
            primus(
                "patch_primus_pipeline: true",
                "pp_algorithm: v-half",
                "num_virtual_stages_per_pipeline_rank: 4",
            ),
            "pp_algorithm 'v-half': should be another, or 2 virtual stages a rank, not 4",
        ),
    ],
)
def test_wrong_stages_are_one_line_with_the_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "run.sh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_of_a_schedule_is_named() -> None:
    _, launch = parse_launch(TITAN + "pipeline_parallel_schedule_csv = 'a.csv'\n", "x.toml")
    assert any("--schedule-file takes the table" in text for text in launch.remarks)
    several = "pipeline_parallel_schedule = 'PipelineScheduleMulti'\n"
    _, launch = parse_launch(TITAN + several, "x.toml")
    assert (launch["pipeline_schedule"], launch["virtual_pipeline"]) == ("interleaved", 2)
    assert any("unless --schedule-file takes its table" in text for text in launch.remarks)


@pytest.mark.parametrize(
    ("options", "expected"),
    table_of(__file__, "layouts_of_megatron"),
)
def test_layouts_of_megatron(options: str, expected: tuple[int, str]) -> None:
    assert split_of(MEGATRON + options) == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("Ett|tt|tt|tL", (1, "Ett|tt|tt|tL")),
        ("[[embedding, decoder], [decoder, decoder], [decoder], [decoder, loss]]", "Et|tt|t|tL"),
        ("[[embedding], [decoder], [decoder], [], [decoder], [decoder], [decoder], [loss]]", None),
    ],
)
def test_layouts_of_megatron_bridge(layout: str, expected: Any) -> None:
    # The recipe's model is not in the file: the layout stays as it is stated.
    chunks, split = split_of(f"{BRIDGE}  pipeline_model_parallel_layout: {layout}\n")
    if expected is None:
        assert (chunks, split) == (2, "E|t|t||t|t|t|L")
    elif isinstance(expected, str):
        assert (chunks, split) == (1, expected)
    else:
        assert (chunks, split) == expected


def test_ends_and_groups_of_megatron_bridge() -> None:
    text = (
        f"{BRIDGE}  virtual_pipeline_model_parallel_size: 2\n"
        "  num_layers_in_first_pipeline_stage: 6\n  num_layers_in_last_pipeline_stage: 2\n"
        "  microbatch_group_size_per_vp_stage: 8\n"
    )
    _, launch = parse_launch(text, "x.yaml")
    assert launch["micro_batch_group"] == 8
    assert launch.framework.stage_split == "first=6,last=2"


@pytest.mark.parametrize(("group", "expected"), [(4, 0), (8, 8)])
def test_groups_of_micro_batches(group: int, expected: int) -> None:
    option = f"--microbatch-group-size-per-virtual-pipeline-stage {group}"
    _, launch = parse_launch(
        f"{MEGATRON} --num-virtual-stages-per-pipeline-rank 2 {option}", "run.sh"
    )
    assert launch["micro_batch_group"] == expected
    assert launch["pipeline_schedule"] == "interleaved"
    assert (option in format_launch("megatron", launch)) == bool(expected)
