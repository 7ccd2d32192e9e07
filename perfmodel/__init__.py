"""GPU-free analytical performance model of LLM training and inference.

>>> from perfmodel import best, strategy_grid, sweep
>>> grid = strategy_grid("llama-3.1-70b", 1024, sequence_length=8192, global_batch_size=2048)
>>> results = sweep("llama-3.1-70b", grid, "dgx-h100")
>>> best(results, 5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel._version import __version__

if TYPE_CHECKING:
    from perfmodel.analysis.projection import explain, project
    from perfmodel.analysis.sensitivity import sensitivity
    from perfmodel.base.errors import PerfModelError
    from perfmodel.compute.attention import attention_times
    from perfmodel.compute.gemm import gemm_times
    from perfmodel.compute.moe import moe_times
    from perfmodel.compute.stream import stream_times
    from perfmodel.hwprofiles import list_hardware, list_meshes, load_hardware, load_mesh
    from perfmodel.measured.calibrate import calibrate_file
    from perfmodel.measured.compare import compare_file
    from perfmodel.model.adapters import AdapterSpec
    from perfmodel.model.presets import list_models, load_model
    from perfmodel.network.collectives import collective_times
    from perfmodel.report.build import write_report
    from perfmodel.report.plots.kinds import plot
    from perfmodel.report.timelines.serving import serving_timeline
    from perfmodel.report.timelines.step import step_timeline
    from perfmodel.searches.search import search
    from perfmodel.searches.size import size_deployment
    from perfmodel.serving.enumerate import load_grid, serving_grid
    from perfmodel.software.framework import load_framework
    from perfmodel.store.cost import add_cost
    from perfmodel.store.datasets import open_results
    from perfmodel.store.difference import difference, matched
    from perfmodel.store.files import save_results
    from perfmodel.store.results import best, pareto, scaling
    from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
    from perfmodel.sweeps.kept import sweep
    from perfmodel.sweeps.serving import serve
    from perfmodel.sweeps.several import sweep_several
    from perfmodel.wafer.dataset import project_wafer
    from perfmodel.wafer.mappings import wafer_grid
    from perfmodel.workloads.convert.opening import open_traces
    from perfmodel.workloads.export.astra_sim import astra_export, write_astra_export
    from perfmodel.workloads.export.chakra import projected_traces
    from perfmodel.workloads.export.workload import projected_workload
    from perfmodel.workloads.formats.chakra.files import write_traces
    from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
    from perfmodel.workloads.simulation.run import simulate

# Names are looked up on first use, so that importing the package stays fast.
_HOMES = {
    "AdapterSpec": "perfmodel.model.adapters",
    "HardwareCosts": "perfmodel.workloads.simulation.hardware_costs",
    "PerfModelError": "perfmodel.base.errors",
    "add_cost": "perfmodel.store.cost",
    "astra_export": "perfmodel.workloads.export.astra_sim",
    "attention_times": "perfmodel.compute.attention",
    "best": "perfmodel.store.results",
    "calibrate_file": "perfmodel.measured.calibrate",
    "collective_times": "perfmodel.network.collectives",
    "compare_file": "perfmodel.measured.compare",
    "difference": "perfmodel.store.difference",
    "explain": "perfmodel.analysis.projection",
    "gemm_times": "perfmodel.compute.gemm",
    "list_hardware": "perfmodel.hwprofiles",
    "list_meshes": "perfmodel.hwprofiles",
    "list_models": "perfmodel.model.presets",
    "load_framework": "perfmodel.software.framework",
    "load_grid": "perfmodel.serving.enumerate",
    "load_hardware": "perfmodel.hwprofiles",
    "load_mesh": "perfmodel.hwprofiles",
    "load_model": "perfmodel.model.presets",
    "matched": "perfmodel.store.difference",
    "moe_times": "perfmodel.compute.moe",
    "open_results": "perfmodel.store.datasets",
    "open_traces": "perfmodel.workloads.convert.opening",
    "pareto": "perfmodel.store.results",
    "plot": "perfmodel.report.plots.kinds",
    "project": "perfmodel.analysis.projection",
    "project_wafer": "perfmodel.wafer.dataset",
    "projected_traces": "perfmodel.workloads.export.chakra",
    "projected_workload": "perfmodel.workloads.export.workload",
    "save_results": "perfmodel.store.files",
    "scaling": "perfmodel.store.results",
    "search": "perfmodel.searches.search",
    "sensitivity": "perfmodel.analysis.sensitivity",
    "serve": "perfmodel.sweeps.serving",
    "serving_grid": "perfmodel.serving.enumerate",
    "serving_timeline": "perfmodel.report.timelines.serving",
    "simulate": "perfmodel.workloads.simulation.run",
    "size_deployment": "perfmodel.searches.size",
    "step_timeline": "perfmodel.report.timelines.step",
    "strategies_from_rows": "perfmodel.strategy.enumerate",
    "strategy_grid": "perfmodel.strategy.enumerate",
    "stream_times": "perfmodel.compute.stream",
    "sweep": "perfmodel.sweeps.kept",
    "sweep_several": "perfmodel.sweeps.several",
    "wafer_grid": "perfmodel.wafer.mappings",
    "write_astra_export": "perfmodel.workloads.export.astra_sim",
    "write_report": "perfmodel.report.build",
    "write_traces": "perfmodel.workloads.formats.chakra.files",
}

__all__ = [
    "AdapterSpec",
    "HardwareCosts",
    "PerfModelError",
    "__version__",
    "add_cost",
    "astra_export",
    "attention_times",
    "best",
    "calibrate_file",
    "collective_times",
    "compare_file",
    "difference",
    "explain",
    "gemm_times",
    "list_hardware",
    "list_meshes",
    "list_models",
    "load_framework",
    "load_grid",
    "load_hardware",
    "load_mesh",
    "load_model",
    "matched",
    "moe_times",
    "open_results",
    "open_traces",
    "pareto",
    "plot",
    "project",
    "project_wafer",
    "projected_traces",
    "projected_workload",
    "save_results",
    "scaling",
    "search",
    "sensitivity",
    "serve",
    "serving_grid",
    "serving_timeline",
    "simulate",
    "size_deployment",
    "step_timeline",
    "strategies_from_rows",
    "strategy_grid",
    "stream_times",
    "sweep",
    "sweep_several",
    "wafer_grid",
    "write_astra_export",
    "write_report",
    "write_traces",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'perfmodel' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
