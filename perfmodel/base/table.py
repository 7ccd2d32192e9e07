"""Labelled columns: what every result is before anything wraps, prints or stores it.

A `Table` has the words of an `xarray.Dataset` (``dims``, ``sizes``, ``coords``, ``data_vars``,
``attrs``, ``isel``) and nothing of its weight, so that a small answer needs no xarray. Columns
of choices hold codes; their attributes ``flag_values`` and ``flag_meanings`` (CF conventions)
say what the codes stand for.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.memory import check_memory
from perfmodel.base.version import __version__

if TYPE_CHECKING:
    import xarray as xr

MOST_CODES = 2**15
Index = NDArray[np.intp]
"""Positions along a dimension."""
Read = Callable[[Mapping[str, Index]], NDArray[Any]]
"""Reads a stored column at the given positions of some dimensions."""
Opened = Callable[[], contextlib.AbstractContextManager[Any]]
"""Keeps what a stored column is read from open, for all that are read meanwhile."""


FEW = 4096
"""Positions whose values are read at once; more only when they are used."""
MANY = 1 << 20
"""Codes whose texts are made at the first look; those of fewer at once."""


class Column:
    """One labelled array.

    Attributes
    ----------
    dims : tuple of str
        Names of the array's dimensions.
    attrs : dict
        ``units``, ``long_name`` and the like.
    stored_dtype : dtype, optional
        What is read, where that is known to be numbers.
    """

    __slots__ = ("_opened", "_read", "_values", "attrs", "dims", "stored_dtype")

    def __init__(
        self,
        dims: str | Sequence[str],
        values: Any = None,
        attrs: Mapping[str, Any] | None = None,
        *,
        read: Read | None = None,
        opened: Opened = contextlib.nullcontext,
        stored_dtype: np.dtype[Any] | None = None,
    ) -> None:
        self.dims = (dims,) if isinstance(dims, str) else tuple(dims)
        self.attrs = dict(attrs or {})
        self._values: NDArray[Any] | None = None if read else np.asarray(values)
        self._read = read
        self._opened = opened
        self.stored_dtype = stored_dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return Column, (self.dims, self.values, self.attrs)

    def __repr__(self) -> str:
        return f"Column({', '.join(self.dims)}: {self.attrs.get('long_name', '')})"

    @property
    def values(self) -> NDArray[Any]:
        """The array; a stored one is read at the first use."""
        if self._values is None:
            assert self._read is not None
            self._values = self._read({})
        return self._values

    def check(self, check: Callable[[NDArray[Any]], None]) -> None:
        """Look at the values, when they are read where they are stored."""
        if self._values is not None:
            check(self._values)
        read = self._read

        def checked(positions: Mapping[str, Index]) -> NDArray[Any]:
            assert read is not None
            values = read(positions)
            check(values)
            return values

        self._read = checked if read else None

    @property
    def is_stored(self) -> bool:
        """Whether the array has not been read yet."""
        return self._values is None

    @property
    def labels(self) -> tuple[str, ...] | None:
        """What the codes stand for, by code from 0; None for a column that holds no codes.

        Raises
        ------
        DataError
            The attributes contradict each other, as in a damaged file.
        """
        meanings = self.attrs.get("flag_meanings")
        if meanings is None:
            return None
        codes = np.atleast_1d(self.attrs.get("flag_values", ())).tolist()
        names = str(meanings).split()
        sound = all(isinstance(code, int) and 0 <= code < MOST_CODES for code in codes)
        if not codes or len(codes) != len(names) or not sound:
            raise DataError(f"damaged column {self!r}: {len(codes)} codes for {len(names)} labels")
        found = dict(zip(codes, names, strict=True))
        return tuple(found.get(code, "") for code in range(max(found) + 1))

    @property
    def is_flag(self) -> bool:
        """Whether the codes are false and true."""
        return self.labels == ("false", "true")

    def labelled(self) -> NDArray[Any]:
        """Return the values, with what they stand for in place of codes.

        Choices between false and true come back as booleans, others as text; whole numbers in 32
        bits at least.

        Raises
        ------
        DataError
            A code stands for nothing, as in a damaged file.
        """
        return self.decoded(self.values)

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return some of the column's values as `labelled` does."""
        labels = self.labels
        if labels is None:
            return _safe(values)
        known = np.array([label == "true" for label in labels] if self.is_flag else labels)
        try:
            return known[values]
        except IndexError:
            raise DataError(f"damaged column {self!r}: a code stands for nothing") from None

    def decoded_at(self, positions: Mapping[str, Index]) -> NDArray[Any]:
        """Return what `labelled` does, at the given positions of some dimensions."""
        return self.decoded(self.take(positions).values)

    def take(self, positions: Mapping[str, Index]) -> Column:
        """Return the column at the given positions of its dimensions."""
        here = {dim: at for dim, at in positions.items() if dim in self.dims}
        if not here:
            return self
        if self._values is None:
            read = self._read
            assert read is not None
            if all(at.size <= FEW for at in here.values()):
                return Column(self.dims, read(here), self.attrs)

            def later(more: Mapping[str, Index]) -> NDArray[Any]:
                inner = {dim: here[dim][at] if dim in here else at for dim, at in more.items()}
                return read({**here, **inner})

            return Column(
                self.dims,
                attrs=self.attrs,
                read=later,
                opened=self._opened,
                stored_dtype=self.stored_dtype,
            )
        values = self._values
        for dim, at in here.items():
            values = np.take(values, at, axis=self.dims.index(dim))
        return Column(self.dims, values, self.attrs)


def _safe(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in 32 bits at least, where a product of some does not overflow."""
    if values.dtype.kind != "i" or values.dtype.itemsize >= 4:
        return values
    if values.size and not any(values.strides):  # one value, seen from every row
        return np.broadcast_to(values.flat[0].astype(np.int32), values.shape)
    return values.astype(np.int32)


class Table:
    """Columns over common dimensions.

    Attributes
    ----------
    coords : dict of str to Column
        What the dimensions are labelled with.
    data_vars : dict of str to Column
        What was found.
    attrs : dict
        What holds for all.
    """

    def __init__(
        self,
        data_vars: Mapping[str, Column],
        coords: Mapping[str, Column],
        attrs: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.data_vars = dict(data_vars)
        self.coords = dict(coords)
        self.attrs = dict(attrs or {})
        self._sizes = dict(sizes) if sizes is not None else None

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size:,}" for name, size in self.sizes.items())
        return f"<Table of {len(self.data_vars)} variables ({sizes})>"

    def __getitem__(self, name: str) -> Column:
        return self.coords[name] if name in self.coords else self.data_vars[name]

    def __setitem__(self, name: str, column: Column) -> None:
        self.data_vars[name] = column

    def __contains__(self, name: object) -> bool:
        return name in self.coords or name in self.data_vars

    def __iter__(self) -> Iterator[str]:
        return iter(self.data_vars)

    @property
    def variables(self) -> Mapping[str, Column]:
        """All columns by name, coordinates first."""
        return {**self.coords, **self.data_vars}

    @property
    def sizes(self) -> Mapping[str, int]:
        """Length of every dimension."""
        if self._sizes is None:
            self._sizes = {
                dim: size
                for column in self.variables.values()
                for dim, size in zip(column.dims, column.values.shape, strict=True)
            }
        return self._sizes

    def isel(self, **positions: Any) -> Table:
        """Return the table at positions of dimensions, such as ``isel(strategy=[3, 7])``."""
        chosen = {
            dim: np.arange(*at.indices(self.sizes[dim]))
            if isinstance(at, slice)
            else np.asarray(at)
            for dim, at in positions.items()
        }
        with self.opened():
            for column in self.variables.values():
                if column.is_stored and math.prod(self.sizes[dim] for dim in column.dims) <= FEW:
                    assert column.values is not None  # read while it is open
            return Table(
                {name: column.take(chosen) for name, column in self.data_vars.items()},
                {name: column.take(chosen) for name, column in self.coords.items()},
                self.attrs,
                {**self.sizes, **{dim: at.size for dim, at in chosen.items()}},
            )

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep open what stored columns are read from: opening takes longer than reading a few."""
        columns = self.variables.values()
        with contextlib.ExitStack() as stack:
            for opened in {column._opened for column in columns if column.is_stored}:
                stack.enter_context(opened())
            yield

    def to_xarray(self) -> xr.Dataset:
        """Return the table as an `xarray.Dataset`, with labels in place of codes.

        The order of a column's choices is its attribute ``choices``. Numbers that are stored are
        read when they are used; no file stays open for them.
        """
        import xarray as xr

        def variable(column: Column) -> xr.Variable:
            shape = tuple(self.sizes[dim] for dim in column.dims)
            if column.is_stored and column.stored_dtype is not None and math.prod(shape) > FEW:
                from perfmodel.base.lazy_columns import numbers_of

                dtype = column.decoded(np.empty(0, column.stored_dtype)).dtype
                values = numbers_of(column.dims, shape, dtype, column.decoded_at)
                return xr.Variable(column.dims, values, column.attrs)
            return to_variable(column)

        with self.opened():
            return xr.Dataset(
                {name: variable(column) for name, column in self.data_vars.items()},
                {name: variable(column) for name, column in self.coords.items()},
                self.attrs,
            )


def described(title: str, schema_version: str, **attributes: Any) -> dict[str, Any]:
    """Return the attributes of a dataset (CF conventions): what it is, of which program.

    Parameters
    ----------
    title : str
    schema_version : str
        MAJOR.MINOR of the layout.
    **attributes
        What else holds for all of it; ``provenance`` may be a mapping, kept as JSON.
    """
    if isinstance(attributes.get("provenance"), Mapping):
        attributes["provenance"] = json.dumps(attributes["provenance"])
    return {
        "Conventions": "CF-1.11",
        "schema_version": schema_version,
        "title": title,
        "source": f"perfmodel {__version__}",
        **attributes,
    }


class Described(Protocol):
    """A variable of results, as tables of `perfmodel.kernels.variables` describe it."""

    def attributes(self) -> dict[str, Any]:
        """Return units, words and codes."""


def labelled(variable: Described, values: Any, dims: str | Sequence[str]) -> Column:
    """Return values as a column that says what they are."""
    return Column(dims, values, variable.attributes())


def to_variable(column: Column) -> xr.Variable:
    """Return a column as xarray has it, with labels in place of codes."""
    import xarray as xr

    # xarray looks at every object of an array, which takes longer than a sweep: these are texts.
    return xr.Variable(*_decoded(column), fastpath=True)


def _decoded(column: Column) -> tuple[Sequence[str], Any, dict[str, Any]]:
    labels = column.labels
    if labels is None:
        return column.dims, column.labelled(), column.attrs
    attrs = {name: value for name, value in column.attrs.items() if not name.startswith("flag_")}
    if column.is_flag:
        return column.dims, column.values == labels.index("true"), attrs
    codes, known = column.values, np.array(labels, object)
    if codes.size and codes.min() == codes.max():  # one text, seen from every row
        one = int(codes.flat[0])
        values = np.broadcast_to(known[one : one + 1], codes.shape)
    elif codes.size < MANY:
        values = known.take(codes)  # one object per choice, not one text per row
    else:  # made at the first look, for which a sweep of millions does not wait
        from perfmodel.base.lazy_columns import texts_of

        values = texts_of(codes, known)
    return column.dims, values, attrs | {"choices": " ".join(filter(None, labels))}


def from_xarray(dataset: xr.Dataset) -> Table:
    """Return a dataset as a table: the reverse of `Table.to_xarray`.

    Parameters
    ----------
    dataset : xarray.Dataset
        Also one that was subset, extended, or read from a file of codes.
    """

    def column(name: Any) -> Column:
        variable = dataset[name].variable
        dims, attributes = [str(dim) for dim in variable.dims], dict(variable.attrs)
        choices = attributes.pop("choices", None)
        if choices is not None and variable.dtype.kind in "OU":
            return coded(dims, variable.values, str(choices).split(), attributes)

        def read(positions: Mapping[str, Index]) -> NDArray[Any]:
            here = {dim: at for dim, at in positions.items() if dim in dims}
            values: NDArray[Any] = variable.isel(here).values
            return values

        return Column(dims, attrs=attributes, read=read)

    return Table(
        {str(name): column(name) for name in dataset.data_vars},
        {str(name): column(name) for name in dataset.coords},
        {str(name): value for name, value in dataset.attrs.items()},
        {str(dim): size for dim, size in dataset.sizes.items()},
    )


def coded(
    dims: Any, values: NDArray[Any], choices: Sequence[str], attrs: Mapping[str, Any]
) -> Column:
    """Return texts as a column of codes; what is no choice yet becomes one."""
    known, places = np.unique(values.astype(str), return_inverse=True)
    labels = list(dict.fromkeys([*choices, *known.tolist()]))
    codes = np.array([labels.index(text) for text in known.tolist()], np.int8)
    return Column(dims, codes[places].reshape(values.shape), {**attrs, **flags(labels)})


def flags(labels: Sequence[str]) -> dict[str, Any]:
    """Return the attributes that say what the codes 0, 1, … of a column stand for."""
    return {
        "flag_values": np.arange(len(labels), dtype=np.int8),
        "flag_meanings": " ".join(label.replace(" ", "_") for label in labels),
    }


MAX_KERNELS = 5_000_000


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a grid.

    Attributes
    ----------
    name : str
    values : sequence
        Numbers or texts, in the order of the grid.
    units, long_name : str
    """

    name: str
    values: Sequence[Any]
    units: str
    long_name: str


def cartesian(axes: Sequence[Axis], devices: int = 1, results: int = 1) -> dict[str, NDArray[Any]]:
    """Return every combination of the axes as columns, the last axis fastest.

    Parameters
    ----------
    axes : sequence of Axis
    devices : int
        Rows of hardware on which they are asked for.
    results : int
        Numbers that each will have on each row, for the check of the memory.

    Raises
    ------
    DataError
        There are more than `MAX_KERNELS` combinations, devices included, or more than fit in
        memory.
    """
    shapes = math.prod(len(axis.values) for axis in axes)
    if shapes * devices > MAX_KERNELS:
        raise DataError(
            f"the axes make {shapes:,} kernels on {devices:,} rows of hardware; "
            f"at most {MAX_KERNELS:,} in all"
        )
    wide = sum(np.asarray(axis.values).dtype.itemsize for axis in axes)
    check_memory(
        f"{shapes:,} kernels on {devices:,} rows of hardware",
        shapes * (wide + devices * 8 * results),
        "name fewer values per axis",
    )
    columns, inner = {}, shapes
    for axis in axes:
        inner //= len(axis.values)
        repeated = np.repeat(np.asarray(axis.values), inner)
        columns[axis.name] = np.tile(repeated, shapes // repeated.size)
    return columns
