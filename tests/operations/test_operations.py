"""Operations of a linear layer: casts, layouts and gradients of low precision."""

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.build import dense_model
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Communication,
    LayerKeys,
    Machine,
    Stream,
    machine_of,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.software.framework import load_framework


@pytest.fixture(scope="module")
def model():
    return dense_model(
        "small",
        layers=2,
        hidden_size=1024,
        heads=8,
        intermediate_size=4096,
        vocab_size=1024,
        gated=True,
        norm="rms",
    )


def operations_of(model, precision, machine, framework=None, **fields):
    columns = columns_from_rows([{"sequence_length": 2048, "precision": precision, **fields}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    part = model_parts(model)[0]
    return part_operations(model, part, keys, framework or load_framework("megatron"), machine)


def casts(model, precision, machine, framework=None, **fields):
    return {
        (item.name, item.phase): item
        for item in operations_of(model, precision, machine, framework, **fields)
        if isinstance(item, Stream) and item.name.endswith(".cast")
    }


def written(found):
    item = found["mlp.down.cast", "forward"]
    return float(np.ravel(item.bytes_written)[0]) / (2048 * 4096)


@pytest.mark.parametrize(
    ("precision", "transposed", "one_layout"),
    [
        ("fp8", 2.0, 1.0),
        # Block scales run along the reduction: both copies whatever the layouts.
        ("mxfp8", 2 * (1 + 1 / 32), 2 * (1 + 1 / 32)),  # OCP MX v1.0: 1 byte per 32
        ("nvfp4", 2 * (1 / 2 + 1 / 16), 2 * (1 / 2 + 1 / 16)),
    ],
)
def test_bytes_written_per_cast_element(model, precision, transposed, one_layout):
    assert written(casts(model, precision, Machine())) == transposed
    assert written(casts(model, precision, Machine(fp8_transposed_copies=False))) == one_layout


def test_current_scaling_reads_a_tensor_twice(model):
    def read(framework):
        item = casts(model, "fp8", Machine(), framework)["mlp.up.cast", "forward"]
        return float(np.ravel(item.bytes_read)[0])

    assert read(load_framework("megatron", scaling="current")) == 2 * read(
        load_framework("megatron", scaling="delayed")
    )


def test_scales_of_rows_and_of_columns_take_a_cast_each(model):
    """Rows: 2 B read, 1 written. Columns: 2 x 2 read, 1 written, and turned: 1 and 1."""
    framework = load_framework("megatron", scaling="rows")
    item = casts(model, "fp8", Machine(), framework)["mlp.down.cast", "forward"]
    sizes = [float(np.ravel(size)[0]) for size in (item.bytes_read, item.bytes_written)]
    assert sizes == [(2 + 4 + 1) * 2048 * 4096, (1 + 1 + 1) * 2048 * 4096]


SHARDED = {"tensor_parallel": 4, "sequence_parallel": True}


@pytest.mark.parametrize("name", ["mlp.up.cast", "mlp.down.cast"])
@pytest.mark.parametrize(("copied", "precision"), [(True, "fp8"), (False, "fp8"), (True, "mxfp8")])
def test_ranks_cast_their_share_ahead_of_a_gather(model, name, copied, precision):
    """Of the gathered tensor; where one operand order is taken its transposed copy comes after."""
    phase = "forward" if name == "mlp.up.cast" else "backward_input"
    machine = Machine(fp8_transposed_copies=copied)

    def traffic(gathers):
        framework = load_framework("megatron", gathers_quantised=gathers)
        item = casts(model, precision, machine, framework, **SHARDED)[name, phase]
        sizes = (item.bytes_read, item.bytes_written)
        return [float(np.ravel(size)[0]) / (2048 * 1024) for size in sizes]

    read, written = traffic(gathers=False)
    turned = 1.0 if copied and precision == "fp8" else 0.0
    assert traffic(gathers=True) == [read / 4 + turned, (written - turned) / 4 + turned]


@pytest.mark.parametrize(
    ("precision", "quantised", "hides"),
    [("fp8", True, True), ("fp8", False, False), ("bf16", False, True)],
)
def test_only_operands_are_pipelined_with_their_product(model, precision, quantised, hides):
    framework = load_framework(
        "megatron", overlap_tensor_parallel="full", gathers_quantised=quantised
    )
    found = {
        (item.collective, item.phase): bool(np.ravel(item.hides)[0])
        for item in operations_of(model, precision, Machine(), framework, **SHARDED)
        if isinstance(item, Communication)
    }
    assert found["all_gather", "forward"] == hides
    assert found["reduce_scatter", "forward"]


@pytest.mark.parametrize(
    ("precision", "each"), [("bf16", 2.0), ("fp8", 1.0), ("mxfp8", 1 + 1 / 32)]
)
def test_operands_are_gathered_as_they_are_cast(model, precision, each):
    """Gathers move what products take, sums of partial results 16 bits."""
    sizes = {
        (item.collective, float(np.ravel(item.size)[0]) / (2048 * 1024))
        for item in operations_of(model, precision, Machine(), **SHARDED)
        if isinstance(item, Communication)
    }
    assert sizes == {("all_gather", each), ("reduce_scatter", 2.0)}


def test_no_casts_in_16_bits(model):
    assert all(not np.any(item.count) for item in casts(model, "bf16", Machine()).values())


@pytest.mark.parametrize(
    ("name", "copied"), [("dgx-h100", True), ("l40s-server", True), ("dgx-b200", False)]
)
def test_layouts_of_devices(name, copied):
    assert machine_of(load_hardware(name)).fp8_transposed_copies is copied


def test_low_precision_parameters_drop_the_16_bit_copy(model):
    from perfmodel import sweep
    from perfmodel.strategy.enumerate import strategies_from_rows

    row = {"sequence_length": 2048, "global_batch_size": 8, "precision": "fp8"}
    grid = strategies_from_rows(model, 8, [row])

    def bytes_per_parameter(hardware, **changes):
        framework = load_framework("megatron", pads_vocabulary_to=1, **changes)
        results = sweep(model, grid, load_hardware(hardware), framework=framework, dtype="float64")
        return float(results["memory_parameters"].values[0, 0]) / model.parameter_count()

    assert bytes_per_parameter("dgx-h100") == pytest.approx(4.0)  # bf16, row- and column-wise
    assert bytes_per_parameter("dgx-h100", low_precision_parameters=True) == pytest.approx(2.0)
    assert bytes_per_parameter("dgx-b200", low_precision_parameters=True) == pytest.approx(1.0)
