"""Read and write Chakra execution traces (``.et``), one file per rank.

`perfmodel.workloads.formats.chakra.schema` lists the fields and attributes,
`perfmodel.workloads.formats.chakra.writing` frames them. Files named ``.json`` are Chakra's JSON
form (`perfmodel.workloads.formats.chakra.json`). All may be gzipped when read.

Sources: mlcommons/chakra v0.0.4 and 21585d8, ``schema/protobuf/et_def.proto``,
``src/feeder``, ``src/third_party/utils/protolib.py``; astra-sim ``workload/feeder_v3``.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import atomic_path, shortened
from perfmodel.base.memory import check_amount
from perfmodel.kernels.work import expect
from perfmodel.workloads.formats.chakra.json import check_groups, read_groups, write_groups
from perfmodel.workloads.formats.chakra.reading import AT_ONCE
from perfmodel.workloads.formats.chakra.schema import NODE_INPUTS
from perfmodel.workloads.formats.chakra.writing import parse_messages, serialise
from perfmodel.workloads.trace import (
    METADATA,
    RECEIVE,
    SEND,
    OtherPeers,
    RankTraces,
    Trace,
    TraceSet,
    with_columns_of,
)

GZIP = b"\x1f\x8b"
# A gzipped file may unpack to this many times its size and no more.
LARGEST_EXPANSION = 256
SMALLEST_BOUND = 2**24  # [B]
RANK_FILE = re.compile(r"(?P<prefix>.*)\.(?P<rank>[0-9]{1,9})\.(?:et|json)(?:\.gz)?", re.DOTALL)
LARGEST_SET = 1_000_000  # ranks
BYTES_PER_NODE = 100  # of usual files
MOST_COMPARED = 4  # traces of one size to which another is compared
EVERYBODY_NAME = "0"  # group of all ranks in PyTorch's traces


def read_trace(path: str | Path) -> Trace:
    """Read the trace of one rank.

    Parameters
    ----------
    path : str or Path
        ``.et``, or ``.json``; gzipped or not.

    Raises
    ------
    FormatError
        The file cannot be read, is no Chakra trace, or one of an older schema than 0.0.4.
    """
    return parse_trace(read_bytes(path), path)


def parse_trace(content: bytes, path: str | Path) -> Trace:
    """Read the trace of one rank from the bytes of a file; its name tells the form.

    Raises
    ------
    FormatError
        As `read_trace`.
    """
    if Path(path).name.removesuffix(".gz").endswith(".json"):
        from perfmodel.workloads.formats.chakra.json import parse_json_trace

        return parse_json_trace(content, path)
    return parse_messages(content, path)


def read_traces(
    source: str | Path | Sequence[str | Path],
    groups: str | Path | Mapping[str, Sequence[int]] | None = None,
    devices: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TraceSet:
    """Read the traces of all ranks. Ranks with identical files share one trace,
    and those of which only groups and peers differ share all other columns.

    Parameters
    ----------
    source : str, Path, or sequence of them
        The prefix of files ``PREFIX.RANK.et`` (or ``.json``), a folder with the files of
        one prefix, one file (a single rank), or the files of all ranks: by the rank in
        their names, else in the order given.
    groups : str, Path or mapping, optional
        Communicator groups, or their file; by default ``PREFIX.groups.json`` where there is
        one. Process groups that PyTorch's traces list are added where `groups` does not
        name them; their group "0" is all ranks.
    devices : int, optional
        Number of ranks. A single file stands for them all, if all its communication is of all
        ranks; of several files it is their number.
    progress : callable, optional
        Called after each file with the number of files done and of all.

    Raises
    ------
    FormatError
        A rank's file is missing or unreadable, groups contradict each other, or the files are
        not those of `devices` ranks.
    """
    try:
        files, prefix = files_of_ranks(source)
    except OSError as error:  # a name that is too long, a folder that is not ours
        raise FormatError(f"cannot read '{source}': {error.strerror or error}") from None
    if not any(path.name.endswith((".gz", ".json")) for path in files):
        bytes_of_files = sum(path.stat().st_size for path in files)
        expect(wire_nodes=bytes_of_files / BYTES_PER_NODE * AT_ONCE)
    known: dict[bytes, Trace | OtherPeers] = {}
    alike = _Alike()
    parts: list[Trace | OtherPeers] = []
    for path in files:
        content = read_bytes(path)
        form = b"json" if ".json" in path.name[-8:] else b"et"
        key = hashlib.sha256(content).digest() + form
        if key not in known:
            known[key] = alike.find(parse_trace(content, path))
        parts.append(known[key])
        if progress is not None:
            progress(len(parts), len(files))
    count = len(files) if devices is None else devices
    if count > LARGEST_SET:
        raise FormatError(f"{count} ranks; at most {LARGEST_SET} are read")
    if count != len(files) > 1:
        raise FormatError(f"'{source}' has {len(files)} ranks, not {count}")
    traces = [part if isinstance(part, Trace) else part.trace for part in parts]
    listed = _listed_groups(files, traces, count)
    if groups is None and prefix is not None:
        beside = groups_file(prefix)
        groups = beside if beside.is_file() else None
    if isinstance(groups, str | Path):
        groups = read_groups(groups, count)
    members = listed | check_groups(groups or {}, count)
    if count > len(files):
        _check_uniform(traces[0], count, members, files[0])
        parts *= count
    return TraceSet(RankTraces(parts) if len(parts) > 1 else tuple(traces), members)


class _Alike:
    """Traces read so far: another one shares the columns that are equal."""

    def __init__(self) -> None:
        self._by_size: dict[tuple[int, ...], list[Trace]] = {}

    def find(self, trace: Trace) -> Trace | OtherPeers:
        """Return a trace with what it has in common with an earlier one."""
        before = self._by_size.setdefault(trace.sizes, [])
        for known in before:
            found, alike = with_columns_of(trace, known)
            if alike:
                return found
            if isinstance(found, Trace):
                trace = found
        before.insert(0, trace)
        del before[MOST_COMPARED:]
        return trace


def _listed_groups(
    files: Sequence[Path], traces: Sequence[Trace], devices: int
) -> dict[str, tuple[int, ...]]:
    """Return the process groups that traces of PyTorch list, and "0" where one is of that group."""
    listed: dict[str, tuple[int, ...]] = {}
    for path, trace in zip(files, traces, strict=True):
        try:
            for name, ranks in process_groups(trace, devices).items():
                if listed.setdefault(name, ranks) != ranks:
                    raise FormatError(f"process group '{shortened(name)}' differs between files")
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
    if any(EVERYBODY_NAME in trace.group_names for trace in traces):
        listed.setdefault(EVERYBODY_NAME, tuple(range(devices)))
    return listed


def _check_uniform(
    trace: Trace, devices: int, groups: Mapping[str, Sequence[int]], path: Path
) -> None:
    """Refuse a trace that cannot be that of every rank."""
    partial = [
        name for name in trace.group_names if sorted(groups.get(name, ())) != list(range(devices))
    ]
    if partial or np.isin(trace.kinds, (SEND, RECEIVE)).any():
        what = f"collectives of group '{shortened(partial[0])}'" if partial else "messages"
        raise FormatError(
            f"{path}: one trace cannot stand for {devices} ranks: it has {what}; give the traces "
            "of all ranks"
        )


def write_traces(
    traces: TraceSet,
    prefix: str | Path,
    suffix: str = ".et",
    progress: Callable[[int, int], None] | None = None,
    beside: Mapping[str, Callable[[Path], None]] | None = None,
) -> list[Path]:
    """Write the files of all ranks, and ``PREFIX.groups.json`` where there are groups.

    Nothing is put in place before everything is written.

    Parameters
    ----------
    traces : TraceSet
    prefix : str or Path
    suffix : {".et", ".json"}, optional
    progress : callable, optional
        Called after each rank with the number of ranks done and of all.
    beside : mapping of str to callable, optional
        Further files that belong to the traces, and what writes each.

    Returns
    -------
    list of Path
        Of the ranks, then of the groups, then those beside.

    Raises
    ------
    FormatError
        A trace holds what the schema cannot, or a group ranks that do not exist.
    DataError
        A file cannot be written.
    """
    check_groups(traces.groups, traces.devices)
    paths = [Path(f"{prefix}.{rank}{suffix}") for rank in range(traces.devices)]
    last: tuple[Trace, bytes] | None = None
    distinct = {id(part): part.nodes for part in traces.parts}
    expect(written_nodes=sum(distinct.values()))
    with ExitStack() as written:
        for rank, (path, trace) in enumerate(zip(paths, traces.traces, strict=True)):
            if last is None or last[0] is not trace:
                last = (trace, _serialised(trace, path))
            written.enter_context(atomic_path(path)).write_bytes(last[1])
            if progress is not None:
                progress(rank + 1, traces.devices)
        if traces.groups:
            paths.append(groups_file(prefix))
            write_groups(traces.groups, written.enter_context(atomic_path(paths[-1])))
        for name, write in (beside or {}).items():
            paths.append(Path(name))
            write(written.enter_context(atomic_path(name)))
    return paths


NODE_BYTES = 160
NODE_SECONDS = 2e-6


def check_size(devices: int, nodes: float) -> None:
    """Refuse traces that take longer, or more disk, than somebody may have meant.

    Raises
    ------
    DataError
        As of `perfmodel.base.memory.check_amount`.
    """
    hint = "ask for fewer devices, or less of each"
    size, seconds = NODE_BYTES * nodes, NODE_SECONDS * nodes
    what = f"traces of {devices:,} ranks"
    check_amount(what, hint, seconds=seconds, size=size, files=devices)


def make_folder_of(prefix: str, traces: TraceSet, suffix: str = ".et") -> None:
    """Make the folder of a prefix; refuse what would be read together with other files.

    Raises
    ------
    DataError
        The prefix is a folder, its folder cannot be made, or files of other traces stand there; as
        of `check_size`.
    """
    check_size(traces.devices, traces.nodes)
    place = Path(prefix)
    if not place.name or prefix.endswith(("/", "\\")) or place.is_dir():
        raise DataError(f"'{prefix}' is a folder; name a prefix in it, as '{place / 'rank'}'")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        names = [file.name for file in place.parent.iterdir()]
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot write to the folder '{place.parent}': {reason}") from None
    written = {f"{place.name}.{rank}{suffix}" for rank in range(traces.devices)}
    matches = [(name, RANK_FILE.fullmatch(name)) for name in names if name not in written]
    left = [name for name, match in matches if match and match["prefix"] == place.name]
    if not traces.groups and groups_file(prefix).name in names:
        left.append(groups_file(prefix).name)
    if left:
        raise DataError(
            f"'{place.with_name(min(left))}' is of other traces and would be read together with "
            "these; remove it, or name another prefix"
        )


def groups_file(prefix: str | Path) -> Path:
    """Return where the communicator groups of a prefix stand."""
    return Path(f"{prefix}.groups.json")


def process_groups(trace: Trace, devices: int) -> dict[str, tuple[int, ...]]:
    """Return PyTorch's process groups, which a METADATA node lists in its inputs.

    The text is a JSON list of ``pg_name`` and ``ranks`` within two characters on either
    side. A group without ranks is that of all.

    Raises
    ------
    FormatError
        The list cannot be read, or a group's ranks are not different ones of `devices`.
    """
    groups: dict[str, tuple[int, ...]] = {}
    everybody = tuple(range(devices))
    for position, attributes in trace.other.items():
        info = attributes.get(NODE_INPUTS)
        if info is None or trace.kinds[position] != METADATA or '"pg_name"' not in info.value[0]:
            continue
        try:
            entries = json.loads(info.value[0][2:-2])
            listed = {str(entry["pg_name"]): entry["ranks"] for entry in entries}
            groups |= {name: everybody for name, ranks in listed.items() if not ranks}
            named = {name: list(ranks) for name, ranks in listed.items() if ranks}
            groups |= check_groups(named, devices)
        except (ValueError, KeyError, TypeError, RecursionError):
            node = trace.identifiers[position]
            raise FormatError(f"node {node}: its list of process groups is not readable") from None
    return groups


def read_bytes(path: str | Path) -> bytes:
    """Return a file's content, unpacked.

    Raises
    ------
    FormatError
        The file cannot be read, or unpacks to more than 256 times its size.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from None
    if content[:2] != GZIP:
        return content
    bound = max(LARGEST_EXPANSION * len(content), SMALLEST_BOUND)
    parts, size = [], 0
    try:
        while content:  # members may follow one another
            unpacker = zlib.decompressobj(wbits=31)
            parts.append(unpacker.decompress(content, bound - size + 1))
            size += len(parts[-1])
            if size > bound:
                raise FormatError(f"{path}: unpacks to more than {bound} bytes")
            if not unpacker.eof:
                raise FormatError(f"{path}: the gzip stream is cut off")
            content = unpacker.unused_data
    except zlib.error as error:
        raise FormatError(f"{path}: not gzip: {error}") from None
    return b"".join(parts)


def _serialised(trace: Trace, path: str | Path) -> bytes:
    """Return the content of a file, in the form that its name tells."""
    try:
        if Path(path).suffix == ".json":
            from perfmodel.workloads.formats.chakra.json import json_text

            return json_text(trace).encode()
        return serialise(trace)
    except FormatError as error:
        raise FormatError(f"cannot write '{path}': {error}") from None


def files_of_ranks(source: str | Path | Sequence[str | Path]) -> tuple[list[Path], Path | None]:
    """Return the files by rank, and their prefix where they share one.

    Parameters
    ----------
    source : str, Path, or sequence of them
        As of `read_traces`.

    Raises
    ------
    FormatError
        There are none, or the file of a rank is missing.
    """
    if not isinstance(source, str | Path):
        files = [Path(item) for item in source]
        if not files:
            raise FormatError("no trace files given")
        matches = [RANK_FILE.fullmatch(file.name) for file in files]
        if len(files) == 1 or not all(matches):
            return files, None
        return _by_rank(files, "the list")
    path = Path(source)
    if path.is_file():
        return [path], None
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        raise FormatError(f"no such folder: '{folder}'")
    found = [(file, RANK_FILE.fullmatch(file.name)) for file in sorted(folder.iterdir())]
    by_prefix: dict[str, list[Path]] = {}
    for file, match in found:
        if match:
            by_prefix.setdefault(match["prefix"], []).append(file)
    if not path.is_dir():
        if path.name not in by_prefix:
            raise FormatError(f"no trace files '{path}.0.et', '{path}.1.et', …")
        return _by_rank(by_prefix[path.name], f"'{path}'")
    if len(by_prefix) != 1:
        names = ", ".join(sorted(by_prefix)) or "none"
        raise FormatError(f"'{path}' should hold the trace files of one prefix; found: {names}")
    return _by_rank(next(iter(by_prefix.values())), f"'{path}'")


def _by_rank(files: Sequence[Path], where: str) -> tuple[list[Path], Path | None]:
    """Sort files by the rank in their names; every rank from 0 on has to be there."""
    ranks: dict[int, Path] = {}
    prefixes = set()
    for file in files:
        match = RANK_FILE.fullmatch(file.name)
        if match is None:
            raise FormatError(f"'{file}' has no rank in its name, such as 'trace.0.et'")
        rank = int(match["rank"])
        if rank in ranks:
            raise FormatError(f"{where}: two files of rank {rank}: {ranks[rank]}, {file}")
        ranks[rank] = file
        prefixes.add(file.with_name(match["prefix"]))
    for rank in range(len(ranks)):
        if rank not in ranks:
            raise FormatError(
                f"{where}: the file of rank {rank} is missing (ranks 0 to {max(ranks)} are needed)"
            )
    return [ranks[i] for i in range(len(ranks))], prefixes.pop() if len(prefixes) == 1 else None
