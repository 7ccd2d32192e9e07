"""Measured training runs: which rows are projected, as what, and which are skipped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from perfmodel.measured.compare import compare_file
from perfmodel.measured.kinds.training import _has_prediction_module, case_of, measured_step_time
from perfmodel.measured.rows import MeasuredRow
from tests.data import MISSING, TRAINING_RUNS

# NVIDIA Megatron-LM examples/llama/README.md, "FP8 Performance", LLAMA3-70B: 1621 tokens/s/GPU.
LLAMA_70B = {
    "hardware": "H100-80GB-SXM",
    "n_gpus": "64",
    "model": "LLAMA3-70B",
    "layers": "80",
    "hidden": "8192",
    "ffn": "28672",
    "gated_mlp": "1",
    "heads": "64",
    "kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "seq": "8192",
    "precision": "fp8",
    "framework": "Megatron-LM",
    "version": "2025",
    "tp": "4",
    "pp": "8",
    "vpp": "5",
    "cp": "1",
    "recompute": "none",
    "mbs": "1",
    "gbs": "128",
    "meas_tokens_s_gpu": "1621",
}


def row(**cells: Any) -> MeasuredRow:
    return MeasuredRow({**LLAMA_70B, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


def write(path: Path, *rows: MeasuredRow) -> Path:
    names = list(dict.fromkeys(name for item in rows for name in item.cells))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(dict(item.cells) for item in rows)
    return path


def test_measured_step_time_comes_from_the_first_statement() -> None:
    assert measured_step_time(row()) == pytest.approx(128 * 8192 / (1621 * 64))
    assert measured_step_time(row(meas_iter_s=9.0)) == 9.0
    assert measured_step_time(row(meas_tokens_s_gpu="", der_iter_s=8.0)) == 8.0
    derived = row(meas_tokens_s_gpu="", der_tokens_s_gpu=1000)
    assert measured_step_time(derived) == pytest.approx(128 * 8192 / 64e3)


def test_a_row_without_measurement_or_architecture_does_not_count_against_coverage(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "t.csv",
        row(),
        row(meas_tokens_s_gpu=""),
        row(layers=""),
        row(arch_known="no"),
        row(tp=""),
    )
    found = compare_file("training", path).to_json_dict()
    assert found["count"] == 1
    assert found["rows"] == 5
    assert found["coverage"] == pytest.approx(1 / 2)
    assert found["skipped"] == {
        "architecture not stated": 2,
        "no usable measurement": 1,
        "tensor or pipeline degree not stated": 1,
    }


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"task": "lora"}, "LoRA is not modelled yet"),
        ({"pp_schedule": "zbv"}, "schedule not modelled yet"),
        ({"precision": "int8/fp8 (AQT)"}, "int8 training is not modelled yet"),
        ({"precision": "ternary"}, "unknown precision"),
        ({"hardware": "H900"}, "no hardware profile"),
        ({"pp": ""}, "tensor or pipeline degree not stated"),
        ({"gbs": ""}, "global batch or sequence length not stated"),
        ({"n_gpus": 63}, "degrees do not multiply to the number of devices"),
        ({"gbs": 127}, "global_batch_size is not a multiple"),
        ({"hardware": "A100-80GB"}, "no matrix rate for this precision"),
    ],
)
def test_rows_that_cannot_be_projected_say_why(
    tmp_path: Path, cells: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "t.csv", row(**{"meas_iter_s": 10.0, **cells}))
    found = compare_file("training", path).to_json_dict()
    assert found["count"] == 0
    (said,) = found["skipped"]
    assert reason in said
    assert found["coverage"] == 0.0


def test_full_fine_tuning_is_projected_as_pretraining(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", row(), row(task="sft"))
    first, second = compare_file("training", path).rows
    assert first.outcome.projected == second.outcome.projected


def test_a_stated_row_leaves_nothing_open() -> None:
    case = case_of(row())
    (strategy,) = case.candidates
    assert case.opened == ()
    assert case.assumed == ()
    assert strategy["data_parallel"] == 2
    assert strategy["virtual_pipeline"] == 5
    assert strategy["sequence_parallel"] is True


def test_open_fields_take_the_fastest_choice_that_fits(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", row(mbs="", recompute=""))
    (item,) = compare_file("training", path).rows
    assert item.cells["assumed"] == "yes"
    assert {text.split("=")[0] for text in item.outcome.assumed} == {
        "micro_batch_size",
        "recompute",
    }
    case = case_of(row(mbs="", recompute=""))
    assert len(case.candidates) == 3 * 7  # recompute levels × micro-batches 1, 2, 4 … 64
    stated = write(tmp_path / "s.csv", row(recompute="full"))
    (slow,) = compare_file("training", stated).rows
    assert item.outcome.projected is not None
    assert slow.outcome.projected is not None
    assert item.outcome.projected < slow.outcome.projected


def test_micro_batches_divide_the_batch_of_a_replica() -> None:
    case = case_of(row(mbs="", gbs=24))  # two replicas of 12 sequences
    assert [c["micro_batch_size"] for c in case.candidates] == [1, 2, 4]


def test_virtual_chunks_open_only_where_the_table_says_so() -> None:
    assert case_of(row(vpp="")).candidates[0]["virtual_pipeline"] == 1
    some = case_of(row(vpp=">1")).candidates
    assert [c["virtual_pipeline"] for c in some] == [2, 5, 10]  # 80 layers on 8 stages
    left_out = case_of(row(vpp="", notes="micro-batch and interleaving not in the table"))
    assert [c["virtual_pipeline"] for c in left_out.candidates] == [1, 2, 5, 10]


def test_partly_recomputed_layers_lie_between_none_and_all(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        row(),
        row(recompute="full (block 1 layers)"),
        row(recompute="full"),
        row(recompute="full (block 2 layers)"),
    )
    none, half, full, whole = (r.outcome for r in compare_file("training", path).rows)
    # One of the two layers in each of 8 × 5 chunks.
    assert none.projected is not None
    assert full.projected is not None
    assert half.projected == pytest.approx((none.projected + full.projected) / 2)
    assert whole.projected == pytest.approx(full.projected)


def test_selective_recompute_of_torchtitan_is_half_of_the_forward(tmp_path: Path) -> None:
    cells = {"framework": "torchtitan (FSDP2)", "overlap": "torch.compile", "vpp": 1, "pp": 1}
    path = write(
        tmp_path / "t.csv",
        *(row(**cells, recompute=level) for level in ("none", "selective", "full")),
    )
    none, half, full = (r.outcome.projected for r in compare_file("training", path).rows)
    assert none is not None
    assert full is not None
    assert half == pytest.approx((none + full) / 2)


def test_deepseek_v3_has_its_prediction_module_unless_a_table_leaves_it_out() -> None:
    sizes = {
        **{"model": "DeepSeekV3", "layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128},
        **{"kv_heads": 128, "head_dim": "", "vocab": 129280, "n_experts": 256, "topk": 8},
        **{"n_shared_experts": 1, "moe_ffn": 2048, "first_dense_layers": 3, "mla_q_lora": 1536},
        **{"mla_kv_lora": 512, "mla_nope": 128, "mla_rope": 64, "mla_v": 128, "ep": 8},
    }
    assert len(case_of(row(**sizes)).model.mtp_layers) == 1
    for notes in ("w/o MTP; dropless", "no MTP", "run without MTP"):
        assert len(case_of(row(**sizes, notes=notes)).model.mtp_layers) == 0


def test_prediction_module_by_the_flop_that_were_counted() -> None:
    """Megatron's count has those of the modules; DeepSeek's own count leaves them out."""

    def trained(**cells: str) -> bool:
        return _has_prediction_module(row(**cells))

    megatron = {"model": "DeepSeek-V3", "framework": "Megatron-Bridge/Megatron-Core"}
    assert trained(**megatron)
    assert trained(**megatron, tflops_formula_matched="causal+MTP")
    assert not trained(**megatron, tflops_formula_matched="causal")
    own = {"model": "DeepSeek-V3", "framework": "HAI-LLM (DualPipe)"}
    assert trained(**own, tflops_formula_matched="causal")
    assert not trained(model="DeepSeek-V3", framework="torchtitan")
    assert not trained(model="DeepSeek-V3", framework="MaxText")
    assert not trained(model="Qwen3-30B-A3B", framework="Megatron-Core")
    assert trained(model="other", notes="MTP layer trained (layout Et*4)")


@pytest.mark.parametrize(
    ("note", "windows"),
    [
        ("5 of 6 layers sliding window 1024", 67),  # 13 × 5 + 2 of 80 layers
        ("every other layer sliding window 128", 40),
        ("sliding window 4096", 80),
        ("parallel attention and MLP", 0),
    ],
)
def test_attention_notes(note: str, windows: int) -> None:
    model = case_of(row(attn_note=note)).model
    assert sum(layer.attention.kind == "sliding" for layer in model.layers) == windows


def test_maxtext_batches_of_a_replica_are_one_micro_batch() -> None:
    cells = row(framework="MaxText", hardware="TPU-v5e", tp=16, pp=1, vpp=1, n_gpus=256, gbs=256)
    assert [c["micro_batch_size"] for c in case_of(cells).candidates] == [16]


@pytest.mark.skipif(not TRAINING_RUNS.is_file(), reason=MISSING)
def test_the_measured_runs_are_covered() -> None:
    found = compare_file("training", TRAINING_RUNS).to_json_dict()
    assert found["coverage"] >= 0.85
    assert found["median_absolute_error"] < 0.25
    assert found["groups"]["architecture"]["moe"]["count"] > 0
    assert sum(found["skipped"].values()) == found["rows"] - found["count"]
