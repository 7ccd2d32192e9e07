"""From what was typed to rows of hardware and to training software."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.base.strategy_fields import SOFTWARE_DEFAULTS
from perfmodel.cli.shared.printing import detail, remark
from perfmodel.cli.shared.types import SOFTWARE

if TYPE_CHECKING:
    from perfmodel.analysis.acting import Idle, Results
    from perfmodel.hwprofiles import Hardware
    from perfmodel.software.engine import Engine
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid

Value = TypeVar("Value")
Software = TypeVar("Software", "Framework", "Engine")
DEFAULT_FRAMEWORK = "megatron"
DEFAULT_ENGINE = "vllm"
# Fields that nobody has to name, and the degree without which they mean nothing.
ASSUMED = {
    "precision": "",
    **{name: degree for name, degree in SOFTWARE_DEFAULTS.items() if name != "recompute"},
    **{name: name for name in ("expert_parallel", "expert_tensor_parallel", "virtual_pipeline")},
    "micro_batch_size": "",
    "recompute": SOFTWARE_DEFAULTS["recompute"],
}


def load_rows(
    names: Sequence[str], settings: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]
) -> tuple[list[Hardware], dict[str, list[float]]]:
    """Return `perfmodel.hwprofiles.rows.hardware_rows`, and say how names were understood.

    Raises
    ------
    StrategyError
        A value of training software is among the settings.
    """
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.hwprofiles.hardware import implausible
    from perfmodel.hwprofiles.rows import hardware_rows
    from perfmodel.hwprofiles.trust import UNSTATED

    if strange := of_software({**settings, **swept}):
        raise StrategyError(f"'{SOFTWARE}{next(iter(strange))}': no training software runs here")
    rows, values = hardware_rows(names, settings, swept)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        # The alias could have meant another device, or a chip's page is silent.
        if note.startswith(("'", UNSTATED)):
            remark(f"note: {note}")
    ends = [settings] + [{path: end(of) for path, of in swept.items()} for end in (min, max)]
    profiles = [load_hardware(name) for name in names]
    for it in profiles:
        detail(f"hardware {it.name}: {it.title}")
    found = (note for it in profiles for changed in ends for note in implausible(it, changed))
    for note in dict.fromkeys(found):
        remark(f"note: {note}")
    return rows, values


def check_acts(
    names: Sequence[str],
    settings: Mapping[str, Any],
    swept: Mapping[str, Sequence[Any]],
    results: Results,
    *,
    costed: bool = True,
) -> None:
    """Refuse a number that can change no result; remark on one that changes none as it is set.

    Parameters
    ----------
    names, settings, swept
        As of `load_rows`; values of software are left out.
    results : callable
        Answers the request; see `perfmodel.analysis.acting`.
    costed : bool
        Whether the request has costs.

    Raises
    ------
    HardwareError
        Names the number, and others that do change results.
    """
    from perfmodel.analysis.acting import idle_numbers
    from perfmodel.hwprofiles import load_hardware

    settings, swept = of_hardware(settings), of_hardware(swept)
    found: dict[str, Idle] | None = None
    for name in names if settings or swept else ():
        idle = {it.path: it for it in idle_numbers(load_hardware(name), settings, swept, results)}
        # It may act on one of the profiles: the kinder of two findings counts.
        known = idle if found is None else found
        found = {
            path: min(known[path], it, key=_never) for path, it in idle.items() if path in known
        }
        if not found:
            return
    for it in (found or {}).values():
        what = ", ".join(it.others)
        if it.never:
            instead = f"; {what} would" if what else ""
            if it.path in PRICED and not costed:
                instead = "; it counts for costs alone, which --pue asks for"
            raise HardwareError(f"'{it.path}' cannot change any result of this request{instead}")
        bind = f": other numbers bind ({what})" if what else ""
        remark(f"note: the value of {it.path} changes no result of this request{bind}")


def _never(idle: Idle) -> bool:
    return idle.never


PRICED = ("system.price", "system.host_power")
"""Numbers that costs alone depend on."""


def of_software(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of training software, by field."""
    return {
        path.removeprefix(SOFTWARE): value
        for path, value in settings.items()
        if path.startswith(SOFTWARE)
    }


def of_hardware(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of hardware profiles."""
    return {path: value for path, value in settings.items() if not path.startswith(SOFTWARE)}


def load_software(name: str | Framework | None, settings: Mapping[str, Any]) -> Framework:
    """Return a framework, or a preset by name, with the values that were set under ``software.``.

    Raises
    ------
    StrategyError
        Unknown preset or field, a value that it cannot have, or a field without effect on a
        projection.
    """
    from perfmodel.software.framework import IDENTITY, OF_MEASURED_RUNS, TITLES, load_framework

    changes = of_software(settings)
    for key in changes:
        if key in IDENTITY:
            raise StrategyError(
                f"'{SOFTWARE}{key}' says which release it is; choose one by '--framework "
                "NAME@RELEASE'"
            )
        if key in OF_MEASURED_RUNS:
            raise StrategyError(
                f"'{SOFTWARE}{key}' says what a measured run means that does not state it; a "
                "projection is told by the options of its strategy"
            )
    software = load_framework(name or DEFAULT_FRAMEWORK, **changes)
    detail(f"software {software.name}: {TITLES[software.name.partition('[')[0]]}")
    return software


def load_one_engine(name: str, settings: Mapping[str, Any]) -> Engine:
    """Return an engine's release with the values that were set under ``software.``.

    Raises
    ------
    StrategyError
        Unknown engine or field, or a value that it cannot have.
    """
    from perfmodel.software.engine import IDENTITY, TITLES, load_engine

    changes = of_software(settings)
    for key in changes:
        if key in IDENTITY:
            raise StrategyError(f"'{SOFTWARE}{key}' goes by the engine's name, as in vllm-0.12")
    engine = load_engine(name, **changes)
    detail(f"engine {engine.name}: {TITLES[engine.name.partition('[')[0]]}")
    return engine


def load_several_software(
    names: Sequence[str] | None, settings: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]
) -> list[Framework]:
    """Return every preset with every combination of swept values; see `load_software`."""
    return _each(load_software, names or [DEFAULT_FRAMEWORK], settings, swept)


def load_engines(
    names: Sequence[str] | None, settings: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]
) -> list[Engine]:
    """Return every engine with every combination of swept values; see `load_one_engine`."""
    return _each(load_one_engine, names or [DEFAULT_ENGINE], settings, swept)


def _each(
    load: Callable[[str, Mapping[str, Any]], Software],
    names: Sequence[str],
    settings: Mapping[str, Any],
    swept: Mapping[str, Sequence[Any]],
) -> list[Software]:
    fixed, axes = of_software(settings), of_software(swept)
    if both := fixed.keys() & axes.keys():
        raise StrategyError(f"'{SOFTWARE}{both.pop()}' is both set and swept; drop one of the two")
    found = {}
    for name in names:
        for values in itertools.product(*axes.values()):
            chosen = {SOFTWARE + key: value for key, value in zip(axes, values, strict=True)}
            software = load(name, {**settings, **chosen})
            found[software.name] = software
    return list(found.values())


def software_options(framework: Framework) -> str:
    """Return the options that choose a framework and its changes; empty for the default."""
    from perfmodel.base.fields import facts_of
    from perfmodel.software.framework import FRAMEWORKS, Framework

    preset = framework.name.partition("[")[0]
    words = [] if preset == DEFAULT_FRAMEWORK else ["--framework", preset]
    for key in facts_of(Framework):
        value = getattr(framework, key)
        if value != getattr(FRAMEWORKS[preset], key):
            words += ["--set", f"{SOFTWARE}{key}={written(value)}"]
    return shlex.join(words)


def written(value: Any) -> str:
    """Return a value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def assumed(
    framework: object, grid: StrategyGrid, axes: Mapping[str, Any], tried: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what was assumed because nobody said it: options with their values.

    Parameters
    ----------
    framework : str or list of str or None
        As typed.
    grid : StrategyGrid
        What is projected.
    axes : mapping of str to value
        Strategy fields as typed, None where they were not.
    tried : sequence of str
        Fields of which every sensible value is tried where none is named.
    """
    from perfmodel.base.axes import decode
    from perfmodel.base.strategy_fields import FIELD_BY_NAME

    found: dict[str, Any] = {} if framework else {"framework": DEFAULT_FRAMEWORK}
    for name, degree in ASSUMED.items():
        if axes.get(name) is not None or name in tried or not len(grid):
            continue
        rows = grid[degree] > 1 if degree else slice(None)
        if grid[name][rows].size:
            found[FIELD_BY_NAME[name].option] = decode(name, int(grid[name][rows][0]))
    return found


def assumed_text(found: Mapping[str, Any]) -> str:
    """Return what was assumed as options, in one line; empty where everything was said."""
    words = (f"--{name} {written(value)}" for name, value in found.items())
    return "assumed: " + " ".join(words) if found else ""
