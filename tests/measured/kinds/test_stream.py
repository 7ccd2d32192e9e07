"""Reading tables of streaming operations, and the accuracy that the model reaches on them."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.compare import compare_file

HEADER = "hardware,framework,op,phase,rows,cols,dtype,time_us\n"


@pytest.fixture
def compared(tmp_path):
    """Return a function that compares a small table, and gives its rows."""

    def run(text, **options):
        path = tmp_path / "rows.csv"
        path.write_text(text)
        return compare_file("stream", path, **options).rows

    return run


def test_rows_are_scored_and_sorted_into_regimes(compared):
    rows = compared(
        HEADER
        + "V100_PCIE,pytorch,add,fwd,16384,1024,fp32,259.2\n"  # NeuSight 6945927
        + "H100_SXM,vllm,fp8_scale_matrix,fwd,64,128,bf16->fp8,2.0683\n"  # aiconfigurator 095f58a
        + "H100_SXM,vllm,fp8_scale_matrix,fwd,1792,4096,bf16->fp8,5.3493\n"
    )
    assert [row.cells["regime"] for row in rows] == ["large", "small", "middle"]
    assert all(abs(row.error) < 0.15 for row in rows)
    assert rows[0].outcome.details["bytes"] == 12 * 16384 * 1024
    assert rows[0].outcome.details["bound"] == "memory"


def test_how_a_row_was_launched_follows_from_who_timed_it(compared):
    row = "A100_SXM,{},gelu,fwd,1,1024,fp16,50\n"
    source = "source," + HEADER
    eager, compiled = compared(
        source + "," + row.format("pytorch") + "LLMCompass@2e015fd," + row.format("pytorch")
    )
    (graph,) = compared(HEADER + row.format("sglang"))
    times = [item.outcome.projected for item in (graph, eager, compiled)]
    assert times == sorted(times)
    assert times[0] < 5e-6 < 1e-5 < times[1]


def test_tensors_that_rotate_come_from_memory(compared):
    """Sums of 25 MB on H100 (benchmarks/measured/stream.csv), over one copy and over six."""
    row = "dgx-h100,pytorch_graph,add,fwd,1024,4096,bf16,10.29,{}\n"
    once, few, many, none = compared(
        HEADER.replace("time_us", "time_us,copies") + "".join(map(row.format, (1, 2, 6, "")))
    )
    times = [item.outcome.projected for item in (once, few, many)]
    assert times == sorted(set(times))
    assert none.outcome.projected == once.outcome.projected
    assert abs(many.error) < 0.05


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("H100_SXM,pytorch,cumsum,fwd,1,8,fp32,5", "unknown streaming operation"),
        ("H100_SXM,pytorch,add,fwd,1,8,fp12,5", "unknown dtype"),
        ("X9000,pytorch,add,fwd,1,8,fp32,5", "no hardware profile"),
        ("H100_SXM,pytorch,add,fwd,,8,fp32,5", "shape not stated"),
        ("H100_SXM,pytorch,add,fwd,1,8,fp32,", "no usable measurement"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(compared, row, reason):
    (found,) = compared(HEADER + row + "\n")
    assert found.outcome.skip_reason == reason
    assert found.cells["regime"] == ""


def test_broken_numbers_name_their_place(compared):
    with pytest.raises(DataError, match="line 2, column 'rows': '-3'"):
        compared(HEADER + "H100_SXM,pytorch,add,fwd,-3,8,fp32,5\n")


# where, rows at least, median and mean of the absolute error at most
TARGETS = [
    ('hardware == "V100_PCIE"', 2000, 0.02, 0.04),
    ('hardware == "MI210" and dtype == "fp32"', 1500, 0.05, 0.08),
    ('hardware == "A100_SXM"', 40, 0.06, 0.08),
    ('hardware == "H100_SXM" and framework == "sglang"', 80, 0.06, 0.09),
    ('hardware == "B200" and framework == "sglang"', 80, 0.06, 0.09),
]


@pytest.mark.in_sample("stream-a100", "stream-h100", "stream-b200", "stream-v100", "stream-mi210")
@pytest.mark.parametrize("target", TARGETS)
def test_accuracy_on_reference_rows(development_table, target):
    where, rows, median, mean = target
    found = compare_file(
        "stream", development_table("measured/elementwise.csv"), where
    ).to_json_dict()
    assert found["count"] >= rows
    assert found["median_absolute_error"] <= median
    assert found["mean_absolute_error"] <= mean


GRAPH = "hardware,workload,op,target,type,input_shapes,output_shape,dtype,fwd_us,bwd_us\n"


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
