"""Columns of foreign files, read from the first row to the last, a block of rows at a time.

Invariant: nothing is unpickled, and only the rows that are asked for are in memory.
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

__all__ = ["ArrayColumn", "Column", "FlatColumn", "NpyColumn", "blocks", "columns_of", "row_bytes"]

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


class FlatColumn(ArrayColumn):
    """A column (n, 1) of numbers as (n,)."""

    def __init__(self, rows: Any) -> None:
        super().__init__(rows)
        self.shape = self.shape[:1]

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return super().read(start, stop).reshape(stop - start)


class NpyColumn:
    """An array in numpy's own format from any stream: a member of a zip, a gzipped file.

    Raises FormatError for an invalid header, Python objects, and Fortran order.
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
        """Read to the end of the stream, where gzip has its checksum.

        Raises FormatError if it is cut off, or continues after its rows.
        """
        while self._row < self._n_rows:
            size = block_steps(self._row_bytes)
            self.read(self._row, min(self._row + size, self._n_rows))
        if self._stream.read(1):
            raise FormatError(
                f"{self._name}: continues after its {self._n_rows:,} rows, so it is damaged; get a "
                f"new copy"
            )


def row_bytes(columns: Mapping[str, Column]) -> int:
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
    """Arrays as columns, by name; raises FormatError for one that is not numeric."""
    out: dict[str, Column] = {}
    for name, given in arrays.items():
        rows = given if hasattr(given, "shape") and hasattr(given, "dtype") else np.asarray(given)
        if not rows.shape:
            continue
        if not is_numeric(rows.dtype):
            raise FormatError(f"{name}: expected an array of numbers, found {rows.dtype}")
        out[name] = ArrayColumn(rows)
    return out
