"""Results of nccl-tests and rccl-tests: the table on stdout, and the file of option ``-J``.

Sources: NVIDIA/nccl-tests and ROCm/rccl-tests, ``src/common.cu`` and ``src/util.cu`` (header
lines, columns; ``-J`` since JSON_FILE_VERSION 2) and the ``…GetCollByteCount`` function of each
test. The column ``size`` is the larger of what a rank sends and receives: all_reduce,
broadcast, reduce, the buffer of a rank; all_gather and gather, the whole output;
reduce_scatter and scatter, the whole input; alltoall, the whole send buffer of a rank;
sendrecv, the message (every rank sends to the next one at once). Those are the sizes of
`perfmodel.compute.collectives`. Times are microseconds, bandwidths 1e9 bytes per second.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import JsonWords, not_read, parse_json

COLLECTIVE_OF: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "point_to_point",
    "gather": "gather",
    "scatter": "scatter",
}
"""Name of a test without ``_perf`` -> name of the collective."""

OTHER_TESTS = ("reduce", "hypercube", "alltoallv", "all_reduce_bias")

_WORDS = JsonWords(
    "{path}, line {line}: {reason}; is the file cut off?", "{path}: not the JSON of nccl-tests -J"
)

LONGEST_SIZE = 19  # digits of 2^63 - 1

_PREFIX = re.compile(r"\[\d+,\d+\]<std\w+>: ?|\s*\d+: ")  # mpirun --tag-output, srun --label
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
    r"\s+\[[^\]]*\]\s+(\S.*)"
)
_HEADER = re.compile(r"#\s+size\s+count\s+type\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_PROGRAM = re.compile(r"\b([a-z]\w*)_perf\b")


@dataclass(frozen=True, slots=True)
class Timing:
    """One half of a row.

    Attributes
    ----------
    time : float
        [s].
    algorithm_bandwidth, bus_bandwidth : float
        [B/s], as printed.
    wrong : int or None
        Elements with a wrong value; None where the test did not check.
    """

    time: float
    algorithm_bandwidth: float
    bus_bandwidth: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class TestRow:
    """One size of a test; `line` is that of the log, or the place in the list of results."""

    __test__ = False  # not a test of pytest

    line: int
    size: int
    dtype: str
    out_of_place: Timing
    in_place: Timing


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One run of a test.

    Attributes
    ----------
    test : str
        Name of the program without ``_perf``.
    members : int
        Ranks of the group that the first rank belongs to.
    nodes : int
        Hosts of these ranks.
    device : str
        Name of the device of the first rank.
    timer : str
        ``time``, or ``cputime`` where the host's time was reported (``-C 1``).
    average_bus_bandwidth : float or None
        Last line of the log [B/s]; None where the log ends before.
    rows : tuple of TestRow
    """

    test: str
    members: int
    nodes: int
    device: str
    timer: str
    average_bus_bandwidth: float | None
    rows: tuple[TestRow, ...]

    @property
    def collective(self) -> str | None:
        """Name as in `perfmodel.compute.collectives`; None for tests without (``reduce``)."""
        return COLLECTIVE_OF.get(self.test)


def is_nccl_tests(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file looks like the output of nccl-tests; False where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="strict")
    except (OSError, ValueError):
        return False
    if text.lstrip().startswith("{"):
        return '"nccl_version"' in text
    lines = (_PREFIX.sub("", line, count=1) for line in text.splitlines())
    return any(_HEADER.match(line) or _RANK.match(line) for line in lines)


def read_nccl_tests(path: str | os.PathLike[str]) -> tuple[NcclTest, ...]:
    """Read the output of nccl-tests or rccl-tests, one or several runs.

    Parameters
    ----------
    path : str or path
        What the program printed, or the file that ``-J`` wrote.

    Returns
    -------
    tuple of NcclTest
        At least one, each with at least one row.

    Raises
    ------
    FormatError
        The file cannot be read, is neither of the two, has no results, or has a line that
        cannot be (file and line named).
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FormatError(not_read(path, error)) from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; the output of nccl-tests is needed") from None
    if text.lstrip().startswith("{"):
        return (_read_json(os.fspath(path), text),)
    return _read_log(os.fspath(path), text)


@dataclass(slots=True)
class _Run:
    """A run while its lines are read."""

    test: str = ""
    ranks: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    average: float | None = None
    rows: list[TestRow] = field(default_factory=list)


def _read_log(file: str, text: str) -> tuple[NcclTest, ...]:
    runs = [_Run()]
    program = _test_of_file(file)
    for number, raw in enumerate(text.splitlines(), start=1):
        where = f"{file}, line {number}"
        line = _PREFIX.sub("", raw, count=1)
        run = runs[-1]
        if not line.startswith("#") or "Collective test" in line:
            program = _test_in(line) or program
        if found := _RANK.match(line):
            if run.rows:
                run = _Run()
                runs.append(run)
            rank = int(found.group(1))
            if rank in run.ranks:
                raise FormatError(
                    f"{where}: rank {rank} stands there twice; tests built without MPI run "
                    "apart from each other, one log is needed of each"
                )
            run.ranks[rank] = (int(found.group(2) or 0), found.group(3), found.group(4).strip())
        elif _HEADER.match(line):
            run.columns, run.test = line[1:].split(), program
        elif found := _AVERAGE.match(line):
            run.average = _number(where, "average bus bandwidth", found.group(1)) * 1e9
        elif run.columns and _ROW.match(line + " "):
            run.rows.append(_row(where, number, line, run.columns))
    finished = [run for run in runs if run.rows]
    if not finished:
        raise FormatError(
            f"{file}: no results of nccl-tests; needed are the lines '#  size  count  type …' "
            "and below them a row per size"
        )
    return tuple(_test_of(file, run) for run in finished)


def _test_in(line: str) -> str:
    """Return the test whose program a line names, or nothing."""
    known = (*COLLECTIVE_OF, *OTHER_TESTS)
    return next((name for name in _PROGRAM.findall(line) if name in known), "")


def _test_of_file(file: str) -> str:
    """Return the test that a file is named after, as in all_reduce.log, or nothing."""
    name = PurePath(file).name.lower()
    longest_first = sorted((*COLLECTIVE_OF, *OTHER_TESTS), key=len, reverse=True)
    return next((test for test in longest_first if name.startswith(test)), "")


def _row(where: str, number: int, line: str, columns: Sequence[str]) -> TestRow:
    names = [name for name in columns if name != "timestamp"]
    start = next((i for i, name in enumerate(names) if name in ("time", "cputime")), 0)
    count = len(names) - start
    if not start or count % 2 or count < 8:
        raise FormatError(
            f"{where}: the columns above should be size, count, type, (redop, root,) and twice "
            "time, algbw, busbw, #wrong"
        )
    words = _TIMESTAMP.sub("", line).split()
    leading = len(words) - count
    if not 3 <= leading <= start:  # tests without a reduction leave its column blank
        raise FormatError(
            f"{where}: {len(words)} values in place of {count + 3} to {count + start}; is the "
            "log cut off?"
        )
    halves = [words[leading : leading + count // 2], words[leading + count // 2 :]]
    out, inside = (_timing(where, half) for half in halves)
    size = int(words[0]) if len(words[0]) <= LONGEST_SIZE else -1
    return TestRow(number, _size(where, size, words[0]), words[2], out, inside)


def _timing(where: str, words: Sequence[Any]) -> Timing:
    time, algorithm, bus = (
        _number(where, name, word)
        for name, word in zip(("time", "algbw", "busbw"), words[:3], strict=True)
    )
    # Old versions print an error in place of the number of wrong elements ("0e+00").
    unchecked = words[3] is None or str(words[3]).upper() == "N/A"
    wrong = None if unchecked else math.ceil(_number(where, "#wrong", words[3]))
    return Timing(time * 1e-6, algorithm * 1e9, bus * 1e9, wrong)


def _number(where: str, name: str, word: Any) -> float:
    try:
        value = float(word)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise FormatError(f"{where}: {name} '{word}' should be a number >= 0")
    return value


def _test_of(file: str, run: _Run) -> NcclTest:
    if not run.ranks:
        raise FormatError(
            f"{file}: no line '#  Rank  0 …' before the results, so that the number of ranks is "
            "not known; keep the whole output"
        )
    group, _, device = run.ranks[min(run.ranks)]
    hosts = [host for other, host, _ in run.ranks.values() if other == group]
    timer = next(name for name in run.columns if name in ("time", "cputime"))
    test, nodes = _named(file, run.test), len(set(hosts))
    return NcclTest(test, len(hosts), nodes, device, timer, run.average, tuple(run.rows))


def _named(file: str, test: str) -> str:
    """Return the name of a test, where there is one; raises FormatError."""
    if not test:
        raise FormatError(
            f"{file}: no line says which test ran ('# Collective test starting: …', or the "
            "command); name the file after it, as in all_reduce_perf.log"
        )
    return test


def _read_json(file: str, text: str) -> NcclTest:
    document = parse_json(text, file, _WORDS)
    config = _part(file, document, "config", dict)
    devices = _checked(file, "config.devices", config.get("devices", []), list)
    processes = [_checked(file, "config.devices", item, dict) for item in devices]
    if not processes:
        raise FormatError(f"{file}: config.devices is empty, the number of ranks is not known")
    # One device stands there per process, the first of those that it drives.
    each = _count(file, config, "nthreads") * _count(file, config, "ngpus")
    group = processes[0].get("group")
    hosts = [str(item.get("hostname", "")) for item in processes if item.get("group") == group]
    results = _part(file, document, "results", list)
    if not results:
        raise FormatError(f"{file}: results is empty")
    rows = [_json_row(f"{file}, results[{i}]", i, item) for i, item in enumerate(results)]
    key = "average_bus_bandwidth"
    average = _checked(file, key, document.get(key) or {}, dict).get("bandwidth")
    arguments = _checked(file, "args", document.get("args") or [""], list)
    return NcclTest(
        _named(file, _test_in(PurePath(str(arguments[0])).name) or _test_of_file(file)),
        each * len(hosts),
        len(set(hosts)),
        str(processes[0].get("device_info", "")),
        "cputime" if "cpu_time" in results[0]["out_of_place"] else "time",
        None if average is None else _number(file, key, average) * 1e9,
        tuple(rows),
    )


def _json_row(where: str, place: int, item: Any) -> TestRow:
    row = _checked(where, "the result", item, dict)
    size = _size(where, row.get("size"), row.get("size"))
    halves = []
    for name in ("out_of_place", "in_place"):
        half = _part(where, row, name, dict)
        time = half.get("time", half.get("cpu_time"))
        words = [time, half.get("alg_bw"), half.get("bus_bw"), half.get("nwrong")]
        halves.append(_timing(f"{where}.{name}", words))
    return TestRow(place, size, str(row.get("type", "")), *halves)


def _size(where: str, size: Any, written: Any) -> int:
    """Return the bytes of a row, which a 64-bit integer of nccl-tests held."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
        text = str(written)[:LONGEST_SIZE]
        raise FormatError(f"{where}: size '{text}' should be a whole number from 0 to 2^63 - 1")
    return size


def _count(file: str, config: Mapping[str, Any], key: str) -> int:
    """Return how many threads or devices a process has; 1 where nothing is said."""
    value = config.get(key, 1)
    if isinstance(value, str) and value.isdecimal() and len(value) <= LONGEST_SIZE:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        text = str(value)[:LONGEST_SIZE]
        raise FormatError(f"{file}: config.{key} '{text}' should be a whole number >= 1")
    return value


def _part(where: str, document: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in document:
        raise FormatError(f"{where}: no key '{key}'; the file of nccl-tests -J is needed")
    return _checked(where, key, document[key], kind)


def _checked(where: str, name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        wanted = {"dict": "an object", "list": "a list"}[kind.__name__]
        raise FormatError(f"{where}: {name} should be {wanted}")
    return value
