"""Vision towers against transformers on the meta device; what is not known is told."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.presets import load_model
from perfmodel.model.vision import read_towers

QWEN = {
    **{"model_type": "qwen3_vl_vision", "depth": 27, "hidden_size": 1152, "num_heads": 16},
    **{"intermediate_size": 4304, "patch_size": 16, "spatial_merge_size": 2},
    **{"temporal_patch_size": 2, "out_hidden_size": 3584, "num_position_embeddings": 2304},
}
SIGLIP = {
    **{"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27},
    **{"num_attention_heads": 16, "intermediate_size": 4304, "image_size": 896, "patch_size": 14},
    "vision_use_head": False,
}


def count(vision: dict[str, Any], wrapper: str, hidden_size: int = 2560) -> int:
    (tower,), _ = read_towers({"model_type": wrapper, "vision_config": vision}, hidden_size)
    return tower.parameter_count()


def test_qwen3_towers_are_exact() -> None:
    # Qwen3_5VisionModel and Qwen3VLVisionModel of transformers 5.23 with their class defaults.
    assert count({**QWEN, "model_type": "qwen3_5"}, "qwen3_5") == 453_650_672
    assert count({**QWEN, "deepstack_visual_indexes": [8, 16, 24]}, "qwen3_vl") == 566_949_104


def test_keys_that_a_tower_leaves_out_are_as_its_class_has_them() -> None:
    stated = {"model_type": "qwen3_vl", "depth": 27, "deepstack_visual_indexes": None}
    assert count(stated, "qwen3_vl", 3584) == count(
        {**QWEN, **stated, "out_hidden_size": 3584, "deepstack_visual_indexes": [8, 16, 24]},
        "qwen3_vl",
        3584,
    )


def test_gemma_3_tower_is_exact() -> None:
    vision = 416_866_032  # SigLIP So400m/14 at 896 pixels without head, arXiv:2503.19786: 417M
    projector = 1152 * 2560 + 1152
    assert count(SIGLIP, "gemma3") == vision + projector
    head = 1152 + 4 * 1152 * 1153 + 2 * 1152 + 2 * 1152 * 4304 + 4304 + 1152
    assert count({**SIGLIP, "vision_use_head": True}, "gemma3") == vision + projector + head


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("kimi-k2.5", 471_143_920),  # Kimi_K25ForConditionalGeneration less its language model
        ("gemma-4-26b-a4b", 572_792_112),  # Gemma4ForConditionalGeneration less its own
    ],
)
def test_towers_of_presets_are_exact_apart_and_told(name: str, parameters: int) -> None:
    model = load_model(name)
    (tower,) = model.towers
    assert tower.parameter_count() == parameters
    (said,) = (text for text in model.remarks if "vision tower" in text)
    assert "neither counted nor run" in said
    assert f"({parameters / 1e6:.0f} M parameters)" in said


def test_a_tower_that_is_not_known_is_told() -> None:
    towers, remarks = read_towers(
        {"vision_config": {"hidden_size": 8}, "audio_config": {"a": 1}}, 8
    )
    assert towers == ()
    assert remarks == (
        "vision tower neither counted nor run: the language model only",
        "audio tower neither counted nor run: the language model only",
    )
    assert read_towers({"vision_config": None}, 8) == ((), ())


def test_bad_input_names_the_key() -> None:
    with pytest.raises(ModelError, match="key 'vision_config': 3 should be an object"):
        read_towers({"vision_config": 3}, 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"depth": "many"}, "key 'depth': 'many' should be a positive integer"),
        ({"patch_size": "x"}, "key 'patch_size': 'x' should be a positive integer"),
        ({"deepstack_visual_indexes": 3}, "'int' object is not iterable"),
    ],
)
def test_a_tower_that_is_not_understood_does_not_refuse_the_model(
    changes: dict[str, Any], reason: str
) -> None:
    config = {"model_type": "qwen3_vl", "vision_config": {**QWEN, **changes}}
    towers, (text,) = read_towers(config, 8)
    assert towers == ()
    assert text.startswith(f"vision tower (not understood: vision_config: {reason})")
