"""Stages and chunks: every part of a model is somewhere."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.pipelines import LOOP
from perfmodel.model.build import dense_model
from perfmodel.model.layers import LayerSpec, MlpSpec, layer_parameters
from perfmodel.model.presets import load_model
from perfmodel.operations.operations import Machine
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.software.framework import load_framework
from perfmodel.software.modules import MODULES, SAVED, policy_of
from perfmodel.training.activations import Scope
from perfmodel.training.layout import chunk_sizes, chunks_by_cost, stage_layout
from perfmodel.training.memory import layer_kept
from perfmodel.training.schedule import (
    ALL,
    Recomputed,
    chunk_parts,
    chunk_stages,
    recomputed_of,
    stage_compositions,
    stage_table,
)
from tests.training.gpt import keys_of
from tests.training.saved_layers import SAVED as PUBLIC
from tests.training.saved_layers import attention

PLAIN = LayerSpec((attention(4, 2, 16),), (MlpSpec("dense", 256),))
ROUTED = LayerSpec(
    (attention(4, 2, 16),),
    (
        MlpSpec(
            "moe",
            experts=8,
            experts_per_token=2,
            expert_intermediate_size=32,
            shared_intermediate_size=16,
        ),
    ),
)
LATENT = PUBLIC["DeepSeek-V3 dense"].layer
TOKENS = 1024


def kept(layer: LayerSpec, hidden: int, words: str, **fields: object) -> float:
    """Bytes per token that a layer keeps where these words are repeated."""
    at = Scope(keys_of(sequence_length=TOKENS, **fields), load_framework("megatron"))
    boundary = at.own * hidden * at.stored
    found = layer_kept(at, layer, float(hidden)).selective(policy_of(words, True), boundary)
    return float(np.ravel(found)[0]) / TOKENS


@pytest.mark.parametrize(
    ("layer", "hidden", "words", "dropped"),
    [
        # CheckpointFunction keeps q, k, v, which are kept in any case; the output is the input
        # of the projection; flash attention's statistic of every head is made again
        # (core/transformer/attention.py, _checkpointed_attention_forward).
        (PLAIN, 64, "core_attn", 4 * 4),
        # linear_fc1 and linear_fc2 with their inputs: norm, gate and value, their product.
        (PLAIN, 64, "mlp", 2 * (64 + 3 * 256)),
        # input_layernorm and pre_mlp_layernorm are IdentityOp in a dense layer (gpt_layer_specs).
        (PLAIN, 64, "layernorm", 0),
        (PLAIN, 64, "moe moe_act shared_experts mla_up_proj", 0),
        # Only pre_mlp_layernorm is a norm of its own ahead of experts.
        (ROUTED, 64, "layernorm", 2 * 64),
        # What bias_swiglu puts out for two experts a token (experts.py, activation_checkpoint).
        (ROUTED, 64, "moe_act", 2 * 2 * 32),
        (ROUTED, 64, "shared_experts", 2 * 3 * 16),
        # All of the layer of experts but its input, the norm's output. What experts put out is
        # kept by nobody: their weights, in fp32, scale the activations.
        (ROUTED, 64, "moe", 2 * (2 * (64 + 3 * 32) + 4) + 8 * 8 + 2 * 3 * 16),
        (
            ROUTED,
            64,
            "moe moe_act shared_experts",
            2 * (2 * (64 + 3 * 32) + 4) + 8 * 8 + 2 * 3 * 16,
        ),
        (ROUTED, 64, "mlp", 0),
        # Queries and keys of 192 and values of 128 for 128 heads
        # (multi_latent_attention.py, qkv_up_checkpoint).
        (LATENT, 7168, "mla_up_proj", 2 * 128 * (192 + 192 + 128)),
        (LATENT, 7168, "layernorm", 2 * 7168),
    ],
)
def test_bytes_that_a_module_drops(
    layer: LayerSpec, hidden: int, words: str, dropped: float
) -> None:
    assert kept(layer, hidden, "alternate_products") < kept(layer, hidden, "norm_linear")
    none = float(np.ravel(everything(layer, hidden))[0]) / TOKENS
    assert none - kept(layer, hidden, words) == dropped


def everything(layer: LayerSpec, hidden: int) -> np.ndarray:
    at = Scope(keys_of(sequence_length=TOKENS), load_framework("megatron"))
    return np.asarray(layer_kept(at, layer, float(hidden)).everything)


def test_experts_repeated_in_8_bits_keep_their_input_in_16() -> None:
    """Products keep one byte a number, a checkpoint its input as it came."""
    held = {words: kept(ROUTED, 64, words, precision="fp8") for words in ("moe_act", "moe")}
    both = kept(ROUTED, 64, "moe layernorm", precision="fp8")
    assert held["moe"] - both == 2 * 64
    assert held["moe"] < held["moe_act"]


@pytest.mark.parametrize(
    ("words", "saved"),
    [
        ("save_qkv_proj", 64 + 2 * 2 * 16),
        ("save_context", 64 + 2 * 4),  # and a statistic of four bytes a head
        ("save_out_proj", 64),
        ("save_mlpwi", 2 * 256),
        ("save_mlpwo", 0),  # nobody reads it again
        ("save_qkv_proj save_out_proj save_mlpwi save_mlpwo", 64 + 64 + 64 + 512),
    ],
)
def test_outputs_that_are_saved_beside_the_input(words: str, saved: int) -> None:
    assert kept(PLAIN, 64, words) == 2 * (64 + saved)


def repeated(words: str, model: str, **fields: object) -> tuple[set[str], set[str]]:
    """Names of forward operations, and of those that are repeated."""
    framework = load_framework("megatron", selective_recompute=words)
    part = model_parts(load_model(model))[-3]  # a layer: of experts, where there are any
    keys = keys_of(sequence_length=4096, recompute="selective", **fields)
    made = part_operations(load_model(model), part, keys, framework, Machine())
    names: dict[str, set[str]] = {"forward": set(), "recompute": set()}
    for item in made:
        if item.phase in names and np.any(item.count):
            names[item.phase].add(item.name)
    return names["forward"], names["recompute"]


MLA = "deepseek-v2-lite"


@pytest.mark.parametrize(
    ("words", "model", "again"),
    [
        ("core_attn", "llama-3.1-8b", {"attention.core"}),
        ("layernorm", "llama-3.1-8b", set()),
        ("mlp", "llama-3.1-8b", {"mlp.norm", "mlp.up", "mlp.activation", "mlp.down"}),
        ("mlp", MLA, set()),
        ("layernorm", MLA, {"attention.norm", "mlp.norm"}),
        ("moe_act", MLA, {"mlp.experts_activation"}),
        ("shared_experts", MLA, {"mlp.shared.up", "mlp.shared.activation", "mlp.shared.down"}),
        (
            "mla_up_proj",
            MLA,
            {
                *("attention.query_up", "attention.key_value_up", "attention.assemble_keys"),
                "attention.rope",
            },
        ),
    ],
)
def test_operations_that_a_module_repeats(words: str, model: str, again: set[str]) -> None:
    assert repeated(words, model)[1] == again


def test_blocks_of_experts_are_repeated_with_their_exchanges() -> None:
    forward, again = repeated("moe", MLA, expert_parallel=8)
    assert again == {x for x in forward if x.startswith("mlp.")} - {"mlp.norm", "mlp.residual"}
    assert {"mlp.dispatch.all_to_all", "mlp.shared.up"} <= again


def test_attention_is_repeated_with_the_exchange_of_its_context_ranks() -> None:
    _, again = repeated("core_attn", "llama-3.1-8b", context_parallel=2)
    assert again == {f"attention.{x}" for x in ("core", "core_remote", "ring", "merge_pieces")}


@pytest.mark.parametrize("word", SAVED)
def test_what_is_saved_is_not_made_again(word: str) -> None:
    """And no product is that only leads to the next layer's input."""
    forward, again = repeated(word, "llama-3.1-8b", tensor_parallel=2, sequence_parallel=True)
    products = {
        "save_qkv_proj": {"attention.qkv", "attention.rope"},  # unfused, their split, too
        "save_context": {"attention.core"},
        "save_out_proj": {"attention.output", "attention.output.reduce_scatter"},
        "save_mlpwi": {"mlp.up"},
        "save_mlpwo": set(),
    }[word]
    behind = {"mlp.down", "mlp.output.reduce_scatter", "mlp.residual"}
    assert forward - again == products | behind


def test_no_module_more_keeps_more_or_takes_less() -> None:
    """Over all pairs of modules, for dense layers, latent attention and experts."""
    words = (*MODULES, "")
    for layer, hidden in ((PLAIN, 64), (ROUTED, 64), (LATENT, 7168)):
        for one, other in itertools.product(words, words):
            both = " ".join((one, other)).strip() or "mlp"
            single = one or "mlp"
            assert kept(layer, hidden, f"{single} {both}") <= kept(layer, hidden, single)
    for one, other in itertools.combinations(MODULES, 2):
        assert repeated(one, MLA)[1] <= repeated(f"{one} {other}", MLA)[1]


def chosen_layers(model: str, pipeline: int, virtual: int, method: str, layers: int) -> list[str]:
    """Each chunk's layers: r recomputed, k kept, g in a group; then groups by their size."""
    spec = load_model(model)
    layout = stage_layout(spec, pipeline, virtual)
    stages = chunk_stages(LOOP, pipeline, virtual)
    chunks = chunk_parts(spec, layout, stages, Recomputed(method, layers))
    return [
        "".join(
            str(len(part.members))
            if part.kind == "group"
            else "k"
            if part.kept
            else "g"
            if part.grouped
            else "r"
            for part in chunk
            if part.kind in ("layer", "group")
        )
        for chunk in chunks
    ]


@pytest.mark.parametrize(
    ("pipeline", "virtual", "method", "layers", "found"),
    [
        # megatron/core/transformer/transformer_block.py, _checkpointed_forward: of every chunk.
        (4, 2, "block", 1, ["rkkk"] * 8),
        (4, 2, "block", 9, ["rrrr"] * 8),
        (4, 2, "block", 0, ["kkkk"] * 8),
        (4, 1, "uniform", 3, ["gggggggg332"] * 4),
        # torchtitan's counter goes on through the chunks of its process.
        (4, 2, "every", 3, ["kkrk"] * 4 + ["krkk"] * 4),
        (2, 1, "every", 2, ["kr" * 8] * 2),
    ],
)
def test_which_layers_of_a_chunk(
    pipeline: int, virtual: int, method: str, layers: int, found: list[str]
) -> None:
    assert chosen_layers("llama-3.1-8b", pipeline, virtual, method, layers) == found


def test_prediction_modules_go_with_the_method() -> None:
    """By blocks Megatron-Core recomputes none of them."""
    spec = load_model("deepseek-v3", mtp="stated")
    stages = chunk_stages(LOOP, 1, 1)
    for method, kept_modules in (("block", 2), ("every", 0)):
        (chunk,) = chunk_parts(spec, stage_layout(spec, 1, 1), stages, Recomputed(method, 100))
        module = chunk[-3:]
        assert [part.kind for part in module] == ["mtp", "layer", "output"]
        assert sum(part.kept for part in module) == kept_modules


FIELDS = ("recompute_method", "recompute_num_layers")
RUN = {"pipeline_parallel": 2, "tensor_parallel": 2, "micro_batches": 8, "zero_stage": 1}
PARTLY = ("block", "every", "uniform")


@pytest.fixture(scope="module")
def projected(project, h100, small_dense):
    def run(method="single", layers=0, recompute="full", **fields):
        some = dict(zip(FIELDS, (method, layers), strict=True))
        return project(small_dense, h100, recompute=recompute, **(RUN | some | fields))

    return run


@pytest.mark.parametrize("zero", [1, 3])
def test_limits(projected, zero) -> None:
    """All layers of a block are all, none of them none; groups of one and every first are all."""
    full, none = projected(zero_stage=zero), projected(recompute="none", zero_stage=zero)
    assert projected("block", 100, zero_stage=zero) == full
    assert projected("block", 0, zero_stage=zero) == none
    assert projected("uniform", 1, zero_stage=zero) == full
    assert projected("every", 1, zero_stage=zero) == full
    assert projected("every", 100, zero_stage=zero) == none


@pytest.mark.parametrize("virtual", [1, 2])
def test_more_layers_of_a_block_take_longer_and_keep_less(projected, virtual) -> None:
    found = [projected("block", n, virtual_pipeline=virtual) for n in range(4)]
    for less, more in itertools.pairwise(found):
        assert more["recompute_time"] >= less["recompute_time"]
        assert more["step_time"] >= less["step_time"]
        assert more["memory_activations"] <= less["memory_activations"] * (1 + 1e-12)


def test_time_is_that_of_the_layers(project, h100, llama_8b) -> None:
    """Sixteen layers a stage: a block of four repeats a quarter, groups repeat all."""

    def run(method, layers):
        some = dict(zip(FIELDS, (method, layers), strict=True))
        return project(llama_8b, h100, recompute="full", **RUN, **some)

    full = run("single", 0)
    quarter = run("block", 4)["recompute_time"]
    assert quarter == pytest.approx(full["recompute_time"] / 4, rel=1e-9)
    assert run("every", 4)["recompute_time"] == pytest.approx(quarter, rel=1e-9)
    assert run("uniform", 4)["recompute_time"] == pytest.approx(full["recompute_time"], rel=1e-12)
    assert run("uniform", 4)["step_time"] == pytest.approx(full["step_time"], rel=1e-12)


def test_groups_keep_the_input_of_their_first_layer(h100, llama_8b, grid_of) -> None:
    """Their backward holds what all layers of one keep: by hand, from the parts' bytes."""
    from perfmodel.operations.parts import Part
    from perfmodel.training.memory import part_memory

    keys, framework = keys_of(), load_framework("megatron")
    layer = next(part for part in model_parts(llama_8b) if part.kind == "layer")
    whole = part_memory(llama_8b, layer, keys, framework)
    inside = layer_kept(Scope(keys, framework), layer.layer, float(llama_8b.hidden_size))
    full = keys_of(recompute="full")
    group = part_memory(llama_8b, Part("g", "group", members=(layer.layer,) * 4), full, framework)
    boundary = 2048 * 4096 * 2
    assert group.activations[0] == group.offloadable[0] == boundary
    # Beside what was repeated the gradient of the stream, the output, and the widest gradient.
    beside = 2 * boundary + float(np.max(inside.widest))
    assert group.working[0] == 4 * whole.activations[0] - boundary + beside
    member = part_memory(llama_8b, replace(layer, grouped=True), full, framework)
    assert member.activations[0] == member.working[0] == member.offloadable[0] == 0
    assert member.weights[0] == whole.weights[0]
    assert group.weights[0] == 0


def test_one_layer_a_group_is_all_of_them() -> None:
    assert recomputed_of(1, 1) == recomputed_of() == Recomputed("single", 0)
    assert recomputed_of(2, 1) == Recomputed("block", 1)
    assert recomputed_of(3, 1) == Recomputed("single", 0)


def test_strategies_of_one_sweep_do_not_mix(project, h100, small_dense) -> None:
    """Each is what it is alone, whatever other methods stand beside it."""
    from perfmodel.kernels.variables import STEP_VARIABLES
    from perfmodel.strategy.enumerate import strategies_from_rows
    from perfmodel.training.project import project_grid
    from perfmodel.training.workload import Workload
    from tests.conftest import complete

    rows, alone = [], []
    for method, layers in (("single", 0), ("block", 1), ("every", 2), ("uniform", 2), ("block", 2)):
        some = dict(zip(FIELDS, (method, layers), strict=True))
        devices, row = complete({"recompute": "full", **RUN, **some})
        rows.append(row)
        alone.append(project(small_dense, h100, recompute="full", **RUN, **some))
    out = np.empty((len(STEP_VARIABLES), len(rows)))
    grid = strategies_from_rows(small_dense, devices, rows)
    project_grid(Workload(small_dense, grid), h100, load_framework("megatron"), out, threads=1)
    for i, values in enumerate(alone):
        for place, item in enumerate(STEP_VARIABLES):
            assert out[place, i] == values[item.name]


@pytest.mark.parametrize("method", PARTLY)
def test_explained_and_exported_steps_have_the_projection_s_time(method, h100, llama_8b) -> None:
    from perfmodel.analysis.explain import component, operation_costs
    from perfmodel.analysis.single import one_strategy
    from perfmodel.training.step.types import COMMUNICATION
    from perfmodel.training.step.workload import projected_workload

    axes = {
        **dict(zip(FIELDS, (method, 3), strict=True)),
        **{"recompute": "full", "pipeline_parallel": 2, "tensor_parallel": 2},
        **{"global_batch_size": 8, "sequence_length": 4096},
    }
    grid = one_strategy(llama_8b, 8, axes)
    workload = projected_workload(llama_8b, grid, h100)
    again = sum(
        cost.exposed
        for cost in operation_costs(llama_8b, grid, h100)
        if component(cost) == "recompute_time"
    )
    assert again == pytest.approx(workload.projection["recompute_time"], rel=1e-9)
    repeated = [
        sum(
            item.time
            for block in stage.blocks()
            for item in block.part.operations
            if item.phase == "recompute" and item.kind != COMMUNICATION
        )
        for stage in workload.stages
    ]
    passes = workload.micro_batches
    assert max(repeated) * passes == pytest.approx(workload.projection["recompute_time"], rel=1e-9)


@given(st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_chunks_hold_every_layer(layers, chunks, heavy_end):
    sizes = chunk_sizes(layers, chunks, heavy_end=heavy_end)
    assert len(sizes) == chunks
    assert sum(sizes) == layers
    assert min(sizes) >= 0
    if heavy_end:
        assert sizes == sorted(sizes, reverse=True)
        return
    if layers % chunks == 0:
        assert len(set(sizes)) == 1
    if chunks <= layers:
        # With the edges counted as a layer each, no two chunks differ by more than one.
        loads = list(sizes)
        loads[0] += 1
        loads[-1] += 1
        assert layers % chunks == 0 or max(loads) - min(loads) <= 1


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1000, 131072]))
def test_chunks_by_cost_hold_every_layer_and_equal_shares(layers, chunks, vocab_size):
    model = dense_model(
        "m", layers=layers, hidden_size=256, heads=4, intermediate_size=1024, vocab_size=vocab_size
    )
    sizes = chunks_by_cost(model, chunks)
    assert len(sizes) == chunks
    assert sum(sizes) == layers
    layer = layer_parameters(model.layers[0], 256).total
    share = (layers * layer + vocab_size * 256) / chunks
    # A chunk stops with the layer that exceeds what the chunks so far should have.
    assert all(size * layer <= share + 2 * layer for size in sizes[:-1])


def test_nanotron_leaves_the_last_stage_less_where_the_vocabulary_is_large():
    """Its Ultra-Scale Playbook's 1B: 16 layers of 67 million, an output of 268 million."""
    model = dense_model(
        "1B", layers=16, hidden_size=2048, heads=32, intermediate_size=8192, vocab_size=131072
    )
    assert chunks_by_cost(model, 2) == [10, 6]
    assert stage_layout(model, 2, 1, "even").layers == (8, 8)
    even, by_cost = (stage_compositions(model, 2, 1, split) for split in ("even", "by_cost"))
    assert by_cost.sum(axis=0).tolist() == even.sum(axis=0).tolist()


def test_llama_3_405b():
    # Llama 3 (arXiv:2407.21783, section 3.3.2): 126 layers on 16 stages; the first and the
    # last stage have one layer less.
    sizes = chunk_sizes(126, 16)
    assert sizes == [7, *[8] * 14, 7]
    sizes = chunk_sizes(126, 16 * 8)
    assert sizes == [0, *[1] * 126, 0]


def test_bloom_176b():
    # BLOOM (arXiv:2211.05100, section 3.3): 70 layers, and two embeddings, on 12 stages.
    assert chunk_sizes(70, 12) == [5, *[6] * 10, 5]


def test_a_heavy_end_takes_what_is_left():
    # Megatron-Bridge deepseek_v3.py pipeline layouts: 61 layers and MTP on 16 stages.
    assert chunk_sizes(61, 16, heavy_end=True) == [*[4] * 15, 1]
    counts = stage_compositions(load_model("deepseek-v3", mtp="stated"), 16, 1)
    layers = [part.kind == "layer" for part in model_parts(load_model("deepseek-v3", mtp="stated"))]
    # The last stage has one layer of the model and one of the MTP module.
    assert counts[:, layers].sum(axis=1).tolist() == [*[4.0] * 15, 2.0]


def test_what_is_left_over_goes_to_the_middle():
    # 63 places over 16 chunks: 15 have 4, one has 3; the first and the last lose one.
    assert sorted(chunk_sizes(61, 16)) == [2, 3, *[4] * 14]
    assert chunk_sizes(10, 4) == [2, 3, 3, 2]
    assert chunk_sizes(12, 4) == [3, 3, 3, 3]


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-27b", "llama-3.1-405b", "gpt-oss-20b"])
@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 1), (4, 2), (8, 1), (8, 3)])
def test_stages_hold_every_part_of_the_model(name, pipeline, virtual):
    model = load_model(name, mtp="stated")
    parts = model_parts(model)
    counts = stage_compositions(model, pipeline, virtual)
    assert counts.shape == (pipeline, len(parts))
    assert np.all(counts >= 0)
    for column, part in zip(counts.T, parts, strict=True):
        expected = {
            "layer": model.layers.count(part.layer) + model.mtp_layers.count(part.layer),
            "embedding": 1,
            "output": 1 + len(model.mtp_layers),
            "mtp": len(model.mtp_layers),
        }[part.kind]
        assert column.sum() == expected
    kinds = [part.kind for part in parts]
    assert counts[0, kinds.index("embedding")] == 1
    assert counts[-1, kinds.index("output")] >= 1
    if model.mtp_layers:
        assert counts[-1, kinds.index("mtp")] == len(model.mtp_layers)


def test_deepseek_v3_dense_layers_come_first():
    # 3 dense of 61 layers, arXiv:2412.19437, section 4.2
    model = load_model("deepseek-v3", mtp="stated")
    parts = model_parts(model)
    dense = [part.layer is not None and part.layer.mlp.kind == "dense" for part in parts].index(
        True
    )
    counts = stage_compositions(model, 16, 1)
    assert counts[0, dense] == 3
    assert counts[1:, dense].sum() == 0


def test_interleaved_chunks_go_round_the_stages():
    model = load_model("gemma-3-27b")  # 62 layers, every sixth attends to everything
    counts = stage_compositions(model, 2, 1)
    interleaved = stage_compositions(model, 2, 31)
    layers = [part.kind == "layer" for part in model_parts(model)]
    assert counts[:, layers].sum(axis=1).tolist() == [31, 31]
    assert interleaved[:, layers].sum(axis=1).tolist() == [31, 31]
    # Full layers are 5, 11, …, so all odd: chunks of one layer put all on the second stage.
    full = [
        part.layer is not None and part.layer.attention.window == 0 for part in model_parts(model)
    ]
    assert interleaved[0, full].sum() == 0
    assert interleaved[1, full].sum() == 10


@given(
    st.lists(
        st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 4), (8, 2), (16, 1), (61, 1), (7, 3)]),
        min_size=1,
        unique=True,
    )
)
def test_a_table_repeats_no_composition_and_misses_none(pairs):
    model = load_model("deepseek-v3", mtp="stated")
    table = stage_table(model, [(*pair, "loop", "even", ALL) for pair in pairs])
    assert table.offset[0] == 0
    assert table.offset[-1] == len(table.counts) == len(table.stages) == len(table.first_stage)
    for i, (pipeline, virtual) in enumerate(pairs):
        rows = slice(table.offset[i], table.offset[i + 1])
        whole = stage_compositions(model, pipeline, virtual)
        assert table.stages[rows].sum() == pipeline
        assert len(np.unique(table.counts[rows], axis=0)) == len(table.counts[rows])
        np.testing.assert_array_equal(
            (table.counts[rows] * table.stages[rows, None]).sum(axis=0), whole.sum(axis=0)
        )
        for first, counts in zip(table.first_stage[rows], table.counts[rows], strict=True):
            matching = np.flatnonzero((whole == counts).all(axis=1))
            assert matching[0] == first
