"""Run every command with damaged arguments and files; only answers and one-line errors may come.

::

    python benchmarks/fuzz/fuzz_commands.py --cases 200000 --seed 1 --jobs 2
    python benchmarks/fuzz/fuzz_commands.py --cases 2000 --seed 7 --only "kernel moe"
    python benchmarks/fuzz/fuzz_commands.py --seed 1 --case 1234      # this one alone, shown
    python benchmarks/fuzz/fuzz_commands.py --cases 2000 --flips      # one bit of a file in each

A case is a good command line of `command_examples.COMMANDS` of which arguments, or the content of
one file, are changed; seed and number of the case say how, on every machine. Commands run inside
worker processes, uncompiled, in folders of their own. With ``--flips`` a case is one of
`command_examples.READING`, which read results, and one bit of a file that it reads is turned.

A finding is a case that ends otherwise than with 0, 3 or an error of code 2 that is one line,
printable and not longer than `LONGEST`; that warns; that writes no JSON where JSON was asked for;
that leaves temporary files; that needs more than `SECONDS`, or ends its process. The exit status is
1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import command_examples
import ui_questions
from command_examples import COMMANDS

LONGEST = 1700  # characters of an error's line: what is said, and which page helps
SECONDS = 20  # of a core for one case, uncompiled
STUCK = 120  # after which a worker that does not even answer is ended
MEMORY = 6 * 2**30  # B of addresses for a worker
SHOWN = 60  # findings
UNCOMPILED = {"NUMBA_DISABLE_JIT": "1", "PERFMODEL_JIT": "never"}
VALUES = (
    ["", " ", "0", "1", "2", "3", "7", "-1", "-0", "00", "+1", "1.5", "1e3", "0x10", "1_000", "²",
     "٣", "½", "nan", "-inf", "inf", "1e308", "1e400", "5e-324", "1e-300", "-1e308", str(2**31),
     str(2**40), str(2**53), str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "9" * 5000, "true",
     "False", "none", "None", "null", "all", "auto", ",", "1,", ",1", "1,,2", "1,2,3", "1,1",
     "a,b", ":", "1:2", "1:2:3", "1:1024:x2", "2:1:x2", "1:10:3:log", "1:1e9:100", "x",
     "é", "a b", "x" * 300, "x/" * 200, "x" * 5000, "\u202eabc", "\x1b[31mred", "\udcff", "a\nb",
     "\t", "'", "\"",
     "\\", "%s", "{}", "{rank}", "{0.__class__}", "$HOME", "~", "~nobody/x", "*", "-", "--", "---",
     ".", "..", "/", "/dev/null", "/proc/x", "missing/x", "model.json", "profile.toml", "gemm.csv",
     "sweep.nc", "chain", "chain.0.et", "routing.json", "dgx-h100", "tpu-v5p", "gh200", "gpt2",
     "bf16", "fp8", "fp32", "nvfp4", "ring", "1e12", "64MiB", "1K", "-5B", "1e30B", "10%", "0%"]
)  # fmt: skip
WRITES_MANY = (["workload", "synthetic"], ["workload", "convert"])
"""Take long where they are asked for a file for each of many thousand ranks."""
COUNTS = ("1", "2", "3", "4", "5", "8", "12", "16", "64", "100", "256", "1000", "1024",
          "50000", "1048576", "1073741824", "1,2,4,8")  # fmt: skip
PATHS = (
    ["device.tdp", "device.memory.bandwidth", "device.memory.capacity", "device.peak_flops.bf16",
     "device.clock", "device.compute_units", "system.devices_per_node",
     "system.network.0.bandwidth", "system.network.1.latency", "system.network.9.bandwidth",
     "device", "", "device.", "..", "name", "software.overlap", "device.peak_flops.fp99",
     "calibration.gemm.launch_latency"]
)  # fmt: skip
FILTERS = (
    ["tp is 1", "3and", "1 if 2 else 3", "tp", "tp ==", "(" * 500, "not not tp > 1", "tp ** 9 ** 9",
     "step_time / 0 > 1", "tp in [1, 2]", "tp in 1", "hardware == 'b200'", "hardware", "lambda: 1",
     "__import__('os')", "tp @ 1", "tp << 70 > 1", "-hardware == 1", "f'{tp}'", "tp < 'a' < 3",
     "1 < tp < 4", "step_time < 1e999", "tp == 1j", "b'x' == tp", "tp[0]", "tp.real", "~tp", "a\nb",
     "0777 == tp", "tp == " + "9" * 5000, "tp and", "'' in hardware", "[] == tp", "[[1],2] == tp",
     "rows > 16", "time_us < 5", "nothing == 1", "'\\N{x}' == 1", "1_0 < tp", "0x < tp", "1or tp"]
)  # fmt: skip
PIECES = (
    [b"", b"\0", b"\xff\xfe", b"-1", b"0", b"1e400", b"5e-324", b"9" * 30, b"9" * 400, b"9" * 5000,
     b"nan", b"Infinity", b"null", b"true", b"[]", b"{}", b'""', b"[" * 3000, b'{"a":' * 3000,
     b"\n\n", b",", b",,,,", b":", b"=", b"\t", b'"', b"'", b"\\u202e", "\u202e".encode(),
     b"\\ud800", "²".encode(), "é".encode(), b"1.5", b"-0.0", b"18446744073709551616",
     b"9223372036854775808", b"1e308", b"a" * 3000, b"a." * 3000, b"#", b"\r", b"\x1f\x8b",
     b"\x1b[31m", b"\\u0000", b"1e9"]
)  # fmt: skip
UNEXPECTED = re.compile(r"error: unexpected \w+:")  # the group's words for what it does not know
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass
class Case:
    """A command line, and what is damaged of which file."""

    command: str
    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)

    def shown(self) -> str:
        """Return the command line as a shell takes it, and its files."""
        lines = ["perfmodel " + shlex.join(self.arguments)]
        lines += [f"  {name}: {content[:2000]!r}" for name, content in self.files.items()]
        return "\n".join(lines)


class TooSlow(BaseException):
    """A case took too long; no `Exception`, which commands turn into errors."""


def case_of(seed: int, number: int, contents: dict[str, bytes], only: str | None) -> Case:
    """Return a case: the same for the same seed and number."""
    rng = random.Random(f"{seed}/{number}")
    names = [only] if only else list(COMMANDS)
    (command,) = rng.choices(names, [COMMANDS[name][0] for name in names])
    case = Case(command, shlex.split(rng.choice(COMMANDS[command][1])))
    fixed = len(command.split())
    used = [word for word in case.arguments[fixed:] if word in contents]
    used += [f"{word}.0.et" for word in case.arguments[fixed:] if f"{word}.0.et" in contents]
    used += [name for word in case.arguments for name in contents if word == f"empirical:{name}"]
    if used and rng.random() < 0.5:
        name = rng.choice(used)
        case.files[name] = damaged(rng, contents[name])
        if rng.random() < 0.8:
            return case
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change(rng, case.arguments, fixed, command)
    return case


def made_case(options: argparse.Namespace, number: int, contents: dict[str, bytes]) -> Case:
    """Return a case of the kind that is asked for."""
    if options.flips:
        return flip_of(options.seed, number, contents)
    return case_of(options.seed, number, contents, options.only)


def flip_of(seed: int, number: int, contents: dict[str, bytes]) -> Case:
    """Return a case in which one bit of stored results is another."""
    rng = random.Random(f"flip/{seed}/{number}")
    line = rng.choice(command_examples.READING)
    case = Case(" ".join(line.split()[:1]), shlex.split(line))
    kinds = {word.partition("#")[0] for word in case.arguments}
    used = [name for name in contents if name.partition("/")[0] in kinds]
    name = rng.choice(sorted(used))
    content = bytearray(contents[name])
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    case.files[name] = bytes(content)
    return case


def options_of(command: str) -> list[str]:
    """Return the options of a command that is at hand."""
    import click

    from perfmodel.cli.main import cli

    found: Any = cli
    for word in command.split():
        found = found.get_command(click.Context(found), word)
    return [option for param in found.params for option in param.opts if option.startswith("--")]


def change(rng: random.Random, arguments: list[str], fixed: int, command: str) -> None:
    """Change one thing of a command line."""
    places = range(fixed, len(arguments))
    what = rng.random()
    if what < 0.55 and places:
        place = rng.choice(places)
        arguments[place] = value_after(rng, arguments[place - 1], arguments[place])
    elif what < 0.85:
        option = rng.choice(options_of(command) or ["--help"])
        arguments += [option, value_after(rng, option, "8")][: rng.choice((1, 2, 2, 2))]
    elif what < 0.90 and places:
        del arguments[rng.choice(places)]
    elif what < 0.94 and places:
        arguments.insert(rng.choice(places), rng.choice(VALUES))
    elif what < 0.97 and places:
        arguments.insert(rng.choice(places), arguments[rng.choice(places)])
    elif len(places) > 1:
        one, other = rng.sample(places, 2)
        arguments[one], arguments[other] = arguments[other], arguments[one]


@functools.cache
def sensible(option: str) -> tuple[str, ...]:
    """Return values that could be right for an option, such as those of its type."""
    import click

    from perfmodel.base.strategy_fields import FIELDS
    from perfmodel.cli.main import cli

    fields = {f"--{spec.option}": spec for spec in FIELDS}
    if option in fields and fields[option].choices:
        return fields[option].choices
    for name in COMMANDS:
        found: Any = cli
        for word in name.split():
            found = found.get_command(click.Context(found), word)
        for param in found.params:
            if option in param.opts:
                if isinstance(param.type, click.Choice):
                    return tuple(map(str, param.type.choices))
                if hasattr(param.type, "known"):
                    return tuple(param.type.known)
                if "N" in param.type.name or "range" in param.type.name:
                    return COUNTS
    return ()


def value_after(rng: random.Random, option: str, value: str) -> str:
    """Return a value for an option: another, or this one damaged."""
    if option == "--where" and rng.random() < 0.7:
        return rng.choice(FILTERS)
    if option in ("--set", "--sweep") and rng.random() < 0.7:
        return f"{rng.choice(PATHS)}={rng.choice(VALUES)}"
    what = rng.random()
    if what < 0.3:
        return rng.choice(VALUES)
    if what < 0.55:
        return rng.choice(sensible(option) or VALUES)
    if what < 0.65:
        return f"{value},{rng.choice(VALUES)}"
    if what < 0.85:
        raw = value.encode("utf-8", "surrogateescape")
        return damaged(rng, raw).replace(b"\0", b"?").decode("utf-8", "surrogateescape")
    cut = rng.randrange(len(value) + 1)
    return value[:cut] + rng.choice(VALUES) + value[cut:]


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return a file's content after one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = _damaged_once(rng, content)
    return content


def _damaged_once(rng: random.Random, content: bytes) -> bytes:
    what = rng.random()
    here = rng.randrange(len(content) + 1)
    there = min(len(content), here + rng.choice((1, 2, 8, 64, 512)))
    numbers = list(NUMBER.finditer(content[:20_000]))
    if what < 0.35 and numbers:
        found = rng.choice(numbers)
        return content[: found.start()] + _other_number(rng, found[0]) + content[found.end() :]
    if what < 0.50:
        return content[:here] + rng.choice(PIECES) + content[here:]
    if what < 0.60:
        return content[:here] + rng.choice(PIECES) + content[there:]
    if what < 0.70:
        return content[:here] + content[there:]
    if what < 0.78:
        return content[:here]
    if what < 0.88 and content:
        place = min(here, len(content) - 1)
        return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    lines = content.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if what < 0.94:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines.insert(one, lines[other])
    return b"\n".join(lines)


def _other_number(rng: random.Random, number: bytes) -> bytes:
    if len(number) < 18 and number.isdigit() and rng.random() < 0.5:
        value = int(number)
        return str(rng.choice((value + 1, value - 1, 2 * value, value // 3, -value))).encode()
    return rng.choice(PIECES)


class _Program:
    """The commands, on streams that say ``?`` for what they cannot, as the program's do."""

    def __init__(self, commands: Any) -> None:
        self.commands = commands
        self.name = commands.name

    def main(self, *given: Any, **named: Any) -> Any:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        return self.commands.main(*given, **named)


class Workplace:
    """A folder with the good files, made anew after each case, and the verdict on a case."""

    def __init__(self, folder: Path, more: Sequence[str] = ()) -> None:
        from click.testing import CliRunner

        from perfmodel.cli import group
        from perfmodel.cli.main import cli

        os.chdir(folder)
        self.folder = folder
        self.cli = _Program(cli)
        self.runner = CliRunner()
        self.cause: BaseException | None = None
        report = group.report

        def report_and_keep(error: Any) -> None:
            self.cause = error.__cause__
            report(error)

        group.report = report_and_keep
        command_examples.files(folder)
        for line in (*command_examples.MADE, *more):
            made = self.runner.invoke(cli, shlex.split(line), prog_name="perfmodel")
            if made.exit_code:
                raise SystemExit(f"{line}: {made.stderr}")
        for name, line in command_examples.PRINTED.items():
            made = self.runner.invoke(cli, shlex.split(line), prog_name="perfmodel")
            (folder / name).write_text(made.stdout, encoding="utf-8")
        self.app: Any = None
        with contextlib.suppress(ImportError):
            from perfmodel.cli.report.server.app import make_app

            self.app = make_app(token=ui_questions.TOKEN, warm=False)
        self.contents = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    def run(self, case: Case) -> tuple[int, str]:
        """Run a case; return its exit code, and what is wrong with it or ''."""
        for name, content in case.files.items():
            (self.folder / name).write_bytes(content)
        self.cause = None
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("ignore")
                for shown in (UserWarning, RuntimeWarning, FutureWarning, SyntaxWarning):
                    warnings.simplefilter("always", shown)  # as a user would see them
                if case.command == "ui":
                    return self._asked(case)
                result = self.runner.invoke(self.cli, case.arguments, prog_name="perfmodel")
            signal.setitimer(signal.ITIMER_PROF, 0)
            verdict = self._verdict(case, result, warned)
            return result.exit_code, verdict
        except TooSlow:
            if case.arguments[:2] in WRITES_MANY:
                return 0, ""
            frames = [f for f in traceback.extract_tb(sys.exc_info()[2]) if "/perfmodel" in f[0]]
            return 1, f"too slow: {frames[-1].name if frames else '?'}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._tidy(case)

    def _asked(self, case: Case) -> tuple[int, str]:
        """Ask the page with controls what stands in a file; 2 for what it refuses."""
        if self.app is None:  # the extra 'ui' is not installed
            return 0, ""
        path = case.arguments[1] if case.arguments[1:] else "/"
        name = case.arguments[2] if case.arguments[2:] else ""
        content = case.files.get(name, self.contents.get(name, name.encode("utf-8", "replace")))
        status, body = ui_questions.ask(self.app, path, content)
        return 2 * (status != 200), ui_questions.verdict(path, status, body)

    def _verdict(self, case: Case, result: Any, warned: list[Any]) -> str:
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            error = result.exception
            return f"{type(error).__name__}: {error}\n{_last(error)}"
        if warned:
            return f"warns: {warned[0].category.__name__}: {warned[0].message}\n{_place(warned[0])}"
        asked = tuple(it.split("/")[0] for it in case.arguments if it.startswith("."))
        left = (name for name in os.listdir(self.folder) if name.startswith("."))
        if not all(name.startswith(asked) for name in left):
            return "leaves a temporary file"
        if result.exit_code in (0, 3):
            if "--json" in case.arguments and "-h" not in case.arguments:
                return _json_verdict(case, result.stdout)
            return ""
        if "--help" in case.arguments or (result.exit_code == 2 and "Usage:" in result.stdout):
            return ""
        *_, line, rest = ["", *result.stderr.split("\n")]
        if "above --max-error" in result.stderr:
            return ""
        if rest or not line.startswith("perfmodel: error: "):
            return f"no error line at the end: {result.stderr[-200:]!r}"
        cause = f"\n{_last(self.cause)}" if self.cause is not None else ""
        if result.exit_code != 2 or UNEXPECTED.search(line):
            return f"code {result.exit_code}: {line[:300]}{cause}"
        if len(line) > LONGEST or not line.isprintable():
            return f"{len(line)} characters, printable: {line.isprintable()}: {line[:200]!r}"
        if result.stdout:
            return f"an error after output: {line[:200]}"
        if "Traceback" in result.stderr:
            return f"a traceback: {result.stderr[-600:]}"
        return ""

    def _tidy(self, case: Case) -> None:
        kept = {name.partition("/")[0] for name in self.contents}
        for name in os.listdir(self.folder):
            if name not in kept:
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        written = {word for word in case.arguments if word in self.contents}  # -o sweep.nc
        for name in {*case.files, *written} & set(self.contents):
            (self.folder / name).write_bytes(self.contents[name])


def _json_verdict(case: Case, text: str) -> str:
    if "--help" in case.arguments or "--version" in case.arguments or not text.startswith("{"):
        return ""
    try:
        json.loads(text, parse_constant=lambda word: word + 1)  # type: ignore[operator,return-value]
    except (ValueError, TypeError) as error:
        return f"no JSON: {error}"
    return ""


def _last(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[:-4:-1])


def _place(warned: Any) -> str:
    return f"{Path(warned.filename).name}:{warned.lineno}"


def work(options: argparse.Namespace, first: int, step: int, folder: Path) -> None:
    """Run every `step`-th case from `first` on; say of each, on stdout, what came of it."""
    with contextlib.suppress(ImportError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import netCDF4  # noqa: F401, warns when it is imported

    def ring(number: int, frame: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, ring)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    place = Workplace(folder, command_examples.MADE_TO_FLIP if options.flips else ())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries written in C print there
    for number in range(first, options.cases, step):
        out.write(f"{number}\n")
        case = made_case(options, number, place.contents)
        start = time.process_time()
        code, wrong = place.run(case)
        spent = time.process_time() - start
        out.write(json.dumps([case.command, code, spent, wrong]) + "\n")


def run_workers(options: argparse.Namespace) -> Iterator[tuple[int, str, int, float, str]]:
    """Yield number, command, exit code, seconds and verdict of every case."""
    memory = Path("/dev/shm")
    environment = os.environ | ({} if options.compiled else UNCOMPILED)
    jobs = options.jobs
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:

        def start(first: int, index: int) -> None:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            words = ["--within", str(folder), str(first), str(jobs), "--cases", str(options.cases)]
            words += ["--seed", str(options.seed), *(["--only", options.only] * bool(options.only))]
            words += ["--flips"] * options.flips + ["--compiled"] * options.compiled
            command = [sys.executable, __file__, *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            assert process.stdout is not None
            ready.register(process.stdout, selectors.EVENT_READ, [process, index, -1, 0.0])

        with selectors.DefaultSelector() as ready:
            for index in range(jobs):
                start(index, index)
            while ready.get_map():
                for key, _ in ready.select(timeout=1.0):
                    state = key.data
                    process, index, number, _ = state
                    line = process.stdout.readline()
                    state[3] = time.monotonic()
                    if line and line[0].isdigit():
                        state[2] = int(line)
                    elif line:
                        yield (number, *json.loads(line))
                        state[2] = -1
                    else:
                        ready.unregister(key.fileobj)
                        code = process.wait()
                        if number < 0 and code:
                            raise SystemExit(f"a worker ended with {code}")
                        if number >= 0:
                            yield number, "?", code, 0.0, f"ends its process with {code}"
                            start(number + jobs, index)
                for key in list(ready.get_map().values()):
                    process, _, number, since = key.data
                    if number >= 0 and time.monotonic() - since > STUCK:
                        process.kill()


def summary(options: argparse.Namespace) -> int:
    """Run all cases, and print what came of them by command; return the exit status."""
    codes: dict[str, Counter[int]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    longest: Counter[str] = Counter()
    findings: dict[str, list[int]] = defaultdict(list)
    wrongs: Counter[str] = Counter()
    done = 0
    for number, command, code, spent, wrong in run_workers(options):
        codes[command][code] += 1
        seconds[command] += spent  # type: ignore[assignment]
        longest[command] = max(longest[command], spent)  # type: ignore[assignment]
        done += 1
        if done % 10_000 == 0:
            print(f"{done:,} cases, {sum(seconds.values()):,.0f} s of cores", flush=True)
        if wrong:
            wrongs[command] += 1
            said, _, where = wrong.partition("\n")
            kind = where or re.sub(r"[\d.]+|'[^']*'", "…", said)[:80]
            if not findings[f"{command}: {kind}"]:
                print(f"\ncase {number}: {command}: {wrong}", flush=True)
            findings[f"{command}: {kind}"].append(number)
    print(
        f"\n{'command':<22}{'cases':>8}{'good':>8}{'refused':>9}{'findings':>9}{'ms':>7}{'most':>7}"
    )
    for command in [*COMMANDS, *sorted(set(codes) - set(COMMANDS))]:
        count = codes[command]
        total = sum(count.values())
        if total:
            print(
                f"{command:<22}{total:>8,}{count[0] + count[3]:>8,}{count[2]:>9,}"
                f"{wrongs[command]:>9,}{1e3 * seconds[command] / total:>7.0f}"
                f"{1e3 * longest[command]:>7.0f}"
            )
    total = sum(wrongs.values())
    print(f"\n{done:,} cases of seed {options.seed}: {total:,} findings, {len(findings):,} kinds")
    for kind, numbers in sorted(findings.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        print(f"{len(numbers):>6,} x case {numbers[0]}: {kind[:160]}")
    return 1 if total else 0


def show(options: argparse.Namespace) -> int:
    """Run one case here and show everything of it."""
    import netCDF4  # noqa: F401

    def ring(number: int, frame: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, ring)
    with tempfile.TemporaryDirectory() as folder:
        more = command_examples.MADE_TO_FLIP if options.flips else ()
        place = Workplace(Path(folder), more)
        case = made_case(options, options.case, place.contents)
        print(case.shown())
        code, wrong = place.run(case)
        print(f"code {code}: {wrong or 'nothing wrong'}")
        if place.cause is not None:
            traceback.print_exception(place.cause)
        os.chdir("/")
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    """Run what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=COMMANDS, help="one command")
    parser.add_argument("--flips", action="store_true", help="turn one bit of stored results")
    parser.add_argument("--compiled", action="store_true", help="kernels as users have them")
    parser.add_argument("--case", type=int, help="run this case alone, and show it")
    parser.add_argument("--within", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.within:
        folder, first, step = options.within
        work(options, int(first), int(step), Path(folder))
        return 0
    return summary(options) if options.case is None else show(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
