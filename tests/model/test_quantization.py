"""Bytes of published weights against the checkpoints on the Hub, and formats by place."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.base.precisions import FORMATS
from perfmodel.model.pieces import Piece, matrix
from perfmodel.model.presets import load_model, preset_names
from perfmodel.model.quantization import QuantizationSpec, WeightFormat, read_quantization


def test_gpt_oss_weighs_what_its_checkpoint_does() -> None:
    # total_size of model.safetensors.index.json of openai/gpt-oss-120b; its model card says
    # 60.8 GiB, that of the 20b 12.8 GiB (arXiv:2508.10925, table 1).
    assert sum(load_model("gpt-oss-120b").weight_bytes().values()) == 65_248_815_744
    assert sum(load_model("gpt-oss-20b").weight_bytes().values()) == 13_761_264_768


def test_deepseek_v3_weighs_what_its_checkpoint_does() -> None:
    """The checkpoint holds token table and output matrix of the module once more."""
    model = load_model("deepseek-v3", mtp="stated")
    total = sum(model.weight_bytes().values()) + 2 * 2 * model.embedding_parameters()
    # Weight files of deepseek-ai/DeepSeek-V3: 688,586,727,753 bytes, headers included.
    assert total == pytest.approx(688_586_727_753, rel=3e-5)


def test_weights_without_quantisation_are_16_bits() -> None:
    for name in preset_names():
        model = load_model(name, mtp="stated")
        total = sum(model.weight_bytes().values())
        if model.quantization is None:
            assert total == 2 * model.parameter_count()
        else:
            assert total < 1.2 * model.parameter_count()


def test_scales_by_hand() -> None:
    blocks = WeightFormat("fp8", 8, 128, 128, 4.0)
    assert blocks.bytes_of(matrix("m", 256, 300, "whole")) == 256 * 300 + 2 * 3 * 4
    groups = WeightFormat("mxfp4", 4, 32, 1, 1.0)
    piece = Piece("m", "matrix", 64, 10, bias=True, copies=3)
    assert groups.bytes_of(piece) == 3 * (64 * 10 / 2 + 2 * 10 + 2 * 10)
    assert WeightFormat("fp8", 8).bytes_of(matrix("m", 8, 8, "whole")) == 64
    assert not blocks.takes(matrix("gate", 4096, 1, "whole"))
    assert not groups.takes(Piece("v", "vector", 1, 64))


def test_products_run_in_formats_that_kernels_know() -> None:
    assert load_model("deepseek-v3").matrix_precision("experts") == "fp8_block"
    assert load_model("deepseek-v3").matrix_precision("router") == "bf16"
    assert load_model("gpt-oss-120b").matrix_precision("experts") == "mxfp4"
    assert load_model("gpt-oss-120b").matrix_precision("attention") == "bf16"
    assert load_model("llama-3.1-8b").matrix_precision("mlp") == "bf16"
    for name in preset_names():
        model = load_model(name)
        for item in model.quantization.places if model.quantization else ():
            assert model.matrix_precision(item.place) in FORMATS
    with pytest.raises(ModelError, match="key 'place': 'nowhere' should be one of attention"):
        load_model("gpt-oss-20b").matrix_precision("nowhere")


ALL = ("attention", "mlp", "shared", "experts", "router", "output")


def read(layers: int = 4, expert_dtype: str = "", **stated: Any) -> QuantizationSpec:
    found = read_quantization(stated, ALL, layers, expert_dtype)
    assert isinstance(found, QuantizationSpec), found
    return found


def formats(found: QuantizationSpec) -> dict[str, str]:
    return {item.place: item.format.name for item in found.places}


def test_fp8_in_blocks() -> None:
    found = read(quant_method="fp8", weight_block_size=[128, 64])
    assert formats(found) == dict.fromkeys(("attention", "mlp", "shared", "experts"), "fp8")
    item = found.at("experts")
    assert item is not None
    assert (item.columns, item.rows, item.scale_bytes) == (128, 64, 4.0)  # outputs first
    assert item.products == "fp8_block"


def test_modules_left_out_by_part_of_their_name() -> None:
    kept = ["gate", "lm_head", "mlp.shared_experts.down_proj"]
    found = read(quant_method="fp8", modules_to_not_convert=kept)
    assert formats(found) == {"attention": "fp8", "mlp": "fp8", "experts": "fp8"}


def test_experts_of_four_bits_beside_the_rest_of_eight() -> None:
    found = read(expert_dtype="fp4", quant_method="fp8", weight_block_size=[128, 128])
    assert formats(found)["experts"] == "mxfp4"
    assert formats(found)["attention"] == "fp8"


def test_mxfp4_means_experts_only() -> None:
    assert formats(read(quant_method="mxfp4", modules_to_not_convert=["lm_head"])) == {
        "experts": "mxfp4"
    }


def test_kimi_k2_5_packs_its_routed_experts() -> None:
    found = read(
        quant_method="compressed-tensors",
        format="pack-quantized",
        config_groups={
            "group_0": {
                "input_activations": None,
                "targets": ["Linear"],
                "weights": {
                    **{"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
                    "symmetric": True,
                },
            }
        },
        ignore=[
            *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"),
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ],
    )
    (item,) = found.places
    assert (item.place, item.layers, item.format.name) == ("experts", (), "int4")
    assert (item.format.rows, item.format.scale_bytes, item.format.products) == (32, 2.0, "bf16")


@pytest.mark.parametrize(
    ("layout", "size", "inputs", "name", "products"),
    [
        ("nvfp4-pack-quantized", 16, {"num_bits": 4}, "nvfp4", "nvfp4"),
        ("nvfp4-pack-quantized", 16, None, "nvfp4", "bf16"),
        ("mxfp4-pack-quantized", 32, {"num_bits": 4}, "mxfp4", "mxfp4"),
    ],
)
def test_compressed_tensors_of_four_bits(
    layout: str, size: int, inputs: Any, name: str, products: str
) -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": size}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    found = read(quant_method="compressed-tensors", format=layout, config_groups={"g": group})
    item = found.at("attention")
    assert item is not None
    assert (item.name, item.rows, item.products) == (name, size, products)


def test_groups_by_target() -> None:
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    found = read(
        quant_method="compressed-tensors",
        config_groups={
            "a": {"targets": ["re:.*self_attn.*"], "weights": eight, "input_activations": {}},
            "b": {"targets": ["re:.*experts.*"], "weights": four},
        },
    )
    assert formats(found) == {"attention": "fp8", "shared": "int4", "experts": "int4"}


def test_modelopt_leaves_out_what_it_ignores_layer_by_layer() -> None:
    found = read(
        layers=3,
        quant_method="modelopt",
        quant_algo="NVFP4",
        ignore=["lm_head", "model.layers.0*", "model.layers.2.self_attn*"],
    )
    where = {item.place: item.layers for item in found.places}
    assert where == {"attention": (1,), "mlp": (1, 2), "shared": (1, 2), "experts": (1, 2)}
    assert found.at("attention", 0) is None
    assert found.at("attention", 1) is not None


def test_modelopt_names_each_module_of_mixed_precisions() -> None:
    prefix = "model.language_model.layers"
    layers = {f"{prefix}.{i}.mlp.experts": {"quant_algo": "NVFP4"} for i in range(2)}
    layers |= {f"{prefix}.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(2)}
    found = read(
        layers=2,
        quant_method="modelopt",
        quant_algo="MIXED_PRECISION",
        quantized_layers=layers,
    )
    assert formats(found) == {"attention": "fp8", "experts": "nvfp4"}


@pytest.mark.parametrize(
    ("stated", "name", "scale"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 2.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": False}, "int8", 3.0),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 0.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.0),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
                "exclude": ["*self_attn*", "lm_head"],
            },
            "mxfp4",
            1.0,
        ),
    ],
)
def test_other_methods(stated: dict[str, Any], name: str, scale: float) -> None:
    item = read(**stated).at("mlp")
    assert item is not None
    assert (item.name, item.scale_bytes) == (name, scale)


def test_an_unknown_method_is_told_and_not_guessed() -> None:
    found = read_quantization({"quant_method": "novel"}, ALL, 4)
    assert found == "quantization 'novel' is not known: weights are taken as of 16 bits"
    config = {
        **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100},
        **{"num_attention_heads": 4, "intermediate_size": 128},
    }
    model = load_model({**config, "quantization_config": {"quant_method": "novel"}})
    assert found in model.remarks
    assert model.quantization is None


def test_what_is_not_understood_does_not_refuse_the_model() -> None:
    config = {
        **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100},
        **{"num_attention_heads": 4, "intermediate_size": 128},
        "quantization_config": {"quant_method": "compressed-tensors"},
    }
    (text,) = load_model(config).remarks
    assert text.startswith("quantization_config not understood (key 'config_groups': missing")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ([1], r"key 'quantization_config': \[1\] should be an object"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "'weight_block_size': .* two sizes"),
        ({"quant_method": "fp8", "modules_to_not_convert": "x"}, "should be a list of modules"),
        ({"quant_method": "compressed-tensors"}, "key 'config_groups': missing"),
        ({"quant_method": "gptq", "bits": "four"}, "should be sizes"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {}}},
            "'a' has no 'weights'",
        ),
        ({"quant_method": "fp8", "ignored_layers": ["re:("]}, "is no pattern"),
    ],
)
def test_bad_input_names_the_key(stated: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_quantization(stated, ALL, 4)
