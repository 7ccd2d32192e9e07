"""Layers of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.base.precisions import OPERANDS
from perfmodel.sweeps.kernel_kinds.kind import (
    COPIES,
    RESIDENT,
    Grid,
    GridAxis,
    Kernel,
    Setting,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated


def _moe(
    hardware: Hardware, part: Columns, routing: str, precision: str, seed: int, **options: Any
) -> Evaluated:
    from perfmodel.compute.moe import MOE_BOUNDS, moe_times
    from perfmodel.compute.routing import parse_routing

    spread = parse_routing(routing, seed)
    found = moe_times(hardware, precision, **part, routing=spread, **options)
    return timed_columns(found, "active_experts", "largest_load", "tile_m", "tile_n"), MOE_BOUNDS


_MOE_SIZES = (
    GridAxis("tokens", "tokens of all expert-parallel ranks together"),
    GridAxis("hidden", "width of a token"),
    GridAxis("intermediate", "width of one whole expert"),
    GridAxis("experts", "experts of the layer"),
    GridAxis("top_k", "experts per token"),
    GridAxis("tensor_parallel", "ranks that share each expert's width", default=1, option="tp"),
    GridAxis("expert_parallel", "ranks that share the experts", default=1, option="ep"),
)
_MOE = Grid("moe", ("routing", "precision"), tuple(axis.name for axis in _MOE_SIZES), _moe)
MOE = Kernel(
    "moe",
    "Mixture-of-experts layers.",
    (
        *_MOE_SIZES,
        GridAxis(
            "precision",
            "number format of the products",
            "Number formats of the products",
            "bf16",
            OPERANDS,
        ),
        GridAxis(
            "routing",
            "distribution of tokens over experts",
            "How tokens choose experts: identical, balanced, uniform, dirichlet[_CONCENTRATION], "
            "power_law[_EXPONENT], two_level, empirical:FILE (counts per expert).",
            "uniform",
            words=True,
        ),
    ),
    (
        Setting("seed", "Of random routings.", 0, least=0, metavar="N"),
        COPIES,
        RESIDENT,
        Setting("gated", "Three matrices (gate, up, down) or two.", True, ("--gated/--not-gated",)),
        Setting(
            "kernel",
            "How a library runs the layer: triton, triton_tuned, trtllm, cutlass, aiter.  "
            "[default: what serving libraries run on the device]",
            None,
            metavar="NAME",
        ),
    ),
    lambda axes: _MOE,
)
