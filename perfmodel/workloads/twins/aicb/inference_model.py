"""The models of AICB's inference workloads: pieces of their layers, bytes and times.

AICB knows three families by a part of the model's name. A model's sizes come from a JSON
file; the sizes of the files that AICB ships are here, for commands that name them without
having them.

Sources: aliyun/aicb 23eec3c4, ``workload_generator/mocked_model/inference/Mocked*.py``,
``scripts/inference_configs/*_default.json`` (sizes), ``get_comm_size`` of
``workload_generator/SimAI_inference_workload_generator.py`` (bytes) and
``extract_inference_averages`` of ``utils/utils.py`` (times).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import LARGEST_FILE
from perfmodel.workloads.twins.aicb.parameters import FP8_FACTOR

DEEPSEEK, QWEN3_MOE, QWEN3_NEXT = "DeepSeek", "Qwen3-Moe", "Qwen3-Next"
FAMILIES = (QWEN3_MOE, QWEN3_NEXT, DEEPSEEK)  # in AICB's order of tests
ACTIVATION_SIZE = 2  # bytes of an element
UNKNOWN_TIME = 1  # ns, where no time is given
NANOSECONDS = 1000  # of a µs, AIOB's unit
LARGEST_SIZE = 2**63 - 1
LARGEST_CONFIG = 1 << 20  # characters of a JSON file

# Substring of an AIOB section to the piece it counts for; the first that fits.
PIECE_OF_SECTION = (
    ("atten_norm", "attention_norm"),
    ("gdn", "attention_gdn"),
    ("atten", "attention_layer"),
    ("mlp", "mlp"),
    ("moe_norm", "moe_norm"),
    ("moe_route", "moe_route"),
    ("moe", "moe_expert"),
)
# Keys of the JSON files, and their least values.
LEAST = {
    "num_layers": 1,
    "num_hidden_layers": 1,
    "hidden_size": 1,
    "moe_router_topk": 1,
    "num_experts_per_tok": 1,
    "full_attention_interval": 1,
    "dense_layer": 0,
    "shared_experts": 0,
}


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """What AICB's inference files say of a model.

    Attributes
    ----------
    name : str
        As in the file's name.
    family : str
        One of `FAMILIES`.
    layers, hidden_size : int
    experts_per_token : int
    dense_layers : int
        First layers with an MLP in place of experts (DeepSeek).
    shared_experts : int
        Experts that every token passes (DeepSeek).
    full_attention_interval : int
        Every such layer has full attention, others a gated delta net (Qwen3-Next).
    frame : str or None
        Of a JSON file that has one; None: the family. It decides on AICB's messages.
    divided_widths : tuple of int
        What tensor parallelism divides (DeepSeek; elsewhere AICB checks none).
    """

    name: str
    family: str
    layers: int
    hidden_size: int
    experts_per_token: int
    dense_layers: int = 0
    shared_experts: int = 0
    full_attention_interval: int = 1
    frame: str | None = None
    divided_widths: tuple[int, ...] = ()

    @property
    def routes_before_experts(self) -> bool:
        """Whether the dispatch is a row that AICB adds to the experts' own."""
        return (self.family if self.frame is None else self.frame) == DEEPSEEK

    @property
    def dispatches_in_fp8(self) -> bool:
        """Whether tokens travel to their experts in FP8."""
        frame = self.family if self.frame is None else self.frame
        return "DeepSeek" in frame or "Qwen3" in frame

    def pieces(self, layer: int) -> list[str]:
        """Return the pieces of a layer, in order; layers count from 0."""
        if self.family == DEEPSEEK:
            if layer < self.dense_layers:
                return ["attention_layer", "dense_mlp"]
            return ["attention_layer", *["shared_experts"] * self.shared_experts, "moe_expert"]
        full = (layer + 1) % self.full_attention_interval == 0
        attention = "attention_layer" if full else "attention_gdn"
        return ["attention_norm", attention, "moe_norm", "moe_route", "moe_expert"]


SHIPPED = {
    "deepseek_default": InferenceModel(
        "DeepSeek-671B",
        DEEPSEEK,
        61,
        7168,
        8,
        dense_layers=3,
        shared_experts=1,
        divided_widths=(128 * 192, 128 * 256, 128 * 128, 2 * 2048, 2048, 129280),
    ),
    "qwen3_moe_default": InferenceModel("Qwen3-Moe-235B", QWEN3_MOE, 94, 4096, 8),
    "qwen3_next_default": InferenceModel(
        "Qwen3-Next-80B", QWEN3_NEXT, 48, 2048, 10, full_attention_interval=4
    ),
}


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Sizes of a layer's collectives [B].

    Attributes
    ----------
    tensor_parallel : int
        All-reduce after attention or an MLP.
    dispatch, combine : int
        All-to-alls before and after the experts.
    """

    tensor_parallel: int
    dispatch: int
    combine: int


def inference_model(arguments: AicbArguments) -> InferenceModel:
    """Return the model that an inference command names.

    Parameters
    ----------
    arguments : AicbArguments
        ``model_name`` tells the family, ``config_file`` the sizes. Without a file, or with the
        name of a shipped one that is not there, the shipped sizes hold.

    Raises
    ------
    StrategyError
        No such family, a shipped file of another family, or too many layers.
    FormatError
        The JSON file cannot be read, or lacks what is needed.
    """
    family = _family(arguments.model_name)
    shipped = next(model for model in SHIPPED.values() if model.family == family)
    if arguments.config_file is not None:
        path = Path(arguments.config_file)
        content = _read_json(path)
        known = SHIPPED.get(path.stem.removesuffix("_aiob"))
        if content is not None:
            return _check_layers(_model_of(content, path, shipped))
        if known is None:
            raise FormatError(f"cannot read {path}: no such file")
        if known.family != family:
            raise StrategyError(
                f"'{arguments.model_name}' is of the family {family}, "
                f"but {path.name} is a model of {known.family}"
            )
    return shipped


def message_sizes(arguments: AicbArguments, model: InferenceModel) -> MessageSizes:
    """Return the sizes of a layer's collectives.

    Tokens are the batch in decoding, and the length of one sequence in a prefill, whatever the
    batch.

    Raises
    ------
    StrategyError
        More bytes than fit a workload file, or a width that tensor parallelism does not divide.
    """
    for width in model.divided_widths:
        if width % arguments.tensor_model_parallel_size:
            raise StrategyError(
                f"a width of {model.name}, {width}, is no multiple of "
                f"--tensor_model_parallel_size={arguments.tensor_model_parallel_size}"
            )
    decode = arguments.phase == "decode"
    tokens = arguments.micro_batch if decode else arguments.seq_length
    activations = ACTIVATION_SIZE * tokens * model.hidden_size
    routed = activations * model.experts_per_token
    if max(routed, pipeline_size(arguments, model)) > LARGEST_SIZE:
        raise StrategyError(
            f"--micro_batch={arguments.micro_batch}, --seq_length={arguments.seq_length}: "
            f"messages of more than {LARGEST_SIZE} bytes"
        )
    combine = routed // arguments.tensor_model_parallel_size
    dispatch = int(combine * FP8_FACTOR) if model.dispatches_in_fp8 else combine
    return MessageSizes(activations, dispatch, combine)


def pipeline_size(arguments: AicbArguments, model: InferenceModel) -> int:
    """Return the size of the activations between pipeline stages [B]; 0 without pipeline."""
    if arguments.pipeline_model_parallel == 1:
        return 0
    tokens = arguments.micro_batch * arguments.seq_length
    return ACTIVATION_SIZE * tokens * model.hidden_size


def inference_times(computation: AiobFile | None, phase: str) -> dict[str, int]:
    """Return the time of each piece that an AIOB file of inference has [ns].

    Parameters
    ----------
    computation : AiobFile or None
    phase : str
        Of the command: prefill or decode.

    Returns
    -------
    dict of str to int
        Sums of the averages, rounded; pieces that take no time are left out, as if unknown.

    Raises
    ------
    StrategyError
        The file is of training, or of the other phase.
    """
    if computation is None:
        return {}
    if computation.inference_term != phase:
        found = computation.inference_term or "training"
        raise StrategyError(f"the computation file is of {found}; one of {phase} is needed")
    sums: dict[str, float] = {}
    for section, time in computation.sections.items():
        for part, piece in PIECE_OF_SECTION:
            if part in section:
                sums[piece] = sums.get(piece, 0.0) + float(time.average) * NANOSECONDS
                break
    if not all(total <= LARGEST_SIZE for total in sums.values()):
        raise StrategyError(f"the computation file has times of more than {LARGEST_SIZE} ns")
    times = {piece: round(total) for piece, total in sums.items()}
    return {piece: time for piece, time in times.items() if time}


def time_of_piece(times: Mapping[str, int], piece: str) -> int:
    """Return the time of a piece [ns]; dense MLPs and shared experts have the time of ``mlp``."""
    key = "mlp" if piece in ("dense_mlp", "shared_experts") else piece
    return times.get(key, UNKNOWN_TIME)


def file_stem(arguments: AicbArguments, model: InferenceModel) -> str:
    """Return the name that AICB gives an inference file, without ending."""
    return (
        f"{model.name}-world_size{arguments.world_size}"
        f"-tp{arguments.tensor_model_parallel_size}-pp{arguments.pipeline_model_parallel}"
        f"-ep{arguments.expert_model_parallel_size}-bs{arguments.micro_batch}"
        f"-seq{arguments.seq_length}-{arguments.phase}"
    )


def _family(name: str | None) -> str:
    """Return the family that a model's name contains."""
    for family in FAMILIES:
        if family in (name or ""):
            return family
    names = [model.name for model in SHIPPED.values()]
    raise StrategyError(f"unknown inference model '{name}'{did_you_mean(name or '', names)}")


def _read_json(path: Path) -> Mapping[str, Any] | None:
    """Read a JSON object; None where there is no such file."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_CONFIG + 1)
        content = json.loads(text.decode("utf-8-sig")) if len(text) <= LARGEST_CONFIG else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: not a JSON object with an inference model's sizes")
    return content


def _model_of(content: Mapping[str, Any], path: Path, shipped: InferenceModel) -> InferenceModel:
    """Return the model of a JSON file; it is of the family of `shipped`."""

    def whole(*keys: str) -> int:
        key = next((key for key in keys if key in content), keys[-1])
        value = content.get(key)
        number = isinstance(value, int) and not isinstance(value, bool)
        if value is None or not number or not LEAST[key] <= value <= LARGEST_SIZE:
            shown = "is missing" if key not in content else f"= {str(value)[:40]}"
            raise FormatError(
                f"{path}: '{key}' {shown}; a whole number >= {LEAST[key]} is needed for "
                f"a model of {shipped.family}"
            )
        return int(value)

    name = content.get("model_name", shipped.name)
    if not isinstance(name, str) or not name or "/" in name:
        raise FormatError(f"{path}: 'model_name' should be a name, as {shipped.name}")
    frame = content.get("frame")
    if frame is not None and not isinstance(frame, str):
        raise FormatError(f"{path}: 'frame' should be a text, as {shipped.family}")
    deepseek = shipped.family == DEEPSEEK
    interval = whole("full_attention_interval") if shipped.family == QWEN3_NEXT else 1
    return InferenceModel(
        name,
        shipped.family,
        whole("num_layers" if deepseek else "num_hidden_layers"),
        whole("hidden_size"),
        # AICB takes the first of both that a file has.
        whole("moe_router_topk", "num_experts_per_tok"),
        whole("dense_layer") if deepseek else 0,
        whole("shared_experts") if deepseek else 0,
        interval,
        frame,
        _divided_widths(content) if deepseek else (),
    )


def _divided_widths(content: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the widths of a DeepSeek file that tensor parallelism divides; none if it lacks any.

    ``MockedDeepSeek.py``: attention's two expansions and its output, the dense MLP, the LM head.
    """
    keys = ("num_attention_heads", "d_q", "d_r", "d_kv", "expert_dim", "vocab_size")
    sizes = [content.get(key) for key in keys]
    if not all(isinstance(size, int) and 0 < size <= LARGEST_SIZE for size in sizes):
        return ()
    heads, query, rotary, value, inner, vocabulary = (int(size) for size in sizes if size)
    mlp = (2 * inner, inner) if content["dense_layer"] else ()
    return (heads * (query + rotary), 2 * heads * value, heads * value, *mlp, vocabulary)


def _check_layers(model: InferenceModel) -> InferenceModel:
    """Refuse files without bound."""
    if model.layers * (5 + model.shared_experts) > LARGEST_FILE:
        raise StrategyError(
            f"{model.layers} layers with {model.shared_experts} shared experts: "
            f"more than {LARGEST_FILE} rows"
        )
    return model
