"""AICB's inference workload for Vidur: time and bytes of every layer's parts, byte for byte.

A layer has an attention part and an MLP or MoE part; norms, the router and shared experts
count for the part that they precede. A MoE part's bytes are dispatch and combine together.

Source: aliyun/aicb 23eec3c4, ``workload_generator/Vidur_workload_generator.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.workloads.formats.aicb_tables import VidurPart, format_vidur_csv
from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.inference_model import (
    InferenceModel,
    MessageSizes,
    file_stem,
    inference_model,
    inference_times,
    message_sizes,
    time_of_piece,
)


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


def file_name(arguments: AicbArguments) -> str:
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
