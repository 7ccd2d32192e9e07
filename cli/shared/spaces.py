"""Spaces of strategies on the command line: the options of sweeps and searches, what they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import load_rows, load_several_software, of_hardware
from perfmodel.cli.shared.models import models_option, say_remarks
from perfmodel.cli.shared.types import WholeRange

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec
    from perfmodel.software.framework import Framework

space_options = options.stack(
    models_option,
    options.hardware_options,
    options.device_counts_option,
    options.scaling_option,
    options.axis_options(single=False),
    options.stage_layers_option,
    options.set_option,
    options.sweep_option,
    options.frameworks_option,
    options.config_option,
)


def top_option(text: str) -> Callable[[options.Function], options.Function]:
    """Return the option that says how many of the best strategies there shall be."""
    return options.option(
        "--top",
        section=options.OUTPUT,
        type=WholeRange(1),
        default=5,
        show_default=True,
        metavar="N",
        help=text,
    )


class Named(NamedTuple):
    """What the options name."""

    models: list[ModelSpec]
    hardware: list[Hardware]
    values: dict[str, list[float]]  # swept ones of every row of hardware, by path
    software: list[Framework]


def named(
    model: Sequence[str],
    reading: Mapping[str, Any],
    hardware: Sequence[str],
    framework: Sequence[str] | None,
    settings: Mapping[str, Any],
    swept: Mapping[str, Any],
) -> Named:
    """Load what the options name, and say what is to be said of it.

    Raises
    ------
    PerfModelError
        No such model, hardware or software, or a value that one of them cannot have.
    """
    from perfmodel.model.presets import load_model

    models = [load_model(name, **reading) for name in model]
    say_remarks(models)
    rows, values = load_rows(hardware, of_hardware(settings), of_hardware(swept))
    return Named(models, rows, values, load_several_software(framework, settings, swept))
