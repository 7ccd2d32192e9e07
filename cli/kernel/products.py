"""``perfmodel kernel gemm`` and ``attention``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.precisions import ATTENTION_PRECISIONS, FORMATS
from perfmodel.cli.group import Command
from perfmodel.cli.kernel.axes import SHAPE, counts, names
from perfmodel.cli.kernel.output import grid_options, run_grid
from perfmodel.cli.shared import options

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.hwprofiles import Hardware

PHASES = ("forward", "backward", "decode")


@click.command("gemm", cls=Command, short_help="Matrix products.")
@counts("--m", text="Rows of A and C (tokens of a linear layer)")
@counts("--n", text="Columns of B and C (outputs)")
@counts("--k", text="Inner size (inputs)")
@counts("--batch", text="Independent products in one launch", default="1")
@counts(
    "--groups",
    text="Groups of a grouped product (experts), each with --m rows and a B of its own; "
    "0: not grouped",
    default="0",
    minimum=0,
)
@names("--launches", known=("one", "each"), text="Launches of a grouped product", default="one")
@names("--precision", known=tuple(FORMATS), text="Number formats of A and B", default="bf16")
@options.option(
    "--quantise/--no-quantise",
    "--quantize/--no-quantize",
    section=SHAPE,
    default=True,
    show_default=True,
    help="Count the pass that quantises A, where the format is narrower than 16 bits.",
)
@options.option(
    "--output-bytes",
    section=SHAPE,
    type=click.FloatRange(min=0.0),
    default=2.0,
    show_default=True,
    metavar="B",
    help="One element of C [B].",
)
@options.option(
    "--steady",
    section=SHAPE,
    is_flag=True,
    help="A load of minutes on a warm device (training), not a short benchmark.",
)
@grid_options
def gemm_command(
    m: list[int],
    n: list[int],
    k: list[int],
    batch: list[int],
    groups: list[int],
    launches: list[str],
    precision: list[str],
    quantise: bool,
    output_bytes: float,
    steady: bool,
    **common: Any,
) -> None:
    """Time matrix products C[m,n] = A[m,k] B[k,n].

    The table has the time, the achieved rates and their share of the device's, the tile
    and the split of the inner size that a library would choose, and what bounds the
    time. A precision that a device lacks is shown as unsupported.

    \b
    Examples:
      perfmodel kernel gemm --hardware dgx-h100 --m 1,16,4096 --n 4096 --k 4096 \\
          --precision bf16,fp8
      perfmodel kernel gemm --hardware dgx-h100 --hardware dgx-b200 \\
          --m 1:16384:x2 --n 8192 --k 8192 -o gemm.nc
      perfmodel kernel gemm --hardware dgx-h100 --m 4096 --n 4096 --k 4096 \\
          --sweep device.tdp=400:700:4 --json
      perfmodel kernel gemm --hardware dgx-h100 --groups 8,64 --m 512 --n 4096 --k 7168 \\
          --launches one,each

    Grouped products are timed without the pass that quantises A; for whole layers with
    unbalanced loads see 'perfmodel kernel moe'.

    Units: s, FLOP/s, B/s in JSON and netCDF; sizes are elements.
    """
    from perfmodel.sweeps.grids import gemm_grid
    from perfmodel.sweeps.grids_other import grouped_gemm_grid

    if groups != [0] and (0 in groups or batch != [1]):
        raise click.UsageError("--groups of 1 and more stand alone: no 0 among them, no --batch")
    axes: dict[str, list[Any]] = {"precision": precision, "m": m, "n": n, "k": k, "batch": batch}

    def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> xr.Dataset:
        if groups != [0]:
            return grouped_gemm_grid(
                rows, axes | {"groups": groups, "launches": launches}, swept=swept
            )
        return gemm_grid(
            rows, axes, quantise=quantise, output_bytes=output_bytes, steady=steady, swept=swept
        )

    run_grid(evaluate, **common)


@click.command("attention", cls=Command, short_help="Fused attention.")
@counts("--batch", text="Sequences", default="1")
@counts("--heads", text="Query heads on the device")
@counts(
    "--kv-heads", text="Key and value heads on the device; 0: as --heads", default="0", minimum=0
)
@counts("--head-dim", text="Width of a query and key", default="128")
@counts("--head-dim-v", text="Width of a value; 0: as --head-dim", default="0", minimum=0)
@counts(
    "--q-len",
    text="Queries of a sequence; 0: 1 for decode, else all of --kv-len",
    default="0",
    minimum=0,
)
@counts(
    "--kv-len",
    text="Keys of a sequence, cached ones included; 0: as --q-len",
    default="0",
    minimum=0,
)
@counts("--window", text="Keys that a query sees, its own included; 0: all", default="0", minimum=0)
@names("--phase", known=PHASES, text="Passes", default="forward")
@names("--precision", known=ATTENTION_PRECISIONS, text="Number formats", default="bf16")
@names(
    "--kv-precision",
    known=("same", *ATTENTION_PRECISIONS),
    text="Number formats of the stored keys and values",
    default="same",
)
@options.option(
    "--causal/--no-causal",
    section=SHAPE,
    default=True,
    show_default=True,
    help="Mask later keys.",
)
@options.option(
    "--latent",
    section=SHAPE,
    is_flag=True,
    help="Values are the first --head-dim-v elements of the keys: absorbed latent attention "
    "(MLA: --head-dim 576 --head-dim-v 512 --kv-heads 1).",
)
@options.option(
    "--cached",
    section=SHAPE,
    is_flag=True,
    help="The last cache still holds the data of the same call, as in a benchmark's replay.",
)
@grid_options
def attention_command(
    batch: list[int],
    heads: list[int],
    kv_heads: list[int],
    head_dim: list[int],
    head_dim_v: list[int],
    q_len: list[int],
    kv_len: list[int],
    window: list[int],
    phase: list[str],
    precision: list[str],
    kv_precision: list[str],
    causal: bool,
    latent: bool,
    cached: bool,
    **common: Any,
) -> None:
    """Time fused attention: forward, the whole backward pass, or decode with a cache.

    FLOP are those of unmasked pairs. Queries stand at the end of the keys, so that
    --q-len 512 --kv-len 8192 is a chunk of a prefill.

    \b
    Examples:
      perfmodel kernel attention --hardware dgx-h100 --heads 32 --kv-heads 8 \\
          --q-len 1024:65536:x2 --phase forward,backward
      perfmodel kernel attention --hardware dgx-h100 --heads 32 --kv-heads 8 \\
          --phase decode --batch 1,16,256 --kv-len 8192
      perfmodel kernel attention --hardware dgx-h100 --heads 128 --head-dim 192 \\
          --head-dim-v 128 --q-len 4096 --json

    Units: s, FLOP/s, B/s in JSON and netCDF; lengths in tokens.
    """
    from perfmodel.sweeps.grids import attention_grid

    axes: dict[str, list[Any]] = {
        "phase": phase,
        "precision": precision,
        "kv_precision": kv_precision,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "q_len": q_len,
        "kv_len": kv_len,
        "window": window,
    }

    def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> xr.Dataset:
        return attention_grid(rows, axes, causal=causal, latent=latent, cached=cached, swept=swept)

    run_grid(evaluate, **common)
