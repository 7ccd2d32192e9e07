"""AICB's CSV workload of Megatron: its files byte for byte, its schedule, its sizes."""

from __future__ import annotations

import csv
import hashlib
import itertools
import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.twins.aicb.arguments import parse_arguments
from perfmodel.workloads.twins.aicb.megatron_csv import (
    file_name,
    megatron_csv,
    megatron_events,
    stage_parameters,
)
from tests.workloads.twins.aicb.small_megatron import DEEPSEEK, small, total

GENERATOR = "python -m workload_generator.generate_megatron_workload --frame=Megatron"

# Command, SHA-256 and number of lines of the file that AICB 23eec3c4 wrote, and its name.
FILES = {
    "p01_megatron_csv_gpt7b": (
        f"{GENERATOR} --gpu_type=None --model_name=gpt_7B --world_size=64 "
        "--tensor_model_parallel_size=2 --pipeline_model_parallel=1 --global_batch=64 "
        "--micro_batch=1 --num_layers=4 --seq_length=1024 --hidden_size=4096 --epoch_num=1 "
        "--num_attention_heads=32 --max_position_embeddings=1024 --vocab_size=50257 "
        "--use-distributed-optimizer --swiglu --workload_only",
        "b5c5f5205b162f3f2f8ada82e07e2721d8b11c1d8159ca301b8ec06955ca9eb8",
        62,
        "megatron_gpt_7B_sp_False_iteration_1_computationEnable_False_64n_workload.csv",
    ),
    "p02_megatron_csv_pp4_sp": (
        f"{GENERATOR} --gpu_type=None --model_name=gpt_pp4 --world_size=64 "
        "--tensor_model_parallel_size=4 --pipeline_model_parallel=4 --global_batch=64 "
        "--micro_batch=1 --num_layers=16 --seq_length=2048 --hidden_size=4096 --epoch_num=1 "
        "--num_attention_heads=32 --max_position_embeddings=2048 --vocab_size=50257 "
        "--use-distributed-optimizer --workload_only --computation_enable "
        "--enable_sequence_parallel",
        "60b57250883577a0d517eeb249d69331e1903a38a30c1d3f938fc0ebbece614e",
        1525,
        "megatron_gpt_pp4_sp_True_iteration_1_computationEnable_True_64n_workload.csv",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_aicb_byte_for_byte(name):
    command, digest, lines, original_name = FILES[name]
    arguments = parse_arguments(shlex.split(command))
    text = megatron_csv(arguments)
    assert text.count("\n") == lines
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert file_name(arguments) == original_name


def test_files_by_their_own_commands(development_table):
    with development_table("aicb/manifest.csv").open(encoding="utf-8", newline="") as table:
        rows = [row for row in csv.DictReader(table) if "generate_megatron" in row["command"]]
    assert len(rows) == 2
    for row in rows:
        arguments = parse_arguments(shlex.split(row["command"]))
        expected = development_table(f"aicb/{row['file']}").read_bytes()
        assert megatron_csv(arguments).encode() == expected, row["file"]


def test_one_micro_batch_by_hand():
    # 2 replicas of 2 tensor-parallel ranks; activations of 2 · 2 · 4 = 16 bytes. Parameters of
    # a rank: embedding 4 · 128 · 4 + 2 · 4, attention 24 + 8, norms 8 + 4, MLP 2 · 4 · 8, LM
    # head 4 · 128; together 2676.
    assert stage_parameters(small()) == 2676
    events = megatron_events(small())
    seen = [(e.comm_type, (e.comm_group or "").removesuffix("_group"), e.message_size, e.source)
            for e in events]  # fmt: skip
    assert seen == [
        *[("all_reduce", "dp", 8, None)] * 4,
        ("all_gather", "dp", 32, None),
        ("broadcast", "tp", 24, 0),
        ("all_gather", "dp", 64, None),
        ("epoch_end", "", 0, None),
        ("broadcast", "tp", 40, 0),
        ("broadcast", "tp", 8 * (4 + 2), 0),
        *[("all_reduce", "tp", 16, None)] * 3,  # embedding, attention, MLP
        *[("all_reduce", "tp", 8, None)] * 3,  # cross entropy
        ("all_reduce", "dp", 4, None),  # average loss
        *[("all_reduce", "tp", 16, None)] * 3,  # attention, MLP, embedding
        ("all_reduce", "dp", 4 * 2676, None),
        ("all_reduce", "tp", 0, None),
        ("all_reduce", "tp", 4, None),
        ("epoch_end", "", 0, None),
    ]
    assert {e.comm_group_size for e in events} == {2, None}


def test_one_rank_sends_nothing_for_tensor_parallelism():
    arguments = small(tensor_model_parallel_size=1, enable_sequence_parallel=True)
    stages = {event.stage for event in megatron_events(arguments)}
    assert not any("Megatron" in stage for stage in stages)
    assert "forward_step" not in stages


def test_the_distributed_optimizer_scatters_gradients_and_gathers_parameters():
    events = megatron_events(small(use_distributed_optimizer=True))
    assert total(events, "reduce_scatter", "step") == 4 * 2676
    assert total(events, "all_gather", "step") == 2 * 2676
    assert total(events, "all_reduce", "step.finish_grad_sync") == 0


def test_products_have_two_operations_per_parameter_and_token():
    events = megatron_events(small(computation_enable=True))
    operations = Counter()
    for event in events:
        operations[event.stage.partition(".")[0]] += event.floating_point_operations
    assert operations["forward"] == 2 * 2 * (24 + 8 + 64)
    assert operations["backward"] == 2 * operations["forward"]
    assert events == megatron_events(small(aiob_enable=True))


pipelines = st.integers(2, 5)


@given(pipelines, st.integers(0, 9))
def test_what_a_stage_sends_its_neighbour_receives(stages, micro_batches):
    arguments = small(
        pipeline_model_parallel=stages, world_size=2 * stages, num_layers=stages,
        global_batch=max(micro_batches, 1),
        # Too small a batch leaves no micro-batch.
        micro_batch=1 if micro_batches else 2,
    )  # fmt: skip
    messages = []
    for stage in range(stages):
        events = megatron_events(arguments, stage)
        messages.append(Counter(event.additional for event in events if event.additional))
        embedded = [e for e in events if e.stage == "forward.MegatronEmbedding"]
        assert len(embedded) == micro_batches
        sizes = {e.message_size for e in events if e.comm_type in ("isend", "irecv")}
        assert sizes <= {2 * 2 * 4 * arguments.micro_batch}
    for earlier, later in itertools.pairwise(messages):
        assert earlier["send_next"] == later["recv_prev"] == micro_batches
        assert later["send_prev"] == earlier["recv_next"] == micro_batches
    assert messages[0]["send_prev"] == messages[-1]["send_next"] == 0


def test_a_stage_warms_up_with_one_pass_per_later_stage():
    arguments = small(
        pipeline_model_parallel=4, world_size=8, num_layers=4, global_batch=8
    )  # fmt: skip
    for stage in range(4):
        stages = [e.stage for e in megatron_events(arguments, stage)]
        before = stages[: stages.index("backward.MegatronColumnLinear")]
        assert before.count("forward.MegatronEmbedding") == 4 - stage - 1 + 1


def test_the_last_stage_synchronises_the_embedding_at_the_start():
    arguments = small(pipeline_model_parallel=2, num_layers=2)
    embedding = [4 * 128 * 4 * 2, 2 * 4 * 2]  # words and positions, 2 bytes each
    for stage, expected in ((0, []), (1, embedding)):
        events = megatron_events(arguments, stage)
        start = [e for e in events if e.stage == "init.model_setup" and e.comm_group == "tp_group"]
        assert [e.message_size for e in start if e.comm_type == "all_reduce"] == expected
    by_rank = small(pipeline_model_parallel=2, num_layers=2, pp_rank=1)
    assert megatron_events(by_rank) != megatron_events(arguments)


def test_deepseek_counts_its_parameters():
    # Attention 4 · 3, 3 · 3, 4 · 6, 5 · 6 and 4 · 4; norms of 3, 5 and 4, twice each, and a
    # vector of 4; an MLP 2 · 4 · 4; embedding 4 · 128 · 4 + 3 · 4 and LM head 4 · 128.
    attention, norms, mlp = 12 + 9 + 24 + 30 + 16, 2 * (3 + 5 + 4) + 4, 32
    shared = attention + norms + mlp
    outside = 4 * 128 * 4 + 12 + 4 * 128
    experts = 3 * 4 * (8 * 4 // 2) // 2  # three matrices of 2 local experts
    assert stage_parameters(small(**DEEPSEEK)) == outside + 2 * shared + experts
    without = small(**{**DEEPSEEK, "n_shared_expert": 0})
    assert stage_parameters(without) == outside + 2 * shared + experts - mlp
    dense = small(**{**DEEPSEEK, "n_dense_layers": 5})
    assert stage_parameters(dense) == outside + 2 * shared
    biases = small(**DEEPSEEK, add_bias_linear=True)
    own = 2 * (3 + 3 + 6 + 6 + 4 + 4 + 4) + 128  # both layers, the LM head
    assert stage_parameters(biases) == stage_parameters(small(**DEEPSEEK)) + own


@pytest.mark.parametrize("frame", ["DeepSpeed", "collective_test"])
def test_frames_without_a_model_are_refused(frame):
    with pytest.raises(StrategyError, match=f"--frame={frame}: AICB itself stops here"):
        megatron_csv(small(frame=frame))


def test_iterations_repeat():
    once, twice = (megatron_events(small(epoch_num=number)) for number in (1, 2))
    start = [event.comm_type for event in once].index("epoch_end") + 1
    assert twice == [*once, *once[start:]]


@pytest.mark.parametrize(
    ("changes", "stage", "message"),
    [
        ({}, 1, "pipeline stage 1: stages 0 to 0 exist"),
        ({}, -1, "pipeline stage -1"),
        ({"hidden_size": 5, "num_attention_heads": 1}, 0, "is no multiple of"),
        ({"num_layers": 10**12}, 0, "rows from --num_layers=1000000000000"),
        ({"global_batch": 10**12}, 0, "micro-batches"),
        ({"epoch_num": 10**12}, 0, "--epoch_num=1000000000000; at most 4000000"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(changes, stage, message):
    with pytest.raises(StrategyError, match=message) as raised:
        megatron_csv(small(**changes), stage)
    assert "\n" not in str(raised.value)


def test_sequence_parallelism_splits_every_all_reduce_of_a_layer():
    plain = megatron_events(small())
    split = megatron_events(small(enable_sequence_parallel=True))
    forward = "forward.MegatronRowLinear"
    assert total(plain, "all_reduce", forward) == total(split, "reduce_scatter", forward) == 2 * 16
    assert total(split, "all_gather", "forward.MegatronColumnLinear") == 2 * 16
    assert total(split, "reduce_scatter", "backward.MegatronColumnLinear") == 2 * 16
    assert total(split, "all_reduce", forward) == 0


def test_biases_count():
    # qkv 12 / 2, attention output 4, MLP 16 / 2 and 4, LM head 256 / 2.
    assert stage_parameters(small(add_bias_linear=True)) == 2676 + 6 + 4 + 8 + 4 + 128


def test_experts_exchange_messages_in_the_forward_pass_only():
    arguments = small(
        moe_enable=True, enable_sequence_parallel=True, num_experts=4, moe_router_topk=2,
        expert_model_parallel_size=2, world_size=8, global_batch=4,
    )  # fmt: skip
    events = [event for event in megatron_events(arguments) if "MoE" in event.stage]
    assert [(e.comm_type, e.comm_group, e.message_size, e.stage) for e in events] == [
        ("all_gather", "ep_group", 2 * 2 * 4 * 2, "forward.MoE.preprocess"),
        ("all_to_all", "ep_group", 16, "forward.MoE.dispatch"),
        ("all_gather", "tp_group", 32, "forward.MoE.permutation"),
        ("reduce_scatter", "tp_group", 32, "forward.MoE.unpermutation"),
        ("all_to_all", "ep_group", 16, "forward.MoE.combine"),
    ]
    assert {event.comm_group_size for event in events} == {None}
    # 2 matrices of 2 local experts with an inner width of 16 in place of the MLP's two.
    assert stage_parameters(arguments) == 2676 - 64 + 2 * 4 * 16 * 2 // 2


def test_deepseek_has_its_own_layers():
    events = megatron_events(small(**DEEPSEEK, computation_enable=True))
    passes = [e for e in events if e.stage.startswith(("forward.", "backward."))]
    assert [(e.comm_type, e.message_size, e.stage) for e in passes] == [
        ("all_reduce", 24, "forward.MegatronEmbedding"),
        *[*_deepseek_attention_forward(), *_deepseek_mlp_forward()],
        *_deepseek_attention_forward(),
        # 3 · 4 · 3 elements to half of the ranks: 36 bytes, in FP8 with scales 33/64 of them.
        ("all_to_all", 36 * 33 / 64, "forward.MoE.dispatch"),
        ("all_gather", 72, "forward.MoE.permutation"),
        ("reduce_scatter", 72, "forward.MoE.unpermutation"),
        ("all_to_all", 36, "forward.MoE.combine"),
        *_deepseek_mlp_forward(),
        *[*_deepseek_attention_backward(), *_deepseek_mlp_backward()] * 2,
        ("all_reduce", 24, "backward.MegatronEmbedding"),
    ]
    text = megatron_csv(small(**DEEPSEEK))
    assert "all_to_all,CommGroup.ep_group,None,18.5625,forward.MoE.dispatch,None" in text
    assert "all_to_all,CommGroup.ep_group,None,36,forward.MoE.combine,None" in text


def _deepseek_attention_forward():
    row, column = "forward.MegatronRowLinear", "forward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 3)), "forward.Linear.attention_linear_q_lora"),
        ("computation", ((3, 1, 3), (3, 3)), f"{column}.attention_q_column"),
        ("computation", ((3, 1, 4), (4, 6)), "forward.Linear.attention_linear_kv_lora"),
        ("computation", ((3, 1, 5), (5, 6)), f"{column}.attention_kv_column"),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}.attention_o_row"),
        ("all_reduce", 24, row),
    ]


def _deepseek_mlp_forward():
    row, column = "forward.MegatronRowLinear", "forward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 4)), f"{column}.mlp_column"),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}.mlp_row"),
        ("all_reduce", 24, row),
    ]


def _deepseek_attention_backward():
    row, column = "backward.MegatronRowLinear", "backward.MegatronColumnLinear"
    return [
        ("computation", ((3, 3), (3, 4)), "backward.Linear.attention_linear_q_lora"),
        ("computation", ((3, 1, 3), (3, 3)), f"{column}.attention_q_column"),
        ("computation", ((3, 3), (3, 3)), f"{column}.attention_q_column"),
        ("all_reduce", 2 * 3 * 3, column),
        ("computation", ((6, 3), (3, 4)), "backward.Linear.attention_linear_kv_lora"),
        ("computation", ((3, 1, 6), (6, 5)), f"{column}.attention_kv_column"),
        ("computation", ((6, 3), (3, 5)), f"{column}.attention_kv_column"),
        ("all_reduce", 2 * 3 * 5, column),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}attention_o_row"),
        ("computation", ((4, 3), (3, 4)), f"{row}attention_o_row"),
    ]


def _deepseek_mlp_backward():
    row, column = "backward.MegatronRowLinear", "backward.MegatronColumnLinear"
    return [
        ("computation", ((3, 1, 4), (4, 4)), f"{column}.mlp_column"),
        ("computation", ((4, 3), (3, 4)), f"{column}.mlp_column"),
        ("all_reduce", 24, column),
        ("computation", ((3, 1, 4), (4, 4)), f"{row}mlp_row"),
        ("computation", ((4, 3), (3, 4)), f"{row}mlp_row"),
    ]
