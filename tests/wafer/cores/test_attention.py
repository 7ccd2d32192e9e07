"""Attention on cores: the whole context is read once, shares are even, split ones are summed."""

import dataclasses

import numpy as np
import pytest

from perfmodel.wafer.cores.attention import (
    AttentionSizes,
    Part,
    decode_attention,
    prompt_attention,
)
from perfmodel.wafer.cores.instructions import COPY, CORE, GEMM, OPCODE, READ, WRITE, core_totals
from perfmodel.wafer.cores.layout import even_layout
from perfmodel.wafer.walk import ABSORBED, BY_HEADS, AttentionShape
from tests.wafer.cores.examples import assert_sound

GRID = (2, 3)
GROUPED = AttentionSizes(AttentionShape(BY_HEADS, 12, 3, 16, 16, 96, 96), 5, 1, 100)
LATENT = AttentionSizes(AttentionShape(ABSORBED, 8, 1, 40, 32, 40, 40), 5, 2, 77)


def parts(size: AttentionSizes, rows: int, heads: int, width: int) -> tuple[Part, ...]:
    return (Part(even_layout(rows, heads * width, GRID), 0, width, width),)


@pytest.mark.parametrize("size", [GROUPED, LATENT], ids=["grouped", "latent"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_whole_context_is_read_once(size: AttentionSizes, whole: bool) -> None:
    rows = size.sequences * size.queries
    queries = parts(size, rows, size.shape.heads, size.shape.depth)
    made, layout = decode_attention(queries, (), size, GRID, whole)
    assert_sound(made)
    assert core_totals(made).macs == (
        rows * size.keys * size.shape.heads * (size.shape.depth + size.shape.values)
    )
    code = made.lines[:, OPCODE]
    cached = size.keys * size.sequences * size.shape.key_heads
    width = size.shape.depth + (0 if size.shape.shared_values else size.shape.values)
    first = made.arguments[: np.flatnonzero(code == GEMM)[-1]]
    read = first[code[: len(first)] == READ, 1].sum()
    tasks = np.count_nonzero(code[:-1] == READ)
    assert read >= cached * width * 2
    assert tasks > 0
    assert layout.shape == (rows, size.shape.heads * size.shape.values)
    gemm = code == GEMM
    work = np.zeros(6, np.int64)
    np.add.at(work, made.lines[gemm, CORE], made.arguments[gemm, :3].prod(axis=1))
    assert work.sum() / (6 * work.max()) > 0.97


def test_a_long_context_is_summed_by_all_that_hold_it() -> None:
    size = AttentionSizes(AttentionShape(ABSORBED, 12, 1, 16, 16, 16, 16), 1, 1, 6000)
    made, layout = decode_attention(parts(size, 1, 12, 16), (), size, GRID, True)
    # Every core sums two heads of twelve, for which five others send their parts.
    assert layout.elements(6).tolist() == [32] * 6
    copies = made.arguments[made.lines[:, OPCODE] == COPY]
    assert (copies[:, 2] == 2 * (16 + 2) * 2).sum() == 30


def test_new_keys_are_written_where_the_last_ones_lie() -> None:
    added = (Part(even_layout(10, 40, GRID), 0, 0, 40),)
    queries = parts(LATENT, 10, 8, 40)
    with_new, _ = decode_attention(queries, added, LATENT, GRID, True)
    without, _ = decode_attention(queries, (), LATENT, GRID, True)
    assert core_totals(with_new).moved[WRITE] - core_totals(without).moved[WRITE] == 10 * 40 * 2
    eight = dataclasses.replace(LATENT, cache_bytes=1.0)
    halved, _ = decode_attention(queries, added, eight, GRID, True)
    plain, _ = decode_attention(queries, (), eight, GRID, True)
    assert core_totals(halved).moved[WRITE] - core_totals(plain).moved[WRITE] == 10 * 40


def prompt(heads: int) -> AttentionShape:
    return AttentionShape(BY_HEADS, heads, heads, 16, 8, heads * 24, heads * 24)


def causal(size: AttentionSizes) -> int:
    """Multiply-adds of the keys that each query sees, key by key."""
    own = range(size.first_key, size.first_key + size.keys)
    seen = 0
    for query in range(size.queries):
        for key in own:
            near = not size.window or query - key < size.window
            if size.chunked:
                near = query // size.window == key // size.window
            seen += key <= query and near
    return size.sequences * seen * size.shape.heads * (size.shape.depth + size.shape.values)


@pytest.mark.parametrize("chunked", [False, True])
def test_windows_of_prompts(chunked: bool) -> None:
    size = AttentionSizes(prompt(5), 2, 300, 300, window=100, chunked=chunked)
    low, high = size.seen()
    assert size.sequences * (high - low).sum() * 5 * 24 == causal(size)
    keys = (*parts(size, 600, 5, 16), *parts(size, 600, 5, 8))
    made, _ = prompt_attention(parts(size, 600, 5, 16), keys, size, GRID, True)
    assert causal(size) <= core_totals(made).macs < 1.2 * causal(size)
    whole = dataclasses.replace(size, window=0)
    more, _ = prompt_attention(parts(size, 600, 5, 16), keys, whole, GRID, True)
    assert core_totals(made).moved[COPY] < core_totals(more).moved[COPY]


@pytest.mark.parametrize("first", [0, 150])
def test_prompts_see_no_later_keys(first: int) -> None:
    size = AttentionSizes(prompt(6), 2, 300, 300 - first, first_key=first)
    keys = (*parts(size, 600, 6, 16), *parts(size, 600, 6, 8))
    made, layout = prompt_attention(parts(size, 600, 6, 16), keys, size, GRID, first == 0)
    assert_sound(made)
    done = core_totals(made)
    assert causal(size) <= done.macs < 1.06 * causal(size)
    assert causal(size) / (6 * done.busiest_macs) > 0.9
    assert layout.shape == (600, 6 * 8)
    # Every key of the node is stored once.
    code = made.lines[:, OPCODE]
    stored = made.arguments[: np.flatnonzero(code == GEMM)[0]]
    kinds = code[: len(stored)]
    assert stored[kinds == WRITE, 1].sum() <= 2 * (300 - first) * 6 * 24 * 2


def test_prompts_store_all_keys() -> None:
    size = AttentionSizes(prompt(6), 2, 300, 150, first_key=150)
    keys = (*parts(size, 600, 6, 16), *parts(size, 600, 6, 8))
    made = [
        prompt_attention(parts(size, 600, 6, 16), keys, one, GRID, False)[0]
        for one in (size, dataclasses.replace(size, shape=size.shape._replace(stored=0)))
    ]
    written = [core_totals(one).moved[WRITE] for one in made]
    assert written[0] - written[1] == 2 * 150 * 6 * 24 * 2
