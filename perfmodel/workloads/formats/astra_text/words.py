"""Words of ASTRA-sim 1.0's text workloads: what there are, and where each one stands."""

from __future__ import annotations

import re

import numpy as np

from perfmodel.base.collectives import TWO_COLLECTIVES, WORDS
from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import shortened

TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
RECOMPUTING = TRANSFORMERS[1]
RECOMMENDERS = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
CUSTOMIZED = "HYBRID_CUSTOMIZED"
POLICIES = (
    "DATA",
    "DATA_REORDER",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    *RECOMMENDERS,
    *TRANSFORMERS,
    CUSTOMIZED,
    "DISTRIBUTED_INFERENCE",
    "MICRO",
)
NO_COLLECTIVE = "NONE"
# The simulator reads any other word as `NO_COLLECTIVE`.
COLLECTIVES = (*WORDS.values(), TWO_COLLECTIVES)
COLUMNS = (
    "name",
    "dependency",
    "forward time",
    "forward collective",
    "forward size",
    "input-gradient time",
    "input-gradient collective",
    "input-gradient size",
    "weight-gradient time",
    "weight-gradient collective",
    "weight-gradient size",
    "update time",
    "layer policy",
)
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
