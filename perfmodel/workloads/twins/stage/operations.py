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
from math import prod

from perfmodel.workloads.twins.stage.arguments import StageArguments

TOKENS = "Batch/dp,Seq/sp"
ACTIVATION = f"{TOKENS},Dmodel/tp"
FULL_WIDTH = f"{TOKENS},Dmodel"
HEADS = f"{TOKENS},Dmodel/Head,Head/tp"
HEADS_FULL_LENGTH = "Batch/dp,Seq,Dmodel/Head,Head/tp"
SCORES = "Batch/dp,Seq,Seq/sp,Head/tp"
INNER = f"{TOKENS},Dff/tp"
ATTENTION_WEIGHT = "Dmodel,Dmodel/Head,Head/tp"

# Kinds of a tensor: the generator's letters.
GIVEN, SAME, PRODUCT, RESHAPE, ADD, ELEMENTWISE = "T", "I", "M", "R", "A", "E"
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


def attention_tensors(weight_sharded: bool, activation_recompute: bool) -> list[Tensor]:
    """Return the tensors of one attention block in the generator's order.

    Only q is gathered along the sequence: the scores of a rank are those of its keys.
    There is no output matrix.
    """
    stored = "Dmodel/dp,Dmodel/(Head*sp),Head/tp" if weight_sharded else ATTENTION_WEIGHT
    again = "_recomp" if activation_recompute else ""
    recomputed = _projections("_recomp", "mha_d_res") if activation_recompute else []
    return [
        Tensor("mha_x", SAME, ACTIVATION, Use(INPUT, ACTIVATION)),
        *(Tensor(f"mha_w{letter}", GIVEN, stored) for letter in "qkv"),
        *_projections(),
        _product(
            "mha_qkv", HEADS_FULL_LENGTH, "Seq/sp", Use("mha_qk", SCORES), Use("mha_v", HEADS)
        ),
        Tensor("mha_qkv_reshape", RESHAPE, ACTIVATION, Use("mha_qkv", HEADS), Use("", ACTIVATION)),
        _sum("mha_res", "mha_qkv_reshape", "mha_x"),
        Tensor("mha_norm", ELEMENTWISE, ACTIVATION, Use("mha_res", ACTIVATION)),
        *recomputed,
        Tensor("mha_d_norm", SAME, ACTIVATION, Use("ffn_dx0", ACTIVATION)),
        Tensor("mha_d_res", ELEMENTWISE, ACTIVATION, Use("mha_d_norm", ACTIVATION)),
        Tensor("mha_d_qkv_reshape", SAME, ACTIVATION, Use("mha_d_res", ACTIVATION)),
        Tensor("mha_d_qkv", RESHAPE, HEADS, Use("mha_d_qkv_reshape", ACTIVATION), Use("", HEADS)),
        _product(
            "mha_d_qk",
            SCORES,
            "Dmodel/Head",
            Use("mha_d_qkv", HEADS_FULL_LENGTH),
            Use(f"mha_v{again}", HEADS),
        ),
        _product(
            "mha_d_v",
            HEADS,
            "Seq",
            Use("mha_d_qkv", HEADS_FULL_LENGTH),
            Use(f"mha_qk{again}", SCORES),
        ),
        _product(
            "mha_d_q",
            HEADS_FULL_LENGTH,
            "Seq/sp",
            Use("mha_d_qk", SCORES),
            Use(f"mha_k{again}", HEADS),
        ),
        _product(
            "mha_d_k",
            HEADS,
            "Seq",
            Use("mha_d_qk", SCORES),
            Use(f"mha_q{again}", HEADS_FULL_LENGTH),
        ),
        *(
            _product(
                f"mha_d_w{letter}",
                ATTENTION_WEIGHT,
                TOKENS,
                Use(f"mha_d_{letter}", HEADS),
                Use("mha_x", FULL_WIDTH),
            )
            for letter in "qkv"
        ),
        *(
            _product(
                f"mha_d_x{number}",
                FULL_WIDTH,
                "Dmodel/Head,Head/tp",
                Use(f"mha_d_{letter}", HEADS),
                Use(f"mha_w{letter}", ATTENTION_WEIGHT),
            )
            for number, letter in enumerate("qkv", 1)
        ),
        Tensor("mha_d_x4", SAME, ACTIVATION, Use("mha_d_res", ACTIVATION)),
        _sum("mha_d_x12", "mha_d_x1", "mha_d_x2"),
        _sum("mha_d_x34", "mha_d_x3", "mha_d_x4"),
        _sum("mha_d_x", "mha_d_x12", "mha_d_x34"),
    ]


def feed_forward_tensors(weight_sharded: bool, activation_recompute: bool) -> list[Tensor]:
    """Return the tensors of one feed-forward block (two matrices) in the generator's order."""
    up, down = "Dmodel,Dff/tp", "Dff/tp,Dmodel"
    stored_up = "Dmodel/(dp*sp),Dff/tp" if weight_sharded else up
    stored_down = "Dff/tp,Dmodel/(dp*sp)" if weight_sharded else down
    inner = "ffn_x1_recomp" if activation_recompute else "ffn_x1"
    first = Use("ffn_x0", FULL_WIDTH), Use("ffn_w1", up)
    recomputed = (
        [_product("ffn_x1_recomp", INNER, "Dmodel", *first, after="ffn_dres")]
        if activation_recompute
        else []
    )
    return [
        Tensor("ffn_x0", SAME, ACTIVATION, Use("mha_norm", ACTIVATION)),
        Tensor("ffn_w1", GIVEN, stored_up),
        _product("ffn_x1", INNER, "Dmodel", *first),
        Tensor("ffn_w2", GIVEN, stored_down),
        _product("ffn_x2", FULL_WIDTH, "Dff/tp", Use("ffn_x1", INNER), Use("ffn_w2", down)),
        _sum("ffn_res", "ffn_x2", "ffn_x0"),
        Tensor("ffn_norm", ELEMENTWISE, ACTIVATION, Use("ffn_res", ACTIVATION)),
        *recomputed,
        Tensor("ffn_dnorm", SAME, ACTIVATION, Use(GRADIENT, ACTIVATION)),
        Tensor("ffn_dres", ELEMENTWISE, ACTIVATION, Use("ffn_dnorm", ACTIVATION)),
        Tensor("ffn_dx2", SAME, ACTIVATION, Use("ffn_dres", ACTIVATION)),
        _product("ffn_dw2", down, TOKENS, Use("ffn_dx2", FULL_WIDTH), Use(inner, INNER)),
        _product("ffn_dx1", INNER, "Dmodel", Use("ffn_dx2", FULL_WIDTH), Use("ffn_w2", down)),
        _product("ffn_dw1", up, TOKENS, Use("ffn_dx1", INNER), Use("ffn_x0", FULL_WIDTH)),
        Tensor("ffn_dx00", SAME, ACTIVATION, Use("ffn_dres", ACTIVATION)),
        _product("ffn_dx01", FULL_WIDTH, "Dff/tp", Use("ffn_dx1", INNER), Use("ffn_w1", up)),
        _sum("ffn_dx0", "ffn_dx00", "ffn_dx01"),
    ]


def layer_tensors(arguments: StageArguments) -> list[Tensor]:
    """Return the tensors of one layer in the generator's order."""
    options = arguments.weight_sharded, arguments.activation_recompute
    return [*attention_tensors(*options), *feed_forward_tensors(*options)]


def embedding_tensors(arguments: StageArguments, block: str) -> list[Tensor]:
    """Return the tensors of an embedding: a dense product with its two gradients.

    Parameters
    ----------
    arguments : StageArguments
    block : {"in_emb", "out_emb"}
    """
    first = block == "in_emb"
    source, target = ("Din", "Dmodel") if first else ("Dmodel", "Dout")
    weight, given = f"{source},{target}/tp", f"{TOKENS},{source}/tp"
    whole, made = f"{TOKENS},{source}", f"{TOKENS},{target}/tp"
    x = Tensor("x", GIVEN, given) if first else Tensor("x", SAME, given, Use(INPUT, given))
    return [
        x,
        Tensor("w", GIVEN, f"{source}/(dp*sp),{target}/tp" if arguments.weight_sharded else weight),
        _product("y", made, source, Use("x", whole), Use("w", weight)),
        Tensor("dy", SAME, made, Use(GRADIENT if first else "y", made)),
        _product("dw", weight, TOKENS, Use("dy", made), Use("x", whole)),
        _product("dx", whole, f"{target}/tp", Use("dy", made), Use("w", weight)),
    ]


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


def _product(name: str, shape: str, over: str, first: Use, second: Use, after: str = "") -> Tensor:
    """Return a product that sums over some dimensions."""
    return Tensor(name, PRODUCT, shape, first, second, over, after)


def _sum(name: str, first: str, second: str) -> Tensor:
    """Return the sum of two activations."""
    return Tensor(name, ADD, ACTIVATION, Use(first, ACTIVATION), Use(second, ACTIVATION))


def _projections(suffix: str = "", after: str = "") -> list[Tensor]:
    """Return q, k, v and the scores; with a suffix, as computed again."""
    return [
        *(
            _product(
                f"mha_{letter}{suffix}",
                HEADS,
                "Dmodel",
                Use("mha_x", FULL_WIDTH),
                Use(f"mha_w{letter}", ATTENTION_WEIGHT),
                after,
            )
            for letter in "qkv"
        ),
        _product(
            f"mha_qk{suffix}",
            SCORES,
            "Dmodel/Head",
            Use(f"mha_q{suffix}", HEADS_FULL_LENGTH),
            Use(f"mha_k{suffix}", HEADS),
            after,
        ),
    ]


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
