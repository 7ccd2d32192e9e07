"""Tables of passes: what has to hold whatever the constants."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import COMMUNICATION, EXPERTS, MATRICES, OTHER, PassTables
from perfmodel.serving import pass_table
from perfmodel.serving.pass_table import can_speculate, ladder, pass_tables
from tests.serving.served_layouts import layouts_of

H100 = load_hardware("dgx-h100")
KNOTS = ("TOKENS", "BATCHES", "CONTEXTS", "CHUNKS", "BEFORE", "SEQUENCES")


@pytest.fixture(scope="module", autouse=True)
def few_knots():
    """Leave every other doubling of the knots: what is tested here does not depend on them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in KNOTS:
            whole = getattr(pass_table, name)
            kept = np.isin(
                whole, [0.0, 1.0, *4.0 ** np.arange(1, 11), 32.0, 2048.0, 8192.0, 131072.0]
            )
            patch.setattr(pass_table, name, whole[kept])
        yield


def tables(model: str, hardware=H100, engine: str = "vllm", **given) -> PassTables:
    return pass_tables(load_model(model), layouts_of(engine, **given), hardware)


@pytest.fixture(scope="module")
def llama() -> PassTables:
    return tables("llama-3.1-8b", tensor_parallel=[1, 2, 8])


def test_knots_grow() -> None:
    assert ladder(16, whole=2, steps=2).tolist() == [1, 2, 3, 4, 6, 8, 12, 16]
    for name in KNOTS:
        assert np.all(np.diff(getattr(pass_table, name)) > 0)


def test_costs_grow_with_tokens_sequences_and_contexts(llama: PassTables) -> None:
    for found, axes in ((llama.decode, (1, 2)), (llama.prefill, (1, 2)), (llama.head, (1,))):
        for axis in axes:
            assert np.all(np.diff(found, axis=axis) >= 0.0)
    whole = llama.body.sum(axis=-1)
    assert np.all(np.diff(whole, axis=1) >= -0.02 * whole[:, 1:])


def test_weights_that_fit_the_last_cache_stay_there_from_pass_to_pass() -> None:
    capacity = "device.memory.last_level_cache_capacity"
    parts = H100.with_values({capacity: 4e9})  # in two, each with what its own units read
    whole = parts.with_values({"device.memory.l2_partitions": 1})
    small, vast = "qwen3-0.6b", "llama-3.1-8b"
    read = tables(small, parts).body[0, :, MATRICES]
    kept = tables(small, whole).body[0, :, MATRICES]
    assert kept[0] < 0.8 * read[0]
    assert kept[-1] == read[-1]  # thousands of tokens: their keys and values fill the cache
    assert np.array_equal(tables(vast, whole).body, tables(vast, parts).body)


def test_a_small_pass_reads_all_weights_once(llama: PassTables) -> None:
    model = load_model("llama-3.1-8b")
    matrices = sum(
        piece.weights for layer in model.layers for _, piece in layer.pieces(model.hidden_size)
        if piece.kind == "matrix"
    )  # fmt: skip
    least = 2.0 * matrices / H100.device.memory.bandwidth
    assert least < llama.body[0, 0, MATRICES] < 1.5 * least
    assert llama.body[0, 0, MATRICES] / 8 < llama.body[2, 0, MATRICES]


def test_chunks_and_decoded_tokens_share_one_reading(llama: PassTables) -> None:
    apart = pass_times(llama, 0, 1.0, 256.0, 0.0, 0.0, 0.0, 1.0, 0.0)[2]
    apart += pass_times(llama, 0, 0.0, 0.0, 0.0, 32.0, 1024.0, 1.0, 0.0)[2]
    assert pass_times(llama, 0, 1.0, 256.0, 0.0, 32.0, 1024.0, 1.0, 0.0)[2] < 0.8 * apart


def test_one_device_sends_nothing_and_more_do(llama: PassTables) -> None:
    assert not llama.body[0, :, COMMUNICATION].any()
    assert np.all(llama.body[1:, :, COMMUNICATION] > 0)


def test_stages_only_add_sends() -> None:
    found = tables("llama-3.1-8b", pipeline_parallel=[1, 2, 4])
    sent = found.body[..., COMMUNICATION]
    assert np.allclose(sent[2] - sent[0], 3 * (sent[1] - sent[0]))
    assert np.array_equal(found.body[0, :, MATRICES], found.body[2, :, MATRICES])
    assert np.array_equal(found.decode[0], found.decode[2])


def test_narrow_weights_are_read_as_they_lie() -> None:
    found = tables("llama-3.1-8b", weight_precision=["bf16", "fp8", "int4"])
    read = found.body[:, 0, MATRICES]
    assert read[1] / read[0] == pytest.approx(0.5, abs=0.06)
    assert 0.26 < read[2] / read[0] < 0.36
    # Products of prompts take as long in 16 bits, whatever the weights' bytes.
    assert found.body[2, -1, MATRICES] == pytest.approx(found.body[0, -1, MATRICES], rel=0.01)


def test_a_narrow_cache_is_read_faster() -> None:
    found = tables("llama-3.1-8b", engine="trtllm", kv_precision=["bf16", "fp8"])
    at = found.batches.searchsorted(64), found.contexts.searchsorted(8192)
    assert 0.4 < found.decode[1][at] / found.decode[0][at] < 0.7


def test_windows_stop_growing() -> None:
    found = tables("gpt-oss-20b")
    full = tables("llama-3.1-8b")
    at, late = found.contexts.searchsorted(8192), found.contexts.searchsorted(131072)
    batch = found.batches.searchsorted(64)
    rise, whole = (x.decode[0, batch, late] / x.decode[0, batch, at] for x in (found, full))
    assert 1.0 < rise < 0.95 * whole
    # Half of the layers keep 128 tokens: in the limit the other half is all that grows.
    ends = found.contexts.searchsorted(131072), found.contexts.searchsorted(65536)
    last, half = (found.decode[0, batch, end] for end in ends)
    assert last / half == pytest.approx(2.0, rel=0.05)


def test_absorbed_latents_cost_less_than_keys_of_all_heads() -> None:
    """A decoded token reads 576 numbers of each other, not 320 of each of 128 heads."""
    found = tables("deepseek-v3", load_hardware("dgx-h200"), tensor_parallel=8, expert_parallel=8)
    batch, keys = found.batches.searchsorted(32), found.contexts.searchsorted(4096)
    layers = load_model("deepseek-v3").num_layers
    naive = layers * 32 * 4096 * 16 * (192 + 128) * 2 / 4.8e12
    assert found.decode[0, batch, keys] < naive
    # Prefill is the other way round: its time grows with the square of the chunk.
    chunk = found.chunks.searchsorted(8192)
    assert found.prefill[0, chunk, 0] < 64 * found.prefill[0, found.chunks.searchsorted(1024), 0]


def test_experts_shrink_with_the_devices_that_share_them() -> None:
    found = tables(
        "qwen3-30b-a3b",
        tensor_parallel=[1, 2, 2, 1],
        expert_parallel=[1, 1, 2, 2],
        attention_data_parallel=[1, 1, 1, 2],
    )
    late = found.body[:, found.tokens.searchsorted(4096), EXPERTS]
    assert late[1] < late[0]
    assert late[2] < late[0]
    assert late[3] == pytest.approx(2 * late[2], rel=0.25)  # twice the tokens, from two ranks


@pytest.mark.parametrize("name", ["mamba-2.8b", "jamba-1.5-mini", "deepseek-v3.2", "llama-4-scout"])
def test_all_kinds_of_mixers_are_served(name: str) -> None:
    found = tables(name, load_hardware("dgx-h200"), tensor_parallel=8, expert_parallel=8)
    assert all(np.isfinite(x).all() for x in found)
    assert np.all(found.decode > 0)
    assert np.all(found.prefill > 0)


def test_states_do_not_grow_with_the_context() -> None:
    found = tables("mamba-2.8b")
    assert np.ptp(found.decode[0], axis=1).max() == 0.0
    assert found.decode[0, -1, 0] > 50 * found.decode[0, 0, 0]


def test_drafts() -> None:
    model = load_model("deepseek-v3", mtp="stated")
    given = layouts_of(tensor_parallel=8, expert_parallel=8, draft_length=[0, 1, 3])
    found = pass_tables(model, given, load_hardware("dgx-h200"))
    assert can_speculate(model)
    assert not can_speculate(load_model("deepseek-v3"))
    assert not found.draft[0].any()
    assert np.all(found.draft[2] > found.draft[1])
    assert np.all(found.draft[1] > 0)
    assert np.all(found.body[1].sum(axis=-1) > found.body[0].sum(axis=-1))
    assert np.all(found.decode[2, 8:] > found.decode[0, 8:])
    assert found.graph_limit.tolist() == [512.0, 512.0, 512.0]  # of tokens
    requests = layouts_of("trtllm", draft_length=[0, 3])
    assert pass_tables(model, requests, H100).graph_limit.tolist() == [512.0, 2048.0]
    with pytest.raises(StrategyError, match="no multi-token-prediction module"):
        tables("llama-3.1-8b", draft_length=1)


def test_encoders_are_refused() -> None:
    with pytest.raises(StrategyError, match="decoders only"):
        tables("t5-3b")


def test_layouts_alone_cost_what_they_do_together(llama: PassTables) -> None:
    alone = tables("llama-3.1-8b", tensor_parallel=2)
    for one, several in zip(alone, llama, strict=True):
        if one.shape and one.shape[0] == 1:
            assert np.array_equal(one[0], several[1])


def test_norms_cost_nothing_where_all_reduces_take_them_in() -> None:
    apart, fused = (
        tables("llama-3.1-8b", engine=engine, tensor_parallel=[1, 8])
        for engine in ("vllm-0.12", "vllm-0.16")
    )
    few, many = 0, -1
    saved = apart.body[..., OTHER] - fused.body[..., OTHER]
    assert saved[0].max() == 0.0  # nothing to reduce
    assert 32 * 2 * 1e-6 < saved[1, few] < 32 * 2 * 10e-6
    assert saved[1, many] == 0.0  # the library's, which fuses nothing
    np.testing.assert_array_equal(fused.body[..., COMMUNICATION], apart.body[..., COMMUNICATION])


def test_eager_passes_launch_more_where_models_are_deeper_or_made_of_more() -> None:
    names = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")
    found = [tables(name, load_hardware("dgx-h200")).eager_time[0] for name in names]
    layers = [load_model(name).num_layers for name in names]
    each = np.array(found) / layers
    assert each[0] < each[1] < each[2]
    half = tables("llama-3.1-70b").eager_time[0] / tables("llama-3.1-8b").eager_time[0]
    assert half == pytest.approx(80 / 32, rel=0.02)
