"""Columns of foreign files, read from the first row to the last, a block of rows at a time.

Invariant: nothing is unpickled, and no more than the rows that are asked for is in memory.
"""

from __future__ import annotations

import math
import tokenize
from collections.abc import Iterator, Mapping
from gzip import GzipFile
from typing import IO, Any, Protocol

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import is_numeric
from mmreplay.exchange.source_files import check_row
from mmreplay.exchange.steps import block_steps
from mmreplay.ids import Array

__all__ = ["ArrayColumn", "Column", "NpyColumn", "blocks", "row_bytes"]

_SUPPORTED = ((1, 0), (2, 0))
_OF_HEADERS = (
    ValueError,
    TypeError,  # a dict in it has keys that cannot be keys
    SyntaxError,  # numpy reads the dict as Python's words, and mends what Python 2 wrote
    tokenize.TokenError,
    RecursionError,
    MemoryError,  # of Python's parser: more parentheses than it takes
)
"""What numpy raises for a header that is none."""


class Column(Protocol):
    """A column of n rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> Array:
        """Rows [start, stop); `start` is where the last read stopped."""


class ArrayColumn:
    """A column that can be sliced: an array, or a dataset of HDF5 or zarr."""

    def __init__(self, rows: Any) -> None:
        self.shape = tuple(rows.shape)
        self.dtype = np.dtype(rows.dtype)
        self._rows = rows

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return np.asarray(self._rows[start:stop])


class NpyColumn:
    """An array in numpy's own format, out of any stream: a member of a zip, a gzipped file.

    Raises FormatError if it is none, holds Python objects, or stands in columns.
    """

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
            raise FormatError(f"{name}: no array of numpy: {error!s:.300}") from error
        if dtype.hasobject:
            raise FormatError(
                f"{name}: a pickle of Python objects, which nothing here opens; save plain arrays"
            )
        if is_fortran and len(shape) > 1:
            raise FormatError(
                f"{name}: its rows do not lie one after the other (Fortran order); save "
                f"np.ascontiguousarray of it"
            )
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = dtype
        self._n_rows = math.prod(shape[:1])  # one number has no shape
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        check_row(self._row_bytes, name)

    def read(self, start: int, stop: int) -> Array:
        """See `Column`; raises FormatError if the file ends before."""
        if start != self._row:
            raise ValueError(f"{self._name}: row {start} was asked for after row {self._row}")
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
        """Read the rows that are left, and the end of the stream, where gzip checks all of it.

        Raises FormatError if it is cut off, or goes on after its rows.
        """
        while self._row < self._n_rows:
            size = block_steps(self._row_bytes)
            self.read(self._row, min(self._row + size, self._n_rows))
        if self._stream.read(1):
            raise FormatError(
                f"{self._name}: goes on after its {self._n_rows:,} rows; it is damaged, or two "
                f"files in one: take it again from where it comes"
            )


def row_bytes(columns: Mapping[str, Column]) -> int:
    """Bytes of a row of all of them."""
    return sum(math.prod(one.shape[1:]) * one.dtype.itemsize for one in columns.values())


def blocks(
    columns: Mapping[str, Column], n_rows: int, where: object = ""
) -> Iterator[dict[str, Array]]:
    """All rows of some columns, in blocks; FormatError if one has not as many rows."""
    for name, column in columns.items():
        if column.shape[0] != n_rows:
            raise FormatError(
                f"{where}: {name}: expected {n_rows:,} rows, as others have, found "
                f"{column.shape[0]:,}"
            )
    step = block_steps(row_bytes(columns))
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        yield {name: column.read(start, stop) for name, column in columns.items()}


def columns_of(arrays: Mapping[str, Any]) -> dict[str, Column]:
    """Arrays and the like as columns, by name; raises FormatError for one that is none."""
    out: dict[str, Column] = {}
    for name, given in arrays.items():
        rows = given if hasattr(given, "shape") and hasattr(given, "dtype") else np.asarray(given)
        if not rows.shape:
            continue
        if not is_numeric(rows.dtype):
            raise FormatError(f"{name}: expected an array of numbers, found {rows.dtype}")
        out[name] = ArrayColumn(rows)
    return out
