"""Read and write AICB's workload text files (SimAI's input).

A file is one header line, one line with the number of rows, and the rows::

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 36 ...
    598
    attention_layer	-1	1820000	ALLREDUCE	8388608	...	100

A row is a layer (or a step around the layers) with three phases: forward, input gradient
and weight gradient. Each phase computes and then runs one collective. The collective's
suffix names its group; without one it is the tensor-parallel group in the first two phases
and the data-parallel group in the third. Sizes are those of nccl-tests: the whole buffer.

The reader splits at any white space and looks header keys up by name, as SimAI does, so it
takes the older dialects too (tabs in the header, ``pp_comm`` without a colon, padded rows).
The writer writes the present form: what AICB wrote comes out byte for byte.

Sources: aliyun/aicb 23eec3c4, ``workload_generator/SimAI_training_workload_generator.py``
lines 40-52 and 841-869; aliyun/SimAI cef83f9d, ``Workload::initialize_workload``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import TWO_COLLECTIVES, WORDS
from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.formats.words import words_of

_WORDS = words_of("aicb_text")
POLICIES: tuple[str, ...] = _WORDS["policies"]
TRANSFORMER = POLICIES[0]
KINDS = (*WORDS.values(), TWO_COLLECTIVES)
GROUP_SUFFIXES = ("", "_EP", "_DP_EP")
NO_COLLECTIVE = "NONE"
COLLECTIVES = (NO_COLLECTIVE, *(kind + suffix for kind in KINDS for suffix in GROUP_SUFFIXES))

COLUMNS: tuple[str, ...] = _WORDS["columns"]
COLLECTIVE_COLUMNS = (3, 6, 9)
WHOLE_COLUMNS = tuple(i for i in range(1, len(COLUMNS)) if i not in COLLECTIVE_COLUMNS)
LISTS = ("checkpoints", "checkpoint_initiates")  # a count, then that many layer numbers
WHOLE = re.compile(r"-?[0-9]{1,19}")
LARGEST = 2**63 - 1
LONGEST_NAME = 200  # characters; the longest one widens the whole column

Number = int | float
Names = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class AicbHeader:
    """First line of a workload file.

    Attributes
    ----------
    policy : str
        One of `POLICIES`; AICB writes `TRANSFORMER`.
    entries : mapping of str to int, float, or tuple of int
        Keys without their colon, in file order. ``checkpoints`` and
        ``checkpoint_initiates`` are a tuple (count, layer, layer …) where the count is not 0.
    """

    policy: str
    entries: Mapping[str, Number | tuple[int, ...]]

    def whole(self, key: str) -> int:
        """Return the value of a key, cut to a whole number as SimAI reads it.

        Raises
        ------
        FormatError
            The header lacks the key.
        """
        value = self.entries.get(key)
        if value is None or isinstance(value, tuple):
            raise FormatError(f"the workload's header lacks '{key}: N'")
        return int(value)

    @property
    def tensor_parallel(self) -> int:
        """Devices that share a layer."""
        return self.whole("model_parallel_NPU_group")

    @property
    def expert_parallel(self) -> int:
        """Devices that share the experts of a layer."""
        return self.whole("ep")

    @property
    def pipeline_parallel(self) -> int:
        """Pipeline stages."""
        return self.whole("pp")

    @property
    def layers_per_stage(self) -> int:
        """AICB's ``vpp``: layers of a stage, not virtual stages."""
        return self.whole("vpp")

    @property
    def micro_batches(self) -> int:
        """AICB's ``ga``: gradient accumulation steps; 0 where the global batch is too small."""
        return self.whole("ga")

    @property
    def world_size(self) -> int:
        """Devices that the workload was written for."""
        return self.whole("all_gpus")

    @property
    def pipeline_message(self) -> int:
        """AICB's ``pp_comm``: activation between stages [B]."""
        return self.whole("pp_comm")


@dataclass(frozen=True, slots=True, eq=False)
class AicbPhase:
    """One phase of every row; arrays of shape (rows,).

    Attributes
    ----------
    compute_time : ndarray of int
        Time of the computation [ns].
    collective : ndarray of str
        What runs after it, of `COLLECTIVES`.
    size : ndarray of int
        Whole buffer of the collective [B].
    """

    compute_time: Integers
    collective: Names
    size: Integers


@dataclass(frozen=True, slots=True, eq=False)
class AicbWorkload:
    """A workload file; arrays of shape (rows,).

    Attributes
    ----------
    header : AicbHeader
    name : ndarray of str
        Type of the row, without white space.
    placeholder : ndarray of int
        Row that this one depends on, for ASTRA-sim; -1 for none, as in all of AICB's files.
    forward, input_gradient, weight_gradient : AicbPhase
    process_time : ndarray of int
        Delay of the update [ns]; AICB writes 100, SimAI-Analytical does not use it.
    """

    header: AicbHeader
    name: Names
    placeholder: Integers
    forward: AicbPhase
    input_gradient: AicbPhase
    weight_gradient: AicbPhase
    process_time: Integers

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.name)

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return the arrays in the order of `COLUMNS`."""
        phases = (self.forward, self.input_gradient, self.weight_gradient)
        inner = (column for p in phases for column in (p.compute_time, p.collective, p.size))
        return (self.name, self.placeholder, *inner, self.process_time)


def read_aicb_text(path: str | os.PathLike[str]) -> AicbWorkload:
    """Read a workload file.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    AicbWorkload
        Its arrays are read-only.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; says line, column and what would be right.
    """
    return parse_aicb_text(read_text(path, "an AICB workload file"), str(path))


def parse_aicb_text(text: str, file: str = "workload") -> AicbWorkload:
    """Read a workload from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_aicb_text`.
    """
    lines = text.split("\n")
    header = _header(lines[0], file)
    numbered = [(i, line.split()) for i, line in enumerate(lines[2:], 3)]
    numbered = [(i, cells) for i, cells in numbered if cells]
    _check_count(lines[1].strip() if len(lines) > 1 else "", len(numbered), file)
    for line, row in numbered:
        if len(row) != len(COLUMNS):
            raise FormatError(
                f"{file}, line {line}: {len(row)} columns where a row has {len(COLUMNS)} "
                f"({COLUMNS[0]} … {COLUMNS[-1]})"
            )
    columns = list(zip(*(row for _, row in numbered), strict=True)) or [()] * len(COLUMNS)
    _check_cells(columns, [line for line, _ in numbered], file)
    return aicb_from_columns(header, columns)


def aicb_from_columns(header: AicbHeader, columns: Sequence[Sequence[object]]) -> AicbWorkload:
    """Make a workload of its 12 columns, in the order of `COLUMNS`.

    Parameters
    ----------
    header : AicbHeader
    columns : sequence of sequences
        Numbers may be given as text.

    Returns
    -------
    AicbWorkload
        Its arrays are read-only.
    """
    texts = {i: np.array(columns[i], np.str_) for i in (0, *COLLECTIVE_COLUMNS)}
    wholes = {i: np.array(columns[i]).astype(np.int64) for i in WHOLE_COLUMNS}
    for array in (*texts.values(), *wholes.values()):
        array.setflags(write=False)
    forward, input_gradient, weight_gradient = (
        AicbPhase(wholes[i - 1], texts[i], wholes[i + 1]) for i in COLLECTIVE_COLUMNS
    )
    return AicbWorkload(
        header, texts[0], wholes[1], forward, input_gradient, weight_gradient, wholes[11]
    )


def format_aicb_text(workload: AicbWorkload) -> str:
    """Return the text of a workload file, as AICB writes it.

    Raises
    ------
    FormatError
        The columns differ in length, or hold what a file cannot: names with white space,
        unknown collectives, negative times or sizes.
    """
    columns = [column.tolist() for column in workload.columns()]
    if len({len(column) for column in columns}) != 1:
        lengths = ", ".join(f"{n} {len(c)}" for n, c in zip(COLUMNS, columns, strict=True))
        raise FormatError(f"columns of an AICB workload differ in length: {lengths}")
    texts = [column if i in (0, *COLLECTIVE_COLUMNS) else list(map(str, column))
             for i, column in enumerate(columns)]  # fmt: skip
    _check_cells(texts, range(3, workload.rows + 3), "workload")
    rows = ("\t".join(row) + "\n" for row in zip(*texts, strict=True))
    return f"{_header_line(workload.header)}\n{workload.rows}\n{''.join(rows)}"


def _header(line: str, file: str) -> AicbHeader:
    """Read the first line: a policy, then keys, each with its value or values."""
    policy, *tokens = line.split() or [""]
    if policy not in POLICIES:
        raise FormatError(
            f"{file}, line 1: '{shortened(policy)}' should be the kind of parallelism, "
            f"for example {TRANSFORMER}{did_you_mean(shortened(policy), POLICIES)}"
        )
    entries: dict[str, Number | tuple[int, ...]] = {}
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if not (token.endswith(":") or token == "pp_comm"):
            token = shortened(token)
            raise FormatError(f"{file}, line 1: '{token}' should be a key and a colon, as 'ep:'")
        key = token.removesuffix(":")
        if key in entries:
            raise FormatError(f"{file}, line 1: '{shortened(key)}' is given twice")
        value = _number(tokens[position + 1 : position + 2], key, file)
        position += 2
        if key in LISTS and value:
            layers = tokens[position : position + int(value)]
            position += int(value)
            if len(layers) < value or not all(WHOLE.fullmatch(layer) for layer in layers):
                raise FormatError(f"{file}, line 1: '{key}: {value}' needs {value} layer numbers")
            entries[key] = (int(value), *map(int, layers))
        else:
            entries[key] = value
    return AicbHeader(policy, entries)


def _number(tokens: Sequence[str], key: str, file: str) -> Number:
    """Return a header value: AICB writes ``pp_comm`` as a Python float in places."""
    token = tokens[0] if tokens else ""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]+(e\+[0-9]{1,2})?)?", token):
        key, token = shortened(key), shortened(token)
        raise FormatError(f"{file}, line 1: '{key}: {token}' should be '{key}:' and a number >= 0")
    return int(token) if token.isdigit() else float(token)


def _header_line(header: AicbHeader) -> str:
    """Return the first line as AICB writes it."""
    words = [header.policy]
    for key, value in header.entries.items():
        words += [f"{key}:", *map(str, value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def _check_count(text: str, rows: int, file: str) -> None:
    """Check the second line against the number of rows."""
    if not WHOLE.fullmatch(text):
        text = shortened(text)
        raise FormatError(f"{file}, line 2: '{text}' should be the number of rows, here {rows}")
    if int(text) != rows:
        raise FormatError(f"{file}, line 2: {text} rows announced, but {rows} follow")


def _check_cells(cells: Sequence[Sequence[str]], lines: Sequence[int], file: str) -> None:
    """Check every column; looks at each distinct cell once, and for the row only if one is bad."""
    for i, column in enumerate(cells):
        bad = {cell for cell in set(column) if _wanted(i, cell)}
        for line, cell in zip(lines, column, strict=True):
            if cell in bad:
                known = COLLECTIVES if i in COLLECTIVE_COLUMNS else ()
                raise FormatError(
                    f"{file}, line {line}, column {i + 1} ({COLUMNS[i]}): '{shortened(cell)}' "
                    f"should be {_wanted(i, cell)}{did_you_mean(shortened(cell), known)}"
                )


def _wanted(column: int, cell: str) -> str:
    """Return what a cell should be; empty where it is."""
    if column == 0:
        one_word = len(cell.split()) == 1 == len(cell.split(" ")) and "\0" not in cell
        wanted = f"a name without blanks, of at most {LONGEST_NAME} characters"
        return "" if one_word and len(cell) <= LONGEST_NAME else wanted
    if column in COLLECTIVE_COLUMNS:
        if cell in COLLECTIVES:
            return ""
        return "a collective such as ALLREDUCE or ALLTOALL_EP"
    least = -1 if column == 1 else 0
    if WHOLE.fullmatch(cell) and least <= int(cell) <= LARGEST:
        return ""
    unit = "" if column == 1 else " [B]" if column in (4, 7, 10) else " [ns]"
    return f"a whole number{unit} >= {least} and below 2^63"
