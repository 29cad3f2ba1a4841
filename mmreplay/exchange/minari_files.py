"""The files of Minari datasets: HDF5 with a group per episode, Arrow or Parquet with a folder each.

Invariant: the columns of an episode have flat names: ``observations/KEY``, ``infos/KEY`` and so on;
the key in a tuple is a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_columns import arrow_table, from_arrow
from mmreplay.exchange.encoded_images import decoded
from mmreplay.exchange.fields import need
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.parquet_pages import open_parquet
from mmreplay.exchange.source_files import read_json
from mmreplay.exchange.spaces import Leaf
from mmreplay.ids import Array

__all__ = ["Episodes", "open_episodes"]

HDF5_NAME = "main_data.hdf5"
_INDEX = re.compile(r"_index_(\d+)\Z")
_SCALARS = ("rewards", "terminations", "truncations")
_LEAST_ROWS = 2  # of an episode with a step: all columns have as many rows as the observations


class Episodes(Protocol):
    """The episodes of a dataset."""

    def attributes(self, number: int) -> dict[str, Any]:
        """Attributes of an episode, by flat name."""

    def last_flags(self, number: int) -> tuple[bool, bool]:
        """Whether its last step is marked as terminated, and as truncated."""

    def columns(self, number: int) -> dict[str, Any]:
        """Its arrays, or datasets."""


def open_episodes(
    folder: Path,
    kind: str,
    images: Mapping[str, Leaf],
    spaces: Mapping[str, Leaf],
    stack: ExitStack,
) -> Episodes:
    """The episodes below ``data/``; `images` are JPEG. Raises FormatError for another `kind`."""
    if kind == "hdf5":
        file = stack.enter_context(open_hdf5(folder / HDF5_NAME))
        return _Hdf5Episodes(file, images)
    if kind in ("arrow", "parquet"):
        return _ArrowEpisodes(folder, kind, images, spaces)
    raise FormatError(f"{folder}: data_format {kind!r}: expected hdf5, arrow or parquet")


class _Jpegs:
    """JPEG images as an array of rows."""

    def __init__(self, rows: Any, leaf: Leaf, name: str) -> None:
        self._rows, self._name = rows, name
        self.shape, self.dtype = (len(rows), *leaf.shape), np.dtype(np.uint8)

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
        pa, tables = need("pyarrow"), []
        for path in sorted((self._folder / str(number)).iterdir()):
            if path.name == "metadata.json" or path.name[0] in "_.":
                continue
            if self._kind == "parquet":
                with open_parquet(path) as file:
                    tables.append(file.read(names))
            else:
                whole = arrow_table(path)
                tables.append(whole if names is None else whole.select(names))
        return pa.concat_tables(tables).combine_chunks()

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
            if name in ("actions", *_SCALARS):  # padded to the length of the observations
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
            # The dtype of the file: that of a Discrete space is always int64.
            dtype = np.dtype(kind.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            dtype = np.dtype(object)
        if dtype.hasobject:
            out[name] = np.empty(len(array), object)  # the caller reports it
        else:
            out[name] = from_arrow(array, shape, dtype, f"{where}: {name}")


def _flat(given: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in given.items():
        out |= _flat(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
    return out
