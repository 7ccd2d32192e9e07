"""``perfmodel kernel stream`` and ``moe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.precisions import FORMATS, STREAM_PRECISIONS
from perfmodel.cli.group import Command
from perfmodel.cli.kernel.axes import SHAPE, counts, names
from perfmodel.cli.kernel.output import grid_options, run_grid
from perfmodel.cli.shared import options
from perfmodel.cli.shared.parsing import split_names

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.hwprofiles import Hardware


@click.command("stream", cls=Command, short_help="Memory-bound operations.")
@click.argument("operation", metavar="[OPERATION,…]", required=False)
@counts("--rows", "tensor_rows", text="Rows of the tensor (tokens)", default="4096")
@counts("--columns", text="Columns of the tensor (width)", default="4096")
@names("--dtype", known=STREAM_PRECISIONS, text="Number formats of the tensor", default="bf16")
@counts("--bytes-read", text="In place of OPERATION: bytes read", default="0", minimum=0)
@counts("--bytes-written", text="In place of OPERATION: bytes written", default="0", minimum=0)
@options.option(
    "--cached",
    section=SHAPE,
    type=click.FloatRange(0.0, 1.0),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Share of the bytes that the cache holds if the tensors fit: 1 for a kernel that "
    "runs again and again on the same tensors, 0 after others pushed these out.",
)
@grid_options
def stream_command(
    operation: str | None,
    tensor_rows: list[int],
    columns: list[int],
    dtype: list[str],
    bytes_read: list[int],
    bytes_written: list[int],
    cached: float,
    **common: Any,
) -> None:
    """Time memory-bound operations on tensors of rows x columns elements.

    OPERATION is one or a list of: copy, add, mul, silu, gelu, gated (SwiGLU), rms_norm,
    rms_norm_residual, layer_norm, softmax, cross_entropy, embedding, quantise_fp8_token,
    quantise_fp8_block, …; many also as '…_backward'. Without OPERATION, --bytes-read and
    --bytes-written say what is moved.

    \b
    Examples:
      perfmodel kernel stream rms_norm,gated --hardware dgx-h100 --rows 1:65536:x4 \\
          --columns 8192
      perfmodel kernel stream --hardware dgx-h100 --bytes-read 1000:1000000000:x10

    Units: s, B/s in JSON and netCDF; sizes are elements, or bytes.
    """
    from perfmodel.sweeps.grids_other import bytes_grid, stream_grid

    moved = bytes_read != [0] or bytes_written != [0]
    if moved == (operation is not None):
        raise click.UsageError("name either an OPERATION, or --bytes-read and --bytes-written")
    axes: dict[str, list[Any]] = {"bytes_read": bytes_read, "bytes_written": bytes_written}
    if operation is not None:
        wanted = list(dict.fromkeys(split_names(operation)))
        axes = {"operation": wanted, "dtype": dtype, "rows": tensor_rows, "columns": columns}

    def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> xr.Dataset:
        return (bytes_grid if moved else stream_grid)(rows, axes, cached=cached, swept=swept)

    run_grid(evaluate, **common)


@click.command("moe", cls=Command, short_help="Mixture-of-experts layers.")
@counts("--tokens", text="Tokens of all expert-parallel ranks together")
@counts("--hidden", text="Width of a token")
@counts("--intermediate", text="Width of one whole expert")
@counts("--experts", text="Experts of the layer")
@counts("--top-k", text="Experts per token")
@counts("--tp", "tensor_parallel", text="Ranks that share each expert's width", default="1")
@counts("--ep", "expert_parallel", text="Ranks that share the experts", default="1")
@names("--precision", known=tuple(FORMATS), text="Number formats of the products", default="bf16")
@options.option(
    "--routing",
    section=SHAPE,
    default="uniform",
    show_default=True,
    metavar="NAME,…",
    help="How tokens choose experts: identical, balanced, uniform, dirichlet[_CONCENTRATION], "
    "power_law[_EXPONENT], two_level, empirical:FILE (counts per expert).",
)
@options.option(
    "--seed",
    section=SHAPE,
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of random routings.",
)
@options.option(
    "--gated/--not-gated",
    section=SHAPE,
    default=True,
    show_default=True,
    help="Three matrices (gate, up, down) or two.",
)
@options.option(
    "--kernel",
    section=SHAPE,
    metavar="NAME",
    help="How a library runs the layer: triton, triton_tuned, trtllm, cutlass, aiter.  "
    "[default: what serving libraries run on the device]",
)
@grid_options
def moe_command(
    tokens: list[int],
    hidden: list[int],
    intermediate: list[int],
    experts: list[int],
    top_k: list[int],
    tensor_parallel: list[int],
    expert_parallel: list[int],
    precision: list[str],
    routing: str,
    seed: int,
    gated: bool,
    kernel: str | None,
    **common: Any,
) -> None:
    """Time mixture-of-experts layers on their busiest rank, without communication.

    A layer is the router, the permutation, the grouped products of the experts with the
    activation between them, and the sum over choices. Random routings count as the mean
    of several draws.

    \b
    Examples:
      perfmodel kernel moe --hardware dgx-h100 --tokens 1:8192:x4 --hidden 7168 \\
          --intermediate 2048 --experts 256 --top-k 8 --ep 8 --precision fp8_block
      perfmodel kernel moe --hardware dgx-h100 --tokens 4096 --hidden 4096 \\
          --intermediate 14336 --experts 8 --top-k 2 --routing balanced,uniform,power_law_1.2

    Units: s, FLOP/s, B/s in JSON and netCDF; sizes are elements.
    """
    from perfmodel.sweeps.grids_other import moe_grid

    axes: dict[str, list[Any]] = {
        "routing": list(dict.fromkeys(split_names(routing))),
        "precision": precision,
        "tokens": tokens,
        "hidden": hidden,
        "intermediate": intermediate,
        "experts": experts,
        "top_k": top_k,
        "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel,
    }

    def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> xr.Dataset:
        return moe_grid(rows, axes, gated=gated, kernel=kernel, seed=seed, swept=swept)

    run_grid(evaluate, **common)
