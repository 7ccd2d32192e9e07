"""``perfmodel sensitivity``: what a projection depends on, and where two change places."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.core.diff.sides import (
    GIVEN,
    SidesCommand,
    complete_file,
    is_projection,
    refuse_options,
    shared_options,
)
from perfmodel.cli.core.sensitivity.cases import load_case
from perfmodel.cli.group import verbosity_options
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.printing import progress, remark
from perfmodel.cli.shared.types import Context, Names, Parameter
from perfmodel.kernels.variables import RATE

if TYPE_CHECKING:
    from perfmodel.analysis.case import Case

KINDS = (
    "hardware",
    "constant",
    "software",
    "strategy",
)  # as perfmodel.analysis.parameters has them
USUAL = "hardware,software,strategy"
BREAK_EVEN = "Break-even"


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


@click.command("sensitivity", cls=SidesCommand, short_help="Say what a projection depends on.")
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
    """Say what a projection depends on: every number of the hardware, every switch.

    With one side: the elasticity of the step time (or of --of) to every number, what halving
    and doubling it does, and what flipping each switch does, the strongest first. -0.3 of a
    bandwidth says that 1 % more of it makes the step 0.3 % shorter. A * marks a kink: a
    little more and a little less differ, because hidden time begins to show or another kernel
    is chosen. With A and B: the value of --parameter at which both are equally good.

    \b
    A and B are each one of
      FILE          the best of what 'perfmodel sweep' or 'perfmodel serve' wrote
      FILE#N        its N-th best
      'KEY=VALUE …' a projection: the options of this command, with these changed or added
      -             a projection: the options of this command as they are (the default)

    \b
    Examples:
      # One strategy; the best one of a sweep; with the strategy chosen anew every time
      perfmodel sensitivity --model llama-3.1-70b --hardware dgx-h100 --devices 256 \\
          --tp 8 --pp 4 --global-batch 512 --seq-len 8192
      perfmodel sensitivity sweep.nc#1 --kind hardware,constant -o sensitivity.nc
      perfmodel sensitivity sweep.nc --reoptimise --kind hardware

    \b
      # How fast must links be, so that communication hides?
      perfmodel sensitivity sweep.nc#1 --hiding --parameter system.network.1.bandwidth

    \b
      # At which bandwidth is the second best strategy as fast as the best?
      perfmodel sensitivity sweep.nc#1 sweep.nc#2 --parameter system.network.1.bandwidth

    \b
      # At which price of B does a token cost the same on both machines?
      perfmodel sensitivity hardware=dgx-h100 hardware=dgx-b200 --of cost_per_token \\
          --model llama-3.1-70b --devices 256 --tp 8 --pp 4 --global-batch 512 \\
          --seq-len 8192 --price dgx-h100=2.5,dgx-b200=4 --parameter system.price

    \b
      # A served model: what decides the time to first token?
      perfmodel sensitivity serve.nc --of ttft

    Units: SI; elasticities and changes are relative.

    Exit codes: 0 done, 1 failure, 2 wrong input.
    """
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
    from perfmodel.cli.core.sensitivity.output import break_even_document, print_break_evens
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
    from perfmodel.analysis.hiding import KEPT, hiding_bandwidths
    from perfmodel.analysis.sensitivity import chosen_parameters, sensitivity_table
    from perfmodel.cli.core.sensitivity import output as shown
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
