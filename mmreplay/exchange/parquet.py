"""Parquet: one row per step, with the columns of `arrays`; a file, or a directory of files.

A column of rows with a shape has flat lists, or bytes for images; its metadata has shape and dtype.
``final_observations`` has a value where an episode ends, else null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_columns import arrow_field, from_arrow, shape_of, to_arrow
from mmreplay.exchange.fields import need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.parquet_pages import open_parquet
from mmreplay.exchange.steps import BLOCK_BYTES, Frames, Incoming, block_steps
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.tables import Block, Shape, Tables, table_rows, table_shapes
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.ids import Array

__all__ = ["files_below", "read", "write"]

_GROUP_BYTES = 4 * BLOCK_BYTES

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """See the module's docstring."""
    paths = files_below(source) if source.is_dir() else [source]
    schema, first, n_rows = _looked_at(paths, losses)
    columns: dict[str, Shape] = {}
    for number, field in enumerate(schema):
        found = None if first is None else shape_of(field, first.column(number))
        if found is None:
            losses.add(f"column {field.name}: not numbers of one shape")
        else:
            columns[field.name] = Shape((n_rows, *found[0]), found[1])
    tables = Tables(columns, source, losses, final_observation)
    final = tables.frame_columns("final_observations")
    row_bytes = sum(int(np.prod(one.shape[1:])) * one.dtype.itemsize for one in columns.values())

    def final_rows(block: Block, _start: int, _stop: int) -> Frames:
        return {key: block[name] for key, name in final.items()}

    rows = _blocks(paths, columns, [*tables.used, *final.values()], block_steps(row_bytes))
    yield tables.incoming(rows, final_rows if final else None)


def _looked_at(paths: list[Path], losses: Losses) -> tuple[Any, Any, int]:
    """The columns of some files, the first rows of the first file with any, and the row count."""
    schema = first = None
    others: set[str] = set()
    n_rows = 0
    for path in paths:
        with open_parquet(path) as file:
            n_rows += file.metadata.num_rows
            others.update(file.schema_arrow.names)
            if first is None and (schema is None or file.metadata.num_rows):
                schema, first = file.schema_arrow, next(file.iter_batches(8), None)
    for name in sorted(others.difference(schema.names if schema is not None else ())):
        losses.add(f"column {name}: not in all files")
    return schema, first, n_rows


def files_below(folder: Path) -> list[Path]:
    """In the order of the numbers in their names: part-10 comes after part-9.

    Leaves out names that begin with a dot or an underscore. Raises FormatError if nothing is left.
    """
    paths = [
        path
        for path in sorted(folder.rglob("*.parquet"), key=_order)
        if not any(part[0] in "._" for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise FormatError(f"{folder}: expected .parquet files, found none")
    return paths


def _order(path: Path) -> list[int | str]:
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def _blocks(
    paths: list[Path], columns: dict[str, Shape], names: list[str], size: int
) -> Iterator[Block]:
    for path in paths:
        with open_parquet(path) as file:
            if missing := set(names) - set(file.schema_arrow.names):
                raise FormatError(f"{path}: has no column {min(missing)!r}, as other files have")
            for batch in file.iter_batches(size, columns=names):
                yield {
                    name: _rows(batch.column(name), columns[name], f"{path}: {name}")
                    for name in names
                }


def _rows(array: Any, about: Shape, name: str) -> Array:
    if name.rpartition(": ")[2].startswith("final_observations"):
        array = array.drop_null()
    return from_arrow(array, about.shape[1:], about.dtype, name)


def write(
    stored: Stored, target: Path, losses: Losses, *, compression: Compression = "zstd"
) -> None:
    """One file; see the module's docstring."""
    del losses
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    shapes = table_shapes(stored)
    schema = pa.schema(
        [arrow_field(name, shape[1:], dtype) for name, (shape, dtype) in shapes.items()]
    )
    most = max(1, _GROUP_BYTES // stored.row_bytes)
    with pq.ParquetWriter(target, schema, compression=compression) as writer:
        parts: list[Block] = []
        n_rows = 0
        for run in stored.runs():
            parts.append(table_rows(run, is_dict=stored.schema.is_dict))
            n_rows += len(run)
            if n_rows >= most:
                writer.write_batch(_batch(parts, schema))
                parts, n_rows = [], 0
        if parts:
            writer.write_batch(_batch(parts, schema))


def _batch(parts: list[Block], schema: Any) -> Any:
    pa = need("pyarrow")
    ends = np.concatenate([one["terminations"] | one["truncations"] for one in parts])
    columns = []
    for name in schema.names:
        rows = to_arrow(np.concatenate([one[name] for one in parts]))
        if name.startswith("final_observations"):
            numbers = np.cumsum(ends) - 1
            rows = rows.take(pa.array(numbers, mask=~ends))
        columns.append(rows)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
