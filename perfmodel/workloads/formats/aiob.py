"""Read and write AIOB computation files: what AICB measures on a GPU (``--comp_filepath``).

A file is one line that says what was timed, then a section per kernel::

    train_iter:10
    Emb:
        time_gpu_max: 857
        time_gpu_min: 782
        time_gpu_avg: 799

Times are µs per call of a layer's forward pass. Training files begin with ``train_iter``
(iterations), inference files with ``inference_term`` (``prefill`` or ``decode``). What a
section means to AICB is in `perfmodel.workloads.twins.aicb.training`.

Source: aliyun/aicb 23eec3c4, ``utils/utils.py``: ``write_op``, ``write_time`` and
``process_all_keys`` write these files, ``extract_averages`` (lines 373-440) reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_text

TRAINING = "train_iter"
INFERENCE = "inference_term"
PHASES = ("prefill", "decode")
TIMES = ("time_gpu_max", "time_gpu_min", "time_gpu_avg")  # in AICB's order
INDENT = "    "
# Characters: far more than AICB writes, little enough to hold.
LARGEST_FILE = 16 * 2**20

Number = int | float


@dataclass(frozen=True, slots=True)
class AiobTime:
    """Times of one section [µs]; whole numbers stay whole.

    Attributes
    ----------
    maximum, minimum, average : int or float
        Over the calls; AICB drops those above three times the minimum.
    """

    maximum: Number
    minimum: Number
    average: Number


@dataclass(frozen=True, slots=True)
class AiobFile:
    """A computation file.

    Attributes
    ----------
    sections : mapping of str to AiobTime
        In file order.
    train_iter : int or None
        Iterations of a training file.
    inference_term : str or None
        Phase of an inference file; exactly one of both is given.
    """

    sections: Mapping[str, AiobTime]
    train_iter: int | None = None
    inference_term: str | None = None


def read_aiob(path: str | os.PathLike[str]) -> AiobFile:
    """Read a computation file.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; says line and what would be right.
    """
    return parse_aiob(read_text(path, "an AIOB file", LARGEST_FILE), str(path))


def parse_aiob(text: str, file: str = "computation") -> AiobFile:
    """Read a computation file from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_aiob`.
    """
    lines = text.split("\n")
    train_iter, inference_term = _first_line(lines[0].strip(), f"{file}, line 1")
    sections: dict[str, dict[str, Number]] = {}
    started: dict[str, int] = {}
    section = ""
    for line, content in enumerate(lines[1:], 2):
        where = f"{file}, line {line}"
        if not content.strip():
            continue
        if not content[0].isspace():
            section = _section(content.strip(), where)
            if section in sections:
                raise FormatError(f"{where}: section '{_shown(section)}' is given twice")
            sections[section], started[section] = {}, line
            continue
        if not section:
            raise FormatError(f"{where}: a section such as 'Emb:' should come first")
        key, value = _time(content.strip(), where)
        if key in sections[section]:
            shown = _shown(section)
            raise FormatError(f"{where}: '{key}' is given twice in section '{shown}'")
        sections[section][key] = value
    times = {name: _complete(found, name, f"{file}, line {started[name]}")
             for name, found in sections.items()}  # fmt: skip
    return AiobFile(times, train_iter, inference_term)


def format_aiob(aiob: AiobFile) -> str:
    """Return the text of a computation file, as AICB writes it.

    Raises
    ------
    FormatError
        Both or neither of training and inference, or a name or a time that no file can hold.
    """
    if (aiob.train_iter is None) == (aiob.inference_term is None):
        raise FormatError("an AIOB file is either of training or of inference")
    first = (
        f"{INFERENCE}:{aiob.inference_term}"
        if aiob.train_iter is None
        else f"{TRAINING}:{aiob.train_iter}"
    )
    lines = [first]
    for name, time in aiob.sections.items():
        lines.append(f"{name}:")
        values = (time.maximum, time.minimum, time.average)
        lines += [
            f"{INDENT}{key}: {_written(value)}" for key, value in zip(TIMES, values, strict=True)
        ]
    text = "\n".join(lines) + "\n"
    parse_aiob(text)
    return text


def _first_line(content: str, where: str) -> tuple[int | None, str | None]:
    """Return iterations or phase."""
    key, colon, value = (part.strip() for part in content.partition(":"))
    if not colon or key not in (TRAINING, INFERENCE):
        raise FormatError(
            f"{where}: '{_shown(content)}' should be '{TRAINING}:N' or '{INFERENCE}:PHASE'"
        )
    if key == INFERENCE:
        if value not in PHASES:
            raise FormatError(
                f"{where}: phase '{_shown(value)}'{did_you_mean(_shown(value), PHASES)}"
            )
        return None, value
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise FormatError(f"{where}: '{TRAINING}:{_shown(value)}' should be a whole number from 1")
    return int(value), None


def _section(content: str, where: str) -> str:
    """Return a section's name; AICB finds it as ``^(\\w+):``."""
    if not re.fullmatch(r"\w+:", content):
        raise FormatError(f"{where}: '{_shown(content)}' should be a section, as 'atten_qkv:'")
    return content.removesuffix(":")


def _time(content: str, where: str) -> tuple[str, Number]:
    """Return name and value of one time."""
    key, colon, value = (part.strip() for part in content.partition(":"))
    if not colon or key not in TIMES:
        raise FormatError(f"{where}: '{_shown(content)}'{did_you_mean(_shown(key), TIMES)}")
    # What AICB's own reader takes: no sign, no exponent, no nan.
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,20})?", value):
        raise FormatError(f"{where}: '{key}: {_shown(value)}' should be a time [µs] >= 0")
    return key, int(value) if value.isdigit() else float(value)


def _complete(found: Mapping[str, Number], name: str, where: str) -> AiobTime:
    """Return the times of a section that has all three, in order."""
    missing = [key for key in TIMES if key not in found]
    if missing:
        raise FormatError(f"{where}: section '{_shown(name)}' lacks '{missing[0]}'")
    maximum, minimum, average = (found[key] for key in TIMES)
    if not minimum <= average <= maximum:
        raise FormatError(
            f"{where}: section '{_shown(name)}' has minimum {minimum}, average {average} and "
            f"maximum {maximum}; they should rise"
        )
    return AiobTime(maximum, minimum, average)


def _written(value: Number) -> str:
    """Return a time as text; never with an exponent, of which AICB reads the first digits."""
    text = str(value)
    return f"{value:.20f}".rstrip("0") if "e-" in text else text


def _shown(content: str) -> str:
    """Return the beginning of a line for an error, in one line."""
    return " ".join(content[:200].split())[:60]
