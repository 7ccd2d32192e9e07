"""Bytes of published weights against the checkpoints on the Hub, and formats by place."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.base.precisions import FORMATS
from perfmodel.model.pieces import Piece, matrix
from perfmodel.model.presets import load_model, preset_names
from perfmodel.model.quantization import WeightFormat


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
