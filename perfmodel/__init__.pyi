"""What `import perfmodel` offers; `__init__.py` reads this file for where each name is."""

from perfmodel.analysis.projection import (
    explain as explain,
)
from perfmodel.analysis.projection import (
    project as project,
)
from perfmodel.analysis.sensitivity import sensitivity as sensitivity
from perfmodel.base.errors import PerfModelError as PerfModelError
from perfmodel.base.version import __version__ as __version__
from perfmodel.compute.attention import attention_times as attention_times
from perfmodel.compute.collectives import collective_times as collective_times
from perfmodel.compute.gemm import gemm_times as gemm_times
from perfmodel.compute.moe import moe_times as moe_times
from perfmodel.compute.stream import stream_times as stream_times
from perfmodel.hwprofiles import (
    list_hardware as list_hardware,
)
from perfmodel.hwprofiles import (
    list_meshes as list_meshes,
)
from perfmodel.hwprofiles import (
    load_hardware as load_hardware,
)
from perfmodel.hwprofiles import (
    load_mesh as load_mesh,
)
from perfmodel.measured.calibrate import calibrate_file as calibrate_file
from perfmodel.measured.compare import compare_file as compare_file
from perfmodel.model.adapters import AdapterSpec as AdapterSpec
from perfmodel.model.presets import (
    list_models as list_models,
)
from perfmodel.model.presets import (
    load_model as load_model,
)
from perfmodel.report.document import write_report as write_report
from perfmodel.report.plots.kinds import plot as plot
from perfmodel.serving.enumerate import (
    load_grid as load_grid,
)
from perfmodel.serving.enumerate import (
    serving_grid as serving_grid,
)
from perfmodel.serving.timeline import serving_timeline as serving_timeline
from perfmodel.software.framework import load_framework as load_framework
from perfmodel.store.cost import add_cost as add_cost
from perfmodel.store.datasets import open_results as open_results
from perfmodel.store.difference import (
    difference as difference,
)
from perfmodel.store.difference import (
    matched as matched,
)
from perfmodel.store.files import save_results as save_results
from perfmodel.store.results import (
    best as best,
)
from perfmodel.store.results import (
    pareto as pareto,
)
from perfmodel.store.results import scaling as scaling
from perfmodel.strategy.enumerate import (
    strategies_from_rows as strategies_from_rows,
)
from perfmodel.strategy.enumerate import (
    strategy_grid as strategy_grid,
)
from perfmodel.sweeps.search import search as search
from perfmodel.sweeps.serving import serve as serve
from perfmodel.sweeps.several import sweep as sweep
from perfmodel.sweeps.several import sweep_several as sweep_several
from perfmodel.sweeps.size import size_deployment as size_deployment
from perfmodel.training.step.timeline import step_timeline as step_timeline
from perfmodel.training.step.workload import projected_workload as projected_workload
from perfmodel.wafer.mappings import wafer_grid as wafer_grid
from perfmodel.wafer.project import project_wafer as project_wafer
from perfmodel.workloads.convert.opening import open_traces as open_traces
from perfmodel.workloads.export.astra_sim import (
    astra_export as astra_export,
)
from perfmodel.workloads.export.astra_sim import (
    write_astra_export as write_astra_export,
)
from perfmodel.workloads.export.chakra import projected_traces as projected_traces
from perfmodel.workloads.formats.chakra.files import write_traces as write_traces
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts as HardwareCosts
from perfmodel.workloads.simulation.run import simulate as simulate

def __dir__() -> list[str]: ...
