"""The files of Minari datasets: HDF5, one group an episode, and Arrow or Parquet, a folder each.

Invariant: an episode is flat, by name: ``observations/KEY``, ``infos/KEY`` and the like; a part of
a tuple is a number.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_columns import from_arrow
from mmreplay.exchange.encoded_images import decoded
from mmreplay.exchange.fields import need
from mmreplay.exchange.hdf5_files import new_hdf5, open_hdf5
from mmreplay.exchange.parquet_pages import open_parquet
from mmreplay.exchange.source_files import read_json
from mmreplay.exchange.spaces import Leaf
from mmreplay.ids import Array

__all__ = ["ArrowWriter", "Episodes", "Hdf5Writer", "open_episodes"]

HDF5_NAME = "main_data.hdf5"
_INDEX = re.compile(r"_index_(\d+)\Z")
_SCALARS = ("rewards", "terminations", "truncations")
_LEAST_ROWS = 2  # of an episode with a step: all columns are as long as the observations


class Episodes(Protocol):
    """The episodes of a dataset."""

    def attributes(self, number: int) -> dict[str, Any]:
        """What stands about an episode, by flat name."""

    def last_flags(self, number: int) -> tuple[bool, bool]:
        """Whether its last step terminated and truncated it."""

    def columns(self, number: int) -> dict[str, Any]:
        """Its arrays, or what can be sliced as they can."""


def open_episodes(
    folder: Path,
    kind: str,
    images: Mapping[str, Leaf],
    spaces: Mapping[str, Leaf],
    stack: ExitStack,
) -> Episodes:
    """The episodes below ``data/``; `images` are kept as JPEG. Raises FormatError."""
    if kind == "hdf5":
        file = stack.enter_context(open_hdf5(folder / HDF5_NAME))
        return _Hdf5Episodes(file, images)
    if kind in ("arrow", "parquet"):
        return _ArrowEpisodes(folder, kind, images, spaces)
    raise FormatError(f"{folder}: data_format {kind!r}: expected hdf5, arrow or parquet")


class _Jpegs:
    """Images that are kept as JPEG, as an array of rows."""

    def __init__(self, rows: Any, leaf: Leaf, name: str) -> None:
        self._rows, self._name = rows, name
        self.shape, self.dtype = (len(rows), *leaf.shape), leaf.dtype

    def __getitem__(self, part: slice) -> Array:
        return decoded((bytes(row) for row in self._rows[part]), self.shape[1:], self._name)


class _Hdf5Episodes:
    def __init__(self, file: Any, images: Mapping[str, Leaf]) -> None:
        self._file, self._images = file, images

    def _group(self, number: int) -> Any:
        return self._file[f"episode_{number}"]

    def attributes(self, number: int) -> dict[str, Any]:
        return dict(self._group(number).attrs)

    def last_flags(self, number: int) -> tuple[bool, bool]:
        group = self._group(number)
        terminated, truncated = (group[name] for name in _SCALARS[1:])
        return (bool(terminated[-1]), bool(truncated[-1])) if len(terminated) else (False, False)

    def columns(self, number: int) -> dict[str, Any]:
        h5py, out = need("h5py"), {}

        def add(group: Any, path: str) -> None:
            for key, one in group.items():
                index = _INDEX.match(key)
                name = f"{path}{index[1] if index else key}"
                if isinstance(one, h5py.Group):
                    add(one, f"{name}/")
                else:
                    leaf = self._images.get(name)
                    out[name] = one if leaf is None else _Jpegs(one, leaf, name)

        add(self._group(number), "")
        return out


class _ArrowEpisodes:
    def __init__(
        self, folder: Path, kind: str, images: Mapping[str, Leaf], spaces: Mapping[str, Leaf]
    ) -> None:
        self._folder, self._kind = folder, kind
        self._images, self._spaces = images, spaces

    def attributes(self, number: int) -> dict[str, Any]:
        given = read_json(self._folder / str(number) / "metadata.json")
        return _flat(given)

    def _table(self, number: int, names: Sequence[str] | None = None) -> Any:
        pa, folder = need("pyarrow"), self._folder / str(number)
        tables = []
        for path in sorted(folder.iterdir()):
            if path.name == "metadata.json" or path.name[0] in "_.":
                continue
            if self._kind == "parquet":
                with open_parquet(path) as file:
                    tables.append(file.read(names))
            else:
                with pa.memory_map(str(path)) as file:
                    whole = pa.ipc.open_file(file).read_all()
                    tables.append(whole if names is None else whole.select(names))
        table = pa.concat_tables(tables).combine_chunks()
        table.validate(full=True)  # or lists that lie elsewhere end the process
        return table

    def last_flags(self, number: int) -> tuple[bool, bool]:
        table = self._table(number, list(_SCALARS[1:]))
        if len(table) < _LEAST_ROWS:
            return False, False
        terminated, truncated = (bool(table[name][-2].as_py()) for name in _SCALARS[1:])
        return terminated, truncated

    def columns(self, number: int) -> dict[str, Any]:
        table = self._table(number)
        out: dict[str, Any] = {}
        for name in table.column_names:
            array = table[name].combine_chunks()
            n_steps = len(array) - 1
            if name in ("actions", *_SCALARS):  # padded to as many rows as observations
                array = array.slice(0, n_steps)
            self._add(out, name, array, table.schema.field(name), self._folder / str(number))
        return out

    def _add(self, out: dict[str, Any], name: str, array: Any, field: Any, where: Path) -> None:
        pa = need("pyarrow")
        if pa.types.is_struct(array.type):
            for number in range(array.type.num_fields):
                one = array.type.field(number)
                self._add(out, f"{name}/{one.name}", array.field(number), one, where)
            return
        if name in self._images:
            out[name] = _Jpegs(array.to_pylist(), self._images[name], f"{where}: {name}")
            return
        leaf = self._spaces.get(name)
        shape: tuple[int, ...] = () if leaf is None else leaf.shape
        kind = array.type
        if pa.types.is_nested(kind):
            kind = kind.value_type
            if leaf is None:
                text = (field.metadata or {}).get(b"shape", b"")
                shape = tuple(int(n) for n in text.split(b",") if n)
        try:
            # The file's own, not that of the space: that of Discrete is always int64.
            dtype = np.dtype(kind.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            dtype = np.dtype(object)
        if dtype.hasobject:
            out[name] = np.empty(len(array), object)  # which no store holds, as the caller says
        else:
            out[name] = from_arrow(array, shape, dtype, f"{where}: {name}")


def _flat(given: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in given.items():
        out |= _flat(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
    return out


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *above, key = name.split("/")
        inside = out
        for part in above:
            inside = inside.setdefault(part, {})
        inside[key] = value
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class OutColumn:
    """A column to be written: its path below the episode, what it is, and how its rows look."""

    path: tuple[str | int, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    more: int
    """Rows in addition to those of the steps: 1 for observations."""


class Hdf5Writer:
    """Writes ``main_data.hdf5``, a block of steps at a time; a context manager's inside."""

    def __init__(self, folder: Path, columns: Mapping[str, OutColumn], stack: ExitStack) -> None:
        self._file = stack.enter_context(new_hdf5(folder / HDF5_NAME))
        self._columns = columns
        self._group: Any = None
        self._datasets: dict[str, Any] = {}
        self._rows: dict[str, int] = {}

    def begin(self, number: int, n_steps: int) -> None:
        """Begin an episode of so many steps."""
        self._group = self._file.create_group(f"episode_{number}")
        for name, one in self._columns.items():
            path = "/".join(f"_index_{p}" if isinstance(p, int) else p for p in one.path)
            shape = (n_steps + one.more, *one.shape)
            self._datasets[name] = self._group.create_dataset(path, shape, one.dtype)
            self._rows[name] = 0

    def append(self, name: str, rows: Array) -> None:
        """More rows of a column of the episode."""
        start = self._rows[name]
        self._rows[name] = start + len(rows)
        if len(rows):
            self._datasets[name][start : start + len(rows)] = rows

    def end(self, attributes: Mapping[str, Any]) -> None:
        """End the episode, of which this is known."""
        self._group.attrs.update(attributes)


class ArrowWriter:
    """Writes a folder an episode, which is in memory as a whole meanwhile, as in Minari."""

    def __init__(self, folder: Path, kind: str, columns: Mapping[str, OutColumn]) -> None:
        self._folder, self._kind, self._columns = folder, kind, columns
        self._parts: dict[str, list[Array]] = {}
        self._number = 0

    def begin(self, number: int, n_steps: int) -> None:
        """See `Hdf5Writer`."""
        del n_steps
        self._number = number
        self._parts = {name: [] for name in self._columns}

    def append(self, name: str, rows: Array) -> None:
        """See `Hdf5Writer`."""
        self._parts[name].append(rows)

    def end(self, attributes: Mapping[str, Any]) -> None:
        """See `Hdf5Writer`."""
        pa = need("pyarrow")
        parts: list[tuple[tuple[str | int, ...], Any, Any]] = []
        for name, one in self._columns.items():
            rows = np.concatenate(self._parts[name])
            if not one.more:
                rows = np.concatenate((rows, np.zeros((1, *one.shape), one.dtype)))
            parts.append((one.path, *_encoded(rows, one)))
        fields, arrays = _struct_parts(parts)
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        folder = self._folder / str(self._number)
        folder.mkdir()
        if self._kind == "parquet":
            need("pyarrow.parquet").write_table(
                pa.Table.from_batches([batch]), folder / "part-0.parquet"
            )
        else:
            with pa.ipc.new_file(folder / "part-0.arrow", batch.schema) as writer:
                writer.write_batch(batch)
        text = json.dumps(_nested(attributes), default=lambda value: np.asarray(value).tolist())
        (folder / "metadata.json").write_text(text)


def _encoded(rows: Array, column: OutColumn) -> tuple[Any, dict[bytes, bytes] | None]:
    """An arrow array of rows as Minari keeps them, and the metadata of its field."""
    pa = need("pyarrow")
    flat = np.ascontiguousarray(rows).reshape(-1)
    if column.kind == "Discrete" or (column.kind == "info" and not column.shape):
        return pa.array(flat), None
    size = int(np.prod(column.shape))
    array = pa.FixedSizeListArray.from_arrays(pa.array(flat), size)
    if column.kind == "info":
        return array, {b"shape": ",".join(map(str, column.shape)).encode()}
    return array, None


def _struct_parts(
    parts: Sequence[tuple[tuple[str | int, ...], Any, Any]],
) -> tuple[list[Any], list[Any]]:
    """Fields and arrays of one level, with those below as structs."""
    pa = need("pyarrow")
    inside: dict[str, list[Any]] = {}
    for path, array, about in parts:
        inside.setdefault(str(path[0]), []).append((path[1:], array, about))
    fields, arrays = [], []
    for name, below in inside.items():
        if below[0][0]:
            own, values = _struct_parts(below)
            array, about = pa.StructArray.from_arrays(values, fields=own), None
        else:
            _, array, about = below[0]
        fields.append(pa.field(name, array.type, metadata=about))
        arrays.append(array)
    return fields, arrays
