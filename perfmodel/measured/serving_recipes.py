"""Recipes of served runs: columns ``recipe_*`` of a row as limits, facts of its engine, and loads.

What a column means stands in ``words/serving.toml`` under ``recipe``. Where ``recipe_source`` is
set, an empty column means the engine's default; without it nobody knows, and the default of the
release holds too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.facts import release_key
from perfmodel.measured.rows import MeasuredRow, meaning, words

if TYPE_CHECKING:
    from perfmodel.software.engine import Engine

PREFIX = "recipe_"


@dataclass
class Recipe:
    """What the recipe of a row changes.

    Attributes
    ----------
    fields : dict
        Fields of a deployment.
    facts : dict
        Facts of its engine.
    rounds : float
        Requests of each client; 0 where it does not say.
    used, left : list of str
        Columns with their values that were followed, and those that nothing follows.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: float = 0.0
    used: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say in words what was followed and what was not."""
        found = [f"recipe: {', '.join(self.used)}"] if self.used else []
        return (*found, *([f"recipe, not followed: {', '.join(self.left)}"] if self.left else []))


def recipe_version(row: MeasuredRow) -> str:
    """Return the engine's release by the recipe; empty where it says none."""
    version = row.lower("recipe_version")
    return version if release_key(version) else ""


def recipe_of(row: MeasuredRow, engine: Engine, *, pools: bool, context: int) -> Recipe:
    """Return what the recipe of a row changes.

    Parameters
    ----------
    row : MeasuredRow
    engine : Engine
    pools : bool
        Whether prompts run apart; the columns then tell of those who decode, and limits of
        prompts are left out.
    context : int
        Tokens of a prompt and its answer, which a stated context must hold.
    """
    found = Recipe()
    table = words("serving")["recipe"]
    for column in row.cells:
        text = row.lower(column)
        name = column.removeprefix(PREFIX)
        if not column.startswith(PREFIX) or not text or name in table["about"]:
            continue
        shown = f"{name}={row.text(column)[:60]}"
        followed = _followed(found, name, text, engine, table, pools=pools, context=context)
        (found.used if followed else found.left).append(shown)
    _limits_over_ranks(row, found, engine)
    return found


def _followed(
    found: Recipe,
    name: str,
    text: str,
    engine: Engine,
    table: Any,
    *,
    pools: bool,
    context: int,
) -> bool:
    """Put what one column says into a recipe; tell whether it changes anything."""
    number = _number(text)
    if name in table["fields"].get(engine.engine, {}):
        key = table["fields"][engine.engine][name]
        usable = number is not None and number > 0 and not (pools and key == "token_budget")
        if not usable or number is None or (key == "context_length" and number < context):
            return False
        found.fields[key] = number if key == "memory_share" else int(number)
        return True
    if name in table["counts"].get(engine.engine, {}):
        if number is None or number < 0:
            return False
        found.facts |= dict.fromkeys(table["counts"][engine.engine][name], int(number))
        return True
    if name in table["facts"]:
        value = meaning(table["facts"][name], text, None)
        if value is None:
            return False
        found.facts |= value
        return True
    if name == "kv_precision":
        kept = meaning(words("serving")["cache"], text)
        if kept and text != "auto":
            found.fields["kv_precision"] = kept
        return bool(kept)
    if name == "num_prompts_per_client" and number:
        found.rounds = number
        return True
    if name == "other_flags":
        flags = dict(item.strip().partition("=")[::2] for item in text.split(";"))
        if flags.get("block-size", "").isdigit():
            found.fields["block_tokens"] = int(flags["block-size"])
        return "block_tokens" in found.fields and len(flags) == 1
    return name in table["layout"]


def _limits_over_ranks(row: MeasuredRow, found: Recipe, engine: Engine) -> None:
    """Divide sequences among attention ranks, where an engine counts over all of them."""
    ranks = (
        row.whole("attention_dp") or 1 if row.text("attention_dp").replace(".", "").isdigit() else 1
    )
    if engine.shared_token_budget and ranks > 1 and "max_sequences" in found.fields:
        found.fields["max_sequences"] = max(found.fields["max_sequences"] // ranks, 1)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
