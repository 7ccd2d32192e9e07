"""Tensors of STAGE's transformer, and the operations that make them.

Tensors of STAGE's transformer, in the order in which its generator numbers them.

A tensor's shape is written as the generator writes it, such as ``Batch/dp,Seq/sp,Dmodel/tp``:
the text is part of the tensor's name in a trace, and it says which parallel degree splits
which dimension. Facts: astra-sim/symbolic_tensor_graph, branch ``recomp``,
``sharding_spreadsheets/module/`` and ``models/transformer.py``.

Operations of STAGE's transformer: what is computed, read, written and communicated.

Communication follows from the shape in which a tensor is stored and the shape in which an
operation needs it (symbolic_tensor_graph/graph/coll_comm_matcher.py of STAGE, branch
``recomp``). Sizes are elements, read as bytes; a multiply-add is one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from perfmodel.base.files import read_rows
from perfmodel.workloads.twins.stage.arguments import StageArguments

# Shapes by the names that ``tensors.csv`` has for them; it writes out the others.
SHAPES = {
    "activation": "Batch/dp,Seq/sp,Dmodel/tp",
    "full width": "Batch/dp,Seq/sp,Dmodel",
    "heads": "Batch/dp,Seq/sp,Dmodel/Head,Head/tp",
    "heads of the sequence": "Batch/dp,Seq,Dmodel/Head,Head/tp",
    "scores": "Batch/dp,Seq,Seq/sp,Head/tp",
    "inner": "Batch/dp,Seq/sp,Dff/tp",
    "attention weight": "Dmodel,Dmodel/Head,Head/tp",
}
ACTIVATION = SHAPES["activation"]

# Kinds of a tensor: the generator's letters.
GIVEN, SAME, PRODUCT, RESHAPE, ADD, ELEMENTWISE = "T", "I", "M", "R", "A", "E"
KINDS = {
    "given": GIVEN, "same": SAME, "product": PRODUCT,
    "reshape": RESHAPE, "add": ADD, "elementwise": ELEMENTWISE,
}  # fmt: skip
# What a block reads from its neighbours: activations from before, gradients from behind.
INPUT, GRADIENT = "<input>", "<gradient>"


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor as an operation needs it: its name, and the shape needed."""

    tensor: str
    shape: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor and the operation that makes it.

    Attributes
    ----------
    name : str
        Within its block.
    kind : str
        `GIVEN` (weights, inputs), `SAME` (another name), `PRODUCT`, `RESHAPE`, `ADD` or
        `ELEMENTWISE`.
    shape : str
        As stored by the ranks.
    first, second : Use or None
        What the operation reads.
    over : str
        Dimensions that a product sums over; where they are split, ranks hold partial sums.
    after : str
        Tensor that has to exist before (recomputation).
    """

    name: str
    kind: str
    shape: str
    first: Use | None = None
    second: Use | None = None
    over: str = ""
    after: str = ""


@cache
def _table() -> list[dict[str, str]]:
    return read_rows(Path(__file__).with_name("tensors.csv"))


def _tensors(arguments: StageArguments, block: str) -> list[Tensor]:
    """Return the tensors of a block of ``tensors.csv``, those ``when`` the arguments are so.

    Its rows stand in the generator's order. Only q is gathered along the sequence: the scores of a
    rank are those of its keys. There is no output matrix.
    """
    again = "_recomp" if arguments.activation_recompute else ""
    made = []
    for row in _table():
        option = row.get("when", "")
        holds = not option or getattr(arguments, option.removeprefix("not "))
        if row["block"] == block and holds != option.startswith("not "):
            shape, over, after = _shape(row["shape"]), row.get("over", ""), row.get("after", "")
            first, second = (_use(row, side, again) for side in ("first", "second"))
            kind = KINDS[row["kind"]]
            made.append(Tensor(row["name"], kind, shape, first, second, over, after))
    return made


def _use(row: Mapping[str, str], side: str, again: str) -> Use | None:
    """Return the first or the second tensor that an operation reads; None where it has none."""
    shape = row.get(f"{side}_shape")
    return Use(row.get(side, "").format(again=again), _shape(shape)) if shape else None


def _shape(text: str) -> str:
    return SHAPES.get(text, text)


def layer_tensors(arguments: StageArguments) -> list[Tensor]:
    """Return the tensors of one layer in the generator's order."""
    return [*_tensors(arguments, "attention"), *_tensors(arguments, "feed_forward")]


def embedding_tensors(arguments: StageArguments, block: str) -> list[Tensor]:
    """Return the tensors of an embedding: a dense product with its two gradients.

    Parameters
    ----------
    arguments : StageArguments
    block : {"in_emb", "out_emb"}
    """
    return _tensors(arguments, block)


def update_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the updates of a block's weights: weight plus gradient, in the order of weights."""
    updates = []
    for weight in tensors:
        letter = weight.name.rpartition("_")[2]
        if weight.kind == GIVEN and letter.startswith("w"):
            prefix = weight.name.removesuffix(letter)
            gradient = f"{prefix}d_{letter}" if prefix == "mha_" else f"{prefix}d{letter}"
            uses = Use(weight.name, weight.shape), Use(gradient, weight.shape)
            updates.append(Tensor(weight.name, ADD, weight.shape, *uses))
    return updates


# Norms and their gradients count 5 operations per element.
OPERATIONS_PER_ELEMENT = {GIVEN: 0, SAME: 0, RESHAPE: 1, ADD: 1, ELEMENTWISE: 5}


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective before an operation: kind, parallel degree (dp, tp or sp) and size [B]."""

    collective: str
    degree: str
    size: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank, evaluated.

    Attributes
    ----------
    name, kind : str
        Name of the tensor that it makes, and the tensor's kind.
    num_ops : int
        Multiply-adds and other operations, each counted once.
    tensor_size : int
        Both inputs as used, and the output [B].
    first, second : tuple of Collective
        Done one after another on the first and on the second input before.
    """

    name: str
    kind: str
    num_ops: int
    tensor_size: int
    first: tuple[Collective, ...]
    second: tuple[Collective, ...]


def size_of(shape: str, symbols: Mapping[str, int]) -> int:
    """Return the elements of a shape [B].

    Examples
    --------
    >>> size_of("Batch/dp,Dmodel/(Head*sp),Head", {"Batch": 8, "dp": 2, "Dmodel": 6,
    ...                                            "Head": 2, "sp": 3})
    8
    """
    upper, lower = 1, 1
    for part in shape.split(","):
        name, _, divisors = part.partition("/")
        upper *= symbols[name]
        lower *= prod(symbols[word] for word in divisors.strip("()").split("*") if word)
    return upper // lower


def splitters(shape: str, degrees: Mapping[str, int]) -> dict[str, str]:
    """Return which dimension each parallel degree above 1 splits.

    One dimension is credited to one degree, the first in order of dp, tp, sp: STAGE
    overlooks the second one of ``Dmodel/(dp*sp)`` (coll_comm_matcher.py).
    """
    found: dict[str, str] = {}
    for part in shape.split(",") if shape else ():
        words = part.replace("/", "*").replace("(", "").replace(")", "").split("*")[1:]
        for degree, ways in degrees.items():
            if ways > 1 and degree in words and degree not in found:
                found[degree] = part
                break
    return found


def collectives_between(
    source: Tensor, shape: str, arguments: StageArguments
) -> tuple[Collective, ...]:
    """Return the collectives that turn a tensor as stored into the shape needed.

    Where a degree splits the tensor but not what is needed: all-gather (size: the shard).
    Where ranks hold partial sums: reduce-scatter if the degree splits what is needed, else
    all-reduce (size: the whole partial sum). Every one is sized by the tensor as stored, also
    the second of two (symbolic_tensor_graph/graph/convert_chakra.py).
    """
    degrees = arguments.degrees
    stored, needed = splitters(source.shape, degrees), splitters(shape, degrees)
    partial = splitters(source.over, degrees)
    size = size_of(source.shape, arguments.symbols)
    found = []
    for degree in degrees:
        if degree in stored and degree not in needed:
            found.append(Collective("all_gather", degree, size))
        elif degree in partial and degree not in stored:
            kind = "reduce_scatter" if degree in needed else "all_reduce"
            found.append(Collective(kind, degree, size))
    return tuple(found)


def evaluate(tensor: Tensor, sources: Mapping[str, Tensor], arguments: StageArguments) -> Operation:
    """Return the operation that makes a tensor.

    Parameters
    ----------
    tensor : Tensor
    sources : mapping of str to Tensor
        What its names stand for.
    arguments : StageArguments
    """
    symbols = arguments.symbols
    made = size_of(tensor.shape, symbols)
    if tensor.kind == PRODUCT:  # in one, as a part alone may be a fraction
        count = size_of(f"{tensor.shape},{tensor.over}", symbols)
    else:
        count = made * OPERATIONS_PER_ELEMENT[tensor.kind]
    uses = [use for use in (tensor.first, tensor.second) if use is not None]
    between = [
        collectives_between(sources[use.tensor], use.shape, arguments)
        if use is not None and use.tensor
        else ()
        for use in (tensor.first, tensor.second)
    ]
    return Operation(
        tensor.name,
        tensor.kind,
        count,
        made + sum(size_of(use.shape, symbols) for use in uses),
        *between,
    )


def operations(arguments: StageArguments) -> Iterator[Operation]:
    """Yield the operations of both embeddings and of the first of all layers, as named in traces.

    Names are those of the generator's tensors: ``in_emb_y@0``, ``stack_0_mha_q@0``, and
    ``…@1`` for updated weights.

    Examples
    --------
    >>> plain = StageArguments(tensor_parallel=4, layers=2)
    >>> [(c.collective, c.size) for c in next(operations(plain)).first]
    [('all_gather', 13421772800)]
    """
    blocks = {
        "in_emb_": embedding_tensors(arguments, "in_emb"),
        "out_emb_": embedding_tensors(arguments, "out_emb"),
        "stack_0_": layer_tensors(arguments),
    }
    outside = {
        INPUT: Tensor(INPUT, GIVEN, ACTIVATION),
        GRADIENT: Tensor(GRADIENT, GIVEN, ACTIVATION),
    }
    for revision in (0, 1):
        for prefix, tensors in blocks.items():
            sources = {**outside, **{tensor.name: tensor for tensor in tensors}}
            for tensor in update_tensors(tensors) if revision else tensors:
                if tensor.kind not in (GIVEN, SAME):
                    name = f"{prefix}{tensor.name}@{revision}"
                    yield replace(evaluate(tensor, sources, arguments), name=name)
