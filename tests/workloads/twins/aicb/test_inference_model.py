"""Models that AICB serves: sizes from JSON files and shipped ones."""

from __future__ import annotations

import json

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.workloads.twins.aicb import inference
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.inference import (
    inference_text,
    inference_workload,
    vidur_csv,
    vidur_parts,
)
from perfmodel.workloads.twins.aicb.inference_model import inference_model


def command(model="DeepSeek-671B", **changes):
    values = {"module": "SimAI_inference_workload_generator", "model_name": model, "seq_length": 1}
    return AicbArguments(**{**values, "moe_enable": True, **changes})


def test_qwen3_next_has_full_attention_in_every_fourth_layer():
    workload = inference_workload(command("Qwen3-Next-80B"))
    names = workload.name.tolist()
    layer = ["attention_norm", "attention_gdn", "moe_norm", "moe_route", "moe_expert"]
    full = ["attention_norm", "attention_layer", *layer[2:]]
    assert names == [*layer * 3, *full] * 12
    # 10 experts per token of 2048 elements.
    experts = workload.forward.size[workload.name == "moe_expert"]
    assert set(experts.tolist()) == {2 * 2048 * 10}


def test_sizes_come_from_a_json_file(tmp_path):
    path = tmp_path / "small.json"
    sizes = {"model_name": "Qwen3-Moe-small", "num_hidden_layers": 2, "hidden_size": 8}
    path.write_text(json.dumps({**sizes, "num_experts_per_tok": 3}))
    arguments = command("Qwen3-Moe-235B", config_file=str(path))
    assert [(part.layer, part.part, part.message_size) for part in vidur_parts(arguments)] == [
        (0, "attention", 0),
        (0, "moe", 48 + 24),  # 2 · 8 · 3 bytes to combine, 33/64 of them to dispatch
        (1, "attention", 0),
        (1, "moe", 48 + 24),
    ]
    assert inference.inference_file_name(arguments).startswith("Qwen3-Moe-small-world_size1-")


@pytest.mark.parametrize(
    ("family", "frame", "route", "rows"),
    [
        # The default frame of each family; a frame that names none of them, without FP8.
        ("DeepSeek-671B", None, 24, ["moe_route", "moe_expert"]),
        ("DeepSeek-671B", "DeepSeek-V3", None, ["moe_expert"]),
        ("DeepSeek-671B", "other", None, ["moe_expert"]),
        ("Qwen3-Moe-235B", None, 24, ["moe_route", "moe_expert"]),
        ("Qwen3-Moe-235B", "other", 48, ["moe_route", "moe_expert"]),
        ("Qwen3-Moe-235B", "DeepSeek", 24, ["moe_route", "moe_route", "moe_expert"]),
    ],
)
def test_the_frame_of_a_json_file_decides_on_messages(tmp_path, family, frame, route, rows):
    # get_comm_size: FP8 where the frame has "DeepSeek" or "Qwen3" in it; a row for the dispatch
    # before DeepSeek's experts only where the frame is just that.
    sizes = {
        "num_layers": 1, "num_hidden_layers": 1, "hidden_size": 8, "moe_router_topk": 3,
        "dense_layer": 0, "shared_experts": 0,
    }  # fmt: skip
    path = tmp_path / "small.json"
    path.write_text(json.dumps(sizes if frame is None else {**sizes, "frame": frame}))
    arguments = command(family, config_file=str(path))
    workload = inference_workload(arguments)
    sent = [
        (name, size)
        for name, size in zip(workload.name.tolist(), workload.forward.size.tolist(), strict=True)
        if name in rows
    ]
    assert [name for name, _ in sent] == rows
    assert {size for name, size in sent if name == "moe_route"} == ({route} if route else set())
    assert sent[-1][1] == 48
    dispatch = 48 if frame == "other" else 24
    assert [p.message_size for p in vidur_parts(arguments) if p.part == "moe"] == [48 + dispatch]


DEEPSEEK_WIDTHS = {
    "num_attention_heads": 6, "d_q": 2, "d_r": 2, "d_kv": 1, "expert_dim": 6, "vocab_size": 12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, None),
        ({"num_attention_heads": 4, "d_q": 1, "d_kv": 3}, None),
        ({"d_q": 3, "num_attention_heads": 4}, 20),
        ({"num_attention_heads": 4, "d_q": 1}, 8),
        ({"expert_dim": 4, "dense_layer": 1}, 8),
        ({"expert_dim": 4, "dense_layer": 0}, None),  # experts are not divided
        ({"vocab_size": 13}, 13),
    ],
)
def test_tensor_parallelism_divides_the_widths_of_deepseek(tmp_path, changes, width):
    sizes = {**DEEPSEEK_SIZES, **DEEPSEEK_WIDTHS, "num_layers": 2, **changes}
    path = tmp_path / "small.json"
    path.write_text(json.dumps(sizes))
    arguments = command(config_file=str(path), world_size=3, tensor_model_parallel_size=3)
    for write in (inference_text, vidur_csv):
        if width is None:
            assert write(arguments)
        else:
            with pytest.raises(StrategyError, match=f"671B, {width}, is no multiple of --tensor"):
                write(arguments)


def test_shipped_sizes_are_divided_by_powers_of_two():
    # AICB divides 129280 words and 128 heads; Qwen3's models have no widths there.
    def split(model, ranks):
        return command(model, world_size=ranks, tensor_model_parallel_size=ranks)

    assert inference_text(split("DeepSeek-671B", 256))
    with pytest.raises(StrategyError, match="no multiple of --tensor_model_parallel_size=5"):
        inference_text(split("DeepSeek-671B", 5))
    assert inference_text(split("Qwen3-Moe-235B", 5))


def test_without_a_file_the_shipped_sizes_hold():
    named = command("Qwen3-Next-80B", config_file="anywhere/qwen3_next_default_aiob.json")
    assert inference_model(named) == inference_model(command("Qwen3-Next-80B"))


DEEPSEEK_SIZES = {
    "num_layers": 61, "dense_layer": 3, "hidden_size": 7168, "shared_experts": 1,
    "moe_router_topk": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"hidden_size": ' + "1" * 5000 + "}", "not a JSON object"),
        (" " * (1 << 20) + "{}", "not a JSON object"),
        ({"num_layers": None}, "'num_layers' = None; a whole number >= 1"),
        ({"hidden_size": 0}, "'hidden_size' = 0; a whole number >= 1"),
        ({"hidden_size": True}, "'hidden_size' = True"),
        ({"hidden_size": 1.5}, "'hidden_size' = 1.5"),
        ({"dense_layer": -1}, "'dense_layer' = -1; a whole number >= 0 is needed for a model of"),
        ({"shared_experts": "1"}, "'shared_experts' = 1"),
        ({"model_name": "../DeepSeek"}, "'model_name' should be a name, as DeepSeek-671B"),
        ({"frame": 3}, "'frame' should be a text, as DeepSeek"),
    ],
)
def test_bad_json_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "model.json"
    text = content if isinstance(content, str) else json.dumps({**DEEPSEEK_SIZES, **content})
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as raised:
        inference_text(command(config_file=str(path)))
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_missing_size_is_named(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({key: 1 for key in DEEPSEEK_SIZES if key != "moe_router_topk"}))
    with pytest.raises(FormatError, match="'num_experts_per_tok' is missing"):
        inference_text(command(config_file=str(path)))


@pytest.mark.parametrize("name", ["none.json", "", "\0"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(FormatError, match=r"cannot read|not a JSON object"):
        inference_text(command(config_file=str(tmp_path / name)))


def test_a_model_without_bound_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**DEEPSEEK_SIZES, "num_layers": 10**12}))
    with pytest.raises(StrategyError, match="1000000000000 layers with 1 shared experts"):
        inference_text(command(config_file=str(path)))
