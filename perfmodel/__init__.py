"""GPU-free analytical performance model of LLM training and inference.

>>> from perfmodel import load_hardware, load_model, strategy_grid, sweep
>>> model = load_model("llama-3.1-70b")
>>> grid = strategy_grid(model, 1024, sequence_length=8192, global_batch_size=2048)
>>> results = sweep(model, grid, load_hardware("dgx-h100"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel._version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import calibrate_file
    from perfmodel.compare import compare_file
    from perfmodel.compute_attention import attention_times
    from perfmodel.compute_gemm import gemm_times
    from perfmodel.compute_moe import moe_times
    from perfmodel.compute_stream import stream_times
    from perfmodel.enumeration import strategies_from_rows, strategy_grid
    from perfmodel.errors import PerfModelError
    from perfmodel.formats.chakra import write_traces
    from perfmodel.framework import load_framework
    from perfmodel.hwprofiles import list_hardware, load_hardware
    from perfmodel.model_presets import list_models, load_model
    from perfmodel.results import best, open_results, pareto, save_results
    from perfmodel.simulation.hardware_costs import HardwareCosts
    from perfmodel.simulation.run import simulate
    from perfmodel.sweeps import sweep
    from perfmodel.traces.opening import open_traces
    from perfmodel.traces.projected_chakra import projected_traces
    from perfmodel.traces.projected_operations import projected_workload

# Names are looked up on first use, so that importing the package stays fast.
_HOMES = {
    "HardwareCosts": "perfmodel.simulation.hardware_costs",
    "PerfModelError": "perfmodel.errors",
    "attention_times": "perfmodel.compute_attention",
    "best": "perfmodel.results",
    "calibrate_file": "perfmodel.calibrate",
    "compare_file": "perfmodel.compare",
    "gemm_times": "perfmodel.compute_gemm",
    "list_hardware": "perfmodel.hwprofiles",
    "list_models": "perfmodel.model_presets",
    "load_framework": "perfmodel.framework",
    "load_hardware": "perfmodel.hwprofiles",
    "load_model": "perfmodel.model_presets",
    "moe_times": "perfmodel.compute_moe",
    "open_results": "perfmodel.results",
    "open_traces": "perfmodel.traces.opening",
    "pareto": "perfmodel.results",
    "projected_traces": "perfmodel.traces.projected_chakra",
    "projected_workload": "perfmodel.traces.projected_operations",
    "save_results": "perfmodel.results",
    "simulate": "perfmodel.simulation.run",
    "strategies_from_rows": "perfmodel.enumeration",
    "strategy_grid": "perfmodel.enumeration",
    "stream_times": "perfmodel.compute_stream",
    "sweep": "perfmodel.sweeps",
    "write_traces": "perfmodel.formats.chakra",
}

__all__ = [
    "HardwareCosts",
    "PerfModelError",
    "__version__",
    "attention_times",
    "best",
    "calibrate_file",
    "compare_file",
    "gemm_times",
    "list_hardware",
    "list_models",
    "load_framework",
    "load_hardware",
    "load_model",
    "moe_times",
    "open_results",
    "open_traces",
    "pareto",
    "projected_traces",
    "projected_workload",
    "save_results",
    "simulate",
    "strategies_from_rows",
    "strategy_grid",
    "stream_times",
    "sweep",
    "write_traces",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'perfmodel' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
