"""Recipes of rows: what is followed, what is left, by engine."""

from __future__ import annotations

from perfmodel.measured.rows import MeasuredRow
from perfmodel.measured.serving_recipes import recipe_of, recipe_version
from perfmodel.software.engine import load_engine


def recipe(engine="vllm", pools=False, context=2048, **cells):
    columns = {key if key == "attention_dp" else f"recipe_{key}": it for key, it in cells.items()}
    row = MeasuredRow(columns, "runs.csv", 2)
    return recipe_of(row, load_engine(engine), pools=pools, context=context)


def test_limits_and_facts_are_followed_and_said():
    found = recipe(
        max_num_seqs="512",
        max_num_batched_tokens="8192.0",
        memory_share="0.95",
        kv_precision="fp8_e4m3",
        cuda_graph_limit="2048",
        all_reduce="fuse_allreduce_rms=true",
        num_prompts_per_client="10",
        other_flags="block-size=32",
        stream_interval="10",
        source="a script",
    )
    assert found.fields == {
        "max_sequences": 512,
        "token_budget": 8192,
        "memory_share": 0.95,
        "kv_precision": "fp8",
        "block_tokens": 32,
    }
    assert found.facts["graph_limit"] == found.facts["mixed_graph_limit"] == 2048
    assert found.facts["fuses_all_reduce_norm"] == "always"
    assert found.rounds == 10
    assert "max_num_seqs=512" in found.notes[0]
    assert found.notes[1] == "recipe, not followed: stream_interval=10"


def test_names_of_one_engine_are_not_those_of_another():
    assert recipe("sglang", chunked_prefill_size="16384").fields == {"token_budget": 16384}
    assert recipe("sglang", max_num_batched_tokens="16384").fields == {}
    shared = recipe("sglang", max_num_seqs="256", attention_dp="8")
    assert shared.fields == {"max_sequences": 32}


def test_limits_of_prompts_are_not_those_of_a_decode_pool():
    found = recipe("trtllm", pools=True, max_num_batched_tokens="64", max_num_seqs="64")
    assert found.fields == {"max_sequences": 64}
    assert found.left == ["max_num_batched_tokens=64"]


def test_a_context_below_the_requests_is_not_theirs():
    assert recipe(max_model_len="1024").fields == {}
    assert recipe(max_model_len="4096").fields == {"context_length": 4096}


def test_a_release_is_read_where_it_is_one():
    cells = {"recipe_version": "0.19.0"}
    assert recipe_version(MeasuredRow(cells, "runs.csv", 2)) == "0.19.0"
    assert recipe_version(MeasuredRow({"recipe_version": "nightly"}, "runs.csv", 2)) == ""
