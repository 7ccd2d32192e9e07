"""AICB's training file without ``--aiob_enable``: unit times, and other communication.

The dialect differs from the one with computation times in more than its times: both
directions all-reduce, also on one device; the experts' parameters are counted with all
others; recomputation doubles a size; every micro-batch ends with ``embedding_norm``.

Source: aicb 23eec3c4, ``workload_generate``, lines 579-838 of
``workload_generator/SimAI_training_workload_generator.py``.
"""

from __future__ import annotations

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_text import NO_COLLECTIVE, AicbWorkload
from perfmodel.workloads.twins.aicb import rows
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.parameters import Layer, Role, layers_of_stage, total_parameters
from perfmodel.workloads.twins.aicb.rows import UNIT, Row, quiet


def workload_without_aiob(arguments: AicbArguments) -> AicbWorkload:
    """Return the workload that AICB writes without computation times.

    Raises
    ------
    StrategyError
        Arguments that AICB fails at, such as DeepSeek's with sequence parallelism.
    """
    layers = layers_of_stage(arguments)
    parameters, experts = total_parameters(layers)
    gather, scatter = rows.ELEMENT * parameters, rows.GRADIENT * parameters
    head: list[Row] = [
        ("grad_norm", (UNIT, "ALLGATHER", gather), quiet(), (UNIT, "REDUCESCATTER", scatter))
    ]
    if not arguments.enable_sequence_parallel:
        head.append(rows.layer_norm_row(parameters))
    head += rows.expert_gradient_rows(arguments, experts)
    # The vocabulary as given: elsewhere it is the padded one.
    embedding_size = rows.ELEMENT * arguments.vocab_size * arguments.hidden_size
    micro_batch: list[Row] = []
    if arguments.micro_batches:  # else AICB looks at no layer, and fails at none
        micro_batch = [row for layer in layers for row in _layer_rows(layer, arguments)]
        micro_batch.append(
            ("embedding_norm", (UNIT, "ALLREDUCE", embedding_size), quiet(), quiet())
        )
    return rows.workload_of_rows(
        arguments, head, micro_batch, micro_batch, rows.last_rows(arguments)
    )


def _layer_rows(layer: Layer, arguments: AicbArguments) -> list[Row]:
    """Return the rows of one layer in a micro-batch."""
    name, size = layer.name, rows.activation_size(arguments)
    twice = arguments.recompute_activations and layer.block == "attention"
    forward = 2 * size if twice else size
    if not arguments.enable_sequence_parallel:
        return [(name, (UNIT, "ALLREDUCE", forward), (UNIT, "ALLREDUCE", size), quiet())]
    if layer.role == Role.EMBEDDING:
        idle = (UNIT, NO_COLLECTIVE, size)
        return [(name, idle, idle, quiet())]
    if layer.role == Role.WHOLE:
        # AICB looks for a time here and has none: AttributeError at lines 59 and 670.
        raise StrategyError(
            "AICB cannot write DeepSeek's attention without computation times: "
            "give --aiob_enable and --comp_filepath, or leave --enable_sequence_parallel out"
        )
    if layer.role == Role.ROW:
        idle = (UNIT, NO_COLLECTIVE, size)
        return [(name, (UNIT, "REDUCESCATTER", forward), idle, quiet())]
    if layer.role == Role.COLUMN:
        return [(name, (UNIT, "ALLGATHER", forward), quiet(), quiet())]
    if layer.role == Role.EXPERTS:
        return rows.expert_rows(arguments, name, UNIT, UNIT, always=True)
    return []  # layer norms
