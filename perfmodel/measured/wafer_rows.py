"""Rows of tables of wafer-scale engines and meshes of chips: what was run, where, how long.

The columns are those of docs/accuracy.md ("Wafer-scale engines").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles.mesh_loader import list_meshes, load_mesh
from perfmodel.measured.kind import LONGEST, SHORTEST
from perfmodel.measured.row_model import served_model
from perfmodel.measured.rows import NOTHING, MeasuredRow, Skip
from perfmodel.model.attention import AttentionSpec

if TYPE_CHECKING:
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec

PREFILL, DECODE, WHOLE, GEMV, CAPACITY = "prefill", "decode", "end to end", "gemv", "capacity"
"""What a row measures: a prompt, a token, a request, a vector times a matrix, a cache."""

BLIND = "T10"
"""What a ``kind`` names whose mapping takes no account of distance (T10, Liu et al., OSDI 2024)."""

CONTEXT = "context only: batch, speculation and number of wafers are not stated"
MAPPED = "a mapping that ignores distance, judged by how much slower it is"
CLAIM = "a claim about a formula, not a run"

TOKENS = ("tok/s", "tok/s/user")
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of ``unit`` beside ``tokens``; rates become times."""

SOURCE = "waferllm"
ALL_HEADS = "keys and values of all heads, as in the kernels that were measured"
"""What a ``source`` names whose kernels multiply by key and value matrices as wide as that of the
queries, whatever the model shares (Decode/WSE-2 and Prefill/WSE-2 of MeshInfra/WaferLLM: a matrix
of dim x dim each; its LLaMA3-8B has one head of keys as wide as the model). Capacities of the same
source count shared heads: 72 B of a token in six layers of LLaMA3-8B on 360 x 360 cores."""

UNSTATED = "not stated"
WIDEST = 2**16  # cores on a side
LARGEST_MATRIX = 2**24  # on a side
LAYOUTS = {"concatenated": "concatenated", "shifted": "shifted"}
"""Words of ``metric`` that tell where a core grid keeps keys and values."""

# Numbers of so many digits at most: longer ones are no sizes, and Python refuses the longest.
_GRID = re.compile(
    r"(?<!\d)([0-9]{1,18})\s*[x×]\s*([0-9]{1,18})(?!\d)(?:\s+(prefill|decode))?", re.IGNORECASE
)
_GEMV = re.compile(r"\[1,([0-9]{1,18})\][x×]\[([0-9]{1,18}),([0-9]{1,18})\]")
_WORDS = re.compile(r"[a-z0-9]+")

Grid = tuple[int, int]


@dataclass(frozen=True)
class WaferCase:
    """A row as a projection sees it.

    Attributes
    ----------
    phase : str
        `PREFILL`, `DECODE`, `WHOLE`, `GEMV` or `CAPACITY`.
    hardware : MeshHardware
        At the clock that the row states.
    model : ModelSpec or None
        None for a product.
    blind : bool
        Operands lie where a mapping put them that ignores distance.
    grids : mapping of str to (int, int)
        Phase -> rows and columns of cores; empty where the row states none.
    product : (int, int)
        Rows and columns of the matrix of `GEMV`; zeros otherwise.
    layout : str
        Of keys and values, for `CAPACITY`.
    batch, input_length, output_length : int
    notes : tuple of str
        How cells were read.
    """

    phase: str
    hardware: MeshHardware
    model: ModelSpec | None
    blind: bool
    grids: Mapping[str, Grid]
    product: Grid
    layout: str
    batch: int
    input_length: int
    output_length: int
    notes: tuple[str, ...]


def check(row: MeasuredRow) -> None:
    """Raise DataError where a batch is no number, or a unit is not known."""
    if row.lower("batch") != UNSTATED:
        row.whole("batch")
    unit = row.lower("unit")
    known = (*TOKENS, *SECONDS, "tokens")
    if unit and unit not in known and not unit.startswith("%"):
        raise row.error("unit", f"one of {', '.join(known)}")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return what to group by: ``phase``, ``device``, ``mapping``, and ``run``, maker and kind."""
    first, _, rest = row.text("kind").partition(",")
    maker = (row.text("system") or _device(row)).split(" ")[0]
    return {
        "phase": first.strip().lower(),
        "device": _device(row),
        "mapping": rest.strip(),
        "run": f"{maker} {row.text('kind')}",
    }


def _device(row: MeasuredRow) -> str:
    try:
        return hardware_of(row).name
    except Skip:
        return row.text("system").partition("(")[0].strip()


def case_of(row: MeasuredRow) -> WaferCase:
    """Turn a row into what a projection needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    cells = derived(row)
    phase, mapping = cells["phase"], cells["mapping"]
    if phase == "reduce":
        raise Skip(CLAIM, row.text("metric"), scorable=False)
    if phase not in (PREFILL, DECODE, WHOLE, GEMV, CAPACITY):
        raise Skip("kind of run not known", row.text("kind"))
    if "public service" in mapping or row.lower("batch") == UNSTATED:
        raise Skip(CONTEXT, scorable=False)
    hardware = hardware_of(row)
    clock = row.positive("clock_GHz")
    if clock is not None:
        hardware = replace(hardware, clock=clock * 1e9)
    product: Grid = (0, 0)
    model: ModelSpec | None = None
    notes: tuple[str, ...] = ()
    if phase == GEMV:
        product = _product(row)
    else:
        model, notes = served_model(row)
        if SOURCE in row.lower("source") and phase != CAPACITY:
            whole = _with_all_heads(model)
            model, notes = whole, (*notes, ALL_HEADS) if whole != model else notes
    lengths = {column: row.whole(column) or 0 for column in ("isl", "osl")}
    if phase in (PREFILL, DECODE, WHOLE) and not lengths["isl"]:
        raise Skip("length of the prompt not stated", row.text("kind"))
    if phase == WHOLE and not lengths["osl"]:
        raise Skip("length of the answer not stated", row.text("kind"))
    return WaferCase(
        phase=phase,
        hardware=hardware,
        model=model,
        blind=BLIND.lower() in mapping.lower(),
        grids={} if hardware.dram_bandwidth else _grids(row),
        product=product,
        layout=_layout(row) if phase == CAPACITY else "",
        batch=row.whole("batch") or 1,
        input_length=lengths["isl"],
        output_length=lengths["osl"],
        notes=notes,
    )


@lru_cache(maxsize=64)
def _with_all_heads(model: ModelSpec) -> ModelSpec:
    """Return a model whose attention shares no keys and values."""

    def unshared(part: Any) -> Any:
        if isinstance(part, AttentionSpec) and part.kind != "mla":
            return replace(part, key_value_heads=part.heads)
        return part

    layers = {
        layer: replace(layer, mixers=tuple(map(unshared, layer.mixers)))
        for layer in dict.fromkeys(model.layers)
    }
    return replace(model, layers=tuple(layers[layer] for layer in model.layers))


def measured_value(row: MeasuredRow) -> float:
    """Return what was measured: a time [s], a token's for rates, or tokens for a capacity.

    Raises
    ------
    Skip
        Nothing is stated.
    """
    value, unit = row.positive("value"), row.lower("unit")
    if value is None:
        raise Skip("no usable measurement", scorable=False)
    if unit == "tokens":
        return value
    if unit in SECONDS:
        time = value * SECONDS[unit]
    elif unit in TOKENS:
        # A rate of a prompt counts its tokens, one of a request those of the answer.
        counted = {PREFILL: "isl", WHOLE: "osl"}.get(derived(row)["phase"])
        time = (row.whole(counted) or 1 if counted else 1) / value
    else:
        raise Skip("unit not stated", row.text("unit"), scorable=False)
    if not SHORTEST <= time <= LONGEST:
        raise row.error("value", f"that of a time from {SHORTEST:g} to {LONGEST:g} s")
    return time


def hardware_of(row: MeasuredRow) -> MeshHardware:
    """Return the mesh that a row names.

    A column ``hardware`` names a profile; the text of ``system`` names one whose name or other
    name stands in it, with as many chips as ``units`` says.

    Raises
    ------
    Skip
        There is none.
    """
    name = row.text("hardware")
    if name:
        try:
            return _mesh(name)
        except HardwareError as error:
            raise Skip("no hardware profile", str(error)) from None
    text = row.text("system")
    chips = row.text("units")
    found = _meant(text, int(chips) if re.fullmatch("[0-9]{1,9}", chips) else 0)
    if not found:
        raise Skip("no hardware profile", text)
    return _mesh(found)


@lru_cache(maxsize=64)
def _mesh(name: str) -> MeshHardware:
    return load_mesh(name)


@lru_cache(maxsize=256)
def _meant(text: str, chips: int) -> str:
    """Return the mesh that a text means, the one with most words of its name in it, or ""."""
    head = set(_WORDS.findall(text.partition("(")[0].lower()))
    said = set(_WORDS.findall(text.lower()))
    best, most = "", (0, 0)
    for name in list_meshes():
        mesh = _mesh(name)
        if chips and mesh.chips != chips:
            continue
        for known in (name, *mesh.aliases):
            words = set(_WORDS.findall(known.lower()))
            # What stands in brackets says what a system is made of.
            score = (len(words & head), len(words))
            if words <= said and score > most:
                best, most = name, score
    return best


def _grids(row: MeasuredRow) -> dict[str, Grid]:
    """Return the grids of cores by phase; the same for both where one is stated."""
    found: dict[str, Grid] = {}
    for rows, columns, phase in _GRID.findall(row.text("core_grid")):
        grid = (int(rows), int(columns))
        if not 0 < min(grid) <= max(grid) <= WIDEST:
            raise row.error("core_grid", f"a grid of 1 to {WIDEST} cores on a side, as 420x420")
        for one in (phase.lower(),) if phase else (PREFILL, DECODE):
            found.setdefault(one, grid)
    text = row.lower("core_grid")
    if not found and text not in (*NOTHING, UNSTATED):
        raise row.error("core_grid", "rows x columns of cores, as 420x420")
    return found


def _product(row: MeasuredRow) -> Grid:
    """Return rows and columns of the matrix of a product with a vector."""
    found = _GEMV.fullmatch(row.text("model").replace(" ", ""))
    if found is None or found[1] != found[2]:
        raise row.error("model", "a vector times a matrix, as [1,16384]x[16384,16384]")
    rows, columns = int(found[2]), int(found[3])
    if not 0 < min(rows, columns) <= max(rows, columns) <= LARGEST_MATRIX:
        raise row.error("model", f"a matrix of 1 to {LARGEST_MATRIX} rows and columns")
    return rows, columns


def _layout(row: MeasuredRow) -> str:
    """Return where keys and values of a capacity lie."""
    for word, layout in LAYOUTS.items():
        if word in row.lower("metric"):
            return layout
    raise Skip("layout of keys and values not stated", row.text("metric"))
