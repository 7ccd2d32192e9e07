"""Text workloads of ASTRA-sim 1.0 as Chakra traces, equal to those of the official converter.

The rules are those of mlcommons/chakra, ``src/converter/text_converter.py`` (34f95f9): which
nodes a layer gets, their names, parents and numbers. They are not the rules of ASTRA-sim 1.0:

* times, nanoseconds in 1.0, are read as microseconds;
* which dimensions a collective uses is dropped, so both kinds of hybrid parallelism are alike;
* the update time is dropped;
* ``NONE`` becomes an all-reduce of size 0 (on ASTRA-sim 2.x: one byte per device and split),
  except in the DLRM loops.

`perfmodel.workloads.twins.astra_text` runs the same files by the rules of 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfmodel.base.collectives import COLLECTIVE_OF_WORD, TRACED
from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.astra_text import (
    NO_COLLECTIVE,
    AstraTextPhase,
    AstraTextWorkload,
    format_astra_text,
)
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, Ragged, Trace, TraceBuilder, TraceSet

# The sim-stage and mlcommons converters differ in this word only ("1.0.2-chakra.1.0.0").
SCHEMA = "1.0.2-chakra.0.0.4"
ALL_TO_ALL = "ALLTOALL"
NODES_PER_LAYER = 6  # at most, per pass
LARGEST_TRACE = 2_000_000  # nodes of a rank
LARGEST_SET = 200_000_000  # nodes of all ranks
LARGEST_DEVICES = 250_000  # ranks; beyond any run, and held in some hundred MB
MICROSECONDS = 1_000_000  # per second

Parents = Sequence[int | None]


def convert_text(
    workload: AstraTextWorkload, devices: int, passes: int = 1, *, text: str | None = None
) -> TraceSet:
    """Convert a text workload to one trace per device.

    All devices do the same; their nodes differ in numbers only, which run on from device to
    device as in the official converter. Device r's columns are shared with device 0's but for
    identifiers and parents.

    Parameters
    ----------
    workload : AstraTextWorkload
        Of kind ``MICRO``, ``DATA``, ``MODEL``, ``HYBRID_DATA_MODEL``, ``HYBRID_MODEL_DATA``,
        ``HYBRID_DLRM`` or ``HYBRID_DLRM_ENHANCED``.
    devices : int
        Number of devices, >= 1.
    passes : int, optional
        Training steps, >= 1.
    text : str, optional
        What the metadata quote as ``input_file``, the source file's text with line ends
        ``\\n``; by default the text that `format_astra_text` gives.

    Returns
    -------
    TraceSet
        Durations in seconds: the file's numbers as microseconds.

    Raises
    ------
    FormatError
        The converter does not know the workload's kind of parallelism or cannot convert it.
    DataError
        Devices or passes are not positive or too many.
    """
    loop = LOOPS.get(workload.policy)
    if loop is None:
        raise FormatError(
            f"the Chakra converter does not support {workload.policy} (Unsupported parallelism "
            f"type); it converts {', '.join(LOOPS)}"
        )
    _check_counts(workload, devices, passes)
    nodes = _Nodes(workload)
    loop(nodes, workload, passes)
    if text is None:
        text = format_astra_text(workload)
    first = nodes.builder.build({"schema": SCHEMA, "input_file": text})
    return TraceSet(tuple(_of_device(first, device) for device in range(devices)))


def _check_counts(workload: AstraTextWorkload, devices: int, passes: int) -> None:
    """Check that the number of devices and passes is positive and the traces fit in memory."""
    for name, count in (("devices", devices), ("passes", passes)):
        if count < 1:
            raise DataError(f"{name} is {count}; a conversion needs at least 1")
    if devices > LARGEST_DEVICES:
        raise DataError(f"{devices:,} devices; at most {LARGEST_DEVICES:,} are converted")
    nodes = NODES_PER_LAYER * workload.layers * passes
    if nodes > LARGEST_TRACE or nodes * devices > LARGEST_SET:
        raise DataError(
            f"{passes} passes of {workload.layers} layers on {devices} devices are up to "
            f"{nodes} nodes per device; at most {LARGEST_TRACE}, and {LARGEST_SET} on all "
            "devices, are converted"
        )


def _of_device(first: Trace, device: int) -> Trace:
    """Return a device's trace, given that of device 0: numbers run on."""
    if device == 0:
        return first
    shift = device * first.nodes
    parents = Ragged(first.data_parents.offsets, first.data_parents.values + shift)
    return replace(first, identifiers=first.identifiers + shift, data_parents=parents)


class _Nodes:
    """The nodes of one device, added layer by layer."""

    def __init__(self, workload: AstraTextWorkload) -> None:
        self.builder = TraceBuilder()
        self._names = workload.names

    def compute(self, layer: int, phase: AstraTextPhase, name: str, parents: Parents) -> int:
        """Add the computation of a layer's phase; parents that are None are not there."""
        return self.builder.add(
            f"COMP_NODE_{self._names[layer]}_{name}",
            COMPUTE,
            duration=int(phase.compute_time[layer]) / MICROSECONDS,
            data=_present(parents),
        )

    def collective(
        self, layer: int, phase: AstraTextPhase, parents: Parents, infix: str = ""
    ) -> int:
        """Add the collective of a layer's phase."""
        word = phase.collective[layer]
        return self.builder.add(
            f"COMM_COLL_NODE_{self._names[layer]}{infix}_{word}",
            COLLECTIVE,
            # Any other word becomes an all-reduce (get_comm_type).
            collective=TRACED.index(COLLECTIVE_OF_WORD.get(word, "all_reduce")),
            communication_size=int(phase.size[layer]),
            data=_present(parents),
        )


def _present(parents: Parents) -> tuple[int, ...]:
    """Return the parents that exist."""
    return tuple(parent for parent in parents if parent is not None)


def _micro(nodes: _Nodes, workload: AstraTextWorkload, passes: int) -> None:
    """Weight-gradient collectives, each on its own."""
    for _ in range(passes):
        for layer in range(workload.layers):
            nodes.collective(layer, workload.weight_gradient, ())


def _data(nodes: _Nodes, workload: AstraTextWorkload, passes: int) -> None:
    """Weights' gradients are summed beside the backward pass; the next pass needs them."""
    summed: list[int | None] = [None] * workload.layers
    for _ in range(passes):
        last: int | None = None
        for layer in range(workload.layers):
            last = nodes.compute(layer, workload.forward, "FWD", (last, summed[layer]))
        for layer in reversed(range(workload.layers)):
            last = nodes.compute(layer, workload.weight_gradient, "BWD_WG", (last,))
            summed[layer] = nodes.collective(layer, workload.weight_gradient, (last,))
            if layer > 0:
                last = nodes.compute(layer, workload.input_gradient, "BWD_IG", (last,))


def _model(nodes: _Nodes, workload: AstraTextWorkload, passes: int) -> None:
    """Activations and their gradients are exchanged; weights are not."""
    weight: list[int | None] = [None] * workload.layers
    for _ in range(passes):
        exchanged: int | None = None
        for layer in range(workload.layers):
            computed = nodes.compute(layer, workload.forward, "FWD", (exchanged, weight[layer]))
            exchanged = nodes.collective(layer, workload.forward, (computed,))
        parents: Parents = (exchanged,)
        for layer in reversed(range(workload.layers)):
            computed = nodes.compute(layer, workload.input_gradient, "BWD_IG", parents)
            exchanged = None
            if layer > 0:
                exchanged = nodes.collective(layer, workload.input_gradient, (computed,))
            weight[layer] = nodes.compute(layer, workload.weight_gradient, "BWD_WG", (computed,))
            parents = (weight[layer], exchanged)


def _hybrid(nodes: _Nodes, workload: AstraTextWorkload, passes: int) -> None:
    """Activations, their gradients and the weights' gradients are exchanged."""
    # The one difference between the two kinds (convert_hybrid_data_model).
    infix = "_IG_COMM_" if workload.policy == "HYBRID_DATA_MODEL" else ""
    summed: list[int | None] = [None] * workload.layers
    for _ in range(passes):
        exchanged: int | None = None
        for layer in range(workload.layers):
            computed = nodes.compute(layer, workload.forward, "FWD", (summed[layer], exchanged))
            exchanged = nodes.collective(layer, workload.forward, (computed,))
        parents: Parents = (exchanged,)
        for layer in reversed(range(workload.layers)):
            computed = nodes.compute(layer, workload.input_gradient, "BWD_IG", parents)
            exchanged = None
            if layer > 0:
                exchanged = nodes.collective(layer, workload.input_gradient, (computed,), infix)
            weight = nodes.compute(layer, workload.weight_gradient, "BWD_WG", (computed,))
            summed[layer] = nodes.collective(layer, workload.weight_gradient, (weight,))
            parents = (weight, exchanged)


def _dlrm(nodes: _Nodes, workload: AstraTextWorkload, passes: int) -> None:
    """Embeddings (layer 0) are exchanged beside the bottom layers, in both directions."""
    bottom = workload.last_bottom_layer
    embeddings_exchanged = workload.forward.collective[0] == ALL_TO_ALL
    if 0 <= bottom < workload.layers and not (embeddings_exchanged and bottom > 0):
        raise FormatError(
            f"the Chakra converter needs an {ALL_TO_ALL} in the forward phase of layer 0 "
            f"({workload.names[0]}) and a last bottom layer above 0; they are "
            f"{workload.forward.collective[0]} and {bottom}"
        )
    # What the next pass' forward computation of a layer waits for.
    before: list[int | None] = [None] * workload.layers
    for _ in range(passes):
        last: int | None = None
        embeddings: int | None = None
        for layer in range(workload.layers):
            joined = embeddings if layer == bottom else None
            last = nodes.compute(layer, workload.forward, "FWD", (before[layer], last, joined))
            if workload.forward.collective[layer] == ALL_TO_ALL:
                exchanged = nodes.collective(layer, workload.forward, (last,))
                embeddings = exchanged if layer == 0 else embeddings
        gradients: int | None = None
        for layer in reversed(range(workload.layers)):
            joined = gradients if layer == 0 else None
            last = nodes.compute(layer, workload.weight_gradient, "BWD_WG", (last, joined))
            before[layer] = last
            if workload.weight_gradient.collective[layer] != NO_COLLECTIVE:
                before[layer] = nodes.collective(layer, workload.weight_gradient, (last,))
            if layer > 0:
                last = nodes.compute(layer, workload.input_gradient, "BWD_IG", (last,))
            if layer == bottom + 1:
                gradients = nodes.collective(0, workload.input_gradient, (last,))


LOOPS: dict[str, Callable[[_Nodes, AstraTextWorkload, int], None]] = {
    "MICRO": _micro,
    "DATA": _data,
    "MODEL": _model,
    "HYBRID_DATA_MODEL": _hybrid,
    "HYBRID_MODEL_DATA": _hybrid,
    "HYBRID_DLRM": _dlrm,
    "HYBRID_DLRM_ENHANCED": _dlrm,
}
