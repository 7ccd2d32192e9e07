"""What a calibrated constant is: the vocabulary of ``constants.toml`` and ``fits.toml``.

A profile states values; unit, bounds, prior, meaning and formula of a key stand once in
``constants.toml``, the data and residual of a fit once in ``fits.toml``. An entry of
``[calibration.<group>]`` is a number (its source then stands in ``[source]``), ``"prior"``, or
a table; see docs/calibration.md.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.files import read_toml
from perfmodel.base.precisions import FORMATS

CONSTANTS = Path(__file__).with_name("constants.toml")
FITS = Path(__file__).with_name("fits.toml")
PRIOR = "prior"
"""What an entry says that takes the prior of ``constants.toml``."""
TRANSFERRED = "transferred"
"""What an entry says that comes from measured relatives (`perfmodel.hwprofiles.trust`)."""


@dataclass(frozen=True)
class Constant:
    """A constant that profiles may state.

    Attributes
    ----------
    prior, low, high : float
        What physics or literature says before any fit; bounds of what is physical [unit].
    unit : str
        SI; empty for pure numbers.
    adjustable : bool
        Whether ``perfmodel calibrate`` may fit it.
    formula : str
        File whose formula uses it, from the root of the repository.
    source : str
        Where the prior is from; empty for rules of libraries.
    meaning : str
        One line.
    from_fits : bool
        Whether the prior was read off fits of measured devices.
    transfer : {"share", "unit", "clocks", "seconds", "energy", "fact"}
        How the constant of a measured device serves another one; see ``constants.toml``.
    """

    prior: float
    low: float
    high: float
    formula: str
    meaning: str
    transfer: str
    unit: str = ""
    adjustable: bool = False
    source: str = ""
    from_fits: bool = False

    @property
    def estimated(self) -> bool:
        """Whether physics or literature says the prior, and not what fits gave."""
        return bool(self.source) and not self.from_fits


@dataclass(frozen=True)
class Fit:
    """A fit of constants to measurements.

    Attributes
    ----------
    data : str
        Whose rows, at which commit.
    rows : int
    script : str
        What ran it.
    residual : float or mapping of str to float, optional
        Median of abs(predicted / measured - 1) in sample, of all rows or of their parts.
    note : str
        What else there is to know.
    """

    data: str
    rows: int
    script: str
    residual: float | Mapping[str, float] | None = None
    note: str = ""

    def residual_text(self) -> str:
        """Return the residual for readers, "" where the fit is of residuals itself."""
        if self.residual is None:
            return ""
        if isinstance(self.residual, Mapping):
            parts = (f"{part.replace('_', ' ')} {x:.1%}" for part, x in self.residual.items())
            return f"median residual of {', '.join(parts)}"
        return f"median residual {self.residual:.1%}"

    def text(self, rows: int | None = None) -> str:
        """Return one line about the fit; `rows` are those of a single constant."""
        parts = (self.residual_text(), f"{rows or self.rows} rows of {self.data}", self.script)
        return "; ".join(part for part in parts if part)


@cache
def _document() -> dict[str, Any]:
    """Return what ``constants.toml`` holds."""
    return read_toml(CONSTANTS, HardwareError)


@cache
def constants() -> Mapping[str, Mapping[str, Constant]]:
    """Return every constant by group and key, without variants."""
    return {
        group: {key: Constant(**entry) for key, entry in entries.items()}
        for group, entries in _document().items()
        if group not in ("variants", "words")
    }


@cache
def fits() -> Mapping[str, Fit]:
    """Return every fit by its id."""
    document = read_toml(FITS, HardwareError)
    return {name: Fit(**entry) for name, entry in document.items()}


@cache
def _forms() -> tuple[Mapping[str, list[str]], Mapping[str, Mapping[str, Sequence[str]]]]:
    """Return the patterns of variants and what may stand for their words, by group."""
    document = _document()
    general: dict[str, Sequence[str]] = {"precision": tuple(FORMATS)}
    patterns = document["variants"]
    return patterns, {group: general | document["words"].get(group, {}) for group in patterns}


@cache
def names(group: str, key: str, words: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    """Return the names under which a constant may stand, the most specific first.

    Parameters
    ----------
    group, key : str
        As in ``[calibration.<group>]``.
    words : tuple of (str, str)
        What the constant is wanted for, by the words of ``constants.toml``, such as
        ``(("kernel", "triton"), ("precision", "fp8_block"))``.
    """
    said = dict(words)
    patterns = _forms()[0].get(group, ())
    found = [pattern.format(key=key, **said) for pattern in patterns if _words(pattern) <= {*said}]
    return (*found, key)


@cache
def _words(pattern: str) -> frozenset[str]:
    fields = (field for _, field, _, _ in string.Formatter().parse(pattern) if field)
    return frozenset(fields) - {"key"}


@dataclass(frozen=True)
class Lookup:
    """The constants of a group, as one kernel, number format or regime sees them.

    Which value counts, the first that there is:

    1. the profile's most specific variant, then the less specific ones, in the order of
       ``[variants]`` in ``constants.toml`` (``main_loop_efficiency_triton_fp8_block``, then
       ``…_fp8_block``, then ``…_triton``);
    2. what the library is by its own code (`facts`);
    3. the profile's plain ``<key>``;
    4. what holds where nothing is stated (`defaults`, then the caller's `default`).

    What a profile states is the innermost file's entry of that name: system, chip, family.
    Number formats never stand in for each other, nor do training libraries for serving ones.

    Attributes
    ----------
    profile, group : str
        For messages.
    values : mapping of str to float
        What the profile states, variants included.
    words : tuple of (str, str)
        See `names`.
    facts, defaults : mapping of str to float
        By plain key.
    """

    profile: str
    group: str
    values: Mapping[str, float]
    words: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, key: str, default: float | None = None) -> float:
        """Return the value that counts.

        Raises
        ------
        HardwareError
            There is none, and no default.
        """
        *variants, plain = names(self.group, key, self.words)
        for name in variants:
            if name in self.values:
                return float(self.values[name])
        for table in (self.facts, self.values, self.defaults):
            if plain in table:
                return float(table[plain])
        if default is not None:
            return default
        raise HardwareError(
            f"hardware profile '{self.profile}' has no '{key}' in [calibration.{self.group}]"
            f"{did_you_mean(key, self.values)}"
        )

    def apart(self, key: str) -> bool:
        """Return whether the profile states a variant beside the plain constant."""
        return any(name in self.values for name in names(self.group, key, self.words)[:-1])


AT_BOUND = 1e-3
"""Share of the range between the bounds that counts as their edge."""
FARTHEST = 3.0
"""Times the prior, above or below, beyond which a fitted value is far from it."""


def implausible(value: float, prior: float, low: float, high: float) -> str:
    """Return what about a fitted value needs a physical reason; empty for nothing.

    A fit that left its prior for a bound would like a value beyond what is physical: the
    model misses a cause, or the rows time something else. So it may be far from its prior.
    """
    edge = AT_BOUND * (high - low)
    if value != prior and not low + edge <= value <= high - edge:
        return "at its bound"
    if value > FARTHEST * prior or value < prior / FARTHEST:
        return f"{value / prior:.2g} times its prior" if prior else "far from its prior, 0"
    return ""


@cache
def known(group: str) -> Mapping[str, Constant]:
    """Return every constant of a group, variants included, by the name that a profile writes.

    A variant shares the entry of its plain key unless it has one of its own.
    """
    plain = constants()[group]
    patterns, words = _forms()
    found: dict[str, Constant] = {}
    for pattern in patterns.get(group, ()):
        used = sorted(_words(pattern))
        choices = [words[group][word] for word in used]
        for key, chosen in itertools.product(plain, itertools.product(*choices)):
            name = pattern.format(key=key, **dict(zip(used, chosen, strict=True)))
            found.setdefault(name, plain[key])
    return {**found, **plain}


@cache
def plain(group: str, name: str) -> str:
    """Return the plain key of which a constant is a variant; itself where it is none."""
    if name in constants()[group]:
        return name
    patterns, words = _forms()
    for pattern in patterns.get(group, ()):
        used = sorted(_words(pattern))
        for chosen in itertools.product(*(words[group][word] for word in used)):
            for key in constants()[group]:
                if pattern.format(key=key, **dict(zip(used, chosen, strict=True))) == name:
                    return key
    return name


def complete(
    group: str, key: str, entry: object, path: str, place: str, stated: str | None
) -> dict[str, Any]:
    """Return an entry of a profile with what ``constants.toml`` and ``fits.toml`` add to it.

    Parameters
    ----------
    group, key : str
    entry : object
        A number, "prior" or a table, as in the file.
    path, place : str
        Dotted path and file of the entry, for messages.
    stated : str or None
        Source that the file states for the path.

    Returns
    -------
    dict
        Keys of `perfmodel.hwprofiles.schema.Calibrated`.

    Raises
    ------
    HardwareError
        No such constant or fit, or an entry that is neither number, "prior" nor table.
    """
    constant = known(group).get(key)
    if constant is None:
        raise HardwareError(f"{place}: unknown constant '{path}'{did_you_mean(key, known(group))}")
    if entry == PRIOR:
        text = f"prior: {constant.source}" if constant.source else "prior"
        entry = {"value": constant.prior, "source": text}
    elif isinstance(entry, int | float) and not isinstance(entry, bool):
        entry = {"value": entry}
    if not isinstance(entry, Mapping):
        raise HardwareError(
            f"{place}: '{path}' must be a number, \"prior\" or a table such as "
            f'{{ value = …, fit = "…" }}, not {entry!r}'
        )
    found = dict(entry)
    if "exact" in found:
        exact = found.pop("exact")
        found = {"value": exact, "prior": exact, "low": exact, "high": exact} | found
        found.setdefault("trust", "fact")
        found.setdefault("adjustable", False)
    for name in ("prior", "low", "high", "unit", "adjustable"):
        found.setdefault(name, getattr(constant, name))
    found.setdefault("value", found["prior"])
    rows = found.pop("rows", None)
    carried = found.pop("carried", "")
    if "source" not in found:
        if found.get("fit"):
            fit = fits().get(found["fit"])
            if fit is None:
                hint = did_you_mean(str(found["fit"]), fits())
                raise HardwareError(
                    f"{place}: '{path}' cites the unknown fit {found['fit']!r}{hint}"
                )
            found["source"] = fit.text(rows)
        elif stated:
            found["source"] = stated
    if carried and "source" in found:
        found["source"] += f"; {carried}"
    if "trust" not in found:
        found["trust"] = "fact" if constant.transfer == "fact" else PRIOR
    return found
