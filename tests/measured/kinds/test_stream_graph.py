"""Streams as nodes of training graphs."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.compare import compare_file

GRAPH = "hardware,workload,op,target,type,input_shapes,output_shape,dtype,fwd_us,bwd_us\n"


@pytest.fixture
def compared(tmp_path):
    """Return a function that compares a small table, and gives its rows."""

    def run(text, **options):
        path = tmp_path / "rows.csv"
        path.write_text(text)
        return compare_file("stream", path, **options).rows

    return run


def test_nodes_of_training_graphs(compared):
    # NeuSight 6945927, V100, training of BERT and GPT-2
    rows = compared(
        GRAPH
        + 'V100_PCIE,w-train,f,<built-in function gelu>,,"[[8, 512, 4096]]",'
        + '"(8, 512, 4096)",fp32,177.15,256.82\n'
        + 'V100_PCIE,w-train,f,<built-in function truediv>,,"[[8, 16, 512, 512]]",'
        + '"(8, 16, 512, 512)",fp32,343.64,337.3\n'
        + 'V100_PCIE,w-train,f,<built-in function add>,,"[[8, 512, 1024], [1, 512, 1024]]",'
        + '"(8, 512, 1024)",fp32,75.77,11.872\n'
        + 'V100_PCIE,w-train,m,transformer.h.0.ln_1,,"[[1, 1024, 1280]]",'
        + '"(1, 1024, 1280)",fp32,47.098,0\n'
    )
    assert [row.error for row in rows] == pytest.approx([0.0] * 4, abs=0.2)
    # forward and backward are compared together, but where gradients just pass
    assert rows[0].outcome.measured == pytest.approx((177.15 + 256.82) * 1e-6)
    assert rows[2].outcome.measured == pytest.approx(75.77e-6)


@pytest.mark.parametrize(
    ("target", "shape", "backward", "reason"),
    [
        ("bert.encoder.layer.0.output.dense", "(8, 512, 1024)", 5, "not a streaming operation"),
        ("<built-in method matmul of type object>", "(8, 512)", 5, "not a streaming operation"),
        ("view", "(8, 512, 1024)", 0, "runs no kernel"),
        ("<built-in function add>", "(1,)", 0, "runs no kernel"),
        ("transformer.h.0.mlp.dropout", "(8, 512, 1024)", 0, "runs no kernel"),
        ("transformer.wte", "(8, 512, 1024)", 5, "size not stated"),
        ("contiguous", "(8, 512, 1024)", 0, "size not stated"),
    ],
)
def test_nodes_that_cannot_be_scored_say_why(compared, target, shape, backward, reason):
    (row,) = compared(
        GRAPH + f'V100_PCIE,w,f,{target},,"[[8, 512, 1024]]","{shape}",fp32,10,{backward}\n'
    )
    assert row.outcome.skip_reason == reason


def test_broken_shapes_name_their_place(compared):
    with pytest.raises(DataError, match="line 2, column 'input_shapes'"):
        compared(GRAPH + 'V100_PCIE,w,f,gelu,,"[[8, 512","(8, 512)",fp32,10,0\n')


def test_accuracy_on_training_graphs(development_table):
    found = compare_file("stream", development_table("measured/training_ops.csv")).to_json_dict()
    assert found["count"] > 200
    assert found["median_absolute_error"] <= 0.09
