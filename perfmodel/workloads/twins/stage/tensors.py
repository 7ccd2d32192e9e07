"""Tensors of STAGE's transformer, in the order in which its generator numbers them.

A tensor's shape is written as the generator writes it, such as ``Batch/dp,Seq/sp,Dmodel/tp``:
the text is part of the tensor's name in a trace, and it says which parallel degree splits
which dimension. Facts: astra-sim/symbolic_tensor_graph, branch ``recomp``,
``sharding_spreadsheets/module/`` and ``models/transformer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
