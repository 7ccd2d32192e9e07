"""AICB's DeepSpeed workloads: its files byte for byte, and what ZeRO's stages must send."""

from __future__ import annotations

import csv
import hashlib
import math
import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import parse_aicb_csv
from perfmodel.workloads.twins.aicb.arguments import parse_arguments
from perfmodel.workloads.twins.aicb.deepspeed import (
    Tensor,
    deepspeed_csv,
    deepspeed_events,
    file_name,
    llama_tensors,
    owned_slices,
    zero_stage,
)
from tests.workloads.twins.aicb.small_deepspeed import (
    arguments_of,
    models,
    sizes,
    small,
    training_events,
)

STAGES_1_AND_2 = "python -m workload_generator.generate_deepspeed_stage1_2_workload"
STAGE_3 = "python -m workload_generator.generate_deepspeed_stage3_workload"

MODEL_7B = (
    "--frame=DeepSpeed --model_name=llama_7b --world_size=128 --global_batch=512 "
    "--micro_batch=4 --num_layers=32 --hidden_size=4096 --ffn_hidden_size=11008 "
    "--num_attention_heads=32 --seq_length=4096 --epoch_num=1 --workload_only"
)

MODEL_13B = MODEL_7B.replace("llama_7b", "llama_13b").replace("layers=32", "layers=40").replace(
    "hidden_size=4096", "hidden_size=5120").replace("ffn_hidden_size=11008", "ffn_hidden_size=13824"
    ).replace("heads=32", "heads=40")  # fmt: skip

MODEL_65B = MODEL_7B.replace("llama_7b", "llama_65b").replace("layers=32", "layers=80").replace(
    "hidden_size=4096", "hidden_size=8192").replace("ffn_hidden_size=11008", "ffn_hidden_size=22016"
    ).replace("heads=32", "heads=64")  # fmt: skip

# Command, SHA-256 and number of lines of the file that AICB 23eec3c4 wrote, and its name.
FILES = {
    "z1_llama7b": (
        f"{STAGES_1_AND_2} {MODEL_7B} --stage=1 --reduce_bucket_size=500000000 "
        "--allgather_bucket_size=500000000",
        "deab06ddbd4c6aeafa27d6ed058b1c58091565757673153bd5d79c6c5977de9c",
        323,
        "deepspeed_stage1_llama_7b_sp_False_iteration_1_computationEnable_False_128n_workload.csv",
    ),
    "z1_llama13b_compute": (
        f"{STAGES_1_AND_2} {MODEL_13B} --model_name=llama_13b_c --stage=1 "
        "--reduce_bucket_size=2000000000 --allgather_bucket_size=2000000000 --computation_enable",
        "9445629ab3a431e224bb9176b2b61dc37f3299343d1829cfc2d260783a4d0cb1",
        1227,
        "deepspeed_stage1_llama_13b_c_sp_False_iteration_1_computationEnable_True_128n_workload.csv",
    ),
    "z2_llama7b": (
        f"{STAGES_1_AND_2} {MODEL_7B} --stage=2 --reduce_bucket_size=1000000000 "
        "--allgather_bucket_size=1000000000",
        "5ca113a744c81219bfaaf9c5d5a703f54ef477d5e9d2f6511743f3371c8b1fe9",
        309,
        "deepspeed_stage2_llama_7b_sp_False_iteration_1_computationEnable_False_128n_workload.csv",
    ),
    "z2_llama13b_contig": (
        f"{STAGES_1_AND_2} {MODEL_13B} --world_size=256 --global_batch=1024 --stage=2 "
        "--reduce_bucket_size=26214400 --allgather_bucket_size=500000000 --contiguous_gradients",
        "7b3c94d29e43df1d633b1ae6207b3d4d410bce2e506fe467b6a1fdeae0ea9683",
        1012,
        "deepspeed_stage2_llama_13b_sp_False_iteration_1_computationEnable_False_256n_workload.csv",
    ),
    "z3_llama7b": (
        f"{STAGE_3} {MODEL_7B}",
        "e61c57954c3563ebdec52aa3f8f3579556d2ef8b8008008d9818d9fdbd295a4c",
        1251,
        "deepspeed_stage3_llama_7b_sp_False_iteration_1_computationEnable_False_128n_workload.csv",
    ),
    "z3_llama65b": (
        f"{STAGE_3} {MODEL_65B} --reduce_bucket_size=1000000000 --prefetch_bucket_size=1000000000 "
        "--max_live_parameters=600000000 --param_persistence_threshold=1000000",
        "b4beb9a8ab129b67525ad93606f297a755883f090cfe11ed67b4a62ae3dc75ae",
        3129,
        "deepspeed_stage3_llama_65b_sp_False_iteration_1_computationEnable_False_128n_workload.csv",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_aicb_byte_for_byte(name):
    command, digest, lines, original_name = FILES[name]
    arguments = parse_arguments(shlex.split(command))
    text = deepspeed_csv(arguments)
    assert text.count("\n") == lines
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert file_name(arguments) == original_name
    assert len(parse_aicb_csv(text)) == lines - 1


def test_files_by_their_own_commands(development_table):
    with development_table("aicb/manifest.csv").open(encoding="utf-8", newline="") as table:
        rows = [row for row in csv.DictReader(table) if "deepspeed" in row["command"]]
    assert len(rows) == 6
    for row in rows:
        arguments = parse_arguments(shlex.split(row["command"]))
        expected = development_table(f"aicb/{row['file']}").read_bytes()
        assert deepspeed_csv(arguments).encode() == expected, row["file"]


def test_llama_7b_has_its_parameters():
    # The published count, with an untied head and without rotary tables.
    arguments = parse_arguments(shlex.split(FILES["z1_llama7b"][0]))
    assert sum(tensor.elements for tensor in llama_tensors(arguments)) == 6_738_415_616


def test_stage_1_by_hand():
    events = training_events(small(stage=1))
    assert [(e.comm_type, e.message_size, e.stage) for e in events] == [
        ("all_reduce", 200, "backward.allreduce_bucket"),  # head, norm, up
        ("all_reduce", 200, "backward.allreduce_bucket"),  # down, gate, norm, o, v
        ("all_reduce", 200, "step.allreduce_bucket"),  # k, q, norm, embedding
        ("all_reduce", 1, "step.has_overflow"),
        ("all_gather", 304, "step.all_gather_dp_groups"),  # 150 elements, filled up to 152
        ("all_gather", 304, "step.all_gather_dp_groups"),
        ("epoch_end", 0, ""),
    ]


def test_stage_2_with_contiguous_gradients_by_hand():
    # Each of 4 ranks owns 75 elements of the flat buffer.
    events = training_events(small(stage=2, contiguous_gradients=True))
    reduced = [(e.destination, e.message_size) for e in events if e.comm_type == "reduce"]
    assert reduced == [(2, 50), (3, 150), (1, 100), (2, 100), (0, 150), (1, 50)]


def test_a_bucket_smaller_than_a_tensor_leaves_an_empty_reduction():
    reductions = sizes(training_events(small(stage=1, reduce_bucket_size=0)), "all_reduce")
    assert reductions[0] == 0
    assert len(reductions) == 12 + 1 + 1  # one per tensor, the rest, the overflow


def test_the_module_decides_the_stage_as_in_aicb():
    stages_1_and_2, stage_3 = (command.rpartition(".")[2] for command in (STAGES_1_AND_2, STAGE_3))
    assert zero_stage(small(module=stages_1_and_2, stage=1)) == 1
    assert zero_stage(small(module=stages_1_and_2, stage=3)) == 2
    assert zero_stage(small(module=stage_3, stage=1)) == 3
    assert [zero_stage(small(stage=stage)) for stage in (1, 2, 3)] == [1, 2, 3]


def test_a_dot_ends_a_files_name():
    assert (
        file_name(small(stage=3, model_name="llama-3.1")) == "deepspeed_stage3_llama-3_workload.csv"
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_products_have_two_operations_per_parameter_and_token(stage):
    arguments = small(stage=stage, computation_enable=True, micro_batch=1, global_batch=4)
    events = training_events(arguments)
    # 2 sequences' tokens, all but the three norms; the backward pass has twice as many.
    matrices = 300 - 3 * 4
    operations = Counter()
    for event in events:
        # Stage 3 gives the weight gradient no stage.
        operations[event.stage.partition(".")[0] or "backward"] += event.floating_point_operations
    assert operations["forward"] == 2 * 2 * matrices
    assert operations["backward"] == 2 * operations["forward"]
    assert deepspeed_events(arguments) == deepspeed_events(small(stage=stage, aiob_enable=True))


@given(models, st.integers(0, 3), st.booleans())
def test_every_gradient_is_reduced_once_per_micro_batch(fields, micro_batches, contiguous):
    arguments = arguments_of(fields, 2, micro_batches, contiguous_gradients=contiguous)
    parameters = sum(tensor.size for tensor in llama_tensors(arguments))
    events = training_events(arguments)
    reduced = sizes(events, "reduce" if contiguous else "all_reduce")
    overflow = 0 if contiguous else arguments.epoch_num
    assert sum(reduced) - overflow == parameters * micro_batches * arguments.epoch_num
    # What is gathered is the model, filled up to whole ranks.
    gathered = sizes(events, "all_gather")
    padding = 2 * arguments.data_parallel * len(gathered)
    assert parameters <= sum(gathered) / arguments.epoch_num < parameters + padding


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 12))
def test_slices_cover_every_element_once_and_parts_are_equal(lengths, replicas):
    slices = owned_slices([Tensor(length, 1) for length in lengths], replicas)
    pieces = [piece for tensor in slices for piece in tensor]
    assert [sum(end - begin for _, begin, end in tensor) for tensor in slices] == lengths
    assert [begin for _, begin, _ in pieces[1:]] == [end for _, _, end in pieces[:-1]]
    owned = Counter()
    for owner, begin, end in pieces:
        owned[owner] += end - begin
    part = math.ceil(sum(lengths) / replicas)
    assert max(owned) < replicas
    assert all(owned[owner] == part for owner in range(max(owned)))


def test_a_tensor_that_begins_where_a_part_ends_has_an_empty_slice():
    assert owned_slices([Tensor(4, 1), Tensor(4, 1)], 2) == [((0, 0, 4),), ((0, 4, 4), (1, 4, 8))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline_model_parallel": 2}, "no pipeline; 1 is needed"),
        ({"stage": 1, "amp_enabled": True}, "--amp_enabled with ZeRO stage 1"),
        ({"stage": 2, "allgather_bucket_size": 0}, "at least 1 element"),
        ({"stage": 1, "allgather_bucket_size": 1, "hidden_size": 10**6}, "rows from"),
        ({"num_attention_heads": 5}, "--num_attention_heads=5 is more than --hidden_size=4"),
        ({"num_layers": 10**12}, "rows from --num_layers=1000000000000, 1 micro-batches"),
        ({"epoch_num": 10**12}, "--epoch_num=1000000000000; at most 4000000"),
        ({"global_batch": 10**12}, "rows from"),
        (
            {"stage": 2, "contiguous_gradients": True, "world_size": 10**15},
            "rows from",
        ),
        (
            {"stage": 2, "contiguous_gradients": True, "world_size": 1, "reduce_bucket_size": 150},
            "negative size: take a smaller --reduce_bucket_size or more replicas",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(changes, message):
    with pytest.raises(StrategyError, match=message) as raised:
        deepspeed_csv(small(**changes))
    assert "\n" not in str(raised.value)


def test_stage_3_by_hand():
    arguments = small(
        stage=3, global_batch=8, param_persistence_threshold=4, prefetch_bucket_size=40
    )
    events = training_events(arguments)
    alone = [128, 8, 32, 32, 32, 32, 8, 64, 64, 64, 8, 128]
    forward, backward = (sizes(events, "all_gather", phase) for phase in ("forward", "backward"))
    assert forward[:12] == alone  # the order of use is not known yet
    assert backward[:12] == alone[::-1]
    # embedding; norm with q, k, v; o, norm, gate; down, up; norm, head; then, ahead of the
    # backward pass, what is no longer live: v, k, q; embedding.
    assert forward[12:] == [128, 104, 104, 128, 136, 96, 128]
    # head, norm, up, down, gate, norm: given up at the end of the order.
    assert backward[12:] == [128, 8, 64, 64, 64, 8]
    assert sizes(events, "reduce_scatter") == [200] * 6
    assert sizes(events, "all_gather", "step") == [8, 8, 8]  # the norms stay
    assert sizes(events, "all_reduce") == [1, 8]


def test_mixed_precision_of_stage_3_broadcasts_nothing():
    assert sizes(deepspeed_events(small(stage=3, amp_enabled=True)), "broadcast") == []
    assert len(sizes(deepspeed_events(small(stage=3)), "broadcast")) == 12


@given(models, st.integers(0, 3))
def test_stage_3_reduces_and_gathers_everything(fields, micro_batches):
    arguments = arguments_of(fields, 3, micro_batches)
    tensors = llama_tensors(arguments)
    parameters = sum(tensor.size for tensor in tensors)
    passes = micro_batches * arguments.epoch_num
    events = training_events(arguments)
    assert sum(sizes(events, "reduce_scatter")) == parameters * passes
    small_ones = [t.size for t in tensors if t.elements <= arguments.param_persistence_threshold]
    assert sizes(events, "all_gather", "step") == small_ones * arguments.epoch_num
    # The first micro-batch gathers every tensor by itself, before both of its uses.
    first = min(micro_batches, 1) * len(tensors)
    each = [tensor.size for tensor in tensors][:first]
    assert sizes(events, "all_gather", "forward")[:first] == each
    assert sizes(events, "all_gather", "backward")[:first] == each[::-1]


@given(models, st.integers(1, 3))
def test_stage_3_without_anything_ahead_gathers_for_every_use(fields, micro_batches):
    nothing = {"prefetch_bucket_size": 0, "param_persistence_threshold": 0}
    arguments = arguments_of({**fields, **nothing}, 3, micro_batches)
    parameters = sum(tensor.size for tensor in llama_tensors(arguments))
    uses = 2 * micro_batches * arguments.epoch_num
    assert sum(sizes(training_events(arguments), "all_gather")) == uses * parameters
