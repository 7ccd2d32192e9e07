"""Spaces of strategies: the options of sweeps and searches, and what to say where nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import given_costs
from perfmodel.cli.shared.inputs import check_acts, load_rows, load_several_software, of_hardware
from perfmodel.cli.shared.models import models_option, say_remarks

if TYPE_CHECKING:
    from perfmodel.sweeps.sweep import Problem


def nothing_possible(asked: Mapping[str, Any], rejected: Mapping[str, int]) -> StrategyError:
    """Return the error that says why no strategy is possible, and what would be.

    Parameters
    ----------
    asked : mapping
        As of `named`.
    rejected : mapping of str to int
        Impossible strategies by the name of the rule that they break.
    """
    from perfmodel.analysis.single import DEGREES
    from perfmodel.strategy.enumerate import describe_rejected, possible_instead

    devices, axes = max(asked["devices"]), asked["axes"]
    if axes.get("data_parallel") is None or set(rejected) - {"devices_mismatch"}:
        instead = possible_instead(asked["models"][0], devices, axes, asked["hardware"])
        return StrategyError(describe_rejected(rejected, devices) + instead)
    factors = [
        f"{name} {','.join(map(str, axes[name]))}"
        for name in (*DEGREES, "data_parallel")
        if axes.get(name) is not None
    ]
    return StrategyError(
        f"no strategy is possible on {devices:,} devices: tensor × context × pipeline × data "
        f"degrees never multiply to {devices:,} with {', '.join(factors)}; "
        "leave out --dp to derive it"
    )


def smaller(axes: Mapping[str, Any]) -> list[str]:
    """Return what would need less memory, but for what is tried already."""
    saving = {
        "recompute": ("--recompute full", lambda values: "full" not in values),
        "zero_stage": ("--zero 3", lambda values: 3 not in values),
        "tensor_parallel": ("larger --tp", bool),
        "pipeline_parallel": ("larger --pp", bool),
        "context_parallel": ("larger --cp", bool),
        "expert_parallel": ("larger --ep", bool),
        "micro_batch_size": ("--micro-batch 1", lambda values: 1 not in values),
    }
    named = [text for name, (text, helps) in saving.items() if axes[name] and helps(axes[name])]
    return ["more devices", *named, "or hardware with more memory"]


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


def named(stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Load what the values of `space_options` name, and say what is to be said of it.

    Returns
    -------
    asked : dict of str to value
        What sweeps and searches take: models, frameworks, devices, axes, hardware and scaling.
    values : dict of str to list of float
        Swept values of every row of hardware, by path.

    Raises
    ------
    PerfModelError
        No such model, hardware or software, or a value that one of them cannot have.
    """
    from perfmodel.model.presets import load_model

    settings, swept = stated["settings"], stated["swept"]
    models = [load_model(name, **stated["reading"]) for name in stated["model"]]
    say_remarks(models)
    rows, values = load_rows(stated["hardware"], of_hardware(settings), of_hardware(swept))
    asked = {
        "models": models,
        "frameworks": load_several_software(stated["framework"], settings, swept),
        "devices": stated["devices"],
        "axes": {spec.name: stated[spec.name] for spec in FIELDS},
        "hardware": rows,
        "scaling": stated["scaling"],
    }
    return asked, values


def check_strategies(problems: Iterable[Problem]) -> None:
    """Refuse numbers of the hardware that change no result of any strategy.

    Results that are written hold the price of their hardware, which `perfmodel best` counts with.
    """
    from perfmodel.analysis.acting import training_results

    stated = click.get_current_context().params
    if not of_hardware({**stated["settings"], **stated["swept"]}):
        return
    costs = given_costs(dict(stated)) if "price" in stated else {}
    costed = bool(costs or stated.get("output"))
    results = training_results([*problems], costs if costed else None)
    check_acts(stated["hardware"], stated["settings"], stated["swept"], results, costed=costed)


def lacks_precision(names: Iterable[str]) -> HardwareError:
    """Return the error of strategies in a precision that no device has."""
    return HardwareError(
        f"no device of {', '.join(names)} has a matrix rate for the wanted precision; "
        "'perfmodel hardware show NAME' lists the rates"
    )


def nothing_fits(needs: Sequence[str], axes: Mapping[str, Any]) -> str:
    """Say in one line that nothing fits, what hardware would need, and what would need less."""
    needed = "; ".join(needs) or "no device has the precision"
    return f"perfmodel: no strategy fits in memory ({needed}); try {', '.join(smaller(axes))}"
