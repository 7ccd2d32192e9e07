"""Read and write the text workloads of ASTRA-sim 1.0.

A file is a stream of words: the kind of parallelism with its header, the number of layers
and one row per layer::

    HYBRID_DLRM  4
    8
    Embedding  -1  300 ALLTOALL 98304  300 ALLTOALL 98304  300 NONE 0  98
    ...

A layer has three phases, forward, input gradient and weight gradient; each computes for so
many nanoseconds and may then run one collective of so many bytes. Tabs, runs of blanks,
blank lines and any kind of line end are alike to the reader, as they are to the simulator.
Unlike it, this one refuses words after the last row.

The dialect of SimAI has the same rows but keys in the header:
`perfmodel.workloads.formats.aicb_text`.

Source: astra-sim, branch ASTRA-sim-1.0 07d5d19, ``workload/Workload.cc``
(``initialize_workload``, ``decode_parallelsim``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from perfmodel.base.collectives import TWO_COLLECTIVES, WORDS
from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.formats.words import words_of

TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
RECOMPUTING = TRANSFORMERS[1]
RECOMMENDERS = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
CUSTOMIZED = "HYBRID_CUSTOMIZED"
_WORDS = words_of("astra_text")
POLICIES: tuple[str, ...] = _WORDS["policies"]
NO_COLLECTIVE = "NONE"
# The simulator reads any other word as `NO_COLLECTIVE`.
COLLECTIVES = (*WORDS.values(), TWO_COLLECTIVES)
COLUMNS: tuple[str, ...] = _WORDS["columns"]
WORD_COLUMNS = (0, 3, 6, 9)  # columns that hold words; the policy of a layer has its own rule
LAYER_POLICY = 12
WHOLE = re.compile(r"-?[0-9]{1,19}")
LARGEST = 2**63 - 1


class Words:
    """The words of a file, taken one by one; errors say where the last one stands."""

    def __init__(self, text: str, file: str) -> None:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._lines = [(i, line.split()) for i, line in enumerate(lines, 1)]
        self._words = [word for _, line in self._lines for word in line]
        counts = [len(line) for _, line in self._lines]
        self._line = np.repeat(np.arange(1, len(lines) + 1), counts)
        self._next = 0
        self._file = file

    def take(self, wanted: str) -> str:
        """Return the next word."""
        if self._next == len(self._words):
            last = self._line[-1] if self._words else 1
            raise FormatError(
                f"{self._file}, line {last}: the file ends where {wanted} should follow"
            )
        self._next += 1
        return self._words[self._next - 1]

    def number(self, wanted: str, least: int) -> int:
        """Return the next word as a number."""
        word = self.take(wanted)
        if not (WHOLE.fullmatch(word) and least <= int(word) <= LARGEST):
            raise self.wrong(f"{wanted}, a whole number >= {least}")
        return int(word)

    def list_of_numbers(self, key: str) -> tuple[int, ...]:
        """Return a list of layers: a word, how many there are, and they."""
        self.take(f"a word such as '{key}:'")
        count = self.number(f"how many {key} there are", least=0)
        if count > len(self._words) - self._next:
            raise self.wrong(f"how many {key} there are; the file ends before")
        return tuple(self.number(f"a layer number of {key}", least=0) for _ in range(count))

    def wrong(self, wanted: str) -> FormatError:
        """Return the error about the word taken last."""
        word = shortened(self._words[self._next - 1])
        line = self._line[self._next - 1]
        return FormatError(f"{self._file}, line {line}: '{word}' should be {wanted}")

    def rows(self, count: int, width: int) -> list[list[str]]:
        """Return all remaining words as so many checked rows."""
        start, words = self._next, self._words[self._next :]
        if len(words) != count * width:
            raise self._wrong_count(count, width, len(words))
        for i in range(width):
            bad = {word: text for word in set(words[i::width]) if (text := _wanted(i, word))}
            for row, word in enumerate(words[i::width] if bad else ()):
                if word in bad:
                    self._next = start + row * width + i + 1
                    raise self.wrong(
                        f"{bad[word]} (row {row + 1} '{shortened(words[row * width])}', "
                        f"column {i + 1}, {COLUMNS[i]})"
                    )
        return [words[row * width : (row + 1) * width] for row in range(count)]

    def _wrong_count(self, count: int, width: int, words: int) -> FormatError:
        """Return what is wrong where rows and words do not agree: a row, or their number."""
        last = self._line[self._next - 1]
        follow = [(i, line) for i, line in self._lines if i > last and line]
        for i, line in follow:
            if len(line) != width:
                return FormatError(
                    f"{self._file}, line {i}: {len(line)} columns where a row has {width} "
                    f"({COLUMNS[0]} … {COLUMNS[width - 1]})"
                )
        return FormatError(
            f"{self._file}, line {last}: {count} layers announced, but {words // width} follow"
        )


def _wanted(column: int, word: str) -> str:
    """Return what a word of a row should be; empty where it is."""
    if column in WORD_COLUMNS:
        return "" if word.isprintable() else "a word of printable characters"
    if column == LAYER_POLICY:
        if word in POLICIES:
            return ""
        return f"the kind of parallelism of a layer{did_you_mean(shortened(word), POLICIES)}"
    least = -1 if column == 1 else 0
    if WHOLE.fullmatch(word) and least <= int(word) <= LARGEST:
        return ""
    unit = "" if column == 1 else " [B]" if column in (4, 7, 10) else " [ns]"
    return f"a whole number{unit} >= {least}"


__all__ = [
    "COLLECTIVES",
    "CUSTOMIZED",
    "NO_COLLECTIVE",
    "POLICIES",
    "RECOMMENDERS",
    "RECOMPUTING",
    "TRANSFORMERS",
    "AstraTextPhase",
    "AstraTextWorkload",
    "astra_text_from_columns",
    "format_astra_text",
    "parse_astra_text",
    "read_astra_text",
]


@dataclass(frozen=True, slots=True)
class AstraTextPhase:
    """One phase of all layers; every column has one entry per layer.

    Attributes
    ----------
    compute_time : int64[layers]
        Of the computation [ns]: whole numbers, as in the file.
    collective : tuple of str
        What follows it, as the file spells it; see `effective_collectives`.
    size : int64[layers]
        Buffer of the collective on a device (all-gather: its shard) [B].
    """

    compute_time: Integers
    collective: tuple[str, ...]
    size: Integers

    @property
    def effective_collectives(self) -> tuple[str, ...]:
        """What the simulator makes of each word: one of `COLLECTIVES` or `NO_COLLECTIVE`."""
        return tuple(word if word in COLLECTIVES else NO_COLLECTIVE for word in self.collective)


@dataclass(frozen=True, slots=True)
class AstraTextWorkload:
    """A text workload. Every column has one entry per layer, in file order.

    Attributes
    ----------
    policy : str
        One of `POLICIES`: which devices share what, and the order of the training loop.
    names : tuple of str
        Without white space.
    dependency : int64[layers]
        Never used by the simulator; -1 in all published files.
    forward, input_gradient, weight_gradient : AstraTextPhase
    update_time : int64[layers]
        Delay [ns] of the end of each collective of the layer.
    layer_policy : tuple of str
        Of ``HYBRID_CUSTOMIZED``, one of `POLICIES` per layer; empty otherwise.
    model_parallel_group : int
        Devices that share a layer (the kinds in `TRANSFORMERS`), >= 1; 0 otherwise.
    last_bottom_layer : int
        Index of the layer at which the embeddings are needed (the kinds in `RECOMMENDERS`);
        -1 otherwise.
    checkpoints, checkpoint_initiates : tuple of int
        Of `RECOMPUTING`: layers whose input is kept, and layers before whose input gradient
        the forward pass is run again from the last kept one. Numbered from 0.
    """

    policy: str
    names: tuple[str, ...]
    dependency: Integers
    forward: AstraTextPhase
    input_gradient: AstraTextPhase
    weight_gradient: AstraTextPhase
    update_time: Integers
    layer_policy: tuple[str, ...] = ()
    model_parallel_group: int = 0
    last_bottom_layer: int = -1
    checkpoints: tuple[int, ...] = ()
    checkpoint_initiates: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.names)

    @property
    def phases(self) -> tuple[AstraTextPhase, AstraTextPhase, AstraTextPhase]:
        """The phases forward, input gradient and weight gradient."""
        return self.forward, self.input_gradient, self.weight_gradient

    def equals(self, other: AstraTextWorkload) -> bool:
        """Tell whether two workloads say the same."""
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def columns(self) -> tuple[Sequence[str] | Integers, ...]:
        """Return the columns of the rows in file order (`COLUMNS`; the last where it is used)."""
        inner = (c for p in self.phases for c in (p.compute_time, p.collective, p.size))
        columns = (self.names, self.dependency, *inner, self.update_time)
        return (*columns, self.layer_policy) if self.policy == CUSTOMIZED else columns


def read_astra_text(path: str | os.PathLike[str]) -> AstraTextWorkload:
    """Read a text workload of ASTRA-sim 1.0.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    AstraTextWorkload

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; says line, column and what would be right.
    """
    return parse_astra_text(read_text(path, "an ASTRA-sim text workload"), str(path))


def parse_astra_text(text: str, file: str = "workload") -> AstraTextWorkload:
    """Read a workload from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_astra_text`.
    """
    words = Words(text, file)
    policy = words.take("the kind of parallelism, for example DATA")
    if policy not in POLICIES:
        raise words.wrong(f"the kind of parallelism{did_you_mean(shortened(policy), POLICIES)}")
    group, bottom = 0, -1
    checkpoints: tuple[int, ...] = ()
    initiates: tuple[int, ...] = ()
    if policy in TRANSFORMERS:
        words.take("a word such as 'model_parallel_NPU_group:'")
        group = words.number("the devices that share a layer", least=1)
    if policy == RECOMPUTING:
        checkpoints = words.list_of_numbers("checkpoints")
        initiates = words.list_of_numbers("checkpoint_initiates")
    if policy in RECOMMENDERS:
        bottom = words.number("the index of the last bottom layer", least=0)
    # 1.0 would read on and end in nonsense; these words are SimAI's.
    layers = words.number("the number of layers (keys in the header are of SimAI's dialect)", 1)
    rows = words.rows(layers, len(COLUMNS) - (policy != CUSTOMIZED))
    workload = astra_text_from_columns(
        policy,
        list(zip(*rows, strict=True)),
        model_parallel_group=group,
        last_bottom_layer=bottom,
        checkpoints=checkpoints,
        checkpoint_initiates=initiates,
    )
    _check_layer_numbers(workload, file)
    return workload


def astra_text_from_columns(
    policy: str, columns: Sequence[Sequence[object]], **header: object
) -> AstraTextWorkload:
    """Make a workload of its columns, in the order of `COLUMNS`.

    Parameters
    ----------
    policy : str
    columns : sequence of sequences
        12, and one more for ``HYBRID_CUSTOMIZED``. Numbers may be given as text.
    **header
        Further fields of `AstraTextWorkload`.
    """

    def whole(column: int) -> Integers:
        numbers = np.array([int(cell) for cell in columns[column]], np.int64)  # type: ignore[call-overload]
        numbers.setflags(write=False)
        return numbers

    def text(column: int) -> tuple[str, ...]:
        return tuple(map(str, columns[column]))

    forward, input_gradient, weight_gradient = (
        AstraTextPhase(whole(i - 1), text(i), whole(i + 1)) for i in WORD_COLUMNS[1:]
    )
    return AstraTextWorkload(
        policy,
        text(0),
        whole(1),
        forward,
        input_gradient,
        weight_gradient,
        whole(11),
        text(LAYER_POLICY) if policy == CUSTOMIZED else (),
        **header,  # type: ignore[arg-type]
    )


def format_astra_text(workload: AstraTextWorkload) -> str:
    """Return the text of a workload file: one line per layer, tabs between the words.

    Raises
    ------
    FormatError
        The workload holds what a file cannot: columns of different length, no layer, names
        with white space, negative times or sizes, unknown policies.
    """
    if workload.policy not in POLICIES:
        raise FormatError(
            f"'{shortened(workload.policy)}' is no kind of parallelism"
            + did_you_mean(shortened(workload.policy), POLICIES)
        )
    columns = [[str(cell) for cell in column] for column in workload.columns()]
    if len({len(column) for column in columns}) != 1:
        lengths = ", ".join(f"{n} {len(c)}" for n, c in zip(COLUMNS, columns, strict=False))
        raise FormatError(f"columns of a text workload differ in length: {lengths}")
    lines = [*_header_lines(workload), *map("\t".join, zip(*columns, strict=True))]
    text = "\n".join(lines) + "\n"
    # What this module reads it can write: one set of rules says what a file can hold.
    if not workload.equals(parse_astra_text(text, "workload to be written")):
        raise FormatError("the header of the text workload has fields that its kind does not have")
    return text


def _header_lines(workload: AstraTextWorkload) -> tuple[str, str]:
    """Return the first two lines."""
    words: list[object] = [workload.policy]
    if workload.policy in TRANSFORMERS:
        words += ["model_parallel_NPU_group:", workload.model_parallel_group]
    if workload.policy == RECOMPUTING:
        for key in ("checkpoints", "checkpoint_initiates"):
            layers = getattr(workload, key)
            words += [f"{key}:", len(layers), *layers]
    if workload.policy in RECOMMENDERS:
        words.append(workload.last_bottom_layer)
    return " ".join(map(str, words)), str(workload.layers)


def _check_layer_numbers(workload: AstraTextWorkload, file: str) -> None:
    """Check the layers that the header names."""
    for key in ("checkpoints", "checkpoint_initiates"):
        for layer in getattr(workload, key):
            if layer >= workload.layers:
                raise FormatError(
                    f"{file}, header: {key} names layer {layer}; layers are 0 to "
                    f"{workload.layers - 1}"
                )
    if workload.last_bottom_layer >= workload.layers:
        raise FormatError(
            f"{file}, header: the last bottom layer is {workload.last_bottom_layer}; layers are "
            f"0 to {workload.layers - 1}"
        )


def _same(a: object, b: object) -> bool:
    """Tell whether two fields of workloads are equal."""
    if isinstance(a, AstraTextPhase) and isinstance(b, AstraTextPhase):
        return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))  # type: ignore[arg-type]
    return a == b
