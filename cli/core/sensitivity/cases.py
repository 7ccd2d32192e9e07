"""From what was typed to what is varied: options of a projection, or a strategy of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.files import user_path
from perfmodel.cli.core.diff.sides import blamed_on, costs_of, file_of, is_projection, stated
from perfmodel.cli.core.project import load_problem

if TYPE_CHECKING:
    from perfmodel.analysis.case import Case
    from perfmodel.strategy.grid import StrategyGrid


def load_case(
    ctx: click.Context,
    text: str,
    given: Mapping[str, Any],
    *,
    counted_by: str,
    of: str,
    reoptimise: bool,
    keep: tuple[str, ...] = (),
) -> Case:
    """Return what a side names, as `perfmodel.cli.core.diff.sides.side` reads it.

    Parameters
    ----------
    ctx : click.Context
    text : str
        As typed: ``FILE``, ``FILE#N``, ``KEY=VALUE …`` or ``-``.
    given : mapping
        Options of ``project`` as they were typed.
    counted_by : str
        Variable by which ``FILE#N`` counts.
    of : str
        Variable that counts.
    reoptimise : bool
        Whether the best strategy is chosen anew.
    keep : tuple of str
        Variables that a training step keeps besides.

    Raises
    ------
    click.UsageError, PerfModelError
        What is wrong, and with which side.
    """
    with blamed_on(text):
        if is_projection(text):
            return _stated(ctx, text, given, of, reoptimise, keep)
        return _stored(ctx, text, given, counted_by, of, reoptimise, keep)


def _stated(
    ctx: click.Context,
    text: str,
    given: Mapping[str, Any],
    of: str,
    reoptimise: bool,
    keep: tuple[str, ...],
) -> Case:
    from perfmodel.analysis.case import TrainingCase

    with stated(ctx, text, given) as it:
        if reoptimise:
            model, grid, hardware, software = _space(it.named, it.axes)
        else:
            model, grid, hardware, software = load_problem(**it.named, axes=it.axes)
    return TrainingCase(
        model, grid, hardware, software, by=of, costs=it.costs, reoptimise=reoptimise, keep=keep
    )


def _space(named: Mapping[str, Any], axes: Mapping[str, Any]) -> tuple[Any, StrategyGrid, Any, Any]:
    """Return all strategies that `perfmodel sweep` would project: every sensible one."""
    from perfmodel.cli.shared.inputs import load_rows, load_software, of_hardware
    from perfmodel.cli.shared.launch_file import stated_framework, stated_model
    from perfmodel.cli.shared.models import say_remarks
    from perfmodel.strategy.enumerate import strategy_grid

    model = stated_model(named["model"], named["reading"])
    say_remarks([model])
    (device,), _ = load_rows([named["hardware"]], of_hardware(named["settings"]), {})
    software = load_software(stated_framework(named["framework"]), named["settings"])
    chosen = {name: value for name, value in axes.items() if value is not None}
    grid = strategy_grid(model, named["devices"], hardware=device, **chosen)
    if not len(grid):
        raise StrategyError("no strategy is possible")
    return model, grid, device, software


def _stored(
    ctx: click.Context,
    text: str,
    given: Mapping[str, Any],
    counted_by: str,
    of: str,
    reoptimise: bool,
    keep: tuple[str, ...],
) -> Case:
    """Return the N-th best of a file."""
    from perfmodel.analysis.stored_case import stored_case
    from perfmodel.cli.shared.costs import with_costs
    from perfmodel.store.results import best, open_table
    from perfmodel.store.subject import TRAINING, subject_of

    name, number = file_of(text)
    if user_path(name).suffix.lower() == ".json":
        raise DataError(f"'{name}' does not say what was swept; results written as .nc do")
    place = number or 1
    found = open_table(name)
    subject = subject_of(found)
    if not subject.costs:
        raise DataError(f"'{name}' holds results of 'perfmodel {subject.verb}', which vary not")
    costs = costs_of(ctx, given)
    ranked = best(with_costs(found, costs, counted_by), place, by=counted_by)
    if len(ranked) < place:
        raise DataError(f"'{name}' holds {len(ranked):,} that fit, no #{place}")
    kept = keep if subject is TRAINING else ()
    return stored_case(
        found, ranked[place - 1], by=of, costs=costs, reoptimise=reoptimise, keep=kept
    )
