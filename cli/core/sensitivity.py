"""``perfmodel sensitivity``: what a projection depends on; which projections it is asked of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.files import user_path
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.core.diff_sides import (
    GIVEN,
    SidesCommand,
    blamed_on,
    complete_file,
    costs_of,
    file_of,
    is_projection,
    refuse_options,
    shared_options,
    stated,
)
from perfmodel.cli.core.project import load_problem
from perfmodel.cli.group import verbosity_options
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import progress, remark
from perfmodel.cli.shared.types import Context, Names, Parameter
from perfmodel.kernels.variables import RATE

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
    """Return what a side names, as `perfmodel.cli.core.diff_sides.side` reads it.

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
            model, grid, hardware, software = _space(it.problem)
        else:
            model, grid, hardware, software = load_problem(it.problem)
    return TrainingCase(
        model, grid, hardware, software, by=of, costs=it.costs, reoptimise=reoptimise, keep=keep
    )


def _space(named: Mapping[str, Any]) -> tuple[Any, StrategyGrid, Any, Any]:
    """Return all strategies that `perfmodel sweep` would project: every sensible one."""
    from perfmodel.cli.shared.inputs import load_rows, load_software, of_hardware
    from perfmodel.cli.shared.launch_file import stated_framework, stated_model
    from perfmodel.cli.shared.models import say_remarks
    from perfmodel.strategy.enumerate import strategy_grid

    model = stated_model(named["model"], named["reading"])
    say_remarks([model])
    (device,), _ = load_rows([named["hardware"]], of_hardware(named["settings"]), {})
    software = load_software(stated_framework(named["framework"]), named["settings"])
    chosen = {it.name: named[it.name] for it in FIELDS if named[it.name] is not None}
    grid = strategy_grid(model, named["devices"], hardware=device, framework=software, **chosen)
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
    from perfmodel.analysis.recalled import stored_case
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


KINDS = ("hardware", "constant", "software", "strategy")
"""As `perfmodel.analysis.parameters` has them."""
USUAL = "hardware,software,strategy"


class Pair(click.ParamType):
    """Two numbers, such as ``0.5,2`` or ``25e9:400e9``."""

    def __init__(self, separator: str, example: str) -> None:
        self.name = separator.join(("LOW", "HIGH"))
        self.separator, self.example = separator, example

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[float, float]:
        """Read both."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(self.separator)
        try:
            low, high = map(float, parts)
        except ValueError:
            self.fail(f"'{value}' should be two numbers, as in {self.example}", param, ctx)
        return low, high


def _complete_paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    found = completions.complete_paths(ctx, param, incomplete)
    for item in found:
        item.value = item.value.rstrip("=")
    return found


@click.command(
    "sensitivity", **page("core", "sensitivity", "Say what a projection depends on.", SidesCommand)
)
@click.argument("a", metavar="[A]", default="-", shell_complete=complete_file)
@click.argument("b", metavar="[B]", required=False, shell_complete=complete_file)
@options.options_of("core.sensitivity", "of")
@options.options_of("core.sensitivity", "parameter", shell_complete=_complete_paths)
@options.options_of("core.sensitivity", "kind", type=Names(KINDS), default=USUAL)
@options.options_of("core.sensitivity", "reoptimise", "step")
@options.options_of("core.sensitivity", "what_if", type=Pair(",", "0.5,2"))
@options.options_of("core.sensitivity", "hiding", "hidden")
@options.options_of("core.sensitivity", "range", type=Pair(":", "25e9:400e9"))
@options.options_of("core.sensitivity", "side")
@options.options_of("core.sensitivity", "by", default=RATE)
@options.results_option("Write all sensitivities")
@options.options_of("core.sensitivity", "top", "all")
@options.json_option
@verbosity_options
@click.pass_context
def sensitivity_command(
    ctx: click.Context,
    a: str,
    b: str | None,
    of: str,
    only: Sequence[str],
    kinds: list[str],
    reoptimise: bool,
    step: float,
    factors: tuple[float, float],
    hiding: bool,
    hidden: float,
    limits: tuple[float, float] | None,
    sides: str | None,
    by: str,
    output: str | None,
    top: int,
    everything: bool,
    as_json: bool,
) -> None:
    """Say what a projection depends on: every number of the hardware, every switch."""
    from perfmodel.store.files import check_results_path

    output = output and check_results_path(output)
    given = ctx.meta[GIVEN]
    texts = [text for text in (a, b) if text is not None]
    if not any(is_projection(text) for text in texts):
        refuse_options(given)
    loading: dict[str, Any] = {"counted_by": by, "of": of, "reoptimise": reoptimise}
    if b is None:
        for name, value in (("--range", limits), ("--side", sides)):
            if value is not None:
                raise click.UsageError(f"{name} is about a break-even of two: name B")
        _one(ctx, a, given, loading, locals())
        return
    if output or hiding:
        raise click.UsageError("a break-even is printed (--json); drop -o and --hiding")
    if not only:
        raise click.UsageError("a break-even needs --parameter, the number that is varied")
    from perfmodel.analysis.break_even import break_even
    from perfmodel.cli.core.sensitivity_output import break_even_document, print_break_evens
    from perfmodel.cli.shared.printing import print_json

    cases = [load_case(ctx, text, given, **loading) for text in (a, b)]
    found = []
    for path in dict.fromkeys(only):
        which: Any = sides or ("b" if path.strip() == "system.price" else "both")
        found.append(break_even(cases[0], cases[1], path, sides=which, limits=limits))
    if as_json:
        print_json(break_even_document(texts, cases, found))
    else:
        print_break_evens(texts, cases, found)


def _one(
    ctx: click.Context,
    text: str,
    given: Mapping[str, Any],
    loading: Mapping[str, Any],
    chosen: Mapping[str, Any],
) -> None:
    """Print what one projection depends on, and write it."""
    from perfmodel.analysis.break_even import KEPT, hiding_bandwidths
    from perfmodel.analysis.sensitivity import chosen_parameters, sensitivity_table
    from perfmodel.cli.core import sensitivity_output as shown
    from perfmodel.cli.shared.printing import print_json
    from perfmodel.store.files import save_results, stored_size

    keep = KEPT if chosen["hiding"] else ()
    case: Case = load_case(ctx, text, given, keep=keep, **loading)
    only, kinds = chosen["only"], chosen["kinds"]
    count = len(chosen_parameters(case, only, kinds))
    with progress(count, "numbers and switches") as advance:
        table = sensitivity_table(
            case,
            only=only,
            kinds=kinds,
            step=chosen["step"],
            factors=chosen["factors"],
            progress=advance,
        )
    places = hiding_bandwidths(case, chosen["hidden"]) if chosen["hiding"] else None
    output = chosen["output"]
    if output is not None:
        save_results(table, output)
    if chosen["as_json"]:
        document = shown.sensitivity_document(table)
        if places is not None:
            document["hiding"] = [dataclasses.asdict(it) for it in places]
        print_json(document)
    else:
        shown.print_sensitivity(table, chosen["top"], chosen["everything"] or bool(only))
        if places is not None:
            shown.print_hiding(places, chosen["hidden"])
    if output is not None:
        remark(f"\nwrote {output} ({stored_size(output) / 1e6:.1f} MB)")
        if output.lower().endswith(".nc") and not chosen["as_json"]:
            remark(f"  perfmodel plot sensitivity {output} -o sensitivity.svg   draws it")


sensitivity_command.params[2:2] = shared_options()
