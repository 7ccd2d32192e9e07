"""What rows of training tables leave open, and what was likely chosen."""

from __future__ import annotations

from perfmodel.measured.row_choices import grouped, micro_batches, virtual_chunks
from perfmodel.measured.rows import MeasuredRow
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework


def row(**cells: str) -> MeasuredRow:
    return MeasuredRow(cells, "runs.csv", 2)


def test_virtual_chunks_are_open_where_software_or_table_say_so() -> None:
    model = load_model("llama-3-70b")

    def chunks(framework: str, pipeline: int = 8, **cells: str) -> list[int]:
        return virtual_chunks(row(**cells), load_framework(framework), model, pipeline)

    assert chunks("primus") == [1]
    assert chunks("primus", vpp="5") == [5]
    assert chunks("torchtitan", vpp=">1") == [2, 1]
    assert chunks("primus", vpp=">1") == [2, 1]
    assert chunks("primus", notes="interleaving not in the table") == [2, 1]
    assert chunks("megatron") == [5, 1]
    assert chunks("nemo@24.09") == [10, 1]
    assert chunks("nemo@24.09", vpp="1") == [1]
    assert chunks("nemo@24.09", pipeline=1) == [1]


def test_chunks_of_layers_with_experts_have_twice_the_layers() -> None:
    """Recipes of Megatron-Bridge: DeepSeek-V3 4 chunks on 4 stages, Qwen3 235B 3 on 8."""
    bridge = load_framework("megatron-bridge@0.4")

    def chunks(model: str, pipeline: int) -> int:
        return virtual_chunks(row(), bridge, load_model(model), pipeline)[0]

    assert [chunks("deepseek-v3", stages) for stages in (2, 4, 8, 16)] == [8, 4, 2, 1]
    assert chunks("qwen3-235b-a22b", 8) == 3
    assert chunks("llama-3.1-405b", 8) == 8


def test_groups_of_micro_batches_leave_no_rest_or_a_whole_one() -> None:
    stages = {"pipeline_parallel": 4, "data_parallel": 2, "micro_batch_size": 1}

    def group(sequences: int, **more: object) -> object:
        candidate = {**stages, "virtual_pipeline": 3, "global_batch_size": sequences, **more}
        return grouped(candidate).get("micro_batch_group")

    assert group(10) == 5
    assert group(22) == 6  # 11 micro-batches: 6 and 5
    assert group(16) is None
    assert group(6) is None  # fewer than stages: impossible
    assert group(10, virtual_pipeline=1) is None
    assert group(10, pipeline_schedule="zb_v") is None


def test_micro_batches_divide_the_batch_of_a_replica() -> None:
    fixed = {"global_batch_size": 24, "data_parallel": 2, "pipeline_parallel": 1, "zero_stage": 1}
    assert micro_batches(row(), load_framework("megatron"), fixed) == [1, 2, 4]
    assert micro_batches(row(mbs="3"), load_framework("megatron"), fixed) == [3]
    assert micro_batches(row(), load_framework("maxtext"), fixed) == [12]


def test_pipelines_have_as_many_micro_batches_as_their_software_makes() -> None:
    fixed = {"global_batch_size": 64, "data_parallel": 2, "pipeline_parallel": 8, "zero_stage": 2}
    assert micro_batches(row(), load_framework("torchtitan@0.1"), fixed) == [4]
    assert micro_batches(row(mbs="1"), load_framework("torchtitan@0.1"), fixed) == [1]
    assert micro_batches(row(), load_framework("torchtitan"), fixed)[:2] == [1, 2]
    uneven = {**fixed, "global_batch_size": 24}
    assert micro_batches(row(), load_framework("torchtitan@0.1"), uneven) == [1, 2, 4]
