"""Vision towers and their projectors, from the ``vision_config`` of a multimodal file.

Shape letters: h width of the tower, t hidden size of the language model, p edge of a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.base.units import format_si
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.pages import class_facts
from perfmodel.model.pieces import Piece, Pieces, check_size, vector
from perfmodel.model.spec import TowerSpec

SECTIONS = {"vision_config": "vision", "audio_config": "audio"}
COLOURS = 3


def read_towers(
    config: Mapping[str, Any], hidden_size: int
) -> tuple[tuple[TowerSpec, ...], tuple[str, ...]]:
    """Return the towers that a file states, and a remark on each.

    Parameters
    ----------
    config : mapping
        A ``config.json``, the wrapper's keys included.
    hidden_size : int
        Width of the language model, to which projectors lead.

    Raises
    ------
    ModelError
        A section is no object. What is wrong inside one is a remark: the tower is not run.
    """
    towers, remarks = [], []
    wrapper = str(config.get("model_type", ""))
    for section, name in SECTIONS.items():
        keys = config.get(section)
        if keys is None or keys == {}:
            continue
        if not isinstance(keys, Mapping):
            raise ModelError(f"key {section!r}: {keys!r} should be an object")
        keys = {**_class_defaults(wrapper, section), **_stated(keys)}
        reader = _reader(wrapper, keys)
        what = f"{name} tower"
        if reader is not None:
            try:
                tower = reader(keys, hidden_size)
            except (KeyError, ModelError, TypeError, ValueError) as error:
                reason = f"key {error} missing" if isinstance(error, KeyError) else error
                what += f" (not understood: {section}: {reason})"
            else:
                towers.append(tower)
                what += f" and projector ({format_si(float(tower.parameter_count()))} parameters)"
        remarks.append(f"{what} neither counted nor run: the language model only")
    return tuple(towers), tuple(remarks)


def _class_defaults(wrapper: str, section: str) -> Mapping[str, Any]:
    """Return what Hugging Face's class has for keys that a wrapper's section leaves out."""
    facts = class_facts()
    kind = facts["sections"].get(wrapper, {}).get(section, "")
    found: Mapping[str, Any] = facts["defaults"].get(kind, {})
    return found


def _stated(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _reader(wrapper: str, keys: Mapping[str, Any]) -> Any:
    """Return what reads a tower; None for one that is not known."""
    kind = str(keys.get("model_type", ""))
    if wrapper == "kimi_k25" or "vt_hidden_size" in keys:
        return _moonvit
    if kind.startswith(("qwen3_vl", "qwen3_5")):
        return _qwen3
    if wrapper == "qwen2_5_vl":
        return _qwen2
    if kind == "llama4_vision_model":
        return _llama4
    if kind == "pixtral" and wrapper == "mistral3":
        return _pixtral
    if kind == "gemma4_vision":
        return _gemma4
    if kind == "siglip_vision_model" and wrapper == "gemma3":
        return _gemma3
    return None


def _size(keys: Mapping[str, Any], key: str) -> int:
    found = keys.get(key)
    if found is None:
        raise KeyError(key)
    check_size(key, found)
    return int(found)


def _plain(hidden: int, heads: int, width: int) -> LayerSpec:
    """A layer of a vision transformer: biases everywhere, layer norms."""
    attention = AttentionSpec(
        *("full", heads, heads, hidden // heads),
        qkv_bias=True,
        output_bias=True,
        causal=False,
    )
    mlp = MlpSpec("dense", width, gated=False, activation="gelu_tanh", bias=True)
    return LayerSpec((attention,), (mlp,), "layer")


def _patches(hidden: int, patch: int, frames: int = 1, bias: bool = True) -> Piece:
    return Piece("patches", "matrix", COLOURS * frames * patch * patch, hidden, bias)


def _table(rows: int, hidden: int) -> Piece:
    return Piece("positions", "table", rows, hidden)


def _merger(hidden: int, merge: int, out: int, name: str = "merger") -> Pieces:
    """Two matrices from a square of patches to the language model."""
    inner = hidden * merge
    return (
        Piece(f"{name}_up", "matrix", inner, inner, True),
        Piece(f"{name}_down", "matrix", inner, out, True),
    )


def _qwen3(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Qwen3-VL, Qwen3.5: Qwen3VLVisionModel, with mergers of inner layers (deepstack)."""
    h = _size(keys, "hidden_size")
    merge = _size(keys, "spatial_merge_size") ** 2
    out = int(keys.get("out_hidden_size") or text)
    layer = _plain(h, _size(keys, "num_heads"), _size(keys, "intermediate_size"))
    inner = keys.get("deepstack_visual_indexes") or []
    frames = _size(keys, "temporal_patch_size")
    extra = [
        _patches(h, _size(keys, "patch_size"), frames),
        _table(_size(keys, "num_position_embeddings"), h),
        vector("merger_norm", 2 * h),
        *_merger(h, merge, out),
    ]
    for index in inner:
        extra += [vector("deepstack_norm", 2 * h * merge), *_merger(h, merge, out, f"deep{index}")]
    return TowerSpec("vision", h, (layer,) * _size(keys, "depth"), extra=tuple(extra))


def _moonvit(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Kimi-K2.5: MoonViT with positions in the plane, and its projector."""
    h = _size(keys, "vt_hidden_size")
    places = _size(keys, "init_pos_emb_height") * _size(keys, "init_pos_emb_width")
    down, across = keys.get("merge_kernel_size") or (2, 2)
    layer = _plain(h, _size(keys, "vt_num_attention_heads"), _size(keys, "vt_intermediate_size"))
    extra = (
        _patches(h, _size(keys, "patch_size")),
        _table(places, h),
        vector("projector_norm", 2 * h),
        *_merger(h, down * across, int(keys.get("text_hidden_size") or text), "projector"),
    )
    layers = (layer,) * _size(keys, "vt_num_hidden_layers")
    return TowerSpec("vision", h, layers, final_norm=True, extra=extra)


def _gemma3(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Gemma 3: SigLIP and one matrix behind a norm."""
    h, patch = _size(keys, "hidden_size"), _size(keys, "patch_size")
    layer = _plain(h, _size(keys, "num_attention_heads"), _size(keys, "intermediate_size"))
    extra = (
        _patches(h, patch),
        _table((_size(keys, "image_size") // patch) ** 2, h),
        vector("projector_norm", h),
        Piece("projector", "matrix", h, text),
        *(_pooling(h, _size(keys, "intermediate_size")) if keys.get("vision_use_head") else ()),
    )
    layers = (layer,) * _size(keys, "num_hidden_layers")
    return TowerSpec("vision", h, layers, final_norm=True, extra=extra)


def _pooling(hidden: int, width: int) -> Pieces:
    """SigLIP's head: attention of a learned probe, a norm and a feed-forward block."""
    return (
        vector("head_probe", hidden),
        Piece("head_attention", "matrix", hidden, 4 * hidden, True),
        vector("head_norm", 2 * hidden),
        Piece("head_up", "matrix", hidden, width, True),
        Piece("head_down", "matrix", width, hidden, True),
    )


def _gemma4(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Gemma 4: four norms, a gated block, positions by row and column."""
    h, heads = _size(keys, "hidden_size"), _size(keys, "num_attention_heads")
    groups = _size(keys, "num_key_value_heads")
    attention = AttentionSpec(
        *("full", heads, groups, _size(keys, "head_dim")), qk_norm=True, causal=False
    )
    mlp = MlpSpec("dense", _size(keys, "intermediate_size"), activation="gelu_tanh")
    layer = LayerSpec((attention,), (mlp,), norms=4)
    extra = (
        _patches(h, _size(keys, "patch_size"), bias=False),
        _table(2 * _size(keys, "position_embedding_size"), h),
        Piece("projector", "matrix", h, text),
    )
    return TowerSpec("vision", h, (layer,) * _size(keys, "num_hidden_layers"), extra=extra)


def _qwen2(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Qwen2.5-VL: gated blocks, RMS norms, a merger behind one."""
    h, heads = _size(keys, "hidden_size"), _size(keys, "num_heads")
    attention = AttentionSpec(
        *("full", heads, heads, h // heads), qkv_bias=True, output_bias=True, causal=False
    )
    mlp = MlpSpec("dense", _size(keys, "intermediate_size"), bias=True)
    out = int(keys.get("out_hidden_size") or text)
    extra = (
        _patches(h, _size(keys, "patch_size"), _size(keys, "temporal_patch_size"), bias=False),
        vector("merger_norm", h),
        *_merger(h, _size(keys, "spatial_merge_size") ** 2, out),
    )
    return TowerSpec(
        "vision", h, (LayerSpec((attention,), (mlp,)),) * _size(keys, "depth"), extra=extra
    )


def _llama4(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Llama 4: norms at both ends, a class token, pixels shuffled ahead of two matrices."""
    h, patch = _size(keys, "hidden_size"), _size(keys, "patch_size")
    layer = _plain(h, _size(keys, "num_attention_heads"), _size(keys, "intermediate_size"))
    shuffled = int(h / float(keys.get("pixel_shuffle_ratio") or 0.5) ** 2)
    inner, out = _size(keys, "projector_input_dim"), _size(keys, "projector_output_dim")
    extra = (
        _patches(h, patch, bias=False),
        _table((_size(keys, "image_size") // patch) ** 2 + 1, h),
        vector("class", h),
        vector("norms", 4 * h),
        Piece("adapter_up", "matrix", shuffled, inner),
        Piece("adapter_down", "matrix", inner, out),
        Piece("projector", "matrix", _size(keys, "vision_output_dim"), text),
    )
    return TowerSpec("vision", h, (layer,) * _size(keys, "num_hidden_layers"), extra=extra)


def _pixtral(keys: Mapping[str, Any], text: int) -> TowerSpec:
    """Mistral Small 3.1: Pixtral's tower without biases, and a projector that merges patches."""
    h, heads = _size(keys, "hidden_size"), _size(keys, "num_attention_heads")
    attention = AttentionSpec(
        *("full", heads, heads, int(keys.get("head_dim") or h // heads)), causal=False
    )
    layer = LayerSpec((attention,), (MlpSpec("dense", _size(keys, "intermediate_size")),))
    extra = (
        _patches(h, _size(keys, "patch_size"), bias=False),
        vector("norms", 2 * h),  # ahead of the layers and of the projector
        Piece("merger", "matrix", 4 * h, h),  # spatial_merge_size 2 of Mistral3Config
        Piece("projector_up", "matrix", h, text),
        Piece("projector_down", "matrix", text, text),
    )
    return TowerSpec("vision", h, (layer,) * _size(keys, "num_hidden_layers"), extra=extra)
