"""Measured AIOB files as calibration data: rows, tables, and what is refused."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, HardwareError, StrategyError
from perfmodel.measured.compare import compare_file
from perfmodel.workloads.formats.aiob import AiobFile, AiobTime, read_aiob
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.computation import predicted_computation
from perfmodel.workloads.twins.aicb.measured import (
    BESIDE,
    COLUMNS,
    calibration_rows,
    write_calibration_tables,
)

# What AICB's Example.txt fits best: gpt_7B, tp 2, sequence 4096, one A100-class device.
GPT_7B = {
    "world_size": 2, "tensor_model_parallel_size": 2, "seq_length": 4096, "hidden_size": 4096,
    "num_attention_heads": 32, "num_layers": 36, "vocab_size": 50257,
}  # fmt: skip
FLASH = AicbArguments(**GPT_7B, swiglu=True, use_flash_attn=True)
PLAIN = AicbArguments(**GPT_7B)
TIME = AiobTime(3, 1, 2)


def file_of(*sections, **times):
    return AiobFile({name: TIME for name in sections} | times, train_iter=10)


def rows_of(kind, aiob, arguments):
    return {
        row["section"]: row for row in calibration_rows(aiob, arguments, "dgx-a100")[kind]
    }  # fmt: skip


def test_products_take_their_shapes_from_the_arguments_and_the_minimum():
    aiob = file_of("mlp_linear_1", "mlp_linear_2", atten_qkv=AiobTime(1255, 862, 889))
    rows = rows_of("gemm", aiob, FLASH)
    assert rows["atten_qkv"] == {
        "hardware": "dgx-a100", "dtype": "bf16", "m": 4096, "n": 3 * 4096 // 2, "k": 4096,
        "batch": 1, "time_us": 862, "section": "atten_qkv", "t_min_us": 862, "t_avg_us": 889,
        "t_max_us": 1255, "repeats": 10,
    }  # fmt: skip
    # SwiGLU: the first product makes gate and value, 2 · 10880 / 2 wide.
    assert [rows["mlp_linear_1"][name] for name in "mnk"] == [4096, 10880, 4096]
    assert [rows["mlp_linear_2"][name] for name in "mnk"] == [4096, 4096, 5440]


def test_attention_is_causal_on_a_ranks_heads():
    (row,) = calibration_rows(file_of("atten_flash"), FLASH, "dgx-a100")["attention"]
    assert (row["heads"], row["kv_heads"], row["d_qk"], row["d_v"]) == (16, 16, 128, 128)
    assert (row["batch"], row["q_len"], row["kv_len"]) == (1, 4096, 4096)
    assert (row["causal"], row["phase"], row["time_us"]) == (True, "fwd", 1)


def test_attention_without_flash_is_batched_products():
    aiob = file_of("atten_core_qk", "atten_core_softmax", "atten_core_contex", "atten_linear")
    rows = rows_of("gemm", aiob, PLAIN)
    # The softmax scales first, the context is copied: two kernels each.
    assert set(rows) == {"atten_core_qk", "atten_linear"}
    qk = rows["atten_core_qk"]
    assert [qk[name] for name in ("m", "n", "k", "batch")] == [4096, 4096, 128, 16]
    assert [rows["atten_linear"][name] for name in "mnk"] == [4096, 4096, 2048]


def test_streams_take_the_average():
    aiob = file_of("layernorm", "layernorm2", "param_time")
    rows = rows_of("stream", aiob, FLASH)
    assert (rows["layernorm"]["rows"], rows["layernorm"]["cols"]) == (4096, 4096)
    assert {row["time_us"] for row in rows.values()} == {2}
    optimizer = rows["param_time"]
    assert (optimizer["op"], optimizer["dtype"]) == ("div_scalar", "fp32")
    # Embedding 4 · 25216 · 4096 + 4096², 36 layers of 4 · 4096² / 2 and 2 · 4096 · 10880 / 2.
    counted = 4 * 25216 * 4096 + 4096**2 + 36 * (2 * 4096**2 + 4096 * 10880)
    assert optimizer["rows"] == counted


def test_norms_see_a_part_of_the_tokens_under_sequence_parallelism():
    arguments = AicbArguments(**GPT_7B, enable_sequence_parallel=True)
    assert rows_of("stream", file_of("layernorm"), arguments)["layernorm"]["rows"] == 2048


@pytest.mark.parametrize(
    ("grouped", "kind", "sizes"),
    [
        # Four ranks bring 4 · 4096 tokens, twice each, to 8 experts: 4096 to an expert.
        (True, "moe", {"groups": 2, "m_per_group": 4096, "n": 10880, "k": 4096, "time_us": 12}),
        (False, "gemm", {"m": 4096, "n": 10880, "k": 4096, "time_us": 6}),
    ],
)
def test_experts_are_one_grouped_product_or_equal_ones(grouped, kind, sizes):
    arguments = AicbArguments(
        **GPT_7B | {"world_size": 8}, swiglu=True, enable_sequence_parallel=True, moe_enable=True,
        moe_grouped_gemm=grouped, num_experts=8, moe_router_topk=2, expert_model_parallel_size=4,
    )  # fmt: skip
    aiob = file_of(mlp_linear_1=AiobTime(20, 12, 16))
    row = rows_of(kind, aiob, arguments)["mlp_linear_1"]
    assert {name: row[name] for name in sizes} == sizes


def test_regions_of_several_kernels_are_left_out():
    aiob = file_of("Emb", "atten_linear", "mlp_gelu", "logit_time")
    assert not any(calibration_rows(aiob, FLASH, "dgx-a100").values())
    with pytest.raises(StrategyError, match="nothing to calibrate"):
        write_calibration_tables(aiob, FLASH, "dgx-a100", ".")


def test_what_took_no_time_is_left_out():
    aiob = file_of("mlp_linear_1", atten_qkv=AiobTime(1, 0, 1))
    assert set(rows_of("gemm", aiob, FLASH)) == {"mlp_linear_1"}


def test_tables_of_a_predicted_file_agree_with_the_prediction(tmp_path, a100):
    predicted = predicted_computation(FLASH, a100, call_latency=0.0)
    tables = write_calibration_tables(predicted, FLASH, "dgx-a100", tmp_path)
    assert set(tables) == {"gemm", "attention", "stream"}
    for kind in ("gemm", "attention"):
        comparison = compare_file(kind, tables[kind])
        assert comparison.columns == (*COLUMNS[kind], *BESIDE)
        for row in comparison.rows:
            assert not row.outcome.skip_reason
            # The file has three digits of a µs.
            assert row.outcome.projected == pytest.approx(row.outcome.measured, rel=1e-5)
    streams = compare_file("stream", tables["stream"])
    assert [row.outcome.skip_reason for row in streams.rows] == [""] * 4


def test_the_example_of_aicb_fits_the_model(tmp_path, development_table):
    aiob = read_aiob(development_table("aicb/aiob_inputs/Example.txt"))
    tables = write_calibration_tables(aiob, FLASH, "dgx-a100", tmp_path)
    rows = [row for kind in ("gemm", "attention") for row in compare_file(kind, tables[kind]).rows]
    assert len(rows) == 4
    for row in rows:
        assert row.outcome.projected == pytest.approx(row.outcome.measured, rel=0.1)


@pytest.mark.parametrize(
    ("aiob", "arguments", "message"),
    [
        (file_of("atten_flash"), PLAIN, "no section 'atten_flash' .*--use_flash_attn"),
        (file_of("atten_qvk"), FLASH, "no section 'atten_qvk' .*did you mean atten_qkv"),
        (AiobFile({"Emb": TIME}, inference_term="decode"), FLASH, "files of training"),
        (file_of("Emb"), AicbArguments(dtype="float8"), "--dtype=float8: AIOB knows bfloat16"),
    ],
)
def test_what_does_not_belong_together_is_refused(aiob, arguments, message):
    with pytest.raises(StrategyError, match=message):
        calibration_rows(aiob, arguments, "dgx-a100")


def test_unknown_devices_and_folders_are_refused(tmp_path):
    with pytest.raises(HardwareError, match="dgx-a10"):
        calibration_rows(file_of("atten_qkv"), FLASH, "dgx-a10")
    with pytest.raises(DataError, match="does not exist"):
        write_calibration_tables(file_of("atten_qkv"), FLASH, "dgx-a100", tmp_path / "none")
