"""What of a long sweep is done: a folder beside its output, with a journal and a lock.

``NAME.partial/journal`` has a line for the question, and one for every block that is done. A line
counts once it ends; so a run may be killed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import not_written

LONGEST = 40  # letters of a value that is told; of longer ones a digest is kept


class Journal:
    """The folder of an output that is not finished.

    Attributes
    ----------
    target : Path
        The output.
    finished : bool
        Set where nothing has to be kept any more.
    folder : Path
        Where finished blocks wait for the others.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f"{target.name}.partial")
        self._path = self.folder / "journal"
        self._file: IO[str] | None = None
        self.finished = False

    @contextlib.contextmanager
    def opened(self, question: Mapping[str, Any], resume: bool) -> Iterator[list[dict[str, Any]]]:
        """Lock the folder, made where it is missing, and give what the journal has of blocks.

        Parameters
        ----------
        question : mapping of str to value
            What the results depend on, by the words in which it is told.
        resume : bool
            Whether to go on with what an earlier run left.

        Raises
        ------
        DataError
            Another run writes there, or wrote the answer to another question; something is left
            and `resume` is not asked for; the folder cannot be written.
        """
        new = not self.folder.exists()
        try:
            self.folder.mkdir(exist_ok=True)
            with (self.folder / "lock").open("w") as lock:
                self._lock(lock)
                with self._path.open("a+", encoding="utf-8") as self._file:
                    done = self._read(described(question), resume)
                    yield done
        except OSError as error:
            raise not_written(self.target, error) from None
        finally:
            self._file = None
            # Without a block there is nothing to go on with.
            if self.finished or (new and not self._blocks()):
                shutil.rmtree(self.folder, ignore_errors=True)

    def _lock(self, lock: IO[str]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: two writers are not noticed there
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"'{self.target}' is being written by another run") from None

    def _read(self, asked: dict[str, str], resume: bool) -> list[dict[str, Any]]:
        assert self._file is not None
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]  # a run may have been killed within a line
        self._file.truncate(len(whole.encode()))
        if not whole:
            self.add(json.dumps({"question": asked}))
            return []
        try:
            left, *blocks = (json.loads(line) for line in whole.splitlines())
            before = dict(left["question"])
        except (KeyError, RecursionError, TypeError, ValueError):
            raise DataError(f"'{self._path}' is damaged; remove '{self.folder}'") from None
        where = f"'{self.folder}' holds an unfinished sweep"
        if not resume:
            raise DataError(f"{where}; --resume goes on with it, or remove that folder")
        if differing := differences(before, asked):
            raise DataError(
                f"{where} with other options: {'; '.join(differing[:3])}; "
                "resume with the same ones, or remove that folder"
            )
        return blocks

    def add(self, line: str) -> None:
        """Write that a block is done, so that it stays."""
        assert self._file is not None
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _blocks(self) -> bool:
        with contextlib.suppress(OSError):
            return self._path.read_text(encoding="utf-8").count("\n") > 1
        return False


def described(question: Mapping[str, Any]) -> dict[str, str]:
    """Return what is asked as short texts: values, or digests of those that are long."""
    found = {}
    for name, value in question.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        long = len(text) > LONGEST
        found[name] = f"#{hashlib.sha256(text.encode()).hexdigest()[:16]}" if long else text
    return found


def differences(left: Mapping[str, str], asked: Mapping[str, str]) -> list[str]:
    """Say what differs between two questions, one text each."""
    found = []
    for name in dict.fromkeys((*left, *asked)):
        before, now = left.get(name, ""), asked.get(name, "")
        if before != now:
            known = not (before.startswith("#") or now.startswith("#"))
            values = f" ({before or 'not given'} then, {now or 'not given'} now)" if known else ""
            found.append(f"{name}{values}")
    return found
