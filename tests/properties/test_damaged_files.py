"""Damaged workload files of every kind: read, or refused in one line that says where.

`benchmarks/fuzz/fuzz_formats.py` does the same guided by coverage and for longer; its small good
files are damaged here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, PerfModelError
from perfmodel.workloads.convert.opening import open_traces, workload_kind
from perfmodel.workloads.formats.aicb_tables import (
    format_aicb_csv,
    format_vidur_csv,
    parse_aicb_csv,
    parse_vidur_csv,
)
from perfmodel.workloads.formats.aiob import format_aiob, parse_aiob
from perfmodel.workloads.formats.astra_text import format_astra_text, parse_astra_text
from perfmodel.workloads.formats.chakra.json import read_groups
from perfmodel.workloads.formats.pytorch_kineto import read_kineto
from perfmodel.workloads.trace import COMPUTE
from tests.amount import cases
from tests.data import BENCHMARKS, table_of

SCRIPT = BENCHMARKS / "fuzz/fuzz_formats.py"
pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="an installed package has no benchmarks"
)


def driver():
    """The script as a module; it imports Atheris only where it runs."""
    spec = importlib.util.spec_from_file_location("fuzz_formats", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUZZ = driver() if SCRIPT.is_file() else None
KINDS = list(FUZZ.KINDS) if FUZZ else []


@functools.cache
def well_formed(kind):
    """Small files of a kind that are as they should be."""
    return FUZZ.examples(kind)


# What replaces a number, or stands between two bytes.
NUMBERS = (b"-1", b"0", b"null", b"nan", b"NaN", b"-Infinity", b"1e999", b"-0.0", b"1.5", b"",
           b"9" * 18, b"9" * 19, b"9" * 25, b"9" * 5000, b"18446744073709551615")  # fmt: skip
PIECES = (b"\0", b"\r", b"\n", b"\xef\xbb\xbf", b"\xff", b"\xc2\x85", b"\xe2\x80\xa8", b"\x1b[31m",
          b'"', b"{", b"[[", b"|", b",", b"\t", b"x" * 3000, b"\\ud800")  # fmt: skip


@st.composite
def damaged(draw, good):
    """A good file after up to three accidents, or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(1, 3))):
        accident = draw(st.sampled_from(["cut", "lines", "number", "digit", "ends", "piece"]))
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        lines = content.split(b"\n")
        line = draw(st.integers(0, len(lines) - 1))
        found = list(re.finditer(rb"-?[0-9.]+", content))
        if accident == "cut":
            content = content[:place]
        elif accident == "lines":  # one of them twice, or none of them
            lines[line : line + 1] = [lines[line]] * draw(st.sampled_from([0, 2]))
            content = b"\n".join(lines)
        elif accident == "number" and found:
            match = draw(st.sampled_from(found))
            new = draw(st.sampled_from(NUMBERS))
            content = content[: match.start()] + new + content[match.end() :]
        elif accident == "digit" and found:
            at = draw(st.sampled_from(found)).start()
            content = content[:at] + str(draw(st.integers(0, 9))).encode() + content[at + 1 :]
        elif accident == "ends":
            end = draw(st.sampled_from([b"\r\n", b"\r"]))
            lines[line:] = [end.join(lines[line:])]  # mixed with those before
            content = b"\n".join(lines)
        else:
            content = content[:place] + draw(st.sampled_from(PIECES)) + content[place:]
    return content


def check(read, content: bytes) -> str:
    """Return what the error says; empty if the file is taken."""
    try:
        read(content)
    except PerfModelError as error:
        text = str(error)
    else:
        return ""
    assert text.isprintable()  # so it is one line
    assert 0 < len(text) <= FUZZ.LONGEST_MESSAGE
    return text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "open"])
def test_the_small_files_are_good(kind, tmp_path):
    for content in well_formed(kind):
        assert check(FUZZ.handler(kind, tmp_path), content) == ""


# What is read of these can be written, and is then read again as it was.
FORMS = {
    "aicb-csv": (parse_aicb_csv, format_aicb_csv),
    "vidur-csv": (parse_vidur_csv, format_vidur_csv),
    "aiob": (parse_aiob, format_aiob),
    "astra-text": (parse_astra_text, format_astra_text),
}


def assert_comes_back(kind, found):
    parse, write = FORMS[kind]
    again = parse(write(found))
    assert again.equals(found) if kind == "astra-text" else again == found


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused(kind, tmp_path):
    handle = FUZZ.handler(kind, tmp_path)

    def read(content):
        found = handle(content)
        if kind in FORMS:
            assert_comes_back(kind, found)

    @settings(max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow])
    @given(damaged(well_formed(kind)))
    def run(content):
        text = check(read, content)
        # A run of several files names the node, not always the file.
        assert not text or "file" in text or kind in (FUZZ.OPEN, FUZZ.SIMULATE), text

    run()


# What a file should be, as errors say where it is no text.
TEXTS = {
    "communicator-groups": "a JSON object of groups",
    "astra-text": "an ASTRA-sim text workload",
    "astra-network": "a network of ASTRA-sim 1.0 in JSON",
    "astra-system": "a system of ASTRA-sim 1.0",
    "aicb-text": "an AICB workload file",
    "aicb-csv": "an AICB CSV workload",
    "vidur-csv": "AICB's CSV for Vidur",
    "aiob": "an AIOB file",
    "flexflow": "a FlexFlow task graph",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_files_that_cannot_be_read_are_named(kind, tmp_path):
    module, function, _ = FUZZ.READERS[kind]
    read = getattr(importlib.import_module(f"perfmodel.{module}"), function)
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(FormatError, match=f"cannot read '{path}': "):
            read(path)
    path = tmp_path / "binary.txt"
    for content in (b"\xff\xfe\x00", b"\x80\xff\x00DATA", well_formed(kind)[0] + b"\xff"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=f"{path}: not UTF-8 text; {TEXTS[kind]} is needed"):
            read(path)


def shown(path: Path) -> tuple[int, str, str]:
    """Exit status and both outputs of ``perfmodel workload show``."""
    from perfmodel.cli.main import cli

    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        try:
            cli(["workload", "show", str(path), "--json"], prog_name="perfmodel")
        except SystemExit as done:
            return int(done.code or 0), output.getvalue(), errors.getvalue()
    raise AssertionError("the command did not end")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "communicator-groups"])
def test_damaged_files_are_shown_or_refused(kind, tmp_path):
    suffix = FUZZ.READERS[kind][2] if kind in FUZZ.READERS else ""
    path = tmp_path / f"file{suffix}"

    @settings(max_examples=cases(15), suppress_health_check=[HealthCheck.too_slow])
    @given(damaged(well_formed(kind)))
    def run(content):
        path.write_bytes(content)
        status, output, errors = shown(path)
        if status == 0:
            assert json.loads(output)["workload"] == str(path)
            return
        assert status == 2
        assert output == ""
        assert errors.startswith("perfmodel: error: ")
        assert errors.count("\n") == 1

    run()


def test_times_that_add_up_to_more_than_64_bits_are_shown(tmp_path):
    path = tmp_path / "w.txt"
    row = f"a -1 {2**63 - 1} NONE 0 0 NONE 0 0 NONE 0 0\n"
    path.write_text(f"DATA\n3\n{row * 3}", "utf-8")
    seconds = json.loads(shown(path)[1])["compute_time"]["forward"]
    assert seconds == pytest.approx(3 * 2**63 * 1e-9)


# Kind, what stands in the good file, what stands there instead, what the error has to say.
PLACES = [
    *table_of(__file__, "places"),
    ("aicb-text", "1823473664", "9" * 25, "line 3, column 11 .*9' should be .* below 2.63"),
    ("aicb-text", "grad_gather", "g" * 201, "line 3, column 1 .* of at most 200 characters"),
    ("aicb-csv", "524288000", "9" * 61, "line 2, column 4"),
    ("vidur-csv", "moe", "moe\r\x0b" + "m" * 4000, "line 3, column 2"),
    ("aiob", "Emb:", "E" * 5000, "line 2: 'E{60}' should be a section"),
    ("flexflow", "131072", "9" * 25, "line 3, node7: comm_size is '9"),
]


@pytest.mark.parametrize(("kind", "good", "bad", "message"), PLACES)
def test_the_error_names_the_file_and_the_place(kind, good, bad, message, tmp_path):
    content = well_formed(kind)[0].decode()
    assert good in content
    text = check(FUZZ.handler(kind, tmp_path), content.replace(good, bad, 1).encode())
    assert f"{tmp_path}/file" in text
    assert re.search(message, text), text


def test_damaged_gzip_is_refused_as_such(tmp_path):
    """Its header is good: what fails is the inflation, with an error of zlib's own."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 40)
    with pytest.raises(FormatError, match="damaged gzip data"):
        workload_kind(path)
    with pytest.raises(FormatError, match="damaged gzip data"):
        open_traces(path, kind="kineto")


@pytest.mark.parametrize("read", [workload_kind, open_traces, read_groups])
def test_a_name_that_no_file_can_have(read, tmp_path):
    with pytest.raises(FormatError, match=r"cannot read '.*: File name too long"):
        read(tmp_path / ("x" * 300))


def test_ranks_behind_few_numbers_are_bounded(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "nccl", "ts": 0}
    keys = {"Collective name": "allreduce", "Global rank stride": 1, "Group size": 10**6}
    events = [{**event, "args": {**keys, "Global rank start": start}} for start in range(5)]
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"traceEvents": events[:4] * 3}), "utf-8")
    records = read_kineto(path).collectives
    assert records[0].ranks is records[4].ranks  # kept once
    path.write_text(json.dumps({"traceEvents": events}), "utf-8")
    with pytest.raises(FormatError, match=r"traceEvents\[4\] \(nccl\): .*5000000 ranks together"):
        read_kineto(path)


def test_a_kernel_that_says_it_waits_is_a_computation(tmp_path):
    """Inside an operator with a size it once was a collective of no kind."""
    event = {"ph": "X", "dur": 5}
    size = {"In msg nelems": 4, "dtype": "Float", "Group size": 1}
    said = {"Collective name": "allreduce", "External id": 7, **size}
    wait = {"Collective name": "wait", "correlation": 9, "stream": 1}
    events = [
        {**event, "cat": "cpu_op", "name": "record_param_comms", "ts": 10, "args": said},
        {**event, "cat": "cuda_runtime", "name": "launch", "ts": 11, "args": {"correlation": 9}},
        {**event, "cat": "kernel", "name": "nccl", "ts": 14, "args": wait},
    ]
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"traceEvents": events}), "utf-8")
    trace = open_traces(path).traces[0]
    assert (trace.names[-1], set(trace.kinds.tolist())) == ("nccl", {COMPUTE})


def test_a_recorded_number_of_ranks_is_bounded(tmp_path):
    """2^62 ranks once were as many references."""
    path = tmp_path / "k.json"
    for ranks, devices in ((4, 4), (2**40, 1)):
        info = {"rank": 0, "world_size": ranks}
        path.write_text(json.dumps({"traceEvents": [], "distributedInfo": info}), "utf-8")
        assert open_traces(path).devices == devices
    with pytest.raises(FormatError, match="at most 1000000"):
        open_traces(path, devices=2**40)


LARGE = """
import sys, resource
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2)
from pathlib import Path
from perfmodel.base.errors import PerfModelError
sys.path.insert(0, sys.argv[1])
import fuzz_formats
def peak():
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) // 1024
folder = Path(sys.argv[2])
for kind in ("aicb-text", "kineto", "chakra"):
    for content in fuzz_formats.examples(kind):
        fuzz_formats.handler(kind, folder)(content)
for path in sorted(folder.glob("large-*")):
    before, kind = peak(), path.name.removeprefix("large-").rsplit(".")[0]
    try:
        fuzz_formats.handler(kind, folder)(path.read_bytes())
    except PerfModelError as error:
        pass
    print(path.name, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_a_small_file_does_not_fill_the_memory(tmp_path):
    """Of 256 KiB: a name that widens a column, ranks behind numbers, messages in messages."""
    size = 2**18
    row = " -1 0 NONE 0 0 NONE 0 0 NONE 0 0\n"
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD ga: 8\n"
    wide = head + "3001\n" + "n" * (size // 2) + row + f"a{row}" * 3000
    keys = '"Collective name": "allreduce", "Global rank stride": 1, "Group size": 1000000'
    event = (
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "args": {%s, "Global rank start": %d}}'
    )
    events = ",".join(event % (keys, start) for start in range(size // 160))
    deps = b"\x08\x01\x18\x04\x2a" + varint(size) + b"\x01" * size  # packed, one byte each
    empty = b"\x08\x01\x18\x04" + b"\x52\x00" * (size // 2)  # attributes without content
    unknown = b"\x08\x01\x18\x04" + b"\x7b\x7c" * (size // 2)  # groups of a field not known
    nodes = b"".join(framed(b"\x08" + varint(i) + b"\x18\x04") for i in range(size // 7))
    files = {
        "aicb-text": wide.encode(),
        "kineto": f'{{"traceEvents": [{events}]}}'.encode(),
        "chakra.deps": b"\0" + framed(deps),
        "chakra.empty": b"\0" + framed(empty),
        "chakra.unknown": b"\0" + framed(unknown),
        "chakra.nodes": b"\0" + nodes,
        "chakra-json": b"[" * size,
    }
    for name, content in files.items():
        (tmp_path / f"large-{name}").write_bytes(content)
        assert len(content) > size // 2
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(SCRIPT.parent), str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    grown = dict(line.split() for line in done.stdout.splitlines())
    assert len(grown) == len(files)
    assert max(map(int, grown.values())) < 256, grown  # MiB


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


def framed(message: bytes) -> bytes:
    """A message after its length."""
    return varint(len(message)) + message


class TestDriver:
    def test_without_atheris_it_says_how_to_get_it(self, monkeypatch, capsys):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert FUZZ.main(["chakra"]) == 2
        assert capsys.readouterr().err == "this needs Atheris: pip install atheris\n"

    @pytest.mark.parametrize("arguments", [[], ["chakr"], ["-runs=5"]])
    def test_an_unknown_kind(self, arguments, capsys):
        assert FUZZ.main(arguments) == 2
        assert f"Kinds: {', '.join(FUZZ.KINDS)}, all" in capsys.readouterr().err

    def test_inputs_are_left_in_a_folder_of_their_own(self, monkeypatch, tmp_path, capsys):
        started = []

        def start(command, **_):
            started.append(command)
            place = next(word for word in command if word.startswith("-artifact_prefix="))
            Path(place.partition("=")[2] + "crash-0").write_bytes(b"x")
            return subprocess.CompletedProcess(command, 77)

        monkeypatch.setattr(FUZZ.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(FUZZ.subprocess, "run", start)
        monkeypatch.setattr(FUZZ.tempfile, "tempdir", str(tmp_path))
        assert FUZZ.main(["kineto"]) == 1
        (found,) = tmp_path.glob("perfmodel-fuzz-*")
        assert started[0][-2:] == [f"-artifact_prefix={found}/kineto-", "-runs=10000"]
        assert capsys.readouterr().out == f"inputs that were not handled: {found}\n"
        assert [path.name for path in found.iterdir()] == ["kineto-crash-0"]
