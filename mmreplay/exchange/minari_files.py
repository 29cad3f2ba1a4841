"""The files of Minari datasets: HDF5 with a group per episode, Arrow or Parquet with a folder each.

Invariant: the columns of an episode have flat names: ``observations/KEY``, ``infos/KEY`` and so on;
the key in a tuple is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_files import (
    arrow_table,
    from_arrow,
    open_parquet,
    shape_of,
    table_of,
)
from mmreplay.exchange.columns import ArrayColumn, Column, Unreadable
from mmreplay.exchange.fields import need
from mmreplay.exchange.hdf5_files import Hdf5Source, open_hdf5
from mmreplay.exchange.images import decoded
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, read_json
from mmreplay.exchange.spaces import Leaf
from mmreplay.ids import Array

HDF5_NAME = "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,9})\Z")
_INDEX = re.compile(r"_index_(\d+)\Z")
_SCALARS = ("rewards", "terminations", "truncations")
_LOOKED_AT = 8  # rows that give the shape of a column


def open_episodes(
    folder: Path,
    kind: str,
    n: int,
    images: Mapping[str, Leaf],
    spaces: Mapping[str, Leaf],
    losses: Losses,
    stack: ExitStack,
) -> Hdf5Episodes | ArrowEpisodes:
    """The `n` episodes below ``data/``, `images` as JPEG; everything else there is a loss."""

    def is_used(name: str) -> bool:
        number, _, inside = name.partition("/")
        if kind == "hdf5" or name == "metadata.json":
            return name in ("metadata.json", HDF5_NAME)
        return number.isdecimal() and int(number) < n and inside[:1] not in ("", "_", ".")

    add_other_files(folder, is_used, losses)
    if kind == "hdf5":
        return Hdf5Episodes(stack.enter_context(open_hdf5(folder / HDF5_NAME)), n, images, losses)
    if kind in ("arrow", "parquet"):
        return ArrowEpisodes(folder, kind, images, spaces)
    raise FormatError(f"{folder}: data_format {kind!r}: expected hdf5, arrow or parquet")


class _Jpegs:
    """JPEG images as a column; `encoded` gives one by its number: a file may repeat a large one."""

    def __init__(self, n: int, encoded: Callable[[int], Any], leaf: Leaf, name: str) -> None:
        self._encoded, self._name = encoded, name
        self.shape, self.dtype = (n, *leaf.shape), np.dtype(np.uint8)

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        images = (bytes(self._encoded(number)) for number in range(start, stop))
        return decoded(images, self.shape[1:], self._name)


class Hdf5Episodes:
    """Episodes as groups of a file."""

    def __init__(
        self, file: Hdf5Source, n: int, images: Mapping[str, Leaf], losses: Losses
    ) -> None:
        self._file, self._images = file, images
        # Of the groups that there are: `n` may be any number.
        names = [
            name for name in file.groups if (found := _EPISODE.match(name)) and int(found[1]) < n
        ]
        self._paths: dict[str, list[str]] = {name: [] for name in names}
        used = []
        for path in [*file.columns, *file.attribute_names]:
            group = re.split("[@/]", path)[0]
            if group in self._paths:
                used.append(path)
                if "@" not in path:
                    self._paths[group].append(path)
        file.add_rest(used, losses)

    def attributes(self, number: int) -> dict[str, Any]:
        """Attributes of an episode, by flat name."""
        return dict(self._file.file[f"episode_{number}"].attrs)

    def columns(self, number: int) -> dict[str, Column]:
        """Its columns; some may be `Unreadable`, or of texts."""
        out: dict[str, Column] = {}
        for path in self._paths[f"episode_{number}"]:
            parts = [_INDEX.sub(r"\1", key) for key in path.split("/")[1:]]
            name = "/".join(parts)
            leaf, known = self._images.get(name), self._file.columns[path]
            if isinstance(known, Unreadable):
                out[name] = known
                continue
            one = out[name] = self._file.column(path)
            if leaf is not None:
                dataset = self._file.file[path]
                out[name] = _Jpegs(one.shape[0], dataset.__getitem__, leaf, path)
        return out


class ArrowEpisodes:
    """Episodes as folders of Arrow or Parquet files."""

    def __init__(
        self, folder: Path, kind: str, images: Mapping[str, Leaf], spaces: Mapping[str, Leaf]
    ) -> None:
        self._folder, self._kind = folder, kind
        self._images, self._spaces = images, spaces

    def attributes(self, number: int) -> dict[str, Any]:
        """Attributes of an episode, by flat name."""
        return _flat(read_json(self._folder / str(number) / "metadata.json"))

    def _table(self, number: int) -> Any:
        pa, tables = need("pyarrow"), []
        for path in sorted((self._folder / str(number)).iterdir()):
            if path.name == "metadata.json" or path.name[0] in "_.":
                continue
            if self._kind == "parquet":
                with open_parquet(path) as file:
                    tables.append(table_of(file, path))
            else:
                tables.append(arrow_table(path))
        return pa.concat_tables(tables).combine_chunks()

    def columns(self, number: int) -> dict[str, Column]:
        """Its columns; some may be `Unreadable`."""
        table = self._table(number)
        out: dict[str, Column] = {}
        for name in table.column_names:
            array = table[name].combine_chunks()
            if name in ("actions", *_SCALARS):  # padded to the length of the observations
                array = array.slice(0, len(array) - 1)
            self._add(out, name, array, table.schema.field(name), self._folder / str(number))
        return out

    def _add(self, out: dict[str, Column], name: str, array: Any, field: Any, where: Path) -> None:
        pa = need("pyarrow")
        if pa.types.is_struct(array.type):
            for number in range(array.type.num_fields):
                one = array.type.field(number)
                self._add(out, f"{name}/{one.name}", array.field(number), one, where)
            return
        what = f"{where}: {name}"
        if (leaf := self._images.get(name)) is not None:
            out[name] = _Jpegs(len(array), lambda number: array[number].as_py(), leaf, what)
            return
        # The dtype of the file: that of a Discrete space is always int64.
        shape, dtype = shape_of(field, array.slice(0, _LOOKED_AT)) or ((), np.dtype(object))
        if dtype.hasobject:
            out[name] = Unreadable(f"not numbers, but {array.type}")
            return
        if text := (field.metadata or {}).get(b"shape"):
            shape = tuple(int(n) for n in text.split(b",") if n)
        if (leaf := self._spaces.get(name)) is not None:
            shape = leaf.shape
        out[name] = ArrayColumn(from_arrow(array, shape, dtype, what))


def _flat(given: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in given.items():
        out |= _flat(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
    return out
