"""MaxText's configuration (YAML), written and read.

Keys, defaults and rules are those of ``src/maxtext/configs/base.yml`` (AI-Hypercomputer/maxtext,
000b810b of 2026), on which a file rests by its ``base_config``. Every axis of the mesh has a
degree within a slice (``ici_``: a TPU slice, an NVLink domain) and one across slices (``dcn_``).
``data`` replicates parameters (with ``shard_optimizer_over_data`` ZeRO 1), ``fsdp`` shards them
(ZeRO 3), and so do ``context`` and ``expert``, which also are batch axes; ``tensor_sequence`` is
tensor parallelism that shards the sequence between products. The pipeline runs all micro-batches
forward and then, by differentiation, backward (GPipe); with repeats its stages hold several chunks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.launch.describe import Launch, beyond_common, has_experts, known_as
from perfmodel.launch.reading import finished
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.table import Spelling, load_program
from perfmodel.launch.text import parse_yaml
from perfmodel.model.build import dense_model, moe_model
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import FRAMEWORKS
from perfmodel.software.modules import OFFLOADED_POLICIES, SAVING_POLICIES
from perfmodel.training.memory import INPUT, waiting_share

PROGRAM = load_program("maxtext").with_spellings(
    "recompute",
    *(
        Spelling("selective", {"remat_policy": name}, software={"selective_recompute": words})
        for name, words in SAVING_POLICIES.items()
    ),
)
TENSORS, FUSED = PROGRAM.own["tensors"], PROGRAM.own["fused"]
EXPERT_NUMBERS, MODELS = PROGRAM.own["expert_numbers"], PROGRAM.own["models"]

_BATCH = "per_device_batch_size"
_STEPS = "gradient_accumulation_steps"
_MICRO = "num_pipeline_microbatches"
_REPEATS = "num_pipeline_repeats"
_LAYERS = "num_layers_per_pipeline_stage"
_OPTIMIZER = "shard_optimizer_over_data"
_BY_CORES = ("v2", "v3", "v4", "v5p")  # topologies named by cores, two of a chip
# Axes of the mesh, innermost first.
TYPED_AXES = {
    "tensor_parallel": "tensor_sequence",
    "context_parallel": "context",
    "expert_parallel": "expert",
    "pipeline_parallel": "pipeline",
}
"""Field of a strategy -> axis of the mesh that a typed one is put on."""
AXES = ("tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")


def _fsdp(launch: Launch) -> int:
    """Return the fsdp degree; 0 where there is none that fits."""
    if launch["zero_stage"] != 3:
        return 1
    shard = launch["shard_group"] or launch.replicas
    others = launch["context_parallel"] * launch["expert_parallel"]
    return int(shard // others) if shard % others == 0 else 0


def degrees(launch: Launch) -> dict[str, int]:
    """Return the degree of every axis of the mesh."""
    fsdp = _fsdp(launch)
    return {
        "tensor_sequence": launch["tensor_parallel"],
        "context": launch["context_parallel"],
        "expert": launch["expert_parallel"],
        "fsdp": fsdp,
        "data": launch["data_parallel"] // (fsdp * launch["expert_parallel"]),
        "pipeline": launch["pipeline_parallel"],
    }


def keys_of(launch: Launch) -> Keys:
    """Return all keys that say what a launch is."""
    keys: Keys = {"base_config": "base.yml", **_model_keys(launch.model)}
    keys["max_target_length"] = launch["sequence_length"]
    pipeline, virtual = launch["pipeline_parallel"], launch["virtual_pipeline"]
    if pipeline > 1:
        keys[_BATCH] = _fraction(launch["global_batch_size"], launch.devices)
        keys[_MICRO] = launch.micro_batches
        keys[_REPEATS] = virtual
        if launch.model is not None:
            keys[_LAYERS] = launch.model.num_layers // (pipeline * virtual)
    else:
        ranks = launch["tensor_parallel"] * launch["context_parallel"]
        keys[_BATCH] = _fraction(launch["micro_batch_size"], ranks)
        keys[_STEPS] = launch.micro_batches
    left = launch.domain or launch.devices
    for axis, degree in degrees(launch).items():
        inside = math.gcd(degree, left)
        left //= inside
        keys[f"ici_{axis}_parallelism"] = inside
        keys[f"dcn_{axis}_parallelism"] = degree // inside
    keys |= PROGRAM.write(launch) | PROGRAM.write_software(launch)
    return keys | _expert_numbers(launch)


def _expert_numbers(launch: Launch) -> Keys:
    """Return the numbers of experts that are not the preset's."""
    own = FRAMEWORKS[PROGRAM.preset]
    return {
        key: getattr(launch.framework, fact)
        for key, fact in EXPERT_NUMBERS.items()
        if launch.experts and getattr(launch.framework, fact) != getattr(own, fact)
    }


def _fraction(sequences: int, devices: int) -> int | float:
    return sequences // devices if sequences % devices == 0 else sequences / devices


def _spelled(model: ModelSpec) -> bool:
    """Tell whether keys of base.yml describe a model: layers alike, as in Llama or Mixtral."""
    if beyond_common(model):
        return False
    layer = model.layers[0]
    attention, mlp = layer.attention, layer.mlp
    return (
        len(model.layer_kinds()[0]) == 1
        and attention.kind == "full"
        and not (attention.qkv_bias or attention.qk_norm or attention.sinks)
        and (mlp.gated, mlp.activation, mlp.bias) == (True, "silu", False)
        and not (mlp.shared_intermediate_size or mlp.router_bias)
        and (layer.norm, layer.norms, layer.parallel_block) == ("rms", 2, False)
        and model.position_embedding == "rope"
        and not model.mtp_layers
    )


def _model_keys(model: ModelSpec | None) -> Keys:
    name = known_as(model, MODELS)
    if name:
        assert model is not None
        count = len(model.mtp_layers)
        modules = {"mtp_num_layers": count} if count else {}
        return {"model_name": name} | modules
    if model is None or not _spelled(model):
        return {}
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    routed = mlp.kind == "moe"
    keys: Keys = {
        "model_name": "default",
        "decoder_block": "mixtral" if routed else "llama2",
        "base_emb_dim": model.hidden_size,
        "base_num_decoder_layers": model.num_layers,
        "base_num_query_heads": attention.heads,
        "base_num_kv_heads": attention.key_value_heads,
        "head_dim": attention.head_dim,
        "base_mlp_dim": mlp.expert_intermediate_size if routed else mlp.intermediate_size,
        "mlp_activations": ["silu", "linear"],
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
    }
    if routed:
        keys |= {
            "base_moe_mlp_dim": mlp.expert_intermediate_size,
            "num_experts": mlp.experts,
            "num_experts_per_tok": mlp.experts_per_token,
        }
    return keys


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    found = []
    if launch.model is not None and not _model_keys(launch.model):
        found.append(f"MaxText has no model_name for {launch.model.name}: it is yours to add")
    if launch["virtual_pipeline"] > 1:
        found.append(
            "MaxText's repeated pipeline keeps the inputs of all micro-batches; projected: an "
            "interleaved 1F1B"
        )
    return found


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a YAML file, or words such as ``ici_fsdp_parallelism=8``, say.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    settings = parse_yaml(text, path)
    settings.typed = typed
    return launch_of(settings)


def launch_of(settings: Settings, devices: int = 0) -> Launch:
    """Return what MaxText's keys say; `devices`: 0 where unknown, or typed."""
    devices = settings.typed.get("devices", devices)
    _old_names(settings)
    words, offloaded = _read_policy(settings)
    skipped = ("zero_stage", "pipeline_schedule")
    strategy, facts = PROGRAM.read(settings, skipped)
    if words:
        facts["selective_recompute"] = " ".join(words)
        strategy["recompute"] = "selective"
    model = _read_model(settings)
    routed = model is None or has_experts(model)
    if routed:
        facts |= _read_experts(settings)
    found, domain = _mesh(settings, settings.typed.get("devices") or _topology(settings) or devices)
    tensor_parallel = max(found["tensor_sequence"], 1) * max(found["tensor"], 1)
    strategy |= {
        "tensor_parallel": tensor_parallel,
        "sequence_parallel": tensor_parallel > 1,
        "context_parallel": max(found["context"], 1),
        "pipeline_parallel": max(found["pipeline"], 1),
        "expert_parallel": max(found["expert"], 1),
        "expert_tensor_parallel": tensor_parallel if has_experts(model) else 1,
    }
    sharded = found["fsdp"] != 1
    strategy["zero_stage"] = 3 if sharded else int(settings.flag(_OPTIMIZER))
    if found["context"] * found["expert"] > 1:
        strategy["zero_stage"] = 3
    total = 0
    if all(degree > 0 for degree in found.values()):
        replicas = found["data"] * found["fsdp"] * found["expert"]
        strategy["data_parallel"] = replicas
        total = replicas * tensor_parallel * found["context"] * found["pipeline"]
        if strategy["zero_stage"] == 3 and found["data"] > 1:
            strategy["shard_group"] = found["fsdp"] * found["expert"] * found["context"]
    else:
        settings.remark(
            "an axis of the mesh takes what is left of the devices, and the file does not say how "
            "many there are"
        )
    _read_batches(settings, strategy, total)
    _read_stages(settings, strategy, model)
    if offloaded and model is None:
        settings.remark("the model is not known: all that is kept is taken to wait in the host")
    if offloaded:
        framework = FRAMEWORKS[PROGRAM.preset]
        strategy["offload_activations"] = (
            1.0 if model is None else waiting_share(model, framework, words, offloaded)
        )
    return finished(
        settings,
        strategy,
        facts,
        model,
        PROGRAM if routed else replace(PROGRAM, software=()),
        devices=total,
        domain=domain if total else 0,
    )


def _read_policy(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the outputs that a policy saves of its own, and what of them the host holds.

    The policy is left as one that CHOICES have.
    """
    policy = settings.word("remat_policy", "full")
    if policy == "minimal_flash":  # until 2025
        settings.entries["remat_policy"] = settings.entries["remat_policy"]._replace(
            value="minimal_with_context"
        )
    if policy not in (*OFFLOADED_POLICIES, "custom"):
        return [], []
    settings.entries["remat_policy"] = settings.entries["remat_policy"]._replace(value="full")
    if policy != "custom":
        words = OFFLOADED_POLICIES[policy].split()
        return words, words
    places = {word: _place(settings, word) for word in TENSORS}
    saved = [word for word, place in places.items() if place != "remat"]
    offloaded = [word for word, place in places.items() if place == "offload"]
    if settings.word(INPUT, "device") == "offload":
        offloaded.append(INPUT)
    return saved, offloaded


def _place(settings: Settings, word: str) -> str:
    """Return where the tensors of an output are kept: remat, device or offload.

    Raises
    ------
    FormatError
        It is none of them.
    """
    keys = [*TENSORS[word], *([FUSED[word]] if word in FUSED else [])]
    found = [settings.word(key, "remat") for key in keys]
    for key, place in zip(keys, found, strict=True):
        if place not in ("remat", "device", "offload"):
            raise settings.wrong(key, "one of remat, device, offload")
    if word in FUSED and found[-1] != "remat":
        return found[-1]
    apart = found[: len(TENSORS[word])]
    if len(set(apart)) > 1:
        settings.remark(f"{', '.join(TENSORS[word])}: projected alike, as {apart[0]}")
    return apart[0]


def _read_experts(settings: Settings) -> Keys:
    """Read the numbers of experts; a capacity counts in products with masks alone (moe.py)."""
    settings.rename("tile_batch_seq", "wi_tile_fwd_batch_seq")  # up to 2025
    sparse = settings.silent("sparse_matmul") or settings.flag("sparse_matmul")
    facts: Keys = {}
    for key, fact in EXPERT_NUMBERS.items():
        if (sparse and key == "capacity_factor") or key not in settings.entries:
            continue
        if not re.fullmatch(r"-.*|0(\.0*)?", str(settings.stated(key))):
            facts[fact] = settings.number(key, 0.0)
    return facts


def _old_names(settings: Settings) -> None:
    """Put today's names in place of those up to 2023."""
    if "base_num_heads" in settings.entries:
        for name in ("base_num_query_heads", "base_num_kv_heads"):
            settings.entries.setdefault(name, settings.entries["base_num_heads"])
        settings.read.add("base_num_heads")
    settings.rename("scale", "global_parameter_scale")


def _topology(settings: Settings) -> int:
    """Return the chips of ``compile_topology``, such as v5e-256, on all its slices; 0 without."""
    word = settings.word("compile_topology", "")
    found = re.fullmatch(r"(v\d+[a-z]*)-(\d{1,6})", word)
    if not found:
        return 0
    count = int(found[2]) * settings.whole("compile_topology_num_slices", 1)
    return count // 2 if found[1] in _BY_CORES else count


def _mesh(settings: Settings, devices: int) -> tuple[dict[str, int], int]:
    """Return the degree of every axis, 0 where it cannot be known, and the devices of a slice.

    Raises
    ------
    FormatError
        Two axes take what is left, or nothing is left for one.
    """
    axes = (*AXES, "tensor")
    _put_axes(settings)
    names = {net: [f"{net}_{axis}_parallelism" for axis in axes] for net in ("ici", "dcn")}
    stated = {net: [_one(settings, key) for key in keys] for net, keys in names.items()}
    for net, keys in names.items():
        left = [key for key, degree in zip(keys, stated[net], strict=True) if degree == 0]
        if len(left) > 1:
            raise settings.contradiction("only one axis can take what is left", *left)
    if devices and settings.asked_of((*TYPED_AXES, "devices")):
        _leave_open(stated, axes, devices)
    if devices:
        product = math.prod(degree for each in stated.values() for degree in each if degree)
        if devices % product:
            keys = [key for key in (*names["ici"], *names["dcn"]) if settings.stated(key)]
            raise settings.contradiction(
                f"{devices} devices: should be a multiple of the degrees' product {product}", *keys
            )
        rest = devices // product
        # What is left goes within a slice where an axis there takes it: then there is one slice.
        for net in ("ici", "dcn"):
            if 0 in stated[net]:
                stated[net][stated[net].index(0)] = rest
                rest = 1
    pairs = zip(axes, stated["ici"], stated["dcn"], strict=True)
    return {axis: inner * outer for axis, inner, outer in pairs}, math.prod(stated["ici"])


def _put_axes(settings: Settings) -> None:
    """Put typed degrees in place of those of the axes."""
    for field, axis in TYPED_AXES.items():
        if field in settings.typed:
            others = [key for key in _axis_keys(axis) if key in settings.entries]
            settings.put({f"ici_{axis}_parallelism": settings.typed[field]}, others)
            if field == "tensor_parallel":
                settings.put({}, _axis_keys("tensor"))


def _leave_open(stated: dict[str, list[int]], axes: Sequence[str], devices: int) -> None:
    """Leave to typed devices what is sharded over them, else what is replicated."""
    shards, copies = axes.index("fsdp"), axes.index("data")
    if stated["ici"][shards] * stated["dcn"][shards] == 1:
        shards, copies = copies, shards
    for place, open_degree in ((shards, 0), (copies, 1)):
        degrees = [degree for each in stated.values() for degree in each]
        known = math.prod(degree for degree in degrees if degree)
        if devices % known == 0 and (0 in degrees or known == devices):
            return
        stated["ici"][place], stated["dcn"][place] = open_degree, 1


def _axis_keys(axis: str) -> list[str]:
    return [f"{net}_{axis}_parallelism" for net in ("ici", "dcn")]


def _one(settings: Settings, key: str) -> int:
    """Return one degree of an axis; 0 for what is left of the devices."""
    default = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}.get(key, 1)
    degree = settings.whole(key, default, -1)
    if degree == 0:
        raise settings.wrong(key, "a degree, or -1 for what is left")
    return max(degree, 0)


def _read_batches(settings: Settings, strategy: Keys, devices: int) -> None:
    """Read micro- and global batch from the sequences of a device."""
    typed = settings.typed
    if {"micro_batch_size", "global_batch_size"} <= set(typed):
        return
    each = settings.number(_BATCH, 12.0)
    steps = settings.whole(_STEPS, 1)
    if strategy["pipeline_parallel"] == 1:
        micro = each * strategy["tensor_parallel"] * strategy["context_parallel"]
        strategy["micro_batch_size"] = _sequences(settings, micro)
        if devices:
            total = strategy["micro_batch_size"] * strategy["data_parallel"] * steps
            strategy["global_batch_size"] = total
        return
    stages = strategy["pipeline_parallel"]
    stated = settings.whole(_MICRO, -1, -1)
    count = stages if stated < 1 else stated
    if not devices:
        return
    total = _sequences(settings, each * devices)
    if total % (count * strategy["data_parallel"]):
        raise settings.wrong(
            _MICRO, f"a divisor of the {total // strategy['data_parallel']} sequences of a replica"
        )
    strategy["global_batch_size"] = total * steps
    strategy["micro_batch_size"] = total // (count * strategy["data_parallel"])
    if steps > 1:
        settings.remark(f"{_STEPS} {steps}: projected as one pass of the pipeline")


def _sequences(settings: Settings, number: float) -> int:
    found = round(number)
    if found < 1 or abs(found - number) > 1e-6 * found:
        raise settings.wrong(_BATCH, "a whole number of sequences on a replica, not parts of one")
    return found


def _read_stages(settings: Settings, strategy: Keys, model: ModelSpec | None) -> None:
    stages = strategy["pipeline_parallel"]
    repeats = settings.whole(_REPEATS, -1, -1)
    per_stage = settings.whole(_LAYERS, 1)
    if stages == 1:
        return
    if repeats < 1:
        if model is None or model.num_layers % (stages * per_stage):
            raise FormatError(
                f"{settings.path}: {_REPEATS} is needed, or {_LAYERS} that divides the layers of "
                "a stage of a known model"
            )
        repeats = model.num_layers // (stages * per_stage)
    strategy["virtual_pipeline"] = repeats
    strategy["pipeline_schedule"] = "interleaved" if repeats > 1 else "gpipe"


def _read_model(settings: Settings) -> ModelSpec | None:
    name = settings.word("model_name", "default")
    if name != "default":
        preset = find_preset(MODELS.get(name, name))
        if preset is None:
            settings.remark(f"model_name '{name}' is not known here; --model names one")
        if preset is None:
            return None
        model = load_model(preset, mtp="stated")
        modules = settings.whole("mtp_num_layers", 0, 0)
        return replace(model, mtp_layers=model.layers[-1:] * modules)
    if "base_emb_dim" not in settings:
        return None
    shared: dict[str, Any] = {
        "layers": settings.whole("base_num_decoder_layers", 16),
        "hidden_size": settings.whole("base_emb_dim"),
        "heads": settings.whole("base_num_query_heads", 16),
        "key_value_heads": settings.whole("base_num_kv_heads", 16),
        "head_dim": settings.whole("head_dim", 128),
        "vocab_size": settings.whole("vocab_size", 32_000),
    }
    tied = settings.flag("logits_via_embedding")
    width = settings.whole("base_mlp_dim", 7168)
    experts = settings.whole("num_experts", 1)
    moe_width = settings.whole("base_moe_mlp_dim", -1, -1)
    per_token = settings.whole("num_experts_per_tok", 1)
    if experts == 1:
        return dense_model("maxtext", intermediate_size=width, tied_embeddings=tied, **shared)
    return moe_model(
        "maxtext",
        experts=experts,
        experts_per_token=per_token,
        expert_intermediate_size=moe_width if moe_width > 0 else width,
        tied_embeddings=tied,
        **shared,
    )
