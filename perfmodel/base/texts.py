"""Many texts in one buffer: none is a Python object before it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from perfmodel.base.columns import Integers


class Texts(Sequence[str]):
    """Texts one behind another, as UTF-8.

    Attributes
    ----------
    letters : bytes
    ends : int64[texts]
        Where each ends.
    """

    __slots__ = ("ends", "letters")

    def __init__(self, letters: bytes, ends: Integers) -> None:
        self.letters = letters
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Return texts in this form; themselves where they have it.

        Raises
        ------
        UnicodeEncodeError
            One has half a surrogate pair.
        """
        if isinstance(texts, Texts):
            return texts
        texts = list(texts)
        joined = "".join(texts)
        if joined.isascii():
            return cls(joined.encode(), _ends(texts))
        encoded = [text.encode() for text in texts]
        return cls(b"".join(encoded), _ends(encoded))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return a text, or several."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        begin = self.ends[index - 1] if index else 0
        return self.letters[begin : self.ends[index]].decode()

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.ends)

    def __eq__(self, other: Any) -> bool:
        """Tell whether another sequence has the same texts."""
        if isinstance(other, Texts):
            return self.letters == other.letters and np.array_equal(self.ends, other.ends)
        return isinstance(other, tuple | list) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return a hash: texts do not change."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Show the texts."""
        return f"Texts.of({tuple(self)!r})"


def _ends(pieces: Sequence[str] | Sequence[bytes]) -> Integers:
    """Return where each of several pieces one behind another ends."""
    return np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
