"""Arrow and Parquet files, checked before they are read, and their columns as numpy's arrays.

Invariant: no page decodes to more than `AT_ONCE_BYTES`, and all pages to no more than a file of its
size can hold; pyarrow allocates what the header of a page claims. A row that is missing, or of
another length than the others, is refused, not filled in.

Source: apache/parquet-format, src/main/thrift/parquet.thrift; Thrift's compact protocol.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import (
    AT_ONCE_BYTES,
    check_at_once,
    check_claim,
    checked_name,
    open_file,
)
from mmreplay.ids import Array

_HEADER_BYTES = 64 << 10
_UNCOMPRESSED, _COMPRESSED, _KINDS_OF_PAGES, _N_VALUES = 2, 3, (5, 7, 8), 1
_VALUE_BYTES = 8
_MOST_DEPTH = 4
_TABLE_ROWS = 10_000
_ROW_BYTES = 64  # about the memory of a row of a small table as Python objects


def open_parquet(path: Path) -> Any:
    """A ``pyarrow.parquet.ParquetFile``, a context manager; raises FormatError."""
    pq = need("pyarrow.parquet")
    # Read pages as they are needed, not a group of rows at once.
    file = pq.ParquetFile(checked_name(path), pre_buffer=False)
    try:
        _check_pages(path, file.metadata)
    except BaseException:
        file.close()
        raise
    return file


def small_table(path: Path, columns: list[str] | None = None) -> Any:
    """A whole table in memory; raises FormatError for a large one."""
    with open_parquet(path) as file:
        check_at_once(file.metadata.num_rows * _ROW_BYTES, f"{path}: its rows")
        return table_of(file, path, columns)


def table_of(file: Any, path: Path, columns: list[str] | None = None) -> Any:
    """All rows of an opened file in memory; raises FormatError if they outgrow it by far."""
    pa, batches, n_bytes = need("pyarrow"), [], 0
    for batch in batches_of(file, _TABLE_ROWS, columns):
        n_bytes += batch.nbytes
        check_claim(n_bytes, path.stat().st_size, path)
        batches.append(batch)
    names = columns or file.schema_arrow.names
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    return pa.Table.from_batches(batches, schema)


def batches_of(file: Any, n_rows: int, columns: list[str] | None) -> Iterator[Any]:
    """Batches of at most `n_rows` rows; fewer if a dictionary may repeat long texts or images."""
    about, longest = file.metadata, 1
    for group in range(about.num_row_groups):
        for number in range(about.num_columns):
            one = about.row_group(group).column(number)
            is_read = columns is None or one.path_in_schema.split(".", 1)[0] in {
                name.split(".", 1)[0] for name in columns
            }
            if is_read and one.physical_type == "BYTE_ARRAY" and one.has_dictionary_page:
                # No value is longer than its page, and no page than the bytes of its column.
                longest = max(longest, min(one.total_uncompressed_size, AT_ONCE_BYTES))
    yield from file.iter_batches(max(1, min(n_rows, AT_ONCE_BYTES // longest)), columns=columns)


def _check_pages(path: Path, about: Any) -> None:
    n_bytes = 0
    with open_file(path) as file:
        size = path.stat().st_size
        for group in range(about.num_row_groups):
            for number in range(about.num_columns):
                one = about.row_group(group).column(number)
                at, before = one.data_page_offset, one.dictionary_page_offset
                if before is not None and 0 < before < at:  # as pyarrow decides
                    at = before
                stop = at + one.total_compressed_size if one.num_values else at
                while at < stop:
                    file.seek(at)
                    page, length = _struct(file.read(_HEADER_BYTES), 0)
                    if page[_COMPRESSED] < 0:
                        raise FormatError(f"{path}: a page at byte {at:,} of a negative size")
                    check_at_once(page[_UNCOMPRESSED], f"{path}: the page at byte {at:,}")
                    n_values = max(page.get(kind, {}).get(_N_VALUES, 0) for kind in _KINDS_OF_PAGES)
                    n_bytes += max(page[_UNCOMPRESSED], n_values * _VALUE_BYTES)
                    check_claim(n_bytes, size, path)
                    at += length + page[_COMPRESSED]


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The numbers and structs of a struct by the id of their field, and its end."""
    out: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        match head & 15:
            case 1 | 2:  # true and false
                pass
            case 3:
                at += 1
            case 4 | 5 | 6:
                out[field], at = _number(data, at)
            case 7:
                at += 8
            case 8:
                raw, at = _varint(data, at)
                at += raw
            case 12 if depth < _MOST_DEPTH:
                out[field], at = _struct(data, at, depth + 1)
            case kind:
                raise FormatError(f"a page's header has a field of type {kind}")
    return out, at + 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A signed number, and its end."""
    raw, at = _varint(data, at)
    return raw >> 1 ^ -(raw & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    out = shift = 0
    while (byte := data[at]) & 0x80:
        out |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return out | byte << shift, at + 1


KEY = b"mmreplay"  # in a field's metadata: shape and dtype of its rows, as JSON

_IMAGE_NDIM = 2
_MAGIC = b"ARROW1\0\0"
_HEADER, _COMPRESSION = 2, 3  # fields of a message, and of a record batch


def arrow_table(path: Path) -> Any:
    """The table of an Arrow file; FormatError for compression, dictionaries and wrong offsets."""
    pa = need("pyarrow")
    with pa.memory_map(checked_name(path)) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise FormatError(f"{path}: expected an Arrow file")
        # The messages in their order: a footer may lead anywhere.
        for message in pa.ipc.MessageReader.open_stream(file):
            if message.type == "dictionary" or _is_compressed(message):
                raise FormatError(
                    f"{path}: compressed, or with dictionaries; write it without, as Minari does"
                )
        file.seek(len(_MAGIC))
        table = pa.ipc.open_stream(file).read_all()
    table.validate(full=True)
    return table


def _is_compressed(message: Any) -> bool:
    """Source: apache/arrow, format/Message.fbs; FlatBuffers' tables."""
    data = message.metadata.to_pybytes()

    def slot(table: int, number: int) -> int:
        """The position of a field of a table; 0 if it is missing."""
        fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        n_bytes = int.from_bytes(data[fields : fields + 2], "little")
        at = fields + 4 + 2 * number
        offset = int.from_bytes(data[at : at + 2], "little") if 4 + 2 * number < n_bytes else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return at + int.from_bytes(data[at : at + 4], "little")

    batch = slot(follow(0), _HEADER)
    return message.type == "record batch" and batch > 0 and slot(follow(batch), _COMPRESSION) > 0


def to_arrow(rows: Array) -> Any:
    """Rows (n, *shape) as an arrow array: numbers, texts, lists, or bytes if they are images."""
    pa = need("pyarrow")
    n, shape = len(rows), rows.shape[1:]
    if rows.dtype.kind == "S":
        return pa.array([one.decode(errors="replace") for one in rows.tolist()], pa.string())
    if not shape:
        return pa.array(rows)
    if rows.dtype == np.uint8 and len(shape) >= _IMAGE_NDIM:
        kind = pa.binary(math.prod(shape))
        buffer = pa.py_buffer(np.ascontiguousarray(rows))
        return pa.Array.from_buffers(kind, n, [None, buffer])
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, math.prod(shape))


def arrow_field(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """The field of such a column, with shape and dtype in its metadata."""
    pa = need("pyarrow")
    is_text = np.dtype(dtype).kind == "S"
    named = np.dtype(dtype).str if is_text else np.dtype(dtype).name
    about = json.dumps({"shape": list(shape), "dtype": named})
    kind = to_arrow(np.zeros((0, *shape), dtype)).type
    return pa.field(name, kind, metadata={KEY: about.encode()})


def shape_of(field: Any, first: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of the rows of a column, from its metadata or `first` rows; or None."""
    about = (field.metadata or {}).get(KEY)
    if about is not None:
        given = json.loads(about)
        return tuple(given["shape"]), np.dtype(given["dtype"])
    pa = need("pyarrow")
    kind, shape, first = field.type, [], first.drop_null()
    while pa.types.is_nested(kind):
        if not hasattr(kind, "value_type"):
            return None
        if pa.types.is_fixed_size_list(kind):
            length = kind.list_size
        else:
            length = len(first[0]) if len(first) else 0
        shape.append(length)
        first, kind = first.flatten().drop_null(), kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return None
    return tuple(shape), dtype


def from_arrow(array: Any, shape: tuple[int, ...], dtype: Any, name: str) -> Array:
    """Rows (n, *shape) of an arrow array; FormatError if one is missing or does not fit."""
    pa, n = need("pyarrow"), len(array)
    kind = array.type
    if np.dtype(dtype).kind == "S":
        _check_whole(array, name)
        texts = [str(one).encode(errors="replace") for one in array.to_pylist()]
        if max(map(len, texts), default=0) > np.dtype(dtype).itemsize:
            raise FormatError(f"{name}: expected texts of at most {np.dtype(dtype).itemsize} bytes")
        return np.array(texts, dtype)
    if pa.types.is_fixed_size_binary(kind):
        _check_whole(array, name)
        data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * kind.byte_width :]
        rows: Array = data[: n * kind.byte_width].view(dtype).reshape(n, *shape)
        return rows
    levels = 0
    while pa.types.is_nested(kind):
        levels, kind = levels + 1, kind.value_type
    lengths = shape if levels == len(shape) else (math.prod(shape),) * levels  # flat lists
    for length in lengths:
        _check_whole(array, name)
        found = need("pyarrow.compute").list_value_length(array).to_numpy()
        if (wrong := np.flatnonzero(found != length)).size:
            raise FormatError(
                f"{name}: expected rows of shape {shape}, found {len(wrong):,} lists without "
                f"{length:,} values, the first with {found[wrong[0]]:,}"
            )
        array = array.flatten()
    _check_whole(array, name)
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if not np.can_cast(values.dtype, dtype):
        raise FormatError(
            f"{name}: expected {np.dtype(dtype)}, found {values.dtype}; write this column with one "
            f"type in all files and in their metadata"
        )
    out: Array = values.astype(dtype, copy=False).reshape(n, *shape)
    return out


def _check_whole(array: Any, name: str) -> None:
    if array.null_count:
        raise FormatError(f"{name}: {array.null_count:,} values are missing; fill them in first")
