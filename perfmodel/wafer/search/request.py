"""The mappings of a whole request that take the least time: of its prompt, and of its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.project import project_wafer
from perfmodel.wafer.request import WaferRequest, project_request
from perfmodel.wafer.search.mapping import FoundMapping, search_mapping

FOR_TOKENS = ("regions", "collective", "product", "cache_layout", "batch")


class FoundRequest(NamedTuple):
    """A request on the best mapping of either phase."""

    request: WaferRequest
    prefill: FoundMapping
    decode: FoundMapping


def search_request(
    model: ModelSpec | str,
    hardware: MeshHardware | str,
    *,
    input_length: int,
    output_length: int,
    head: bool = True,
    precision: str = "",
    cache_precision: str = "",
    **narrowed: Any,
) -> FoundRequest:
    """Find the mapping of a prompt and that of its answer, each the fastest that fits.

    Parameters
    ----------
    model, hardware, input_length, output_length
        As of `perfmodel.wafer.request.project_request`.
    head, precision, cache_precision
        As of `perfmodel.wafer.project.project_wafer`.
    narrowed
        Of `perfmodel.wafer.search.mapping.search_mapping`, for both phases: ``batch``, ``shape``,
        ``grid``, ``collective``, ``product``, ``cache_layout``, ``most_regions``.

    Returns
    -------
    FoundRequest
        The answer's mapping is the fastest with the context of its last token, which has to fit.

    Raises
    ------
    StrategyError, HardwareError, ModelError
        As both.
    """
    same: dict[str, Any] = {
        "head": head,
        "precision": precision,
        "cache_precision": cache_precision,
    }
    decode = search_mapping(
        model,
        hardware,
        phase="decode",
        context=input_length + output_length,
        **{name: value for name, value in narrowed.items() if name != "product"},
        **same,
    )
    prefill = search_mapping(
        model, hardware, phase="prefill", context=input_length, **narrowed, **same
    )
    axes = decode.axes()
    whole = project_request(
        model,
        hardware,
        input_length=input_length,
        output_length=output_length,
        prefill_grid=decode.grid,
        decode_grid=decode.grid,
        **{name: axes[name] for name in FOR_TOKENS},
        **same,
    )
    prompt = project_wafer(model, hardware, prefill.as_grid(), phase="prefill", **same)
    spent = prefill.latency + output_length * whole.time_per_output_token
    request = replace(
        whole,
        time_to_first_token=prefill.latency,
        request_time=spent,
        tokens_per_second=output_length / spent,
        prefill=prompt,
        fits=bool(prompt["fits"].values.all() and whole.decode["fits"].values.all()),
    )
    return FoundRequest(request, prefill, decode)
