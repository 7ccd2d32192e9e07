"""Every file made from a projection says what the projection says, once read back.

What each format can carry: Chakra traces matrix FLOP, memory traffic, times and bytes by
collective and group, of every rank; AICB's and ASTRA-sim's text times and bytes by
collective, of one stage.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.model.build import dense_model, moe_model
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID
from perfmodel.training.step.groups import rank_groups
from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.export.text import (
    LAYERNORM,
    OF_EXPERTS,
    astra_text_workload,
    corrected_workload,
)
from perfmodel.workloads.formats.aicb_text import format_aicb_text, parse_aicb_text
from perfmodel.workloads.formats.astra_text import (
    RECOMPUTING,
    format_astra_text,
    parse_astra_text,
)
from perfmodel.workloads.formats.chakra.files import read_traces, write_traces
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.amount import cases
from tests.data import table_of

named_traces = functools.partial(projected_traces, numbered_groups=False)

SIZE: dict[str, Any] = {"layers": 4, "hidden_size": 1024, "heads": 8, "vocab_size": 8192}
MODELS = {
    # As GPT-3: no grouped queries, no gate, biases, a tied table.
    "gpt": dense_model("gpt", intermediate_size=4096, gated=False, activation="gelu", norm="layer",
                       bias=True, tied_embeddings=True, **SIZE),
    # As Llama 3: two query heads per key, gated.
    "llama": dense_model("llama", key_value_heads=4, intermediate_size=2816, **SIZE),
    # As Mixtral: experts in every layer.
    "mixtral": moe_model("mixtral", key_value_heads=4, experts=8, experts_per_token=2,
                         expert_intermediate_size=1024, **SIZE),
    # As DeepSeek-V3: latent attention, a dense layer ahead, a shared expert, a multi-token module.
    "deepseek": moe_model("deepseek", experts=8, experts_per_token=2, expert_intermediate_size=512,
                          shared_intermediate_size=512, first_dense_layers=1,
                          intermediate_size=2816, q_lora_rank=256, kv_lora_rank=128,
                          qk_nope_head_dim=64, qk_rope_head_dim=32, value_head_dim=64,
                          mtp_modules=1, **SIZE),
}  # fmt: skip
CASES: dict[str, tuple[str, str, dict[str, Any]]] = table_of(__file__, "cases")
WORDS = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "reduce_scatter": "REDUCESCATTER",
    "all_to_all": "ALLTOALL",
}
Sizes = dict[Any, float]


def strategy(model, *, micro_batches=4, data_parallel=1, micro_batch_size=1, **fields):
    """Grid of one strategy, possible or not."""
    row = {
        "sequence_length": 2048,
        **fields,
        "data_parallel": data_parallel,
        "micro_batch_size": micro_batch_size,
        "global_batch_size": micro_batches * data_parallel * micro_batch_size,
    }
    degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
    devices = int(np.prod([row.get(name, 1) for name in degrees]))
    return strategies_from_rows(model, devices, [row])


@pytest.fixture(scope="module")
def workload_of(h100):
    """Return a function that makes the workload of a case, or of a model and its fields."""
    made: dict[Any, Any] = {}

    def make(case, framework="megatron", **fields):
        model, framework, fixed = CASES.get(case, (case, framework, {}))
        key = (case, str(framework), tuple(fields.items()))
        if key not in made:
            grid = strategy(MODELS[model], **fixed, **fields)
            assert grid.status[0] == VALID, grid.row(0)
            made[key] = projected_workload(MODELS[model], grid, h100, framework=framework)
        return made[key]

    return make


@pytest.fixture(scope="module")
def files_of(workload_of, tmp_path_factory):
    """Return a function that writes the Chakra files of a case and reads them back."""

    @functools.cache
    def make(case):
        prefix = tmp_path_factory.mktemp("traces") / "trace"
        write_traces(named_traces(workload_of(case)), prefix)
        return read_traces(prefix)

    return make


class Totals:
    """What one device of a stage does per step, added up from operations, not from files."""

    def __init__(self, workload, stage):
        self.flops = self.traffic = self.time = 0.0
        self.sizes: Sizes = defaultdict(float)  # by collective and group, whole buffers
        self.arrived: Sizes = {}  # of those, what follows sends, which texts leave out
        self.calls: dict[Any, int] = defaultdict(int)
        self.members: dict[Any, int] = {}
        self.nodes = 0
        own = workload.stages[stage]
        for block in own.blocks():
            for item in block.part.operations:
                self._add(item, workload.runs)
            for item in block.gathers:
                self._add(item, workload.gathers)
            for item in block.reductions:
                self._add(item, workload.reductions)
        self._add(own.optimizer, 1)
        for item in own.sums():
            self._add(item, 1)
        if workload.boundary and workload.sends(stage):
            self._add(workload.boundary, workload.sends(stage))
            if arrival := workload.arrival:
                self._add(arrival, workload.sends(stage))
                size = workload.sends(stage) * arrival.size
                self.arrived[arrival.collective, arrival.group] = size

    def _add(self, item, runs):
        if not item.communicates:
            self.flops += runs * item.flops
            self.traffic += runs * item.traffic
            self.time += runs * item.time
            self.nodes += runs
            return
        key = item.collective, item.group
        self.sizes[key] += runs * item.count * item.size
        self.calls[key] += runs * max(1, round(item.count))
        self.members[key] = item.members

    def as_text(self, ring, *, shards, group):
        """Bytes by AICB's or ASTRA-sim's word and by what `group` makes of the group."""
        sizes: Sizes = defaultdict(float)
        for (collective, kind), size in self.sizes.items():
            members = self.members[collective, kind]
            size -= self.arrived.get((collective, kind), 0.0)
            if kind == "pipeline":
                continue
            if collective == "point_to_point":  # the hops of a ring as one all-gather
                collective, members, size = "all_gather", ring, size * ring / (ring - 1)
            part = members if shards and collective == "all_gather" else 1
            sizes[WORDS[collective], group(kind)] += size / part
        return sizes


def assert_same_sizes(found, expected, tolerance):
    assert set(found) == {key for key, size in expected.items() if size > 0}
    for key, size in found.items():
        assert abs(size - expected[key]) <= tolerance[key] + 1e-9 * size, key


def kind_of(name):
    return name.rsplit(" ", 1)[0].replace(" ", "_")


def assert_traces_say_the_same(workload, traces):
    stages = rank_groups(workload.strategy).stage
    assert traces.devices == workload.devices
    for stage in range(len(workload.stages)):
        rank = int(np.flatnonzero(stages == stage)[-1])
        trace, totals = traces.traces[rank], Totals(workload, stage)
        device = (trace.kinds == COMPUTE) & (trace.on_cpu == 0)
        # Whole FLOP and bytes per node, and 1 FLOP where there are no products.
        assert abs(int(trace.num_ops[device].sum()) - totals.flops) <= totals.nodes
        assert abs(int(trace.tensor_size[device].sum()) - totals.traffic) <= totals.nodes
        assert trace.duration[device].sum() == pytest.approx(totals.time, rel=1e-9)
        sizes: Sizes = defaultdict(float)
        for i in np.flatnonzero(trace.kinds == COLLECTIVE).tolist():
            key = TRACED[trace.collective[i]], kind_of(trace.group_names[trace.group[i]])
            members = len(traces.members(rank, i))
            assert members == totals.members[key]
            whole = members if key[0] == "all_gather" else 1
            sizes[key] += int(trace.communication_size[i]) * whole
        for i in np.flatnonzero(trace.kinds == SEND).tolist():
            group = "pipeline" if trace.names[i].endswith("ward send") else "context"
            sizes["point_to_point", group] += int(trace.communication_size[i])
        # Half a byte a call, of each shard of a gather; a call may be in two pieces.
        tolerance = {key: n * max(2, totals.members[key]) for key, n in totals.calls.items()}
        assert_same_sizes(sizes, totals.sizes, tolerance)


def assert_aicb_says_the_same(workload, file, stage):
    totals = Totals(workload, stage)
    phases = (file.forward, file.input_gradient, file.weight_gradient)
    times = sum(int(phase.compute_time.sum()) for phase in phases)
    assert abs(times * 1e-9 - totals.time) <= 0.5e-9 * 3 * file.rows
    sizes: Sizes = defaultdict(float)
    for phase in phases:
        for name, word, size in zip(file.name, phase.collective, phase.size, strict=True):
            collective, _, suffix = str(word).partition("_")
            if collective != "NONE" and name != LAYERNORM:
                sizes[collective, suffix] += int(size)
    header = file.header
    copies = workload.devices // (header.tensor_parallel * header.pipeline_parallel)

    def suffix_of(group):
        if group in ("expert", "context"):
            return "EP"
        return "DP_EP" if group in OF_EXPERTS and copies > header.expert_parallel else ""

    ring = int(workload.strategy["context_parallel"])
    expected = totals.as_text(ring, shards=False, group=suffix_of)
    assert_same_sizes(sizes, expected, dict.fromkeys(expected, 0.5 * file.rows))
    assert header.micro_batches == workload.runs
    assert header.world_size == workload.devices
    boundary = workload.boundary
    assert header.pipeline_message == (round(boundary.size) if boundary else 0)


def assert_text_says_the_same(workload, file, stage):
    totals = Totals(workload, stage)
    times = sum(int(phase.compute_time.sum()) for phase in file.phases)
    sizes: Sizes = defaultdict(float)

    def count(phase, rows):
        for word, size in zip(phase.collective[rows], phase.size[rows], strict=True):
            if word != "NONE":
                sizes[word, ""] += int(size)

    for phase in file.phases:
        count(phase, slice(None))
    if file.policy == RECOMPUTING:
        # From a checkpoint to the row that triggers it, the forward pass runs again.
        for begin, end in zip(file.checkpoints, file.checkpoint_initiates, strict=True):
            times += int(file.forward.compute_time[begin:end].sum())
            count(file.forward, slice(begin, end))
    assert abs(times * 1e-9 - totals.time) <= 0.5e-9 * 4 * file.layers
    ring = int(workload.strategy["context_parallel"])
    expected = totals.as_text(ring, shards=True, group=lambda _: "")
    assert_same_sizes(sizes, expected, dict.fromkeys(expected, file.layers))


@pytest.mark.parametrize("case", CASES)
def test_chakra_files_carry_all_of_it(case, workload_of, files_of):
    assert_traces_say_the_same(workload_of(case), files_of(case))


@pytest.mark.parametrize("case", CASES)
def test_aicb_files_carry_times_and_bytes(case, workload_of):
    workload = workload_of(case)
    for stage in range(len(workload.stages)):
        text = format_aicb_text(corrected_workload(workload, stage))
        assert_aicb_says_the_same(workload, parse_aicb_text(text), stage)


@pytest.mark.parametrize("case", CASES)
def test_astra_text_files_carry_times_and_bytes(case, workload_of):
    workload = workload_of(case)
    for stage in range(len(workload.stages)):
        made = astra_text_workload(workload, stage)
        file = parse_astra_text(format_astra_text(made))
        assert file.equals(made)
        assert_text_says_the_same(workload, file, stage)


@pytest.mark.parametrize("case", CASES)
def test_chakra_files_add_up_to_the_dataset(case, workload_of, files_of, h100):
    workload = workload_of(case)
    traces = files_of(case)
    stages = rank_groups(workload.strategy).stage
    sums: list[dict[str, float]] = []
    flops = 0
    for stage in range(len(workload.stages)):
        trace = traces.traces[int(np.flatnonzero(stages == stage)[0])]
        found: dict[str, float] = defaultdict(float)
        for name, kind, time, group, cpu in zip(
            trace.names, trace.kinds, trace.duration, trace.group, trace.on_cpu, strict=True
        ):
            found[_variable(name, kind, group, cpu, trace.group_names)] += float(time)
        sums.append(found)
        flops += int(trace.num_ops[(trace.kinds == COMPUTE) & (trace.num_ops > 1)].sum())
    slowest = sums[workload.slowest]
    projected = workload.projection
    for name in ("forward_time", "backward_time", "recompute_time", "tensor_parallel_total",
                 "context_parallel_total", "expert_parallel_total"):  # fmt: skip
        assert slowest[name] == pytest.approx(projected[name], rel=1e-9, abs=1e-15), name
    assert slowest["host_time"] == pytest.approx(projected["host_time"], rel=1e-6)
    # Priced for the stage with most parameters.
    for name in ("optimizer_time", "data_parallel_total"):
        most = max(found[name] for found in sums)
        assert most == pytest.approx(projected[name], rel=1e-9, abs=1e-15), name
    peak = h100.device.peak(workload.strategy["precision"])
    rate = flops / len(sums) / projected["step_time"]
    assert rate / peak == pytest.approx(projected["hardware_flops_utilization"], rel=1e-6)


def _variable(name, kind, group, cpu, groups):
    """Variable of a dataset to which a node's time belongs."""
    if kind == COMPUTE:
        if cpu:
            return "host_time"
        if name == "optimizer":
            return "optimizer_time"
        if " forward " in name:
            return "forward_time"
        return "recompute_time" if " recompute " in name else "backward_time"
    if name.endswith("ward gather"):  # of what came in shares
        return "messages"
    if kind in (SEND, RECEIVE):
        # A ring's hop is one send and its arrival; time is stated on both.
        return "context_parallel_total" if kind == SEND and " hop " in name else "messages"
    axis = {"tensor": "tensor", "expert_tensor": "tensor", "context": "context"}
    kinds = kind_of(groups[group])
    return f"{axis.get(kinds, 'expert' if kinds == 'expert' else 'data')}_parallel_total"


@st.composite
def problems(draw):
    """Draw a model, a framework and the fields of a strategy."""
    tensor, context, pipeline, data = (
        draw(st.sampled_from(values)) for values in ((1, 2, 4), (1, 1, 2), (1, 2), (1, 2, 4))
    )
    virtual = draw(st.sampled_from((1, 2))) if pipeline > 1 else 1
    fields = {
        "tensor_parallel": tensor,
        "context_parallel": context,
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "virtual_pipeline": virtual,
        "sequence_parallel": draw(st.booleans()),
        "context_parallel_kind": draw(st.sampled_from(("ring", "all_to_all", "all_gather"))),
        "zero_stage": draw(st.integers(0, 3)),
        "shard_group": draw(st.sampled_from((0, 0, 2))),
        "expert_parallel": draw(st.sampled_from((1, 2, 4))),
        "expert_tensor_parallel": draw(st.sampled_from((1, 1, 2))),
        "micro_batch_size": draw(st.sampled_from((1, 2))),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "precision": draw(st.sampled_from(("bf16", "fp16", "fp8"))),
        "micro_batches": draw(st.sampled_from((2, 4))),
        "sequence_length": draw(st.sampled_from((512, 1536))),
        "mapping": draw(st.sampled_from(("tensor-context-data-pipeline",
                                         "data-tensor-context-pipeline"))),
    }  # fmt: skip
    frameworks = ("megatron", "megatron-tuned", "megatron-deepep", "megatron-2021", "fsdp",
                  "maxtext")  # fmt: skip
    return draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from(frameworks)), fields


@given(problems())
@settings(max_examples=cases(20))
def test_files_say_what_the_projection_says(h100, problem):
    name, framework, fields = problem
    model = MODELS[name]
    if not any(layer.mlp.kind == "moe" for layer in model.layers):
        fields |= {"expert_parallel": 1, "expert_tensor_parallel": 1}
    grid = strategy(model, **fields)
    assume(grid.status[0] == VALID)
    workload = projected_workload(model, grid, h100, framework=framework)
    for granularity in ("operation", "layer"):
        traces = named_traces(workload, granularity=granularity)
        assert_traces_say_the_same(workload, traces)
    for stage in range(len(workload.stages)):
        assert_aicb_says_the_same(workload, corrected_workload(workload, stage), stage)
        assert_text_says_the_same(workload, astra_text_workload(workload, stage), stage)
    wall = float(simulate(traces, HardwareCosts(h100)).wall_time.max())
    assert wall >= max(Totals(workload, stage).time for stage in range(len(workload.stages)))
