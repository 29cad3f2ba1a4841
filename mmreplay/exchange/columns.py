"""Columns of foreign files, read from the first row to the last, a block of rows at a time.

Invariant: nothing is unpickled, and only the rows that are asked for are in memory.
"""

from __future__ import annotations

import dataclasses
import math
import tokenize
from collections.abc import Callable, Iterator, Mapping
from gzip import GzipFile
from typing import IO, Any, Protocol

import numpy as np

from mmreplay.batches.runs import block_steps
from mmreplay.errors import FormatError
from mmreplay.exchange.source_files import check_row
from mmreplay.ids import Array

_SUPPORTED = ((1, 0), (2, 0))
_OF_HEADERS = (
    ValueError,
    TypeError,  # unhashable keys of a dict
    SyntaxError,  # numpy parses the header as Python
    tokenize.TokenError,
    RecursionError,
    MemoryError,  # too many parentheses for Python's parser
)
"""What numpy raises for an invalid header."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Shape, the number of rows first, and dtype of a column whose rows are elsewhere."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Unreadable:
    """A column that cannot be read, and why."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.shape: tuple[int, ...] = (0,)
        self.dtype: np.dtype[Any] = np.dtype(object)

    def read(self, start: int, stop: int) -> Array:
        """See `Column`; raises FormatError."""
        raise FormatError(f"rows {start} to {stop}: {self.problem}")


class Column(Protocol):
    """A column of n rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> Array:
        """Rows [start, stop); `start` is where the last read stopped."""


RowShape = Shape | Column  # what tells the shape and dtype of a column


class ArrayColumn:
    """A column that can be sliced; without the 1 in its shape, a column (n, 1) becomes (n,)."""

    def __init__(self, rows: Any) -> None:
        self.shape = tuple(rows.shape)
        self.dtype = np.dtype(rows.dtype)
        self._rows = rows

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        rows = np.asarray(self._rows[start:stop])
        return rows.reshape(len(rows), *self.shape[1:])


class Part:
    """`n` rows of a column from `first` on."""

    def __init__(self, column: Column, first: int, n: int) -> None:
        self.shape, self.dtype = (n, *column.shape[1:]), column.dtype
        self._column, self._first = column, first

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return self._column.read(self._first + start, self._first + min(stop, self.shape[0]))


class PerEpisode:
    """A value per episode as a column of steps; `ends` has the row after each episode."""

    def __init__(self, values: Array, ends: Array, *, at_end: bool = False) -> None:
        self.shape: tuple[int, ...] = (int(ends[-1]), *values.shape[1:])
        self.dtype: np.dtype[Any] = values.dtype
        self._values, self._ends, self._at_end = values, ends, at_end

    def read(self, start: int, stop: int) -> Array:
        """See `Column`; `at_end`, the value is that of the last step, and 0 before."""
        rows = np.arange(start, stop)
        numbers = self._ends.searchsorted(rows, "right")
        out = self._values[numbers]
        if self._at_end:
            out[self._ends[numbers] != rows + 1] = 0
        return np.asarray(out)


class _Joined:
    """The rows of several columns, one after the other; `open` opens one by its number."""

    def __init__(self, first: Shape, ends: Array, open: Callable[[int], Column]) -> None:
        self.shape, self.dtype = (int(ends[-1]), *first.shape[1:]), first.dtype
        self._ends, self._open = ends, open
        self._number = -1
        self._column: Column = Unreadable("not opened")

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        parts = []
        at = start
        while at < stop:
            number = int(self._ends.searchsorted(at, "right"))
            if number != self._number:
                self._number, self._column = number, self._open(number)
            first = int(self._ends[number]) - self._column.shape[0]
            until = min(stop, int(self._ends[number]))
            parts.append(
                self._column.read(at - first, until - first).astype(self.dtype, copy=False)
            )
            at = until
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return rows.reshape(len(rows), *self.shape[1:])


def joined(
    parts: Mapping[str, Shape | Unreadable | None], ends: Array, open: Callable[[int], Column]
) -> Column:
    """The columns of all episodes, None for a missing one, as one; `Unreadable` if they differ."""
    first: Shape | None = None
    n_missing = sum(one is None for one in parts.values())
    for (name, one), n_rows in zip(parts.items(), np.diff(ends, prepend=0).tolist(), strict=True):
        if one is None:
            return Unreadable(f"only in {len(parts) - n_missing:,} of {len(parts):,} episodes")
        if isinstance(one, Unreadable):
            return Unreadable(f"{name}: {one.problem}")
        if one.shape[:1] != (n_rows,):
            return Unreadable(f"{name}: expected {n_rows:,} rows, found {one.shape}")
        first = first or one
        if one.shape[1:] != first.shape[1:] or not np.can_cast(one.dtype, first.dtype):
            return Unreadable(
                f"{name}: rows of {one.shape[1:]} {one.dtype}, and in the first episode of "
                f"{first.shape[1:]} {first.dtype}"
            )
    return Unreadable("no episode") if first is None else _Joined(first, ends, open)


class NpyColumn:
    """An array in numpy's format from any stream; FormatError for objects and Fortran order."""

    def __init__(self, stream: IO[bytes] | GzipFile, name: str) -> None:
        self._stream, self._name = stream, name
        self._row = 0
        try:
            version = np.lib.format.read_magic(stream)
            if version not in _SUPPORTED:
                raise ValueError(f"version {version} of the format")
            read_header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = read_header(stream)
            if any(size < 0 for size in shape):
                raise ValueError(f"shape {shape}")
        except _OF_HEADERS as error:
            raise FormatError(f"{name}: not an array in numpy's format: {error!s:.300}") from error
        if dtype.hasobject:
            raise FormatError(
                f"{name}: a pickle of Python objects, which is never opened; save plain arrays"
            )
        if is_fortran and len(shape) > 1:
            raise FormatError(
                f"{name}: expected rows in C order, found Fortran order; save "
                f"np.ascontiguousarray of it"
            )
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = dtype
        self._n_rows = math.prod(shape[:1])  # 1 for a scalar
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        check_row(self._row_bytes, name)

    def read(self, start: int, stop: int) -> Array:
        """See `Column`; raises FormatError if the file ends before."""
        size = (stop - start) * self._row_bytes
        data = bytearray()
        while len(data) < size and (piece := self._stream.read(size - len(data))):
            data += piece
        if len(data) < size:
            raise FormatError(
                f"{self._name}: ends within rows {start:,} to {stop:,} of {self._n_rows:,}; it "
                f"was cut off"
            )
        self._row = stop
        rows = np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])
        return rows.astype(self.dtype.newbyteorder("="), copy=False)

    def finish(self) -> None:
        """Read to the end, where gzip has its checksum; FormatError if more follows."""
        while self._row < self._n_rows:
            size = block_steps(self._row_bytes)
            self.read(self._row, min(self._row + size, self._n_rows))
        if self._stream.read(1):
            raise FormatError(
                f"{self._name}: continues after its {self._n_rows:,} rows, so it is damaged; get a "
                f"new copy"
            )


def row_bytes(columns: Mapping[str, Any]) -> int:
    """Bytes of a row of all of them."""
    return sum(math.prod(one.shape[1:]) * one.dtype.itemsize for one in columns.values())


def blocks(
    columns: Mapping[str, Column], n_rows: int, where: object = ""
) -> Iterator[dict[str, Array]]:
    """All rows of some columns, in blocks; raises FormatError unless all have n_rows."""
    for name, column in columns.items():
        if column.shape[0] != n_rows:
            raise FormatError(
                f"{where}: {name}: expected {n_rows:,} rows, as in other columns, found "
                f"{column.shape[0]:,}"
            )
    step = block_steps(row_bytes(columns))
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        yield {name: column.read(start, stop) for name, column in columns.items()}


def columns_of(arrays: Mapping[str, Any]) -> dict[str, Column]:
    """Arrays as columns, by name."""
    out: dict[str, Column] = {}
    for name, given in arrays.items():
        try:
            is_array = hasattr(given, "shape") and hasattr(given, "dtype")
            out[name] = ArrayColumn(given if is_array else np.asarray(given))
        except ValueError as error:  # lists of different lengths
            out[name] = Unreadable(str(error))
    return out
