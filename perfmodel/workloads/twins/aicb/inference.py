"""AICB's inference workloads, for SimAI and for Vidur.

AICB's inference workload for SimAI: one forward pass, byte for byte.

What AICB's files show and an inference does not do, kept: a prefill counts one sequence,
whatever the batch; experts exchange messages with one rank too; DeepSeek's router takes no
time; a pipeline changes the header only; there is no embedding, LM head or KV cache.

Source: aliyun/aicb 23eec3c4, ``workload_generator/SimAI_inference_workload_generator.py``.

AICB's inference workload for Vidur: time and bytes of every layer's parts, byte for byte.

A layer has an attention part and an MLP or MoE part; norms, the router and shared experts
count for the part that they precede. A MoE part's bytes are dispatch and combine together.

Source: aliyun/aicb 23eec3c4, ``workload_generator/Vidur_workload_generator.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.workloads.formats.aicb_tables import VidurPart, format_vidur_csv
from perfmodel.workloads.formats.aicb_text import (
    NO_COLLECTIVE,
    TRANSFORMER,
    AicbHeader,
    AicbWorkload,
    aicb_from_columns,
    format_aicb_text,
)
from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.inference_model import (
    UNKNOWN_TIME,
    InferenceModel,
    MessageSizes,
    file_stem,
    inference_model,
    inference_times,
    message_sizes,
    pipeline_size,
    time_of_piece,
)

PROCESS_TIME = 100
DEPENDENCY = -1  # ASTRA-sim's; none

Row = tuple[str | int, ...]


def inference_text(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Write the workload that AICB's inference generator writes.

    Parameters
    ----------
    arguments : AicbArguments
        Of an inference generator.
    computation : AiobFile, optional
        Times of the phase; without them every piece takes 1 ns.

    Returns
    -------
    str
        Text of the file.

    Raises
    ------
    StrategyError
        Unknown model, computation times of another phase, or sizes that fit no file.
    FormatError
        The model's JSON file cannot be read, or lacks what is needed.
    """
    return format_aicb_text(inference_workload(arguments, computation))


def inference_workload(
    arguments: AicbArguments, computation: AiobFile | None = None
) -> AicbWorkload:
    """Return the workload of `inference_text`; arguments and errors are the same."""
    model = inference_model(arguments)
    sizes = message_sizes(arguments, model)
    times = inference_times(computation, arguments.phase)
    row_of = {
        piece: _rows(piece, time_of_piece(times, piece), arguments, model, sizes)
        for layer in _distinct_layers(model)
        for piece in model.pieces(layer)
    }
    rows = [
        row for layer in range(model.layers) for piece in model.pieces(layer)
        for row in row_of[piece]
    ]  # fmt: skip
    return aicb_from_columns(_header(arguments, model), list(zip(*rows, strict=True)))


def inference_file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file."""
    return file_stem(arguments, inference_model(arguments)) + ".txt"


def _distinct_layers(model: InferenceModel) -> list[int]:
    """Return layers that have all pieces of the model among them."""
    kinds = {tuple(model.pieces(layer)): layer for layer in range(model.layers)}
    return list(kinds.values())


def _header(arguments: AicbArguments, model: InferenceModel) -> AicbHeader:
    """Return the first line; ``mode: 1`` says that it is of inference."""
    return AicbHeader(
        TRANSFORMER,
        {
            "model_parallel_NPU_group": arguments.tensor_model_parallel_size,
            "ep": arguments.expert_model_parallel_size,
            "pp": arguments.pipeline_model_parallel,
            "all_gpus": arguments.world_size,
            "mode": 1,
            "vpp": 1,
            "ga": 1,
            "checkpoints": 0,
            "checkpoint_initiates": 0,
            "pp_comm": pipeline_size(arguments, model),
        },
    )


def _rows(
    piece: str, time: int, arguments: AicbArguments, model: InferenceModel, sizes: MessageSizes
) -> list[Row]:
    """Return a piece's rows."""
    if piece == "moe_route":
        return [_expert_row(piece, time, sizes.dispatch)]
    if piece == "moe_expert":
        expert = _expert_row(piece, time, sizes.combine)
        if not model.routes_before_experts:
            return [expert]
        return [_expert_row("moe_route", UNKNOWN_TIME, sizes.dispatch), expert]
    alone = "norm" in piece or piece == "shared_experts"
    if alone or arguments.tensor_model_parallel_size == 1:
        return [_row(piece, time, NO_COLLECTIVE, 0, backward=0)]
    return [_row(piece, time, "ALLREDUCE", sizes.tensor_parallel, backward=0)]


def _expert_row(name: str, time: int, size: int) -> Row:
    """Return a row with an all-to-all; AICB gives its backward phases 1 ns."""
    return _row(name, time, "ALLTOALL_EP", size, backward=1)


def _row(name: str, time: int, collective: str, size: int, backward: int) -> Row:
    """Return a row's 12 columns."""
    idle = (backward, NO_COLLECTIVE, 0)
    return (name, DEPENDENCY, time, collective, size, *idle, *idle, PROCESS_TIME)


def vidur_csv(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Write the workload that AICB's generator for Vidur writes.

    Parameters
    ----------
    arguments : AicbArguments
        Of the Vidur generator.
    computation : AiobFile, optional
        Times of the phase; without them every piece takes 1 ns.

    Returns
    -------
    str
        Text of the file, columns separated by tabs.

    Raises
    ------
    StrategyError
        Unknown model, computation times of another phase, or sizes that fit no file.
    FormatError
        The model's JSON file cannot be read, or lacks what is needed.
    """
    return format_vidur_csv(vidur_parts(arguments, computation))


def vidur_parts(
    arguments: AicbArguments, computation: AiobFile | None = None
) -> list[VidurPart]:  # fmt: skip
    """Return the rows of `vidur_csv`; arguments and errors are the same."""
    model = inference_model(arguments)
    sizes = message_sizes(arguments, model)
    times = inference_times(computation, arguments.phase)
    divided = arguments.tensor_model_parallel_size > 1
    return [
        part
        for layer in range(model.layers)
        for part in _parts_of_layer(layer, model, times, sizes, divided)
    ]


def vidur_file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file."""
    return f"vidur-{file_stem(arguments, inference_model(arguments))}.csv"


def _parts_of_layer(
    layer: int,
    model: InferenceModel,
    times: Mapping[str, int],
    sizes: MessageSizes,
    divided: bool,
) -> list[VidurPart]:
    """Return the parts of a layer, in the order of their first pieces."""
    totals: dict[str, int] = {}
    for piece in model.pieces(layer):
        part = _part_of(piece)
        totals[part] = totals.get(part, 0) + time_of_piece(times, piece)
    all_reduce = sizes.tensor_parallel if divided else 0
    experts = sizes.dispatch + sizes.combine
    return [
        VidurPart(layer, part, time, experts if part == "moe" else all_reduce)
        for part, time in totals.items()
    ]


def _part_of(piece: str) -> str:
    """Return the part that a piece counts for; shared experts are the MoE's."""
    if "attention" in piece:
        return "attention"
    return "mlp" if "mlp" in piece else "moe"
