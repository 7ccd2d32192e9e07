"""Columns of texts for xarray, made of codes when somebody looks at them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing


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


def texts_of(codes: NDArray[Any], known: NDArray[np.object_]) -> Any:
    """Return the texts of codes, for `xarray.Variable`; millions are made at the first look.

    Parameters
    ----------
    codes : ndarray of int
    known : ndarray of object, shape (choices,)
        Texts by code.
    """
    return indexing.MemoryCachedArray(indexing.LazilyIndexedArray(_Spoken(codes, known)))
