"""Models on chips whose weights stream from memory beside the cores."""

from __future__ import annotations

import pytest

from perfmodel import load_model
from perfmodel.base.errors import DataError, HardwareError
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.wafer.chips import chip_times, read_parameters

LLAMA = load_model("llama-3.1-8b")


def test_one_chip_reads_all_weights_but_the_token_table_for_a_token() -> None:
    chip = load_mesh("n150")
    found = chip_times(LLAMA, chip, phase="decode", context=1)
    # 8,030,261,248 parameters less a table of 128,256 x 4,096; 17/16 B each; and the cache of
    # one token: 32 layers x 2 x 1,024 numbers.
    read = (8_030_261_248 - 128_256 * 4096 + 32 * 2048) * 17 / 16
    assert found.memory == pytest.approx(read / (288e9 * chip.constant("dram_fraction")))
    assert found.time == found.memory
    assert (found.network, found.host) == (0.0, 0.0)


def test_a_prompt_waits_for_the_host_layer_by_layer() -> None:
    chip = load_mesh("n150")
    found = chip_times(LLAMA, chip, phase="prefill", context=128)
    assert found.host == pytest.approx(32 * chip.constant("layer_latency"))
    assert found.time == pytest.approx(max(found.memory, found.compute) + found.host)
    longer = chip_times(LLAMA, chip, phase="prefill", context=4096)
    assert longer.compute == pytest.approx(32 * found.compute)
    assert longer.compute > longer.memory


def test_chips_share_the_reading_and_pay_for_the_sums() -> None:
    one, two = (
        chip_times(LLAMA, load_mesh(name), phase="decode", batch=32, context=128)
        for name in ("tenstorrent-wormhole", "n300")
    )
    assert two.memory == pytest.approx(one.memory / 2)
    # 64 sums of 32 x 4,096 numbers of 2 B, in 2 steps of half of it each, 25 GB/s and 1 us.
    assert two.network == pytest.approx(64 * 2 * (1e-6 + 32 * 4096 / 25e9))


def test_experts_that_no_token_visits_are_not_read() -> None:
    model = load_model("mixtral-8x7b")
    table = model.embedding_parameters()
    assert read_parameters(model, 1) == pytest.approx(model.active_parameter_count() - table)
    assert read_parameters(model, 4096) == pytest.approx(model.parameter_count() - table)
    reads = [read_parameters(model, tokens) for tokens in (1, 2, 4, 8, 16)]
    assert reads == sorted(reads)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"phase": "decoding"}, "did you mean decode"),
        ({"batch": 0}, "batch: a whole number from 1"),
        ({"context": -5}, "context: a whole number from 1"),
        ({"context": 2**40}, "context: a whole number"),
        ({"precision": "bfp9"}, "precision: unknown 'bfp9'"),
    ],
)
def test_sizes_that_are_none_are_refused(changed: dict[str, object], words: str) -> None:
    asked = {"phase": "decode", "batch": 1, "context": 128, **changed}
    with pytest.raises(DataError, match=words):
        chip_times(LLAMA, load_mesh("n150"), **asked)


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"weights exceed the 12\.9 GB of n150"):
        chip_times(load_model("llama-3.1-70b"), load_mesh("n150"), phase="decode", context=1)
    with pytest.raises(HardwareError, match="wse-2 has no memory beside its cores"):
        chip_times(LLAMA, load_mesh("wse-2"), phase="decode", context=1)
