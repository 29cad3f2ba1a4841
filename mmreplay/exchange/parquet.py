"""Parquet: one row per step, with the columns of `arrays`; a file, or several.

A column of rows with a shape has flat lists, or bytes for images; its metadata has shape and dtype.
``final_observations`` has a value where an episode ends, else null.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.batches.runs import BLOCK_BYTES, block_steps
from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_files import (
    arrow_field,
    batches_of,
    from_arrow,
    open_parquet,
    shape_of,
    to_arrow,
)
from mmreplay.exchange.columns import RowShape, Shape, Unreadable, row_bytes
from mmreplay.exchange.fields import PREFIX, need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, by_numbers, source_files
from mmreplay.exchange.stored import Stored, table_rows, table_shapes
from mmreplay.exchange.tables import OF_NEXT_FILE, Block, Incoming, Tables, final_name, marks_ends
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.ids import Array

_GROUP_BYTES = 4 * BLOCK_BYTES
_LOOKED_AT = 8
_KEYS = {"ARROW:schema", "pandas", "huggingface"}  # metadata that says only how columns are written

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]


@contextmanager
def read(
    source: Sequence[Path], losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """The files of one table; see the module's docstring."""
    columns = _shapes_of(source, losses)
    where = f"{source[0]} and {len(source) - 1:,} more" if len(source) > 1 else source[0]
    tables = Tables(columns, where, losses, final_observation)
    final = tables.frames["final_observations"]
    names = [*tables.used, *final.values()]
    size = block_steps(row_bytes({name: columns[name] for name in names}))
    last = {final_name(key): name for key, name in final.items()}

    def blocks() -> Iterator[Block]:
        before = source[0]
        for path, part in columns_below(source, names, size):
            block = {
                name: _rows(part[name], columns[name], f"{path}: {name}", name in final.values())
                for name in names
            }
            block |= {key: block[name] for key, name in last.items()}
            yield block if path == before else block | {OF_NEXT_FILE: np.empty(0)}
            before = path

    yield tables.incoming(blocks())


def tables_of(paths: list[Path], losses: Losses) -> list[list[Path]]:
    """The files with rows: of one table, if a column of the first marks ends, else of one each."""
    filled: list[Path] = []
    marks = False
    for path in paths:
        with open_parquet(path) as file:
            if file.metadata.num_rows:
                marks = marks or (not filled and marks_ends(file.schema_arrow.names, losses))
                filled.append(path)
    if not filled:
        raise FormatError(f"{paths[0]}: expected rows, found no Parquet file with any")
    losses.add("files without rows", len(paths) - len(filled))
    return [filled] if marks else [[path] for path in filled]


def _shapes_of(paths: Sequence[Path], losses: Losses) -> dict[str, RowShape]:
    """The columns that all files have, by the first rows of the first one."""
    counts: Counter[str] = Counter()
    keys: set[str] = set()
    n_rows = 0
    for path in paths:
        with open_parquet(path) as file:
            n_rows += file.metadata.num_rows
            counts.update(file.schema_arrow.names)
            keys.update(one.decode(errors="replace") for one in file.metadata.metadata or {})
    losses.add_names("metadata of the files", keys - _KEYS)
    with open_parquet(paths[0]) as file:
        return {
            name: _shape_of(file, name, n_rows)
            if n_files == len(paths)
            else Unreadable(f"{n_files} columns of this name in {len(paths)} files")
            for name, n_files in counts.items()
        }


def _shape_of(file: Any, name: str, n_rows: int) -> Shape | Unreadable:
    try:
        first = next(batches_of(file, _LOOKED_AT, [name]), None)
    except (OSError, ValueError, NotImplementedError) as error:  # of pyarrow
        return Unreadable(f"cannot be read: {error!s:.300}")
    found = None if first is None else shape_of(first.schema.field(0), first.column(0))
    if found is None:
        return Unreadable("not numbers of one shape")
    return Shape((n_rows, *found[0]), found[1])


def files_below(folder: Path, losses: Losses | None = None) -> list[Path]:
    """In the order of the numbers in their names; raises FormatError if there are none."""

    def is_table(name: str) -> bool:
        return name.endswith(".parquet") and not any(part[0] in "._" for part in name.split("/"))

    names = source_files(folder) if folder.is_dir() else ()
    paths = sorted((folder / name for name in names if is_table(name)), key=by_numbers)
    if losses is not None:
        add_other_files(folder, is_table, losses)
    if not paths:
        raise FormatError(f"{folder}: expected .parquet files, found none")
    return paths


def columns_below(
    paths: Sequence[Path], names: list[str], size: int
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Columns of at most `size` rows of some files; raises FormatError for a missing one."""
    for path in paths:
        with open_parquet(path) as file:
            if missing := set(names) - set(file.schema_arrow.names):
                raise FormatError(f"{path}: has no column {min(missing)!r}, which other files have")
            for batch in batches_of(file, size, names):
                yield path, dict(zip(batch.schema.names, batch.columns, strict=True))


def _rows(array: Any, about: RowShape, name: str, is_final: bool) -> Array:
    if is_final:
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
            whole = dataclasses.replace(run, begins=True)  # its fields in each part
            parts.append(table_rows(whole, is_dict=stored.schema.is_dict))
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
        if name.startswith(PREFIX):  # the same value in all steps of an episode
            lengths = [len(one["rewards"]) for one in parts]
            columns.append(to_arrow(np.repeat([one[name][0] for one in parts], lengths, 0)))
            continue
        rows = to_arrow(np.concatenate([one[name] for one in parts]))
        if name.startswith("final_observations"):
            numbers = np.cumsum(ends) - 1
            rows = rows.take(pa.array(numbers, mask=~ends))
        columns.append(rows)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
