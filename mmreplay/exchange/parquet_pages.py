"""Opens Parquet files of an import after checking their pages.

Invariant: no page decodes to more than `AT_ONCE_BYTES`, and all pages to no more than a file of its
size can hold; pyarrow allocates what the header of a page claims.

Source: apache/parquet-format, src/main/thrift/parquet.thrift; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import (
    AT_ONCE_BYTES,
    check_at_once,
    check_claim,
    checked_name,
    open_file,
)

_HEADER_BYTES = 64 << 10
_UNCOMPRESSED, _COMPRESSED, _KINDS_OF_PAGES, _N_VALUES = 2, 3, (5, 7, 8), 1
_VALUE_BYTES = 8
_MOST_DEPTH = 4
_TABLE_ROWS = 10_000
_ROW_BYTES = 64
"""About the memory of a row of a small table as Python objects."""


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
