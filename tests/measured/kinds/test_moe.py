"""Measured layers: reading rows, what the benchmarks ran, and the accuracy reached."""

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.compare import compare_file, read_table
from perfmodel.measured.kinds.moe import case_of, price
from perfmodel.measured.rows import Skip

HEADER = (
    "hardware,framework,kernel,dtype,num_tokens,hidden,inter,gated,topk,experts,moe_tp,moe_ep,"
    "distribution,time_us"
)
TRITON = "sglang_fused_moe_triton"


def cases(tmp_path, *lines, header=HEADER):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return [case_of(row) for row in read_table("moe", path).rows]


def test_a_row_is_read(tmp_path):
    (case,) = cases(
        tmp_path,
        "B200,sglang,sglang_flashinfer_trtllm_moe,nvfp4,64,7168,2048,True,8,256,2,4,balanced,50",
    )
    assert case.variant.kernel == "trtllm"
    assert case.variant.idle_data
    assert not case.variant.local_only
    assert case.measured == pytest.approx(50e-6)
    result = price(case.hardware, case.variant, {k: np.array([v]) for k, v in case.sizes.items()})
    assert result["active_experts"][0] == 64
    parts = sum(value[0] for key, value in result.items() if key.endswith("_time"))
    assert parts == pytest.approx(result["time"][0])


def test_plain_triton_rows_work_on_local_tokens_only(tmp_path):
    shape = "bf16,512,4096,1536,True,8,128,1,16,balanced,500"
    old, new = cases(
        tmp_path, f"A100_SXM,sglang,{TRITON},{shape}", f"H100_SXM,sglang,{TRITON},{shape}"
    )
    mixtral, tuned = cases(
        tmp_path,
        f"H100_SXM,sglang,{TRITON},bf16,512,4096,14336,True,2,8,32,2,balanced,500",
        f"H100_SXM,sglang,{TRITON},bf16,512,4096,14336,True,2,8,4,1,balanced,500",
    )
    assert old.variant.local_only
    assert mixtral.variant.local_only
    assert not new.variant.local_only
    assert (mixtral.variant.kernel, tuned.variant.kernel) == ("triton", "triton_tuned")
    # choices of other ranks' experts go to the first one here, at full cost
    result = price(old.hardware, old.variant, {k: np.array([v]) for k, v in old.sizes.items()})
    assert result["largest_load"][0] > 512 * 8 / 16


def test_matrices_are_counted_as_the_benchmarks_did(tmp_path):
    old, nemotron, stated = cases(
        tmp_path,
        f"A100_SXM,sglang,{TRITON},bf16,64,2688,1856,False,6,128,1,1,balanced,900",
        "B200,trtllm,moe_torch_flow_cutlass,bf16,64,2048,5120,True,22,512,1,1,balanced,9000",
        "B200,trtllm,moe_torch_flow_nongated,bf16,64,2688,1856,False,6,128,1,1,balanced,900",
    )
    assert [case.sizes["gated"] for case in (old, nemotron, stated)] == [1.0, 0.0, 0.0]
    assert old.notes
    assert nemotron.notes
    assert not stated.notes


def test_tuner_rows_count_the_products_only(tmp_path):
    (case,) = cases(
        tmp_path,
        "MI300X|MI325X,aiter,QuantType.per_1x128|1stage=1|a.csv,float8_e4m3fnuzxfloat8_e4m3fnuz,"
        "64,4096,384,True,8,128,1,1,aiter_tuner,300",
    )
    assert case.variant.precision == "fp8_block"
    assert case.variant.products_only
    result = price(case.hardware, case.variant, {k: np.array([v]) for k, v in case.sizes.items()})
    assert result["time"][0] == pytest.approx(result["gate_up_time"][0] + result["down_time"][0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("H100,sglang,x,int4,64,4096,1536,True,8,128,1,1,balanced,90", "precision not modelled"),
        ("H100,sglang,x,bf16,64,4096,1536,True,8,128,1,1,skewed,90", "unknown distribution"),
        ("H100,sglang,x,bf16,64,4096,1536,True,8,128,5,1,balanced,90", "divide among the ranks"),
        ("X1,sglang,x,bf16,64,4096,1536,True,8,128,1,1,balanced,90", "no hardware profile"),
        ("H100,sglang,x,bf16,64,,1536,True,8,128,1,1,balanced,90", "shape not stated"),
        ("H100,sglang,x,bf16,9000,4096,1536,True,8,128,1,1,balanced,90", "faster than"),
    ],
)
def test_rows_that_cannot_be_priced_are_skipped(tmp_path, line, reason):
    with pytest.raises(Skip, match=reason):
        cases(tmp_path, line)


def test_broken_numbers_are_errors(tmp_path):
    with pytest.raises(DataError, match="whole number"):
        cases(tmp_path, "H100,sglang,x,bf16,64.5,4096,1536,True,8,128,1,1,balanced,90")
    with pytest.raises(DataError, match="column 'stage'"):
        cases(
            tmp_path,
            "B200,backward,bf16,8,128,512,512,90",
            header="hardware,stage,dtype,groups,m_per_group,n,k,time_us",
        )


def test_grouped_products_are_read_too(tmp_path):
    (case,) = cases(
        tmp_path,
        "B200,bwd_grad_w,bf16,8,128,512,1024,90",
        header="hardware,stage,dtype,groups,m_per_group,n,k,time_us",
    )
    assert case.variant == ("bwd_grad_w", "bf16")
    result = price(case.hardware, case.variant, {k: np.array([v]) for k, v in case.sizes.items()})
    assert result["time"][0] > 0


@pytest.mark.in_sample("moe-a100", "moe-h100", "moe-b200")
@pytest.mark.parametrize(
    ("hardware", "limit"), [("A100_SXM", 0.10), ("H100_SXM", 0.10), ("B200", 0.10)]
)
def test_reference_framework_is_met(development_table, hardware, limit):
    where = f'framework == "sglang" and hardware == "{hardware}"'
    found = compare_file("moe", development_table("measured/moe.csv"), where=where).to_json_dict()
    assert found["coverage"] == 1.0
    assert found["median_absolute_error"] <= limit
    assert found["mean_absolute_error"] <= 0.15
    assert abs(found["bias"]) <= 0.05


def test_training_products_are_met(development_table):
    found = compare_file(
        "moe", development_table("measured/grouped_gemm_training.csv")
    ).to_json_dict()
    assert found["coverage"] == 1.0
    assert found["median_absolute_error"] <= 0.12
