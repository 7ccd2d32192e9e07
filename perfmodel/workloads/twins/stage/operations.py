"""Operations of STAGE's transformer: what is computed, read, written and communicated.

Communication follows from the shape in which a tensor is stored and the shape in which an
operation needs it (symbolic_tensor_graph/graph/coll_comm_matcher.py of STAGE, branch
``recomp``). Sizes are elements, read as bytes; a multiply-add is one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.tensors import (
    ACTIVATION,
    ADD,
    ELEMENTWISE,
    GIVEN,
    GRADIENT,
    INPUT,
    PRODUCT,
    RESHAPE,
    SAME,
    Tensor,
    embedding_tensors,
    layer_tensors,
    update_tensors,
)

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
