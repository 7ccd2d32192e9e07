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
from tests.data import table_of

NVL72 = Run("mxfp8", True, 72)


def row(**cells: Any) -> MeasuredRow:
    basic = {"hardware": "H100-80GB-SXM", "n_gpus": "64", "precision": "fp8"}
    return MeasuredRow({**basic, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cells", "preset", "fields"),
    [
        *table_of(__file__, "software_cells"),
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
    table_of(__file__, "sharding_cells"),
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
