"""Grids of kernels: every combination of the axes, one call per device and format.

`KERNELS` says of every kernel which axes it has, which settings, and how a grid of it is
evaluated. `kernel_grid` evaluates it, and the commands of ``perfmodel kernel`` are made of the
same table, so that both always have the same axes, defaults and limits. Nothing is imported
here that computes: a help page costs no Numba.

How to add a kernel
-------------------
1. Write its evaluation, like `_attention` below, and import the model inside it.
2. Make a `Kernel`: its axes in the order of a help page, its settings, and a `Grid` with the
   axes in the order of the dataset, the last one fastest. Name it in `KERNELS`.
3. Write the page of ``perfmodel kernel <name>`` into `perfmodel.cli.kernel.commands`, and a
   column of results that no kernel has yet into `perfmodel.sweeps.grid_dataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.base.precisions import (
    ATTENTION_PRECISIONS,
    FORMATS,
    OPERAND_BYTES,
    QUANTISED,
    STREAM_PRECISIONS,
)
from perfmodel.kernels.recurrence.counts import RECURRENCE_PHASES, RECURRENCES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from perfmodel.base.table import Table
    from perfmodel.compute.stream_catalogue import StreamWork
    from perfmodel.hwprofiles import Hardware

    Columns = Mapping[str, Any]
    Evaluated = tuple[Columns, Sequence[str]]
    Work = Callable[[Any, Any, float], StreamWork]

Values = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class GridAxis:
    """An axis of a kernel: whole numbers, names, or free words.

    Attributes
    ----------
    name : str
    long_name : str
        What it is, in a dataset.
    help : str
        What it is, in a help page; the same if empty.
    default : int or str, optional
        Its one value where none is given, or none at all if empty; None: some must be given.
        Whole numbers begin at 1, or at 0 where that is the default.
    choices : tuple of str
        Of names.
    words : bool
        Free words, which the evaluation checks.
    units : str
    option : str
        Its option where that is not its name; ``-`` for an argument.
    """

    name: str
    long_name: str
    help: str = ""
    default: int | str | None = None
    choices: tuple[str, ...] = ()
    words: bool = False
    units: str = "1"
    option: str = ""

    @property
    def minimum(self) -> int:
        """Smallest whole number."""
        return 0 if self.default == 0 else 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for a whole grid.

    Attributes
    ----------
    name, help : str
    default : bool, int, float or None
        Its type is the setting's; None for a text.
    flags : tuple of str
        Spellings on the command line, where they are not its name.
    least, most : float, optional
        Of a number.
    metavar : str, optional
    """

    name: str
    help: str
    default: bool | int | float | None
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """One way to evaluate a kernel.

    Attributes
    ----------
    title : str
        What the kernels are called in a dataset.
    apart, axes : tuple of str
        Axes of which a call has one value, and those that it has columns of: together the
        order of the dataset, in which the last one varies fastest.
    evaluate : callable
        (device, columns, one keyword for each axis in `apart` and each setting) -> columns of
        results, and what the codes of ``bound`` mean. Raises `HardwareError` where the device
        has no such kernel.
    long_names : mapping of str to str
        Of axes that mean something else here.
    """

    title: str
    apart: tuple[str, ...]
    axes: tuple[str, ...]
    evaluate: Callable[..., Evaluated]
    long_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with all that may be said about a grid of it.

    Attributes
    ----------
    name, short_help : str
    axes : tuple of GridAxis
        In the order of a help page.
    settings : tuple of Setting
    choose : callable
        Values of all axes -> the `Grid` that they are for; raises `DataError` where they do
        not go together.
    """

    name: str
    short_help: str
    axes: tuple[GridAxis, ...]
    settings: tuple[Setting, ...]
    choose: Callable[[Values], Grid]

    def grid(self, axes: Values) -> tuple[Grid, Values]:
        """Return how some axes are evaluated, and the values of all, defaults included.

        Raises
        ------
        DataError
            Unknown axis or name, an axis without values, or some that do not go together.
        """
        _check_names(axes, [axis.name for axis in self.axes], f"a grid of {self.name} has no axis")
        found: dict[str, Sequence[Any]] = {}
        for axis in self.axes:
            default = [] if axis.default in (None, "") else [axis.default]
            found[axis.name] = values = list(axes.get(axis.name, default))
            if not values and axis.default != "":
                raise DataError(f"a grid of {self.name} needs values of '{axis.name}'")
            if axis.choices:
                _check_names(values, axis.choices, f"unknown {axis.name}")
        return self.choose(found), found


def kernel_grid(
    name: str,
    rows: Sequence[Hardware],
    axes: Values,
    /,
    *,
    swept: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> Table:
    """Time every combination of the axes of a kernel on every device.

    Parameters
    ----------
    name : str
        One of `KERNELS`.
    rows : sequence of Hardware
    axes : mapping of str to sequence
        Values of the kernel's axes; those that have a default may be missing.
    swept : mapping of str to sequence of float, optional
        Values of swept paths of the profile, one per row of hardware.
    **settings
        Of the kernel.

    Returns
    -------
    Table
        See `perfmodel.sweeps.grid_dataset`.

    Raises
    ------
    DataError
        Unknown kernel, axis, setting or name, sizes out of range or that do not go together,
        or too many combinations.
    HardwareError
        No device has any of the kernels.

    Examples
    --------
    >>> from perfmodel.hwprofiles import load_hardware
    >>> sizes = {"m": [16, 4096], "n": [4096], "k": [4096], "precision": ["bf16", "fp8"]}
    >>> kernel_grid("gemm", [load_hardware("dgx-h100")], sizes).sizes["shape"]
    4
    """
    import numpy as np

    from perfmodel.sweeps.grid_dataset import Axis, cartesian, kernel_table

    _check_names([name], KERNELS, "unknown kernel")
    kernel = KERNELS[name]
    defaults = {setting.name: setting.default for setting in kernel.settings}
    _check_names(settings, defaults, f"a grid of {name} has no setting")
    grid, values = kernel.grid(axes)
    about = {axis.name: axis for axis in kernel.axes}
    labelled = [
        Axis(
            axis, values[axis], about[axis].units, grid.long_names.get(axis, about[axis].long_name)
        )
        for axis in (*grid.apart, *grid.axes)
    ]
    columns = cartesian(labelled, len(rows))
    size = next(iter(columns.values())).size
    codes = np.zeros(size, np.int64)
    for axis in grid.apart:
        _, inverse = np.unique(columns[axis], return_inverse=True)
        codes = codes * (int(inverse.max()) + 1) + inverse
    calls = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    results: dict[str, NDArray[Any]] = {}
    bounds: Sequence[str] = ()
    refusals: list[HardwareError] = []
    for index, hardware in enumerate(rows):
        for places in calls:
            same = {axis: columns[axis][places[0]].item() for axis in grid.apart}
            part = {axis: columns[axis][places] for axis in grid.axes}
            try:
                found, bounds = grid.evaluate(hardware, part, **same, **defaults | settings)
            except HardwareError as error:
                refusals.append(error)
                continue
            for key, column in found.items():
                if key not in results:
                    empty = -1 if key == "bound" else 0 if column.dtype.kind in "iu" else np.nan
                    results[key] = np.full((len(rows), size), empty)
                results[key][index, places] = column
    if not results:
        raise refusals[0]
    return kernel_table(grid.title, rows, labelled, columns, results, bounds, swept)


def _check_names(names: Iterable[Any], known: Collection[str], what: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; known: {', '.join(known)}"
            raise DataError(f"{what} '{name}'{hint}")


def _results(found: object, *more: str) -> dict[str, NDArray[Any]]:
    """Return the columns that the times of every kernel have, and `more`."""
    return {
        name: getattr(found, name) for name in ("time", "flops", "memory_traffic", "bound", *more)
    }


# ---------------------------------------------------------------- matrix products


def _gemm(
    hardware: Hardware, part: Columns, precision: str, quantise: bool, **options: Any
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times, quantised_gemm_times

    if quantise and precision in QUANTISED:
        found, passes = quantised_gemm_times(hardware, precision, **part, **options)
    else:
        found = gemm_times(hardware, precision, **part, **options)
        passes = np.zeros(found.time.size)
    columns = _results(found, "tile_m", "tile_n", "split_k") | {"time": found.time + passes}
    return columns | ({"quantise_time": passes} if quantise else {}), GEMM_BOUNDS


def _grouped_gemm(
    hardware: Hardware, part: Columns, precision: str, launches: str, **unused: Any
) -> Evaluated:
    from perfmodel.compute.grouped_gemm import GROUPED_BOUNDS, even_loads, grouped_gemm_times

    for name in ("resident", "weight_copies", "activation_copies"):
        if unused.get(name):
            raise DataError(f"{name} is for products that are not grouped, and for MoE layers")
    loads = even_loads(part["groups"], part["m"])
    found = grouped_gemm_times(hardware, precision, loads, part["n"], part["k"], launches=launches)
    return _results(found), GROUPED_BOUNDS


def _choose_gemm(axes: Values) -> Grid:
    if axes["groups"] == [0]:
        return Grid("gemm", ("precision",), ("m", "n", "k", "batch"), _gemm)
    if 0 in axes["groups"] or axes["batch"] != [1]:
        raise DataError("--groups of 1 and more stand alone: no 0 among them, no --batch")
    long_names = {"m": "rows of A and C of each group"}
    apart, sizes = ("precision", "launches"), ("groups", "m", "n", "k")
    return Grid("grouped gemm", apart, sizes, _grouped_gemm, long_names)


COPIES = Setting(
    "copies",
    "Calls until the same data come up again, of what a large cache keeps: 1 where a benchmark "
    "replays one call; 0: they come from memory, as inside a model.",
    0,
    least=0,
    metavar="CALLS",
)
RESIDENT = Setting(
    "resident",
    "In place of copies: all bytes in use from call to call, other kernels' too, as a small "
    "model's weights from token to token; 0: not stated.",
    0.0,
    least=0.0,
    metavar="B",
)

GEMM = Kernel(
    "gemm",
    "Matrix products.",
    (
        GridAxis("m", "rows of A and C", "Rows of A and C (tokens of a linear layer)"),
        GridAxis("n", "columns of B and C", "Columns of B and C (outputs)"),
        GridAxis("k", "inner size", "Inner size (inputs)"),
        GridAxis("batch", "independent products", "Independent products in one launch", 1),
        GridAxis(
            "groups",
            "groups, each with its own B",
            "Groups of a grouped product (experts), each with --m rows and a B of its own; "
            "0: not grouped",
            0,
        ),
        GridAxis(
            "launches",
            "one launch, or one of each group",
            "Launches of a grouped product",
            "one",
            ("one", "each"),
        ),
        GridAxis(
            "precision",
            "number format of A and B",
            "Number formats of A and B",
            "bf16",
            tuple(FORMATS),
        ),
    ),
    (
        Setting(
            "quantise",
            "Count the pass that quantises A, where the format is narrower than 16 bits.",
            True,
            ("--quantise/--no-quantise", "--quantize/--no-quantize"),
        ),
        Setting("output_bytes", "One element of C [B].", 2.0, least=0.0, metavar="B"),
        Setting(
            "steady", "A load of minutes on a warm device (training), not a short benchmark.", False
        ),
        RESIDENT,
        Setting(
            "weight_copies",
            "Calls until the same B comes up again, of what a large cache keeps; 0: B comes "
            "from memory, as inside a model.",
            0,
            least=0,
            metavar="CALLS",
        ),
        Setting(
            "activation_copies",
            "Calls until the same A and C come up again; 0: they come from memory.",
            0,
            least=0,
            metavar="CALLS",
        ),
    ),
    _choose_gemm,
)


# ---------------------------------------------------------------- attention


def _lengths(part: Columns, phase: str) -> tuple[Any, Any]:
    """Return queries and keys of a sequence from axes of which one may be left out.

    Raises
    ------
    DataError
        Both are.
    """
    import numpy as np

    keys = np.where(part["kv_len"] > 0, part["kv_len"], part["q_len"])
    if np.any(keys == 0):
        raise DataError("neither q_len nor kv_len is given; one of them must be at least 1")
    if phase == "decode":
        return np.maximum(part["q_len"], 1), keys
    return np.where(part["q_len"] > 0, part["q_len"], keys), keys


def _attention(
    hardware: Hardware,
    part: Columns,
    phase: str,
    precision: str,
    kv_precision: str,
    copies: float,
    resident: float,
    deterministic: bool,
    **flags: bool,
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times

    queries, keys = _lengths(part, phase)
    flags |= {"prefill": phase == "forward", "backward": phase == "backward"}
    everywhere: dict[str, Any] = {
        name: np.full(part["batch"].size, flag) for name, flag in flags.items()
    }
    found = attention_times(
        hardware,
        precision,
        batch=part["batch"],
        query_length=queries,
        key_length=keys,
        heads=part["heads"],
        key_value_heads=np.where(part["kv_heads"] > 0, part["kv_heads"], part["heads"]),
        head_dim_qk=part["head_dim"],
        head_dim_v=np.where(part["head_dim_v"] > 0, part["head_dim_v"], part["head_dim"]),
        window=part["window"],
        kv_precision=None if kv_precision == "same" else kv_precision,
        copies=copies,
        resident=resident,
        deterministic=deterministic,
        **everywhere,
    )
    return _results(found), ATTENTION_BOUNDS


_ATTENTION = Grid(
    "attention",
    ("phase", "precision", "kv_precision"),
    ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "q_len", "kv_len", "window"),
    _attention,
)
ATTENTION = Kernel(
    "attention",
    "Fused attention.",
    (
        GridAxis("batch", "sequences", default=1),
        GridAxis("heads", "query heads on the device"),
        GridAxis(
            "kv_heads",
            "key and value heads on the device; 0: one per query head",
            "Key and value heads on the device; 0: as --heads",
            0,
        ),
        GridAxis("head_dim", "width of a query and key", default=128),
        GridAxis(
            "head_dim_v",
            "width of a value; 0: as that of a query",
            "Width of a value; 0: as --head-dim",
            0,
        ),
        GridAxis(
            "q_len",
            "queries of a sequence; 0: 1 for decode, else all keys",
            "Queries of a sequence; 0: 1 for decode, else all of --kv-len",
            0,
        ),
        GridAxis(
            "kv_len",
            "keys of a sequence, cached ones included; 0: as many as queries",
            "Keys of a sequence, cached ones included; 0: as --q-len",
            0,
        ),
        GridAxis("window", "keys that a query sees, its own included; 0: all", default=0),
        GridAxis(
            "phase",
            "forward, whole backward, or decode with a cache",
            "Passes",
            "forward",
            ("forward", "backward", "decode"),
        ),
        GridAxis(
            "precision",
            "number format of the matrix products",
            "Number formats",
            "bf16",
            ATTENTION_PRECISIONS,
        ),
        GridAxis(
            "kv_precision",
            "number format of stored keys and values",
            "Number formats of the stored keys and values",
            "same",
            ("same", *ATTENTION_PRECISIONS),
        ),
    ),
    (
        Setting("causal", "Mask later keys.", True, ("--causal/--no-causal",)),
        Setting(
            "latent",
            "Values are the first --head-dim-v elements of the keys: absorbed latent attention "
            "(MLA: --head-dim 576 --head-dim-v 512 --kv-heads 1).",
            False,
        ),
        COPIES,
        RESIDENT,
        Setting(
            "deterministic",
            "Backward passes add the sums of dQ in one order and repeat bit for bit; how much "
            "slower that is is a prior from published rates.",
            False,
        ),
    ),
    lambda axes: _ATTENTION,
)


# ---------------------------------------------------------------- sparse attention


def _sparse_attention(
    hardware: Hardware,
    part: Columns,
    phase: str,
    precision: str,
    kv_precision: str,
    shared_values: bool,
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.attention import ATTENTION_BOUNDS
    from perfmodel.compute.sparse_attention import sparse_attention_times

    queries, keys = _lengths(part, phase)
    found = sparse_attention_times(
        hardware,
        precision,
        batch=part["batch"],
        query_length=queries,
        key_length=keys,
        heads=part["heads"],
        key_value_heads=part["kv_heads"],
        head_dim_qk=part["head_dim"],
        head_dim_v=np.where(part["head_dim_v"] > 0, part["head_dim_v"], part["head_dim"]),
        **{name: part[name] for name in ("selected", "window", "compression", "block")},
        shared_key_value=shared_values,
        phase=phase,
        kv_precision=None if kv_precision == "same" else kv_precision,
    )
    return _results(found), ATTENTION_BOUNDS


def _indexer(hardware: Hardware, part: Columns, phase: str, precision: str) -> Evaluated:
    from perfmodel.compute.indexer import INDEXER_BOUNDS, indexer_times

    queries, keys = _lengths(part, phase)
    found = indexer_times(
        hardware,
        query_length=queries,
        key_length=keys,
        **{name: part[name] for name in _INDEXER_COLUMNS},
        phase=phase,
        precision=precision,
    )
    return _results(found, "choice_time"), INDEXER_BOUNDS


_INDEXER_COLUMNS = ("batch", "heads", "head_dim", "top_k", "compression", "block")
_AXES = {axis.name: axis for axis in ATTENTION.axes}
_LENGTHS = (_AXES["q_len"], _AXES["kv_len"])
_COMPRESSION = GridAxis(
    "compression",
    "tokens that a key stands for; 0: keys are tokens",
    "Tokens that a key outside the window stands for (DeepSeek-V4: 4 or 128); 0: keys are tokens",
    0,
)
_BLOCK = GridAxis("block", "tokens that are chosen together", default=1)
_SPARSE_ATTENTION = Grid(
    "sparse attention",
    ("phase", "precision", "kv_precision"),
    (
        *("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "q_len", "kv_len"),
        *("selected", "window", "compression", "block"),
    ),
    _sparse_attention,
)
SPARSE_ATTENTION = Kernel(
    "sparse-attention",
    "Attention over chosen or compressed keys.",
    (
        _AXES["batch"],
        _AXES["heads"],
        GridAxis("kv_heads", "key and value heads on the device", default=1),
        GridAxis("head_dim", "width of a query and key", default=512),
        _AXES["head_dim_v"],
        *_LENGTHS,
        GridAxis(
            "selected",
            "keys that a query chooses; 0: all that are compressed",
            "Keys that a query chooses, beside those in its window; 0: all that are compressed",
            0,
        ),
        GridAxis("window", "last tokens that a query sees, its own included", default=0),
        _COMPRESSION,
        _BLOCK,
        _AXES["phase"],
        _AXES["precision"],
        _AXES["kv_precision"],
    ),
    (
        Setting(
            "shared_values",
            "Values are the first --head-dim-v elements of the keys, or have rows of their own.",
            True,
            ("--shared-values/--own-values",),
        ),
    ),
    lambda axes: _SPARSE_ATTENTION,
)
_INDEXER = Grid(
    "indexer",
    ("phase", "precision"),
    ("batch", "heads", "head_dim", "q_len", "kv_len", "top_k", "compression", "block"),
    _indexer,
)
INDEXER = Kernel(
    "indexer",
    "Logits of keys, and the choice among them.",
    (
        _AXES["batch"],
        GridAxis("heads", "index heads, over one key head"),
        _AXES["head_dim"],
        *_LENGTHS,
        GridAxis("top_k", "keys that a query chooses"),
        _COMPRESSION,
        _BLOCK,
        _AXES["phase"],
        GridAxis(
            "precision",
            "number format of the products",
            "Number formats; gradients are usually bf16",
            "fp8",
            ATTENTION_PRECISIONS,
        ),
    ),
    (),
    lambda axes: _INDEXER,
)


# ---------------------------------------------------------------- recurrent mixers


def _scan(hardware: Hardware, part: Columns, kind: str, phase: str, precision: str) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, recurrence_times

    width = 1 if kind == "mamba1" else part["key_dim"]
    heads = 1 if kind == "mamba1" else part["heads"]
    found = recurrence_times(
        hardware,
        precision,
        kind=kind,
        batch=part["batch"],
        length=part["seq_len"],
        heads=part["heads"],
        key_heads=np.where(part["key_heads"] > 0, part["key_heads"], heads),
        key_dim=part["key_dim"],
        value_dim=np.where(part["value_dim"] > 0, part["value_dim"], width),
        chunk=part["chunk"],
        phase=phase,
    )
    return _results(found), RECURRENCE_BOUNDS


_SCAN = Grid(
    "scan",
    ("kind", "phase", "precision"),
    ("batch", "heads", "key_heads", "key_dim", "value_dim", "chunk", "seq_len"),
    _scan,
)
_16_BITS = ("bf16", "fp16")
_PHASE = GridAxis(
    "phase",
    "forward, whole backward, forward with the state handed in and out, or one token",
    "Passes",
    "forward",
    RECURRENCE_PHASES,
)
_MIXER_PRECISION = GridAxis(
    "precision", "number format of activations", "Number formats", "bf16", _16_BITS
)
SCAN = Kernel(
    "scan",
    "Linear attention and state-space models.",
    (
        GridAxis(
            "kind",
            "kind of recurrence",
            "Gated DeltaNet, KDA, SSD, selective scan, lightning attention",
            "gated_delta",
            RECURRENCES,
        ),
        GridAxis("batch", "sequences", default=1),
        GridAxis(
            "seq_len",
            "tokens of a sequence; decode takes one",
            "Tokens of a sequence; decode takes one whatever it is",
            4096,
        ),
        GridAxis(
            "heads",
            "value heads on the device",
            "Value heads on the device (mamba1: channels)",
        ),
        GridAxis(
            "key_heads",
            "key heads (mamba2: groups); 0: one per head",
            "Key heads (mamba2: groups); 0: as --heads (mamba1: 1)",
            0,
        ),
        GridAxis("key_dim", "width of a key", "Width of a key (mamba: d_state)", 128),
        GridAxis(
            "value_dim",
            "width of a value; 0: as that of a key",
            "Width of a value (mamba2: headdim); 0: as --key-dim (mamba1: 1)",
            0,
        ),
        GridAxis(
            "chunk", "tokens of a chunk", "Tokens of a chunk; mamba1 and decode have none", 64
        ),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (),
    lambda axes: _SCAN,
)


def _convolution(
    hardware: Hardware, part: Columns, phase: str, precision: str, activation: bool
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import (
        convolution_bytes,
        convolution_flops,
        convolution_times,
    )
    from perfmodel.compute.stream import STREAM_BOUNDS

    names = {"tokens": "tokens", "channels": "channels", "kernel": "kernel_size"}
    sizes: Any = {name: np.asarray(part[axis], np.float64) for name, axis in names.items()}
    options: Any = {"phase": phase, "precision": precision}
    found = convolution_times(hardware, **sizes, **options, activation=activation)
    per_token = convolution_flops(sizes["channels"], sizes["kernel"], phase)
    return {
        "time": found.time,
        "flops": sizes["tokens"] * np.asarray(per_token),
        "memory_traffic": np.add(*convolution_bytes(**sizes, **options)),
        "bound": found.bound,
    }, STREAM_BOUNDS


_CONVOLUTION = Grid(
    "convolution", ("phase", "precision"), ("channels", "kernel_size", "tokens"), _convolution
)
CONVOLUTION = Kernel(
    "convolution",
    "Causal depthwise convolutions.",
    (
        GridAxis("tokens", "tokens of all sequences; decode: sequences", default=4096),
        GridAxis("channels", "channels on the device"),
        GridAxis("kernel_size", "width of the filter along the sequence", default=4),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (
        Setting(
            "activation",
            "SiLU in the same kernel.",
            True,
            ("--activation/--no-activation",),
        ),
    ),
    lambda axes: _CONVOLUTION,
)


# ---------------------------------------------------------------- memory-bound operations


def stream_kernels() -> Mapping[str, Work]:
    """Return the operations on a tensor: (rows, columns, bytes of an element) -> its work."""
    from perfmodel.compute.stream_catalogue import (
        ELEMENTWISE,
        cross_entropy,
        elementwise,
        embedding,
        norm,
        softmax,
    )
    from perfmodel.compute.stream_quantise import QUANTISATIONS, quantise

    def each(name: str) -> Work:
        return lambda r, c, s: elementwise(name, r * c, s)

    def narrowed(name: str) -> Work:
        return lambda r, c, s: quantise(name, r, c, s)

    return {
        **{name: each(name) for name in ELEMENTWISE},
        "rms_norm": norm,
        "rms_norm_residual": lambda r, c, s: norm(r, c, s, residual=True),
        "rms_norm_backward": lambda r, c, s: norm(r, c, s, backward=True),
        "layer_norm": lambda r, c, s: norm(r, c, s, mean=True),
        "layer_norm_backward": lambda r, c, s: norm(r, c, s, mean=True, backward=True),
        "softmax": softmax,
        "softmax_backward": lambda r, c, s: softmax(r, c, s, backward=True),
        "cross_entropy": lambda r, c, s: cross_entropy(r, c, element_bytes=s),
        "cross_entropy_backward": lambda r, c, s: cross_entropy(
            r, c, backward=True, element_bytes=s
        ),
        "embedding": embedding,
        "embedding_backward": lambda r, c, s: embedding(r, c, s, backward=True),
        **{f"quantise_{name}": narrowed(name) for name in QUANTISATIONS},
    }


def _stream(
    hardware: Hardware, part: Columns, operation: str, dtype: str, cached: float
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.stream import STREAM_BOUNDS, work_times

    known = stream_kernels()
    _check_names([operation], known, "unknown operation")
    sizes = (part["rows"].astype(float), part["columns"].astype(float))
    work = known[operation](*sizes, OPERAND_BYTES[dtype])
    found = work_times(hardware, work, cached)
    count = found.time.size
    return {
        "time": found.time,
        "flops": np.broadcast_to(work.flops, count),
        "memory_traffic": np.broadcast_to(work.bytes_read + work.bytes_written, count),
        "bound": found.bound,
    }, STREAM_BOUNDS


def _bytes(hardware: Hardware, part: Columns, cached: float) -> Evaluated:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_times

    read, written = part["bytes_read"].astype(float), part["bytes_written"].astype(float)
    found = stream_times(hardware, read, written, cached=cached)
    columns = {"time": found.time, "memory_traffic": read + written, "bound": found.bound}
    return columns, STREAM_BOUNDS


def _choose_stream(axes: Values) -> Grid:
    moved = axes["bytes_read"] != [0] or axes["bytes_written"] != [0]
    if moved == bool(axes["operation"]):
        raise DataError("name either an OPERATION, or --bytes-read and --bytes-written")
    if moved:
        return Grid("stream", (), ("bytes_read", "bytes_written"), _bytes)
    return Grid("stream", ("operation", "dtype"), ("rows", "columns"), _stream)


STREAM = Kernel(
    "stream",
    "Memory-bound operations.",
    (
        GridAxis("operation", "what is done", default="", words=True, option="-"),
        GridAxis("rows", "rows of the tensor (tokens)", default=4096),
        GridAxis("columns", "columns of the tensor (width)", default=4096),
        GridAxis(
            "dtype",
            "number format of the tensor",
            "Number formats of the tensor",
            "bf16",
            STREAM_PRECISIONS,
        ),
        GridAxis("bytes_read", "bytes read", "In place of OPERATION: bytes read", 0, units="B"),
        GridAxis(
            "bytes_written", "bytes written", "In place of OPERATION: bytes written", 0, units="B"
        ),
    ),
    (
        Setting(
            "cached",
            "Share of the bytes that the cache holds if the tensors fit: 1 for a kernel that "
            "runs again and again on the same tensors, 0 after others pushed these out.",
            0.5,
            least=0.0,
            most=1.0,
            metavar="SHARE",
        ),
    ),
    _choose_stream,
)


# ---------------------------------------------------------------- layers of experts


def _moe(
    hardware: Hardware, part: Columns, routing: str, precision: str, seed: int, **options: Any
) -> Evaluated:
    from perfmodel.compute.moe import MOE_BOUNDS, moe_times
    from perfmodel.compute.routing import parse_routing

    spread = parse_routing(routing, seed)
    found = moe_times(hardware, precision, **part, routing=spread, **options)
    return _results(found, "active_experts", "largest_load", "tile_m", "tile_n"), MOE_BOUNDS


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
            tuple(FORMATS),
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

KERNELS: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (*(GEMM, ATTENTION, SPARSE_ATTENTION, INDEXER, SCAN, CONVOLUTION, STREAM, MOE),)
}
"""All kernels, in the order of the help page."""
