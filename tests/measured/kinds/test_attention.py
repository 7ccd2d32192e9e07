"""Measured attention tables: how rows are read, and how near the model comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.compute.sparse_attention import sparse_attention_times
from perfmodel.measured.compare import Comparison, compare_file, statistics
from tests.data import SHARED, needed

HEADER = (
    "hardware,framework,kernel,phase,batch,heads,kv_heads,d_qk,d_v,q_len,kv_len,causal,window,"
    "dtype,kv_dtype,time_us"
)

ROWS = (
    "H100_SXM,sglang,fa3,decode,8,4,2,128,128,1,65536,True,0,bf16,bf16,187.69",  # aiconfigurator
    "H100_SXM,sglang,fa3,fwd,4,64,4,128,128,12288,12288,True,0,bf16,bf16,16474",  # aiconfigurator
    "B200,sglang,trtllm_mha,decode,16,4,4,128,128,1,131072,True,0,bf16,fp8,295",
)


def table(tmp_path, *rows, header=HEADER):
    path = tmp_path / "attention.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_are_scored_and_grouped(tmp_path):
    found = compare_file("attention", table(tmp_path, *ROWS)).to_json_dict()
    assert found["count"] == found["rows"] == 3
    assert set(found["groups"]["phase"]) == {"decode", "fwd"}
    assert found["groups"]["regime"]["large"]["count"] == 3
    assert found["worst_absolute_error"] < 0.2


def test_flash_attention_2_is_known_by_its_kernel_in_prefill(tmp_path):
    shape = "2,32,32,128,128,16384,16384,True,0,bf16,bf16,{},2,alone"
    rows = compare_file(
        "attention",
        table(
            tmp_path,
            "dgx-h100,pytorch,sdpa_flash,fwd," + shape.format(12997.7),
            "dgx-h100,pytorch,sdpa_cudnn,fwd," + shape.format(7337.9),
            "dgx-h100,pytorch,sdpa_flash,decode,8,8,1,128,128,1,8192,True,0,bf16,bf16,25,5,alone",
            "dgx-h100,pytorch,sdpa_cudnn,decode,8,8,1,128,128,1,8192,True,0,bf16,bf16,25,5,alone",
            header=f"{HEADER},copies,steady",
        ),
    ).rows
    assert all(abs(row.error) < 0.05 for row in rows[:2])  # benchmarks/measured/attention.csv
    assert rows[2].outcome.projected == rows[3].outcome.projected


def test_decode_regimes_are_bytes_of_the_cache(tmp_path):
    # 2 x 8192 tokens x 8 heads x 256 elements: 33.5 MB in fp8, 67 MB in bf16, in between
    # small (< 10 MB) and large (>= 200 MB)
    row = "H100_SXM,sglang,fa3,decode,{},32,8,128,128,1,8192,True,{},bf16,bf16,50"
    path = table(tmp_path, row.format(2, 0), row.format(8, 0), row.format(8, 128))
    regimes = [row.cells["regime"] for row in compare_file("attention", path).rows]
    assert regimes == ["middle", "large", "small"]


def test_unknown_hardware_precision_and_phase_are_skipped(tmp_path):
    row = ROWS[0]
    path = table(
        tmp_path,
        row.replace("H100_SXM", "Z9000"),
        row.replace("bf16,bf16", "int3,int3"),
        row.replace("decode", "sideways"),
        row.replace("187.69", "inf"),
        row.replace("128,128,1", ",128,1"),
    )
    found = compare_file("attention", path).to_json_dict()
    assert found["count"] == 0
    assert found["skipped"] == {
        "attention has no such precision": 1,
        "the kernel failed (time is infinite)": 1,
        "no hardware profile": 1,
        "shape not stated": 1,
        "unknown phase": 1,
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("187.69", "-3", "time_us"),
        (",8,4,2,", ",8,x,2,", "heads"),
        ("True", "perhaps", "causal"),
    ],
)
def test_broken_cells_name_file_line_and_column(tmp_path, old, new, message):
    with pytest.raises(DataError, match=f"line 2, column '{message}'"):
        compare_file("attention", table(tmp_path, ROWS[0].replace(old, new, 1)))


def test_latent_decode_shares_one_key_of_576(tmp_path):
    header = (
        "hardware,framework,kernel,phase,batch,heads,d_qk,d_v,q_len,kv_len,dtype,kv_dtype,time_us"
    )
    # aiconfigurator 095f58a
    path = table(
        tmp_path,
        "H100_SXM,sglang,flash_attention,decode,16,16,576,512,1,65536,bf16,bf16,415.68",
        "B200,sglang,trtllm_mla,fwd,1,128,192,128,8192,8192,bf16,bf16,2082.3",
        header=header,
    )
    found = compare_file("mla", path).to_json_dict()
    assert found["count"] == 2
    assert found["worst_absolute_error"] < 0.15


# hardware, phase -> median, mean, median of the large regime; targets of the reference rows
REFERENCE = {
    ("A100_SXM", "fwd"): (0.07, 0.12, 0.05),
    ("H100_SXM", "fwd"): (0.07, 0.12, 0.05),
    ("B200", "fwd"): (0.07, 0.12, 0.05),
    ("A100_SXM", "decode"): (0.08, 0.14, 0.04),
    ("H100_SXM", "decode"): (0.08, 0.14, 0.04),
    ("B200", "decode"): (0.08, 0.14, 0.04),
}
KERNELS = {"A100_SXM": "flash_attention", "H100_SXM": "fa3", "B200": "trtllm_mha"}


@pytest.mark.in_sample("attention-a100", "attention-h100", "attention-b200")
@pytest.mark.parametrize(("hardware", "phase"), REFERENCE)
def test_reference_rows_meet_their_targets(development_table, hardware, phase):
    median, mean, large = REFERENCE[hardware, phase]
    where = (
        f'framework == "sglang" and kernel == "{KERNELS[hardware]}" and dtype == "bf16" '
        f'and kv_dtype == "bf16" and hardware == "{hardware}" and phase == "{phase}"'
    )
    found = compare_file("attention", development_table("measured/attention.csv"), where)
    document = found.to_json_dict()
    assert document["median_absolute_error"] < median
    assert document["mean_absolute_error"] < mean
    errors = [abs(row.error) for row in found.rows if row.cells["regime"] == "large"]
    assert np.median(errors) < large


# hardware, phase -> median and mean of all SGLang rows: also Triton, FlashInfer, fp8, encoders
ALL_ROWS = {
    ("H100_SXM", "fwd"): (0.075, 0.10),
    ("H100_SXM", "decode"): (0.075, 0.105),
    ("B200", "fwd"): (0.075, 0.105),
    ("B200", "decode"): (0.085, 0.125),
}


@pytest.mark.parametrize(("hardware", "phase"), ALL_ROWS)
def test_all_rows_of_the_reference_framework_stay_close(development_table, hardware, phase):
    median, mean = ALL_ROWS[hardware, phase]
    where = f'framework == "sglang" and hardware == "{hardware}" and phase == "{phase}"'
    document = compare_file(
        "attention", development_table("measured/attention.csv"), where
    ).to_json_dict()
    assert document["median_absolute_error"] < median
    assert document["mean_absolute_error"] < mean


def test_latent_attention_of_ampere_is_that_of_its_reference_library(development_table):
    for phase, median in (("decode", 0.05), ("fwd", 0.08)):
        where = f'framework == "trtllm" and hardware == "A100_SXM" and phase == "{phase}"'
        document = compare_file("mla", development_table("measured/mla.csv"), where).to_json_dict()
        assert document["median_absolute_error"] < median


@pytest.mark.in_sample("attention-b200-backward")
def test_training_backward_meets_its_target(development_table):
    where = 'phase == "bwd" and framework == "TransformerEngine/flash-attn"'
    found = compare_file(
        "attention", development_table("measured/attention_fwd_bwd.csv"), where
    ).to_json_dict()
    assert found["count"] >= 15
    assert found["median_absolute_error"] < 0.08


LAYERS = "hardware,model,heads,seq,mbs,compress_ratio,pass,backend,ms,index_topk"
V4 = SHARED / "primus/measured_v4_attention_mi355x.csv"


def compared(tmp_path: Path, *rows: str) -> Comparison:
    """Compare a table of the given rows."""
    path = tmp_path / "v4.csv"
    path.write_text("\n".join([LAYERS, *rows]) + "\n", encoding="utf-8")
    return compare_file("sparse-attention", path)


def test_rows_that_the_model_made_have_no_error(tmp_path: Path) -> None:
    rows = []
    for ratio, selected, phase, name in (
        (0, 0, "forward", "fwd"),
        (4, 512, "backward", "bwd"),
        (128, 0, "decode", "decode"),
    ):
        (time,) = sparse_attention_times(
            "mi355x-server",
            "bf16",
            batch=2,
            query_length=1 if phase == "decode" else 8192,
            key_length=8192,
            heads=64,
            head_dim_qk=512,
            head_dim_v=512,
            window=128,
            compression=ratio,
            selected=selected,
            phase=phase,
        ).time
        rows.append(f"MI355X,deepseek-v4-flash,64,8192,2,{ratio},{name},x,{time * 1e3:.12f},")
    found = compared(tmp_path, *rows)
    assert [row.error for row in found.rows] == pytest.approx([0.0] * 3, abs=1e-8)
    assert found.by == ("fastest", "pass", "compress_ratio", "backend")


def test_the_fastest_of_each_shape_is_known_and_how_far_others_are_behind(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        "MI355X,deepseek-v4-pro,128,4096,1,0,fwd,a,0.6,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,fwd,b,0.4,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,bwd,a,1.5,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,bwd,b,,",
    )
    cells = [(row.cells["fastest"], row.cells["of_fastest"]) for row in found.rows]
    assert cells == [("no", "1.5"), ("yes", "1"), ("yes", "1"), ("no", "")]
    assert found.skipped() == {"no usable measurement": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("MI355X,deepseek-v4-pro,64,4096,1,4,infer,x,1,", "unknown pass"),
        ("MI355X,,64,4096,1,4,fwd,x,1,", "shape not stated"),  # how many keys are chosen
        ("MI355X,deepseek-v4-pro,64,4096,1,,fwd,x,1,", "shape not stated"),
        ("Z80,deepseek-v4-pro,64,4096,1,4,fwd,x,1,", "no hardware profile"),
    ],
)
def test_rows_that_cannot_be_scored_are_counted_by_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    assert compared(tmp_path, row).skipped() == {reason: 1}


def test_chosen_keys_may_be_stated(tmp_path: Path) -> None:
    found = compared(tmp_path, *(f"MI355X,,64,4096,1,4,fwd,x,1,{k}" for k in (256, 1024)))
    few, many = (row.outcome.projected for row in found.rows)
    assert few is not None
    assert many is not None
    assert many > 1.5 * few


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("MI355X,,64,4096,1,4.5,fwd,x,1,", "line 2.*compress_ratio"),
        ("MI355X,,6.4,4096,1,4,fwd,x,1,", "line 2.*heads"),
        ("MI355X,,64,4096,1,4,fwd,x,fast,", "line 2.*ms"),
    ],
)
def test_broken_cells_name_their_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        compared(tmp_path, row)


def test_the_published_table_is_met_without_a_fit() -> None:
    rows = compare_file("sparse-attention", needed(V4)).rows
    assert len(rows) == 102
    fastest = [row for row in rows if row.cells["fastest"] == "yes"]
    assert {row.cells["backend"] for row in fastest} == {"_turbo_flydsl"}
    assert len(fastest) == 12
    assert statistics(fastest)["median_absolute_error"] < 0.15
    assert statistics(fastest)["worst_absolute_error"] < 0.25
    backward = [row for row in fastest if row.cells["pass"] == "bwd"]
    assert statistics(backward)["median_absolute_error"] < 0.1
    # nothing else is faster than predicted by more than the fastest is
    errors = np.array([row.error for row in rows if row.cells["fastest"] == "no"], float)
    assert (errors < 0.0).all()
