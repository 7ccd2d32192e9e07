"""Options of served models: loads, deployments, formats, drafts and pools."""

from __future__ import annotations

from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, LOAD_FIELDS
from tests.cli.running import assert_one_line, run
from tests.cli.serving import POINT, changed_text, point, serve


def test_help_has_an_option_for_every_field() -> None:
    text = run("serve", "--help").stdout
    composed = {"weight_precision", "activation_precision", "draft_length", "acceptance"}
    for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS):
        if spec.name not in composed and not spec.name.startswith("prefill_"):
            assert f"--{spec.option}" in text
    for name in ("--precision", "--speculative", "--prefill", "--decode", "--engine"):
        assert name in text


def test_lists_and_ranges_make_every_combination() -> None:
    found = point(changed_text("--concurrency", "1:8:x2,6", "--isl", "512:2048:4", "--tp", "1,2"))
    assert found["points"] == 2 * 5 * 4


def test_formats_come_in_pairs() -> None:
    found = point(POINT, "--precision", "bf16,fp8,int4:bf16", "--top", "9")
    pairs = {(row["weight_precision"], row["activation_precision"]) for row in found["best"]}
    assert pairs == {("bf16", "stated"), ("fp8", "stated"), ("int4", "bf16")}


def test_a_prefix_is_tokens_or_a_share() -> None:
    alone = changed_text("--concurrency", "1")
    half, tokens = (point(alone, "--prefix", value) for value in ("0.5", "1024"))
    assert half["prefix"] == tokens["prefix"] == 1024
    assert half["time_to_first_token_mean"] < point(alone)["time_to_first_token_mean"]


def test_drafts_are_the_model_s_own() -> None:
    text = (
        "--model deepseek-r1 --hardware dgx-h200 --engine sglang --tp 8 --ep 8 --concurrency 8 "
        "--speculative mtp:0,2:0.8"
    )
    drafted, plain = point(text)["best"]
    assert (drafted["draft_length"], plain["draft_length"]) == (2, 0)
    assert drafted["acceptance"] == 0.8
    refused = serve(f"{POINT} --speculative mtp:2:0.8")
    assert_one_line(refused, "no multi-token-prediction modules")


def test_pools_have_degrees_of_their_own() -> None:
    given = "--model mixtral-8x7b --hardware dgx-h200 --rate 2 --disaggregate --isl 512 --osl 64"
    row = point(f"{given} --prefill tp=4,workers=2 --decode ep=4,dp-attention=4")
    names = ("tensor_parallel", "expert_parallel", "attention_data_parallel", "workers")
    assert [row[name] for name in names] == [1, 4, 4, 1]
    assert [row[f"prefill_{name}"] for name in names] == [4, 1, 1, 2]
    assert row["devices"] == 4 + 2 * 4
    alike = point(f"{given} --prefill workers=2 --tp 2 --ep 2")
    assert [alike[f"prefill_{name}"] for name in names] == [2, 2, 1, 2]
