"""Columns for xarray that are made when somebody looks at them: texts of codes, stored numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

if TYPE_CHECKING:
    from perfmodel.base.table import Column


class _Spoken(BackendArray):
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

    def __init__(self, column: Column, shape: tuple[int, ...]) -> None:
        self.column, self.shape = column, shape
        self.dtype = column.decoded(np.empty(0, column.stored_dtype)).dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        positions = {
            dim: np.atleast_1d(np.arange(size)[at])
            for dim, size, at in zip(self.column.dims, self.shape, key, strict=True)
            if not (isinstance(at, slice) and at == slice(None))
        }
        values = self.column.decoded(self.column.take(positions).values)
        return values[tuple(0 if isinstance(at, int | np.integer) else slice(None) for at in key)]


def numbers_of(column: Column, shape: tuple[int, ...]) -> Any:
    """Return the numbers of a stored column, for `xarray.Variable`; they are read when used."""
    return indexing.MemoryCachedArray(indexing.LazilyIndexedArray(_Stored(column, shape)))


def texts_of(codes: NDArray[Any], known: NDArray[np.object_]) -> Any:
    """Return the texts of codes, for `xarray.Variable`; millions are made at the first look.

    Parameters
    ----------
    codes : ndarray of int
    known : ndarray of object, shape (choices,)
        Texts by code.
    """
    return indexing.MemoryCachedArray(indexing.LazilyIndexedArray(_Spoken(codes, known)))
