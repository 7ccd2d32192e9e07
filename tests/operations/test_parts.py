"""Operations: FLOPs and bytes are conserved however a model is spread over devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.collectives import COLLECTIVES
from perfmodel.base.errors import ModelError
from perfmodel.model.build import dense_model
from perfmodel.model.presets import load_model
from perfmodel.model.spec import TowerSpec
from perfmodel.operations.operations import (
    AXES,
    LAYER_KEY_FIELDS,
    PHASES,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
    Role,
    Stream,
)
from perfmodel.operations.parts import model_parts, padded_vocabulary, part_operations
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID
from tests.amount import cases
from tests.operations import layers
from tests.operations.counting import (
    MEGATRON,
    PASSES,
    communications,
    keys_of,
    needed_flops,
    number,
    operations_of,
    step_flops,
    total_bytes,
)

LAYOUTS = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4, 8]),
        "context_parallel": st.sampled_from([1, 2, 4]),
        "context_parallel_kind": st.sampled_from(["ring", "all_gather", "all_to_all"]),
        "pipeline": st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (3, 1)]),
        "data_parallel": st.sampled_from([1, 2, 4]),
        "micro_batch_size": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["bf16", "fp8", "mxfp8"]),
        "sequence_length": st.sampled_from([1024, 4096]),
        "sequence_parallel": st.booleans(),
    }
)


def layout_fields(layout):
    fields = dict(layout)
    fields["pipeline_parallel"], fields["virtual_pipeline"] = fields.pop("pipeline")
    if fields["tensor_parallel"] == 1:
        fields["sequence_parallel"] = False
    if fields["context_parallel_kind"] == "all_to_all":
        # Fewer key-value heads than ranks would be held several times.
        fields["tensor_parallel"] = min(fields["tensor_parallel"], 2)
    return {**fields, "micro_batches": 12}


@settings(max_examples=cases(60))
@given(layout=LAYOUTS)
def test_dense_flops_are_conserved(small_dense, grid_of, layout):
    grid = grid_of(small_dense, **layout_fields(layout))
    assert step_flops(small_dense, grid) == pytest.approx(
        needed_flops(small_dense, grid), rel=1e-12
    )


@settings(max_examples=cases(60))
@given(
    layout=LAYOUTS,
    experts=st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]),
    grouped=st.booleans(),
)
def test_expert_flops_are_conserved(small_moe, grid_of, layout, experts, grouped):
    fields = layout_fields(layout)
    fields["sequence_parallel"] = fields["tensor_parallel"] > 1
    plane = fields["tensor_parallel"] * fields["context_parallel"] * fields["data_parallel"]
    if plane % (experts[0] * experts[1]) == 0:
        fields["expert_parallel"], fields["expert_tensor_parallel"] = experts
    framework = load_framework("megatron", grouped_gemm=grouped)
    grid = grid_of(small_moe, **fields)
    assert step_flops(small_moe, grid, framework) == pytest.approx(
        needed_flops(small_moe, grid), rel=1e-12
    )


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "mixtral-8x7b"])
def test_flops_of_published_models_are_conserved(name, grid_of):
    model = load_model(name)
    for fields in ({}, {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2}):
        grid = grid_of(model, sequence_length=4096, **fields)
        unpadded = load_framework("megatron", pads_vocabulary_to=1)
        assert step_flops(model, grid, unpadded) == pytest.approx(
            needed_flops(model, grid), rel=1e-6
        )


@pytest.mark.parametrize("degrees", [(2, 1), (4, 2), (2, 4)])
def test_experts_without_sequence_parallelism_are_impossible_or_not_repeated(small_moe, degrees):
    """Every tensor rank then holds all tokens, and must not send its copies to the experts.

    Megatron-Core refuses it: "When using MoE and tensor parallelism, sequence parallelism
    must be used" (transformer_config.py).
    """
    tensor, expert = degrees
    row = {
        "tensor_parallel": tensor,
        "expert_parallel": expert,
        "sequence_parallel": False,
        "data_parallel": 4,
        "sequence_length": 2048,
        "global_batch_size": 16,
    }
    grid = strategies_from_rows(small_moe, 4 * tensor, [row])
    if grid.status[0] == VALID:
        assert step_flops(small_moe, grid) == pytest.approx(needed_flops(small_moe, grid))


@pytest.mark.parametrize("tensor", [2, 4, 8])
@pytest.mark.parametrize("part", ["layer0", "embedding"])
def test_sequence_parallelism_moves_the_bytes_of_all_reduce(small_dense, part, tensor):
    plain = operations_of(small_dense, part, tensor_parallel=tensor, sequence_parallel=False)
    sharded = operations_of(small_dense, part, tensor_parallel=tensor, sequence_parallel=True)
    kinds = {item.collective for item in communications(plain, "tensor")}
    assert kinds == {"all_reduce"}
    kinds = {item.collective for item in communications(sharded, "tensor")}
    assert kinds == {"all_gather", "reduce_scatter"}
    whole = 2048 * 2048 * 2.0  # tokens × hidden size × 2 bytes
    once = 2 * (tensor - 1) / tensor * whole
    if part == "embedding":
        both = ("forward", "backward_weight")
        assert total_bytes(plain, "tensor", both) == pytest.approx(once)
        assert total_bytes(sharded, "tensor", both) == pytest.approx(once)
        return
    # Two all-reduces forward and two backward (Shoeybi et al. 2019, section 3).
    assert total_bytes(plain, "tensor", ["forward"]) == pytest.approx(2 * once)
    assert total_bytes(plain, "tensor", PASSES) == pytest.approx(4 * once)
    assert total_bytes(sharded, "tensor", ["forward"]) == pytest.approx(2 * once)
    # Inputs are gathered again for the weight gradient (Korthikanti et al. 2022, section 4.2.2).
    assert total_bytes(sharded, "tensor", PASSES) == pytest.approx(4 * once + 2 * once / 2)


@pytest.mark.parametrize("framework", ["megatron", "megatron-2022", "maxtext"])
@pytest.mark.parametrize("name", ["small_dense", "small_moe"])
def test_degree_one_communicates_nothing(request, name, framework):
    model = request.getfixturevalue(name)
    for part in model_parts(model):
        operations = operations_of(model, part.name, load_framework(framework))
        assert not communications(operations)


@pytest.mark.parametrize(
    ("degree", "axis"),
    [
        ("tensor_parallel", "tensor"),
        ("context_parallel", "context"),
        ("expert_parallel", "expert"),
    ],
)
def test_each_degree_communicates_on_its_own_axis_only(small_moe, degree, axis):
    axes = set()
    for part in model_parts(small_moe):
        operations = operations_of(
            small_moe, part.name, **{degree: 4, "sequence_parallel": axis == "tensor"}
        )
        axes |= {item.axis for item in communications(operations)}
    assert axes == {axis}


def test_a_key_of_degree_one_is_free_beside_one_of_degree_two(small_dense):
    """Operations are listed for all keys at once; counts say which key has them."""
    rows = [{"tensor_parallel": t, "sequence_parallel": t > 1} for t in (1, 2)]
    columns = columns_from_rows([{"sequence_length": 2048, **row} for row in rows])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    for part in model_parts(small_dense):
        for item in part_operations(small_dense, part, keys, MEGATRON, Machine()):
            if isinstance(item, Communication):
                assert np.broadcast_to(item.count, 2)[0] == 0


@pytest.mark.parametrize("degree", [2, 4, 8, 16])
def test_experts_exchange_every_routed_token_twice(small_moe, degree):
    operations = operations_of(small_moe, "layer1", expert_parallel=degree)
    # How many tokens go where is told first, in small exchanges of their own.
    tokens = [item for item in communications(operations, "expert") if "counts" not in item.name]
    exchanges = [item for item in tokens if item.phase == "forward"]
    assert {item.collective for item in exchanges} == {"all_to_all"}
    routed = 2048 * 4 * 2048 * 2.0  # tokens × experts per token × hidden size × 2 bytes
    assert [number(item.size) for item in exchanges] == [routed, routed]
    backward = [item for item in tokens if item.phase != "forward"]
    assert sum(number(item.size) for item in backward) == 2 * routed


def test_groups_fit_inside_one_another(small_moe):
    operations = operations_of(
        small_moe,
        "layer1",
        tensor_parallel=4,
        context_parallel=2,
        expert_parallel=4,
        expert_tensor_parallel=2,
        context_parallel_kind="all_gather",
    )
    groups = {
        item.axis: (number(item.members), number(item.stride))
        for item in communications(operations)
        if item.axis != "tensor"
    }
    assert groups["context"] == (2, 4)
    assert groups["expert"] == (4, 2)


@pytest.mark.parametrize("framework", ["megatron", "megatron-2022", "fsdp"])
def test_full_recomputation_repeats_the_forward_of_layers(small_moe, framework):
    framework = load_framework(framework)
    fields = {"tensor_parallel": 2, "expert_parallel": 2, "recompute": "full"}
    for part in model_parts(small_moe):
        operations = operations_of(small_moe, part.name, framework, **fields)
        forward = [item.name for item in operations if item.phase == "forward"]
        again = [item.name for item in operations if item.phase == "recompute"]
        assert again == (forward if part.layer else [])


def test_no_recomputation_repeats_nothing(small_moe):
    for part in model_parts(small_moe):
        assert all(
            number(item.count) == 0
            for item in operations_of(small_moe, part.name, tensor_parallel=2)
            if item.phase == "recompute"
        )


@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8", "nvfp4"])
def test_casts_come_with_low_precision_only(small_dense, precision):
    operations = operations_of(small_dense, "layer0", precision=precision)
    casts = [item for item in operations if item.name.endswith(".cast") and number(item.count)]
    # The inputs of four products, and their output gradients.
    assert len(casts) == (0 if precision == "bf16" else 8)
    (cast,) = [c for c in casts if c.name == "mlp.up.cast" and c.phase == "forward"] or [None]
    if precision == "mxfp8":
        # Two copies with a scale byte per 32 elements (OCP MX v1.0).
        assert number(cast.bytes_written) == 2048 * 2048 * 2 * (1 + 1 / 32)


@pytest.mark.parametrize("model_name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gpt3-175b"])
def test_operations_are_well_formed(model_name):
    model = load_model(model_name, mtp="stated")
    for part in model_parts(model):
        operations = operations_of(model, part.name, tensor_parallel=2, context_parallel=2)
        names = {(item.name, item.phase) for item in operations}
        for item in operations:
            assert item.phase in PHASES
            assert number(item.count) >= 0
            if isinstance(item, Communication):
                assert item.axis in AXES
                assert item.collective in COLLECTIVES
                assert number(item.members) >= 2 or number(item.count) == 0
                assert 0 <= number(item.hides) <= 1
                assert 0 <= number(item.tail) <= 1
                # What hides a communication exists, or the framework lacks it.
                if number(item.hides) and number(item.count) and item.axis == "tensor":
                    assert set(item.hidden_by) & names, item.name
            if isinstance(item, Stream):
                assert number(item.bytes_read) + number(item.bytes_written) > 0
                assert number(item.launches) > 0


def test_weight_gradients_accumulate_into_the_main_gradient(small_dense):
    gradients = [
        item
        for item in operations_of(small_dense, "layer0")
        if isinstance(item, Gemm) and item.phase == "backward_weight"
    ]
    assert [item.name for item in gradients] == [
        "attention.qkv",
        "attention.output",
        "mlp.up",
        "mlp.down",
    ]
    assert all(item.accumulate and item.output_bytes == 4.0 for item in gradients)
    # C[m, n] sums over the tokens.
    assert all(number(item.k) == 2048 for item in gradients)


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "rows"),
    [
        (50257, 1, 50304),  # GPT-2 in Megatron-LM: padded by 47 tokens at degree 1
        (50257, 8, 51200 // 8),  # and to 51,200 at degree 8
        (128256, 8, 129024 // 8),  # Llama 3 at degree 8: a multiple of 1,024
        (32768, 8, 4096),
    ],
)
def test_vocabulary_padding(vocabulary, tensor, rows):
    model = dense_model(
        "v",
        layers=1,
        hidden_size=64,
        heads=8,
        intermediate_size=64,
        vocab_size=vocabulary,
    )
    keys = keys_of(tensor_parallel=tensor)
    assert float(padded_vocabulary(model, keys, MEGATRON)[0]) == rows
    plain = padded_vocabulary(model, keys, load_framework("fsdp"))
    assert float(plain[0]) == -(-vocabulary // tensor)


def test_parts_are_the_distinct_layers_and_the_edges():
    names = [part.name for part in model_parts(load_model("deepseek-v3"))]
    assert names[:2] == ["layer0", "layer1"]  # dense, then with experts
    assert names[2:4] == ["embedding", "output"]
    names = [part.name for part in model_parts(load_model("gemma-3-27b"))]
    assert names == ["layer0", "layer1", "embedding", "output"]  # sliding and full
    assert len(model_parts(load_model("llama-3.1-70b"))) == 3


# Where the name of an operation begins so, its role is this: the first that holds.
ROLES = (
    ("embedding.", {Role.EMBEDDING}),
    ("output.loss", {Role.LOSS}),
    ("output.", {Role.OUTPUT}),
    ("mtp.", {Role.PREDICTION}),
    ("attention.output", {Role.ATTENTION_OUTPUT}),
    ("attention.post_norm", {Role.ATTENTION_OUTPUT}),
    ("attention.residual", {Role.ATTENTION_OUTPUT}),
    ("attention.", {Role.ATTENTION}),
    ("mlp.experts_up", {Role.EXPERT_PRODUCT}),
    ("mlp.experts_down", {Role.EXPERT_PRODUCT}),
    ("mlp.shared.down", {Role.SHARED_OUTPUT}),
    ("mlp.shared.output", {Role.SHARED_OUTPUT}),
    ("mlp.shared.", {Role.SHARED}),
    ("mlp.down", {Role.MLP_OUTPUT}),
    ("mlp.output", {Role.MLP_OUTPUT}),
    ("mlp.post_norm", {Role.MLP_OUTPUT, Role.EXPERTS}),
    ("mlp.residual", {Role.MLP_OUTPUT, Role.EXPERTS}),
    ("mlp.", {Role.MLP, Role.EXPERTS, Role.EXPERT_SHARING}),
)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2-27b", "deepseek-v3", "qwen3-30b-a3b"])
@pytest.mark.parametrize("framework", ["megatron", "megatron-2021", "fsdp"])
def test_every_operation_has_the_role_of_its_place(model: str, framework: str) -> None:
    degrees = {"tensor_parallel": 4, "expert_parallel": 4, "expert_tensor_parallel": 4}
    fields = {**degrees, "recompute": "full", "precision": "fp8"}
    spec = load_model(model, mtp="stated")
    routed = {part.name: part.layer and part.layer.mlp.kind == "moe" for part in model_parts(spec)}
    seen = set()
    for part, experts in routed.items():
        for item in operations_of(spec, part, load_framework(framework), **fields):
            expected = next(roles for start, roles in ROLES if item.name.startswith(start))
            assert item.role in expected, item.name
            if part.startswith("layer") and item.name.startswith("mlp."):
                dense = {Role.MLP, Role.MLP_OUTPUT}
                assert (item.role in dense) == (not experts), item.name
            shares = isinstance(item, Communication) and item.axis == "tensor"
            if experts and shares and item.name.split(".")[1] in ("dispatch", "combine"):
                assert item.role == Role.EXPERT_SHARING
            seen.add(item.role)
    assert Role.NONE not in seen
    assert {Role.ATTENTION, Role.ATTENTION_OUTPUT, Role.OUTPUT, Role.LOSS} <= seen
    assert (Role.EXPERT_SHARING in seen) == any(routed.values())


def test_an_encoder_runs_ahead_of_the_first_layer_with_its_own_width():
    """Each of its layers as one of a model of that width; it is recomputed like a layer."""
    layer = layers.LAYERS["sliding"]
    encoder = TowerSpec("encoder", 1024, (layer,) * 3, final_norm=True)
    model = replace(layers.model_of("encoder-decoder"), towers=(encoder,))
    alone = replace(layers.model_of("sliding"), hidden_size=1024)
    fields = {"tensor_parallel": 2, "recompute": "full"}
    one = operations_of(alone, "layer0", **fields)
    found = [
        x for x in operations_of(model, "embedding", **fields) if x.name.startswith("encoder.")
    ]
    assert [x.name for x in found if "tower.norm" not in x.name] == [
        f"encoder.{x.name}" for x in one
    ]
    for item, single in zip(found, one, strict=False):
        assert number(item.count) == 3 * number(single.count)
    hidden = {slot for x in found if isinstance(x, Communication) for slot in x.hidden_by}
    assert hidden <= {(x.name, x.phase) for x in found}
    without = operations_of(replace(model, towers=()), "embedding", **fields)
    assert not any(x.name.startswith("encoder.") for x in without)


def test_an_encoder_does_the_flop_that_model_flop_count(grid_of):
    model = load_model("t5-11b")
    for fields in ({}, {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2}):
        grid = grid_of(model, sequence_length=512, **fields)
        unpadded = load_framework("megatron", pads_vocabulary_to=1)
        assert step_flops(model, grid, unpadded) == pytest.approx(
            needed_flops(model, grid), rel=1e-6
        )


def test_wide_layers_cost_what_they_cost_in_bf16(small_dense):
    model = small_dense.with_wide_layers(0, 1)
    narrow, wide = (part for part in model_parts(model) if part.kind == "layer")

    def listed(part, precision):
        found = part_operations(model, part, keys_of(precision=precision), MEGATRON, Machine())
        return [item for item in found if np.any(np.asarray(item.count) > 0)]

    products = [it for it in listed(wide, "fp8") if isinstance(it, Gemm)]
    assert products
    assert not any(it.quantised for it in products)
    names = [[it.name for it in listed(part, "bf16")] for part in (wide, narrow)]
    assert names[0] == names[1] == [it.name for it in listed(wide, "fp8")]
    assert names[0] != [it.name for it in listed(narrow, "fp8")]
    with pytest.raises(ModelError, match="in 16 bits, of"):
        small_dense.with_wide_layers(99, 1)
