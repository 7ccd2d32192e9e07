"""``perfmodel kernel gemm``, ``attention``, ``moe`` and the others, made of `KERNELS`.

Axes, defaults and limits are those of `perfmodel.sweeps.grids`; here stand the pages' texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError
from perfmodel.cli.core.kernel.axes import axis_parameter, setting_option
from perfmodel.cli.core.kernel.output import grid_options, run_grid
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.sweeps.grids import KERNELS
from perfmodel.sweeps.kernel_kinds.kind import Kernel

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles import Hardware

PAGES = {
    "gemm": """Time matrix products C[m,n] = A[m,k] B[k,n].

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
    """,
    "attention": """Time fused attention: forward, the whole backward pass, or decode with a cache.

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
    """,
    "sparse-attention": """Time attention of every query over a list of keys of its own.

    The list holds the last --window tokens, and --selected keys that an indexer chose among
    tokens, or among keys that stand for --compression tokens each; all of these where none
    are selected. FLOP are those of keys that a query really sees.

    \b
    Examples:
      sparse MLA of DeepSeek-V3.2
      perfmodel kernel sparse-attention --hardware dgx-h100 --heads 128 --head-dim 576 \\
          --head-dim-v 512 --selected 2048 --q-len 4096:65536:x2 --phase forward,backward
      DeepSeek-V4: window, compressed keys, and some of these
      perfmodel kernel sparse-attention --hardware mi355x --heads 64 --window 128 \\
          --compression 128 --q-len 4096
      perfmodel kernel sparse-attention --hardware mi355x --heads 64 --window 128 \\
          --compression 4 --selected 512 --phase decode --batch 1,64 --kv-len 65536
      blocks of 128 tokens for each of 4 groups of heads (MiniMax-M3)
      perfmodel kernel sparse-attention --hardware dgx-b200 --heads 64 --kv-heads 4 \\
          --head-dim 128 --own-values --selected 2048 --block 128 --q-len 32768 --json

    Units: s, FLOP/s, B/s in JSON and netCDF; lengths in tokens.
    """,
    "indexer": """Time the indexer of sparse attention: logits of all keys, and the choice.

    Forward and decode are one logit per pair of query and key, summed over the index heads
    (for each head its largest in a block, with --block), and a choice of the --top-k largest.
    Backward is the gradient of the KL loss over the chosen keys; with --top-k of the whole
    length that over all keys, as in the dense warm-up. Its projections are plain products.

    \b
    Examples:
      perfmodel kernel indexer --hardware dgx-h100 --heads 64 --top-k 2048 \\
          --q-len 4096:65536:x2
      perfmodel kernel indexer --hardware dgx-b200 --heads 64 --top-k 2048 --phase decode \\
          --batch 1,64 --kv-len 8192,131072 --json
      perfmodel kernel indexer --hardware dgx-h100 --heads 64 --top-k 2048 --q-len 4096 \\
          --phase backward --precision bf16

    Units: s, FLOP/s, B/s in JSON and netCDF; lengths in tokens.
    """,
    "scan": """Time recurrent mixers: linear attention and state-space models.

    A scan over chunks is a short chain of kernels. All but one or two are parallel over
    chunks; those that carry the state from chunk to chunk are parallel over sequences and
    heads only, and bound few heads over a long sequence (latency). Included are the L2 norms
    of queries and keys (gated_delta, kimi_delta) and the sums of the gates; projections, the
    convolution ('perfmodel kernel convolution') and the gated norm are not. Backward computes
    states again; FLOP are those of its gradients. No kernel of this page was fitted: see
    docs/kernels.md for its errors.

    \b
    Examples:
      Gated DeltaNet of Qwen3-Next
      perfmodel kernel scan --hardware dgx-h100 --heads 32 --key-heads 16 \\
          --seq-len 4096:65536:x2 --phase forward,backward
      KDA, one token per sequence
      perfmodel kernel scan --hardware dgx-h200 --kind kimi_delta --heads 32 \\
          --phase decode --batch 1,64,512
      Mamba-2 of Nemotron-3, Mamba-1 of Jamba
      perfmodel kernel scan --hardware dgx-b200 --kind mamba2 --heads 128 --key-heads 8 \\
          --value-dim 64 --chunk 128 --batch 4 --seq-len 8192
      perfmodel kernel scan --hardware dgx-h100 --kind mamba1 --heads 8192 --key-dim 16 --json

    Units: s, FLOP/s, B/s in JSON and netCDF; lengths in tokens.
    """,
    "convolution": """Time causal depthwise convolutions along the sequence.

    One memory-bound kernel with its activation (causal_conv1d): ahead of Mamba and of delta
    rules (--kernel-size 4), or as a layer's mixer (LFM2: 3, LFM3: 7, without activation).
    Backward computes the output before the activation again; decode reads and writes the last
    inputs of every sequence.

    \b
    Examples:
      perfmodel kernel convolution --hardware dgx-h100 --channels 8192 --tokens 1:65536:x4
      perfmodel kernel convolution --hardware mi300x-server --channels 2048 \\
          --kernel-size 3,7 --no-activation --phase forward,backward,decode --json

    Units: s, FLOP/s, B/s in JSON and netCDF; sizes are elements.
    """,
    "stream": """Time memory-bound operations on tensors of rows x columns elements.

    OPERATION is one or a list of: copy, fill, add, sub, mul, div, pow, add_scalar,
    mul_scalar, div_scalar, pow_scalar, relu, gelu, silu, tanh, gated (SwiGLU), dropout,
    relu_backward, gelu_backward, silu_backward, tanh_backward, gated_backward,
    dropout_backward, mul_backward, div_backward, rms_norm, rms_norm_residual,
    rms_norm_backward, layer_norm, layer_norm_backward, softmax, softmax_backward,
    cross_entropy, cross_entropy_backward, embedding, embedding_backward,
    quantise_fp8_static, quantise_fp8_tensor, quantise_fp8_token, quantise_int8_token,
    quantise_fp8_block, quantise_mxfp8, quantise_nvfp4, quantise_mxfp4. Without OPERATION,
    --bytes-read and --bytes-written say what is moved.

    \b
    Examples:
      perfmodel kernel stream rms_norm,gated --hardware dgx-h100 --rows 1:65536:x4 \\
          --columns 8192
      perfmodel kernel stream --hardware dgx-h100 --bytes-read 1000:1000000000:x10

    Units: s, B/s in JSON and netCDF; sizes are elements, or bytes.
    """,
    "moe": """Time mixture-of-experts layers on their busiest rank, without communication.

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
    """,
}
"""Kernel -> its help page."""


def kernel_command(kernel: Kernel) -> click.Command:
    """Return the command that evaluates grids of a kernel."""

    def run(**given: Any) -> None:
        axes = {axis.name: given.pop(axis.name) for axis in kernel.axes}
        axes = {name: values for name, values in axes.items() if values is not None}
        settings = {setting.name: given.pop(setting.name) for setting in kernel.settings}
        try:
            kernel.grid(axes)
        except DataError as error:
            raise click.UsageError(str(error)) from error

        def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> Table:
            from perfmodel.sweeps.grids import kernel_grid

            return kernel_grid(kernel.name, rows, axes, swept=swept, **settings)

        run_grid(evaluate, **given)

    decorated = options.stack(
        *map(axis_parameter, kernel.axes), *map(setting_option, kernel.settings), grid_options
    )(run)
    about = {"short_help": kernel.short_help, "help": PAGES[kernel.name]}
    return click.command(kernel.name, cls=Command, **about)(decorated)


COMMANDS = [kernel_command(kernel) for kernel in KERNELS.values()]
