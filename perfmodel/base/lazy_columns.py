"""Arrays for xarray that are decoded or read at the first look: texts of codes, stored numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

Read = Callable[[Mapping[str, NDArray[np.intp]]], NDArray[Any]]
"""Reads and decodes an array at positions of some of its dimensions."""


class _Decoded(BackendArray):
    """What codes stand for, one object per choice and not one per row."""

    def __init__(self, codes: NDArray[Any], known: NDArray[np.object_]) -> None:
        self.codes, self.known = codes, known
        self.shape, self.dtype = codes.shape, known.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[np.object_]:
        return self.known.take(self.codes[key])


class _Stored(BackendArray):
    """What is read from a file, which is closed again at once."""

    def __init__(
        self, dims: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any], read: Read
    ) -> None:
        self.dims, self.shape, self.dtype, self.read = dims, shape, dtype, read

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        positions = {
            dim: np.atleast_1d(np.arange(size)[at])
            for dim, size, at in zip(self.dims, self.shape, key, strict=True)
            if not (isinstance(at, slice) and at == slice(None))
        }
        values = self.read(positions)
        return values[tuple(0 if isinstance(at, int | np.integer) else slice(None) for at in key)]


def numbers_of(
    dims: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any], read: Read
) -> Any:
    """Return a stored column's numbers, for `xarray.Variable`; `read` is called when used."""
    stored = _Stored(dims, shape, dtype, read)
    return indexing.MemoryCachedArray(indexing.LazilyIndexedArray(stored))


def texts_of(codes: NDArray[Any], known: NDArray[np.object_]) -> Any:
    """Return the texts of codes, for `xarray.Variable`; millions are made at the first look.

    Parameters
    ----------
    codes : ndarray of int
    known : ndarray of object, shape (choices,)
        Texts by code.
    """
    return indexing.MemoryCachedArray(indexing.LazilyIndexedArray(_Decoded(codes, known)))
