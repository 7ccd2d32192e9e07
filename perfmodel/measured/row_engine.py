"""The serving engine, its release and the formats that a row of a table of serving runs names."""

from __future__ import annotations

import re
from functools import lru_cache

from perfmodel.base.precisions import FORMATS
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import find_preset, load_model
from perfmodel.serving.layouts import AS_STATED
from perfmodel.software.engine import ENGINES, Engine, load_engine
from perfmodel.software.facts import release_key

# Words of tables -> engines; the first that is found counts.
ENGINE_WORDS = (
    ("sglang", "sglang"),
    ("vllm", "vllm"),
    ("tensorrt", "trtllm"),
    ("trt", "trtllm"),
    ("neuron", "neuronx"),
)
# Dynamo's releases began with 0.1 in 2025 and stand in the place of TensorRT-LLM's in tables of
# its runs; TensorRT-LLM had left 0.x below this one then.
OLDEST_BESIDE_DYNAMO = (0, 18)
# The text of a cell -> the format of weights; the first that is found counts.
WEIGHT_WORDS = (
    ("weights int8", "int8"),
    ("w8a8", "int8"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("fp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("fp8_block", "fp8_block"),
    ("fp8", "fp8"),
    ("int4", "int4"),
    ("w4a16", "int4"),
    ("awq", "int4"),
    ("int8", "int8"),
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "fp16"),
    ("float16", "fp16"),
)
NARROW = ("nvfp4", "mxfp4", "mxfp8", "fp8_block", "fp8")
_KV_WORDS = (("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("auto", "bf16"))
_KV = re.compile(r"(fp8|bf16|fp16)[ _-]?kv", re.IGNORECASE)


def engine_of(row: MeasuredRow) -> tuple[Engine, tuple[str, ...]]:
    """Return the engine of a row in the release that it names, and notes.

    Raises
    ------
    Skip
        The engine is not stated or has no facts.
    """
    text = row.lower("engine")
    if not text:
        raise Skip("engine not stated")
    name = next((name for word, name in ENGINE_WORDS if word in text), "")
    if not any(item.engine == name for item in ENGINES.values()):
        raise Skip("engine without facts", row.text("engine"))
    version = row.lower("version")
    release = release_key(version)
    apart = bool(row.text("prefill_workers")) or "disagg" in row.lower("mode")
    dynamo = "dynamo" in text or (apart and name == "trtllm" and release < OLDEST_BESIDE_DYNAMO)
    notes: tuple[str, ...] = ()
    if dynamo and name == "trtllm" and release < OLDEST_BESIDE_DYNAMO:
        notes = (f"'{version}' is Dynamo's release: the engine's is taken by date",)
        version = ""
    month = "" if version and release else row.text("measured")[:7]
    return _loaded(name, version if release else "", month), notes


@lru_cache(maxsize=64)
def _loaded(name: str, version: str, month: str) -> Engine:
    """Return a release; where only the month of a run is known, the newest that was out."""
    if month:
        out = [it for it in ENGINES.values() if it.engine == name and it.released <= month]
        if out:
            return max(out, key=lambda item: item.released)
    return load_engine(name, version)


def formats_of(
    row: MeasuredRow, model: ModelSpec, engine: Engine, four_bits: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the formats of weights and cache, and what was assumed.

    Weights are as published where nothing else is stated, and so are products; fp8 means the
    maker's own checkpoint in fp8 where there is one (Qwen's is in blocks). Where a row does
    not state the format of the cache: checkpoints that ModelOpt made state fp8; the makers'
    own in eight bits or fewer state nothing, and runs ask for fp8 with TensorRT-LLM and on
    devices that multiply in four bits (recipes of InferenceX).

    Parameters
    ----------
    row : MeasuredRow
    model : ModelSpec
    engine : Engine
    four_bits : bool
        Whether the device multiplies in four bits, as those of 2024 and later do.

    Raises
    ------
    Skip
        A format that is not modelled.
    """
    text = " ".join((row.lower("precision"), row.lower("quantization"))).strip()
    weights = _format_in(text)
    if text and not weights:
        raise Skip("unknown precision", row.text("precision"))
    if not text:
        found = _format_in(row.lower("model"))
        weights = found if found in NARROW or found in ("int8", "int4") else AS_STATED
    published = () if model.quantization is None else model.quantization.places
    if weights in NARROW and any(
        place.format.bits < FORMATS[weights].bytes * 8 - 1 for place in published
    ):
        weights = AS_STATED  # products may be wider than the weights, which nobody widens
    if weights == "fp8" and not published:
        weights = _makers_fp8(model.name)
    formats = {"weight_precision": weights}
    if "matmult-bf16" in text:
        formats["activation_precision"] = "bf16"
    stated = row.lower("kv_precision") or "".join(_KV.findall(f"{text} {row.lower('notes')}")[:1])
    if stated:
        kept = next((name for word, name in _KV_WORDS if word in stated), "")
        if not kept:
            raise Skip("unknown precision", f"kv_precision {row.text('kv_precision')}")
        return {**formats, "kv_precision": kept}, ()
    own = {name for place in published for name in (place.format.name, place.format.products)}
    if weights == AS_STATED or weights in own:
        fp8 = bool(own & set(NARROW)) and _asks_for_fp8(engine, four_bits)
    else:
        fp8 = weights in NARROW
    kept = "fp8" if fp8 else "fp16" if weights == "fp16" else "bf16"
    return {**formats, "kv_precision": kept}, (f"kv_precision={kept}",) if fp8 else ()


@lru_cache(maxsize=64)
def _makers_fp8(name: str) -> str:
    """Return the format of the fp8 checkpoint that a model's maker publishes beside the other."""
    if find_preset(name) is None:
        return "fp8"
    stated = load_model(f"{name}-fp8").quantization
    return "fp8" if stated is None else stated.places[0].format.products


def _format_in(text: str) -> str:
    return next((name for word, name in WEIGHT_WORDS if word in text), "")


def _asks_for_fp8(engine: Engine, four_bits: bool) -> bool:
    return engine.engine == "trtllm" or four_bits
