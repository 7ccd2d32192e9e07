"""Kernel libraries: what ships is whole, sourced, and says what its library does."""

from __future__ import annotations

import pytest

from perfmodel.base.fields import facts_of
from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.library import (
    FOLDER,
    SUBJECTS,
    attention_facts,
    libraries,
    library_facts,
)
from perfmodel.kernels.attention.device import AttentionDevice, PortableKernel, SerialKernel


@pytest.mark.parametrize("name", libraries())
def test_every_value_says_where_it_is_from(name):
    record = libraries()[name]
    for subject, facts in record.facts.items():
        for key in facts_of(SUBJECTS[subject]):
            stated = len(record.source.get(f"{subject}.{key}", "")) > 5
            left_out = getattr(facts, key) in (None, ())
            assert stated or left_out, f"{name}: {subject}.{key}"


def test_every_file_states_something():
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(libraries())
    assert all(record.facts for record in libraries().values())


def test_libraries_of_a_moe_layer_in_the_order_of_their_rank():
    assert list(library_facts("moe")) == ["triton", "triton_tuned", "trtllm", "aiter", "cutlass"]


@pytest.mark.parametrize("name", library_facts("moe"))
def test_tiles_are_whole_powers_of_two(name):
    kernel = library_facts("moe")[name]
    for rows, columns, depth in (*kernel.tiles, *kernel.small_tiles, *kernel.block_tiles):
        assert all(size >= 8 and size.bit_count() == 1 for size in map(int, (rows, columns, depth)))
    assert set(kernel.fused_activation) <= set(OPERAND_BYTES)


def test_tuned_tiles_change_nothing_but_tiles():
    plain, tuned = (library_facts("moe")[name] for name in ("triton", "triton_tuned"))
    differing = {key for key in facts_of(type(plain)) if getattr(plain, key) != getattr(tuned, key)}
    assert differing == {"tiles", "small_tiles", "block_tiles"}


def test_what_attention_libraries_leave_out_is_not_stated():
    assert attention_facts("portable")["most_splits"] == 8.0
    assert "latent_splits" not in attention_facts("portable")
    assert attention_facts("reference")["most_splits"] == 128.0
    assert attention_facts("nobody's") == {}


@pytest.mark.parametrize(
    ("subject", "kernel"),
    [
        ("attention", AttentionDevice),
        ("portable_attention", PortableKernel),
        ("serial_attention", SerialKernel),
    ],
)
def test_kernels_know_facts_by_the_same_names(subject, kernel):
    names = list(facts_of(SUBJECTS[subject]))
    if kernel is AttentionDevice:
        assert set(names) <= set(kernel._fields)
    else:
        assert names == list(kernel._fields)
