"""Measured training runs: which rows are projected, as what, and which are skipped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from perfmodel.measured.compare import compare_file
from perfmodel.measured.kinds.training import KIND, case_of, measured_step_time
from perfmodel.measured.rows import MeasuredRow
from perfmodel.model.build import dense_model
from perfmodel.training.flops import model_flops_per_token
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


TINY = dense_model("tiny", layers=2, hidden_size=64, heads=4, vocab_size=128, intermediate_size=256)


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
    assert measured_step_time(row(), 128, TINY) == pytest.approx(128 * 8192 / (1621 * 64))
    assert measured_step_time(row(meas_iter_s=9.0), 128, TINY) == 9.0
    assert measured_step_time(row(meas_tokens_s_gpu="", der_iter_s=8.0), 128, TINY) == 8.0
    derived = row(meas_tokens_s_gpu="", der_tokens_s_gpu=1000)
    assert measured_step_time(derived, 128, TINY) == pytest.approx(128 * 8192 / 64e3)


@pytest.mark.parametrize(
    ("cells", "tokens"),
    [
        ({"meas_tokens_s": 64_000}, 1000),
        ({"meas_samples_s": 8}, 8 * 8192 / 64),
        ({"meas_samples_s_gpu": 0.125}, 1024),
        # Megatron-LM of 2025: before core 0.12 all scores of a square, since then half of them.
        ({"meas_tflops_gpu": 400, "version": "core 0.9"}, {"causal": False}),
        ({"meas_tflops_gpu": 400, "version": "core 0.16"}, {"causal": True}),
        ({"meas_tflops_gpu": 400, "tflops_formula_stated": "non-causal"}, {"causal": False}),
        ({"meas_mfu_pct": 40, "bf16_peak_used": 1000, "version": "2026"}, {"causal": True}),
    ],
)
def test_any_rate_is_a_measurement(cells: dict[str, Any], tokens: Any) -> None:
    silent = row(meas_tokens_s_gpu="", gbs="", **cells)
    case = case_of(silent)  # a rate needs no batch
    if isinstance(tokens, dict):
        tokens = 400e12 / model_flops_per_token(case.model, 8192, **tokens)
    batch = case.candidates[0]["global_batch_size"]
    assert case.measured == pytest.approx(batch * 8192 / (tokens * 64))


def test_full_recomputation_is_counted_where_the_software_counts_it() -> None:
    """Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh)."""
    cells = {"framework": "Megatron-DeepSpeed", "version": "2022-02", "meas_tokens_s_gpu": ""}
    sizes = {"ffn": 4 * 8192, "gated_mlp": 0, "kv_heads": 64, "recompute": "full"}
    case = case_of(row(**cells, **sizes, meas_tflops_gpu=100))
    s, layers, h, v = 8192, 80, 8192, 128256
    flops = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert case.measured == pytest.approx(128 * flops / 64 / 100e12)


def test_a_known_model_needs_no_architecture(tmp_path: Path) -> None:
    sizes = ("layers", "hidden", "ffn", "gated_mlp", "heads", "kv_heads", "head_dim", "vocab")
    cells = {k: v for k, v in LLAMA_70B.items() if k not in sizes}
    named = MeasuredRow(cells, "runs.csv", 2)
    found = compare_file("training", write(tmp_path / "t.csv", named)).rows[0]
    stated = compare_file("training", write(tmp_path / "t.csv", row())).rows[0]
    assert found.outcome.projected == pytest.approx(stated.outcome.projected, rel=1e-3)
    assert "architecture of llama-3-70b" in found.outcome.notes
    experts = named.replaced("model", "DeepSeek-V3 671B (MLPerf)").replaced("ep", "8")
    assert KIND.derived(experts)["architecture"] == "moe"
    assert case_of(experts).model.has_experts
    short = case_of(named.replaced("model", "LLAMA3-70B-12layers").replaced("vpp", "1"))
    assert short.model.num_layers == 12


def test_interleaved_runs_had_groups_that_were_possible(tmp_path: Path) -> None:
    """Five micro-batches on four stages ran in Megatron-Core with groups of five."""
    cells = row(tp=1, pp=4, vpp=4, n_gpus=8, mbs=4, gbs=40)
    found = compare_file("training", write(tmp_path / "t.csv", cells)).rows[0].outcome
    assert "micro_batch_group=5" in found.assumed
    assert found.projected is not None


def test_runs_that_do_not_fit_say_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", row(recompute="full"), row(tp=1, pp=1, vpp=1))
    said = [str(one.outcome.notes) for one in compare_file("training", path).rows]
    assert ["memory does not fit" in notes for notes in said] == [False, True]


def test_a_row_without_measurement_or_architecture_does_not_count_against_coverage(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "t.csv",
        row(),
        row(meas_tokens_s_gpu=""),
        row(layers="", model="ours"),
        row(arch_known="no"),
        row(seq=""),
        row(tp=""),
        row(outcome="crashed_unknown"),
    )
    found = compare_file("training", path).to_json_dict()
    assert found["count"] == 1
    assert found["rows"] == 6  # a crash is no run
    assert found["coverage"] == pytest.approx(1 / 2)
    assert found["skipped"] == {
        "architecture not stated": 2,
        "no usable measurement": 1,
        "sequence length not stated": 1,
        "tensor or pipeline degree not stated": 1,
    }


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"pp_schedule": "chimera"}, "schedule not modelled"),
        ({"precision": "int8/fp8 (AQT)"}, "int8 training is not modelled yet"),
        ({"precision": "ternary"}, "unknown precision"),
        ({"hardware": "H900"}, "no hardware profile"),
        ({"pp": ""}, "tensor or pipeline degree not stated"),
        ({"gbs": ""}, "global batch not stated"),
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
    """Where the software has no recipe that packs documents."""
    path = write(tmp_path / "t.csv", row(framework="MaxText"), row(framework="MaxText", task="sft"))
    first, second = compare_file("training", path).rows
    assert first.outcome.projected == second.outcome.projected


@pytest.mark.parametrize(
    ("cells", "assumed"),
    [
        (
            {"task": "lora", "framework": "NeMo", "version": "NeMo 24.07"},
            {"lora_rank=32", "lora_targets=linear_qkv", "document_length=256"},
        ),
        (
            {"task": "lora", "framework": "Megatron-Bridge", "notes": "LoRA rank 8 on linear_proj"},
            {"document_length=256"},
        ),
        (
            {"task": "lora", "framework": "PyTorch FSDP", "notes": "LoRA dim 32"},
            {"lora_targets=all_linear"},
        ),
        ({"task": "sft", "framework": "NeMo", "version": "NeMo 24.07"}, {"document_length=256"}),
    ],
)
def test_fine_tuning_is_as_its_recipe_has_it(cells: dict[str, Any], assumed: set[str]) -> None:
    case = case_of(row(**cells))
    found = {text for text in case.assumed if text.startswith(("lora", "document"))}
    assert found == assumed
    assert (case.model.adapters is not None) == (cells["task"] == "lora")


def test_published_fine_tuning_of_nvidia(training_runs: Any) -> None:
    """NVIDIA's nine LoRA runs of Llama 2 and 3 on H100 and GB200, by tokens per second."""
    rows = [MeasuredRow(it, "runs.csv", 2) for it in training_runs if it["task"] == "lora"]
    found = KIND.project(rows, lambda count: None)
    errors = [it.projected / it.measured - 1.0 for it in found if it.projected and it.measured]
    assert len(errors) == 9
    assert max(map(abs, errors)) < 0.10
    assert sum(map(abs, errors)) / 9 < 0.04


def test_a_stated_row_leaves_nothing_open() -> None:
    case = case_of(row())
    (strategy,) = case.candidates
    assert case.opened == ()
    assert case.assumed == ()
    assert strategy["data_parallel"] == 2
    assert strategy["virtual_pipeline"] == 5
    assert strategy["sequence_parallel"] is True


def test_open_fields_take_a_likely_choice_that_fits(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", row(mbs="", recompute=""), row(recompute="full"))
    item, slow = compare_file("training", path).rows
    assert item.cells["assumed"] == "yes"
    assert item.outcome.assumed == ("micro_batch_size=1", "recompute=none")
    case = case_of(row(mbs="", recompute=""))
    assert len(case.candidates) == 3 * 3  # recompute levels × micro-batches 1, 2, 4
    assert item.outcome.projected is not None
    assert slow.outcome.projected is not None
    assert item.outcome.projected < slow.outcome.projected


def test_an_unstated_batch_is_assumed_where_a_throughput_is_stated() -> None:
    case = case_of(row(gbs=""))
    assert case.assumed == ("global_batch_size=128",)  # 8 micro-batches per stage, 2 replicas
    assert case.measured == pytest.approx(128 * 8192 / (1621 * 64))
    sharded = case_of(row(gbs="", framework="torchtitan (FSDP2)", tp="", pp="", vpp="", mbs=2))
    assert sharded.assumed == ("global_batch_size=128",)  # 64 replicas, all at once
    assert sharded.candidates[0]["tensor_parallel"] == 1


def test_an_unstated_expert_tensor_degree_is_one_where_experts_have_their_own() -> None:
    """Megatron-Core has one since 0.9; before, it is the tensor degree."""
    experts = {"n_experts": 8, "topk": 2, "ep": 2, "moe_ffn": 14336, "pp": 1, "vpp": 1}

    def degree(**cells: Any) -> int:
        return int(case_of(row(**{**experts, **cells})).candidates[0]["expert_tensor_parallel"])

    assert degree(framework="Megatron-LM") == 1
    assert degree(framework="Megatron-LM", version="core_v0.7.0") == 4
    assert degree(framework="Megatron-LM", etp=2) == 2
    assert degree(framework="Megatron-Bridge") == 1
    assert degree(framework="Megatron-Core MoE") == 1
    assert (
        degree(framework="Megatron-LM", version="core_v0.7.0", tp=16, ep=8) == 1
    )  # 128 do not divide 64 devices


def test_an_unstated_expert_degree_fills_the_ranks_of_a_stage() -> None:
    experts = {"n_experts": 128, "topk": 8, "moe_ffn": 1536, "pp": 1, "vpp": 1, "ep": ""}
    case = case_of(row(**experts, framework="Megatron-Bridge"))
    assert case.candidates[0]["expert_parallel"] == 64
    assert "expert_parallel=64" in case.assumed
    fsdp = case_of(row(**experts, framework="PyTorch FSDP"))
    assert fsdp.candidates[0]["expert_parallel"] == 1
    in_node = case_of(row(**{**experts, "tp": 1}, framework="Megatron-Bridge", fsdp_zero="HSDP 8"))
    assert in_node.candidates[0]["expert_parallel"] == 8


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


def test_prediction_modules_are_stated_or_published() -> None:
    sizes = {
        **{"layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128},
        **{"kv_heads": 128, "head_dim": "", "vocab": 129280, "n_experts": 256, "topk": 8},
        **{"n_shared_experts": 1, "moe_ffn": 2048, "first_dense_layers": 3, "mla_q_lora": 1536},
        **{"mla_kv_lora": 512, "mla_nope": 128, "mla_rope": 64, "mla_v": 128, "ep": 8},
    }

    def modules(**cells: Any) -> int:
        return len(case_of(row(**{**sizes, **cells})).model.mtp_layers)

    # By what a note says, then by the FLOP counted, then by the architecture, whatever its name.
    assert modules() == 1
    assert modules(model="ours") == 1
    assert modules(model="ours", hidden=6144) == 0
    for notes in ("w/o MTP; dropless", "no MTP", "run without MTP"):
        assert modules(notes=notes) == 0
    assert modules(notes="MTP layer trained (layout Et*4)", hidden=6144) == 1
    bridge = {"framework": "Megatron-Bridge/Megatron-Core"}
    assert modules(**bridge, tflops_formula_matched="causal+MTP") == 1
    assert modules(**bridge, tflops_formula_matched="causal") == 0
    # DeepSeek's own count leaves them out.
    assert modules(framework="HAI-LLM (DualPipe)", tflops_formula_matched="causal") == 1
    assert modules(framework="torchtitan") == 0
    assert modules(framework="MaxText") == 0


@pytest.mark.parametrize(
    ("note", "windows"),
    [
        ("5 of 6 layers sliding window 1024", 67),  # 13 × 5 + 2 of 80 layers
        ("every other layer sliding window 128", 40),
        ("sliding window 4096", 80),
        ("5:1 local to global, window 1024", 67),
        ("every 4th layer full, others window 4096", 60),
        ("128-token sliding window on every other layer", 40),
        ("parallel attention and MLP", 0),
    ],
)
def test_attention_notes(note: str, windows: int) -> None:
    model = case_of(row(attn_note=note)).model
    assert sum(layer.attention.kind == "sliding" for layer in model.layers) == windows


def test_windows_of_layers_with_experts() -> None:
    sizes = {"n_experts": 8, "topk": 2, "moe_ffn": 1024, "attn_note": "alternating window 128"}
    model = case_of(row(**sizes)).model
    assert sum(layer.attention.kind == "sliding" for layer in model.layers) == 40
    assert model.has_experts


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


def test_sinks_are_known_by_the_architecture_whatever_the_vocabulary() -> None:
    """Transformer Engine exchanges heads for models with sinks; rows do not state them."""
    sizes = {
        **{"layers": 24, "hidden": 2880, "ffn": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64},
        **{"n_experts": 32, "topk": 4, "moe_ffn": 2880, "cp": 2, "tp": 1, "pp": 1, "vpp": "1"},
        "attn_note": "every other layer sliding window 128",
    }

    def kind(**cells: Any) -> str:
        candidates = case_of(row(**{**sizes, **cells})).candidates
        return str(candidates[0]["context_parallel_kind"])

    assert kind(vocab=201088, model="ours") == kind(vocab=128256) == "all_to_all"
    assert kind(n_experts=16) == "ring"
