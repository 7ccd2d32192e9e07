"""How cells about the software of a measured run are understood."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.facts import Run
from perfmodel.measured.row_software import (
    framework_of,
    precision_of,
    recompute_of,
    release_of,
    sequence_parallel,
    zero_of,
)
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.model.presets import load_model
from perfmodel.software.framework import as_run, load_framework
from perfmodel.training.memory import waiting_share

NVL72 = Run("mxfp8", True, 72)


def row(**cells: Any) -> MeasuredRow:
    basic = {"hardware": "H100-80GB-SXM", "n_gpus": "64", "precision": "fp8"}
    return MeasuredRow({**basic, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cells", "preset", "fields"),
    [
        ({"framework": "Megatron-LM", "version": "2021-04"}, "megatron-2021", {}),
        ({"framework": "Megatron-LM", "version": "2022-05"}, "megatron-2022", {}),
        (
            {"framework": "Megatron-DeepSpeed", "flash": "no (fused softmax)"},
            "megatron-deepspeed",
            {},
        ),
        ({"framework": "Megatron-Core"}, "megatron", {"flash_attention": True}),
        (
            {"framework": "Megatron-Bridge/Megatron-Core"},
            "megatron-bridge@0.5",
            {"overlap_tensor_parallel": "full", "gradient_bytes": 2.0},
        ),
        (
            {"framework": "Megatron-Bridge/Megatron-Core", "precision": "nvfp4"},
            "megatron-bridge@0.5",
            {"overlap_tensor_parallel": "backward"},
        ),
        *(
            (
                {"framework": "Megatron-Core", "recompute": cell},
                "megatron",
                {"selective_recompute": what},
            )
            for cell, what in (
                ("selective", "cheap"),
                ("selective [mla_up_proj]", "mla_up_proj"),
                ("selective (layernorm, moe_act)", "layernorm moe_act"),
                ("selective (norm,act)", "layernorm norm_linear activation moe_act"),
                ("selective [mlp]", "mlp"),
                ("offload qkv_proj", "save_qkv_proj"),
                ("save_dot_except_mlp", "save_qkv_proj save_out_proj"),
                ("minimal", "save_qkv_proj save_out_proj save_mlpwi save_mlpwo"),
                ("selective [mla_up_proj, mlp]", "mla_up_proj mlp"),
                ("selective (layernorm, moe)", "layernorm moe"),
            )
        ),
        (
            {"framework": "torchtitan (FSDP2)", "notes": "fp8 rowwise; per-op SAC"},
            "torchtitan",
            {"scaling": "rows", "gathers_quantised": False},
        ),
        (
            {"framework": "torchtitan (FSDP2)", "notes": "fp8 tensorwise"},
            "torchtitan",
            {"scaling": "current", "gathers_quantised": True},
        ),
        (
            {"framework": "llm-foundry/Composer FSDP", "version": "2023"},
            "llm-foundry@0.2",
            {"gradient_reduce_bytes": 2.0, "attention_generation": 1},
        ),
        (
            {"framework": "llm-foundry/Composer FSDP", "notes": "MP mode DEFAULT (…)"},
            "llm-foundry",
            {"gradient_reduce_bytes": 4.0},
        ),
        (
            {"framework": "torchtitan (FSDP2)", "overlap": "torch.compile, async-TP"},
            "torchtitan",
            {"overlap_tensor_parallel": "full", "fused_elementwise": True},
        ),
        (
            {"framework": "torchtitan (FSDP2)", "precision": "bf16"},
            "torchtitan",
            {"overlap_tensor_parallel": "none", "fused_elementwise": False},
        ),
        (
            {"framework": "Megatron-LM 0.14 + TE 2.11", "overlap": "all comm overlap off"},
            "megatron",
            {"overlap_gradient_reduce": False, "overlap_tensor_parallel": "none"},
        ),
        (
            {"framework": "Megatron-Core MoE", "overlap": "DeepEP +1f1b a2a overlap"},
            "megatron",
            {"overlap_expert_parallel": True, "expert_dispatch": "deepep"},
        ),
        (
            {"framework": "Megatron-Core MoE", "overlap": "cuda_graph=te [attn, moe_router]"},
            "megatron",
            {"graph_launch": False, "graph_scope": "attention_router"},
        ),
        (
            {"framework": "Megatron-Bridge", "notes": "tokendrop", "pp": "1"},
            "megatron-bridge@0.5",
            {"capacity_factor": 1.0, "expert_dispatch": "all_to_all", "graph_launch": True},
        ),
        (
            {"framework": "MaxText", "notes": "token-drop"},
            "maxtext",
            {"capacity_factor": 1.0, "expert_dispatch": "einsum"},
        ),
        (
            {"framework": "Megatron-Core MoE", "overlap": "sync-free MoE"},
            "megatron",
            {"expert_counts_on_host": False},
        ),
        (
            {
                "framework": "NVIDIA NeMo",
                "version": "MLPerf v6.0",
                "notes": "CuteDSL; config_common_cg",
            },
            "nvidia-mlperf@6.0",
            {"grouped_gemm": True, "graph_launch": True},
        ),
        (
            {"framework": "Primus/Megatron", "version": "2025-12"},
            "primus@25.6",
            {"attention_generation": 2, "best_attention_is_plain": True},
        ),
        (
            {"framework": "Primus", "version": "v25.10", "flash": "yes (TE, backward v3)"},
            "primus@25.6",
            {"attention_generation": 0},
        ),
        ({"framework": "Primus", "version": "MLPerf v6.0"}, "primus", {"attention_generation": 0}),
        (
            {"framework": "Primus", "overlap": "turbo attention; legacy grouped GEMM"},
            "primus-turbo",
            {"best_attention_is_plain": False, "grouped_gemm": False},
        ),
        (
            {"framework": "Primus", "overlap": "turbo grouped GEMM"},
            "primus-turbo",
            {"best_attention_is_plain": True, "grouped_gemm": True},
        ),
        (
            {"framework": "Primus/Megatron", "overlap": "DeepEP; sync-free MoE stage 1"},
            "primus",
            {"expert_counts_on_host": True, "sorts_chunks": False, "expert_dispatch": "deepep"},
        ),
        (
            {"framework": "nanotron", "pp": 2, "gpus_per_node": 8},
            "nanotron",
            {"checks_collectives": True, "stage_split": "by_cost"},
        ),
        ({"framework": "nanotron", "pp": 1}, "nanotron", {"checks_collectives": False}),
        (
            {"framework": "nanotron", "pp": 2, "n_gpus": 8, "gpus_per_node": 8},
            "nanotron",
            {"checks_collectives": False},
        ),
        (
            {"framework": "NeMo", "overlap": "cuda_graph=local [full_iteration]"},
            "nemo@25.02",
            {"graph_launch": True},
        ),
        (
            {"framework": "NeMo", "overlap": "cuda_graph=none [full_iteration]"},
            "nemo@25.02",
            {},
        ),
        (
            {"framework": "Megatron-Core MoE (HybridEP)"},
            "megatron",
            {"expert_dispatch": "hybrid_ep"},
        ),
        (
            {"framework": "NeMo", "version": "NeMo 24.07"},
            "nemo@23.08",
            {"scaling": "delayed", "attention_generation": 2},
        ),
        (
            {"framework": "PyTorch NVIDIA Release 23.09", "version": "MLPerf v3.1"},
            "nvidia-mlperf@3.1",
            {"scaling": "delayed", "attention_generation": 0},
        ),
        (
            {"framework": "Megatron-Bridge", "version": "NeMo container 26.04.01"},
            "megatron-bridge@0.4",
            {"scaling": "current"},
        ),
        (
            {"framework": "HAI-LLM (DualPipe)"},
            "hai-llm",
            {"overlap_expert_parallel": True, "optimizer_bytes": 8.0},
        ),
        ({"framework": "MaxText"}, "maxtext", {"graph_launch": True}),
        ({"framework": "somebody's own"}, "plain-2025", {}),
        ({"framework": "somebody's own", "version": "2022-10"}, "plain-2022", {}),
        ({"framework": "somebody's own", "hardware": "TPU v5p"}, "maxtext", {}),
        ({"framework": "GPT-NeoX", "version": "2022-02"}, "megatron-deepspeed-2021", {}),
        ({"framework": "torchtitan", "version": "2024-12"}, "torchtitan@0.1", {}),
        (
            {
                "framework": "Megatron-LM (ROCm fork)",
                "version": "rocm/megatron-lm:v26.1 (Jun 2026)",
            },
            "megatron-rocm",
            {},
        ),
        ({"framework": "Primus/Megatron", "overlap": "turbo attention"}, "primus-turbo", {}),
        ({"framework": "nanotron", "version": "2025"}, "nanotron", {}),
    ],
)
def test_software_cells(cells: dict[str, Any], preset: str, fields: dict[str, Any]) -> None:
    framework, _ = framework_of(row(**cells), Run(cells.get("precision", "fp8"), False, 8))
    assert framework.name == f"{preset}[as stated]"
    for name, value in fields.items():
        assert getattr(framework, name) == value
    if "none [" in cells.get("overlap", ""):
        assert not framework.graph_launch


def test_what_a_row_states_goes_before_what_its_release_does() -> None:
    """Megatron-Bridge 0.5 runs mxfp8 experts on NVL72 from whole-iteration graphs."""
    cells = {"framework": "Megatron-Bridge", "version": "NeMo container 26.06"}
    silent, _ = framework_of(row(**cells), NVL72)
    assert silent.graph_launch
    told, _ = framework_of(row(**cells, overlap="cuda_graph=none"), NVL72)
    assert as_run(told, NVL72) == told
    listed = "cuda_graph=none; dispatcher=alltoall; ddp.overlap_grad_reduce"
    told, _ = framework_of(row(**cells, overlap=listed), NVL72)
    kept = ("graph_launch", "overlap_expert_parallel", "grouped_gemm")
    assert not any(getattr(told, key) for key in kept)
    assert told.expert_dispatch == "all_to_all"
    # Copied from another release's recipe, a list says nothing of this run.
    copied = "forced-balanced; recompute/overlap from repo HEAD recipe x (release older than HEAD)"
    assert framework_of(row(**cells, overlap=listed, notes=copied), NVL72)[0] == silent


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("MLPerf v5.1", "5.1"),
        ("NeMo container 26.04.01", "2026-04"),
        ("24.03.01", "2024-03"),
        ("DGXC recipes 25.05", "2025-05"),
        ("rocm/primus:v26.5, ROCm 7.14 (Aug 2026)", "2026-05"),
        ("2022-05", "2022-05"),
        ("2023-24", "2024"),
        ("r0.8.0", "0.8"),
        ("23e00ed", ""),
        ("", ""),
    ],
)
def test_releases(version: str, release: str) -> None:
    assert release_of(row(version=version)) == release


@pytest.mark.parametrize(
    ("cells", "stage", "group"),
    [
        ({"fsdp_zero": "FSDP full-shard (ZeRO-3)"}, 3, 0),
        ({"fsdp_zero": "FSDP shard-grad-op (ZeRO-2)"}, 2, 0),
        ({"fsdp_zero": "ZeRO-1"}, 1, 0),
        ({"fsdp_zero": "ZeRO-0"}, 0, 0),
        ({"fsdp_zero": "Megatron-FSDP shard=64"}, 3, 64),
        ({"fsdp_zero": "ZeRO-1 in 8"}, 1, 8),
        ({"fsdp_zero": "ZeRO-1 (scope 8)"}, 1, 8),
        ({"fsdp_zero": "HSDP (shard 8 x replicate 16)"}, 3, 8),
        ({"fsdp_zero": "FSDP full shard 1d"}, 3, 0),
        ({"fsdp_zero": "ZeRO-3 in node", "gpus_per_node": 4, "n_gpus": 64}, 3, 4),
        ({"fsdp_zero": "no", "dist_optimizer": "yes (recipe)"}, 1, 0),
        ({"dist_optimizer": "no"}, 0, 0),
        ({}, 1, 0),
        (
            {"fsdp_zero": "FSDP in-pod + DP across pods", "gpus_per_node": 256, "n_gpus": 1024},
            3,
            256,
        ),
        ({"fsdp_zero": "ici_fsdp 256 x dcn_fsdp 2", "gpus_per_node": 256, "n_gpus": 512}, 3, 0),
    ],
)
def test_sharding_cells(cells: dict[str, Any], stage: int, group: int) -> None:
    assert zero_of(row(**cells), load_framework("megatron"), 1, 1) == (stage, group)


def test_fsdp2_keeps_parameters_gathered_beside_a_pipeline() -> None:
    cells = row(fsdp_zero="FSDP2 full-shard")
    assert zero_of(cells, load_framework("torchtitan"), 8, 64)[0] == 2
    assert zero_of(cells, load_framework("torchtitan"), 1, 8)[0] == 3


def test_precision_cells() -> None:
    assert precision_of(row(precision="mxfp8")) == ("mxfp8", (), ())
    assert precision_of(row(precision="", version="2024"))[:2] == ("bf16", ("precision=bf16",))
    assert precision_of(row(precision="", version="MLPerf v5.1"))[0] == "fp8"
    assert precision_of(row(precision="fp8 or nvfp4 (both configs)"))[0] == "nvfp4"
    with pytest.raises(Skip, match="unknown precision"):
        precision_of(row(precision="decimal"))


def test_sequence_parallelism_follows_the_cell_then_the_software() -> None:
    modern, old = load_framework("megatron"), load_framework("megatron-2021")
    assert sequence_parallel(row(), modern, 8)
    assert not sequence_parallel(row(), modern, 1)
    assert not sequence_parallel(row(), old, 8)
    assert not sequence_parallel(row(sequence_parallel="no"), modern, 8)


def recomputing(recompute: str) -> MeasuredRow:
    return MeasuredRow({"recompute": recompute}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cell", "level"),
    [
        ("", ""),
        ("none", "none"),
        ("none/default (recipe sets none)", "none"),
        ("selective [mla_up_proj]", "selective"),
        ("full", "full"),
        ("custom (offload)", "full"),
        ("qkv_proj_offloaded", "selective"),
        ("minimal_offloaded", "selective"),
        ("minimal_with_context", "selective"),
        ("minimal_flash", "selective"),
        ("custom", "full"),
    ],
)
def test_recompute_cells(cell: str, level: str) -> None:
    assert recompute_of(recomputing(recompute=cell)).level == level


def test_blocks_of_layers() -> None:
    found = recompute_of(recomputing(recompute="full (block 5 layers)"))
    assert found.layers == {"recompute_method": "block", "recompute_num_layers": 5}


def test_what_waits_in_the_host() -> None:
    """Of a layer of Llama 2 70B its input, 8192 numbers, and 64 + 2 x 8 heads of 128."""
    found = recompute_of(recomputing(recompute="qkv_proj_offloaded"))
    model, framework = load_model("llama-2-70b"), load_framework("maxtext")
    share = waiting_share(model, framework, found.words.split(), found.offloaded)
    assert share == pytest.approx(10240 / (10240 + 8192), rel=1e-12)
