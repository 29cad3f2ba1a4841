"""Minari datasets of HDF5, Arrow and Parquet, read without Minari; `minari_export` writes them.

An import also keeps seeds, options and other attributes of episodes as fields of them, infos as
extra columns (``info.…``; a store's own under their own names) and those of resets as fields
(``reset.…``), spaces, the environment's specification and other metadata, for an export.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError, StoreNotFoundError
from mmreplay.exchange.columns import (
    Column,
    Part,
    PerEpisode,
    RowShape,
    Shape,
    Unreadable,
    blocks,
)
from mmreplay.exchange.fields import PREFIX, common_type, is_numeric
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.minari_files import open_episodes
from mmreplay.exchange.source_files import add_other_files, read_json
from mmreplay.exchange.spaces import compacted, leaves, names_of
from mmreplay.exchange.tables import Block, Incoming, Tables, final_name
from mmreplay.format.episode_fields import field_name
from mmreplay.schema import FRAME

ID = re.compile(r"([-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v\d+")  # as Minari reads it, with a version

OURS = "mmreplay"
"""In the metadata of our exports: ``extras`` are the infos that are a store's extra columns."""

_COUNTED = {"total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding", OURS}
"""Metadata that an export computes."""

_STEP = ("actions", "terminations", "truncations")
_MOST_METADATA = 400_000
NO_SEED = np.int64(-1)  # a missing seed; 2**64 - 1 where seeds are uint64


def folder_of(given: object) -> Path | None:
    """Where Minari keeps the dataset of this id; None for a path, which ``./NAME-v0`` is too."""
    if not isinstance(given, str) or not ID.fullmatch(given):
        return None
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return Path(root).absolute() / given


def find(given: Any) -> Any:
    """A path as it is given, or the folder of the dataset of this id."""
    folder = folder_of(given)
    if folder is None:
        return given
    is_path, is_id = os.path.lexists(given), folder.is_dir()
    if is_path and is_id and not folder.samefile(given):
        raise SchemaError(
            f"src: {given!r} is a path here, and a dataset in {folder}; give ./{given}, or the "
            f"full path of the dataset"
        )
    if not is_path and not is_id:
        raise StoreNotFoundError(
            f"{given}: there is no such path, and no dataset at {folder}; `minari download "
            f"{given}` gets it if it is one of Minari's"
        )
    return folder if is_id else given


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A dataset's folder, or the ``data`` in it."""
    folder = source / "data" if (source / "data").is_dir() else source
    raw = read_json(folder / "metadata.json")
    if not raw.get("total_episodes"):
        raise FormatError(f"{source}: the dataset has no episode")
    add_other_files(source, lambda name: folder == source or name.startswith("data/"), losses)
    with ExitStack() as stack:
        yield _Dataset(folder, raw, losses, stack).incoming()


class _Dataset:
    def __init__(self, folder: Path, raw: dict[str, Any], losses: Losses, stack: ExitStack) -> None:
        self._folder, self._raw, self._losses = folder, raw, losses
        self._n = int(raw["total_episodes"])
        self._spaces = {
            name: json.loads(raw[f"{name}_space"])
            for name in ("observation", "action")
            if isinstance(raw.get(f"{name}_space"), str)
        }
        by_name = {
            "/".join(map(str, (f"{name}s", *leaf.path))): leaf
            for name, space in self._spaces.items()
            for leaf in leaves(space)
        }
        jpegs = bool(raw.get("jpeg_encoding", True))
        images = {name: leaf for name, leaf in by_name.items() if jpegs and leaf.is_image}
        kind = str(raw.get("data_format", "hdf5"))
        self._episodes = open_episodes(folder, kind, self._n, images, by_name, losses, stack)
        columns = (self._episodes.columns(number) for number in range(self._n))
        first = next((one for one in columns if one["rewards"].shape[0]), None)
        if first is None:
            raise FormatError(f"{folder}: the dataset has no step")
        if "actions" not in first:
            raise FormatError(f"{folder}: actions of several arrays; a store has one")
        self._first = first
        self._n_steps = int(raw.get("total_steps", 0))
        self._columns: dict[str, RowShape] = {"episode": self._shape((), "int64")}
        self._called: dict[str, str] = {}
        self._with_reset: set[str] = set()
        self._infos: dict[str, str] = {}
        self._attributes: dict[str, str] = {}
        self._resets: dict[str, str] = {}  # the infos of resets, by what they become
        self._add_columns()
        self._about = [self._episodes.attributes(number) for number in range(self._n)]
        self._add_attributes()
        self._tables = Tables(self._columns, folder, losses, "repeat", called=self._called)
        # The columns of observations by the keys of the store.
        self._frames = self._tables.frames["observations"]

    def _shape(self, shape: tuple[int, ...], dtype: Any) -> Shape:
        """That of all rows, if each has this shape."""
        return Shape((self._n_steps, *shape), np.dtype(dtype))

    def _add_columns(self) -> None:
        """Add what the first episode has, by the names of a table."""
        ours = self._raw.get(OURS, {}).get("extras", [])
        n_steps = self._first["rewards"].shape[0]
        for name, one in self._first.items():
            part, _, path = name.partition("/")
            role = name
            column: RowShape = one
            if part == "infos":
                role = f"extras/{path}" if path in ours else f"extras/info.{path}"
                if path not in ours:
                    self._infos[role] = path
                if one.shape[:1] == (n_steps + 1,):
                    self._with_reset.add(role)
                    if is_numeric(one.dtype):
                        self._resets[f"{PREFIX}reset.{path}"] = path
                        at_reset = self._shape(one.shape[1:], one.dtype)
                        self._add(f"{PREFIX}reset.{path}", at_reset, f"{name} of resets")
                elif one.shape[:1] != (n_steps,) and not isinstance(one, Unreadable):
                    column = Unreadable("not one row per step")
            elif part not in ("observations", "rewards", *_STEP):
                self._losses.add(f"column {name}: Minari has no such column")
                continue
            if one.shape and not isinstance(column, Unreadable):
                column = self._shape(one.shape[1:], one.dtype)
            self._add(role, column, name)

    def _add(self, role: str, column: RowShape, name: str) -> None:
        if role in self._columns:
            raise FormatError(f"{self._folder}: {name}: expected one column of this name")
        self._columns[role], self._called[role] = column, name

    def _add_attributes(self) -> None:
        """Add a column for each attribute that all episodes have, and for seeds."""
        names = {name for own in self._about for name in own} - {"id", "total_steps"}
        for name in sorted(names):
            values = [own[name] for own in self._about if name in own]
            what, dtype = f"{name} of episodes", common_type(values)
            shapes = {np.shape(one) for one in values}
            if dtype is None or len(shapes) > 1 or (len(values) < self._n and name != "seed"):
                self._losses.add(f"{what}: not in all of them, or of different types", len(values))
                continue
            if name == "seed":
                none = NO_SEED.astype(dtype)
                self._losses.add(
                    f"{what}: {none}, which means a missing seed",
                    sum(bool(np.any(one == none)) for one in values),
                )
            self._attributes[f"{PREFIX}{name}"] = name
            self._add(f"{PREFIX}{name}", self._shape(shapes.pop(), dtype), f"episode.{name}")

    def incoming(self) -> Incoming:
        """Fields, metadata and steps."""
        return self._tables.incoming(self._blocks(), metadata=self._metadata())

    def _metadata(self) -> dict[str, Any]:
        """What an export needs to write the same dataset."""
        own = {key: value for key, value in self._raw.items() if key not in _COUNTED}
        fields = {"observation": {*self._frames}, "action": {FRAME}}
        for name, space in self._spaces.items():
            own[f"{name}_space"] = compacted(space)
            if names_of(space) != fields[name]:
                del own[f"{name}_space"]
                self._losses.add(f"{name} space: has parts that are not imported, left out")
        extras = {role: name for role, (name, _) in self._tables.extras.items()}
        about: dict[str, Any] = {
            "metadata": own,
            "infos": {extras[one]: path for one, path in self._infos.items() if one in extras},
            **{
                part: {field_name(role.removeprefix(PREFIX)): name for role, name in names.items()}
                for part, names in (("episodes", self._attributes), ("resets", self._resets))
            },
        }
        if len(json.dumps(about)) > _MOST_METADATA:
            self._losses.add("metadata of more than 400 kB")
            about["metadata"] = {}
        spec = own.get("env_spec")
        env_id = json.loads(spec).get("id") if isinstance(spec, str) else None
        return {"minari": about} | ({"id": env_id} if env_id else {})

    def _blocks(self) -> Iterator[Block]:
        for number in range(self._n):
            columns = self._episodes.columns(number)
            n_steps = columns["rewards"].shape[0]
            if not n_steps:
                self._losses.add("episodes without a step")
                continue
            frames = [self._called[role] for role in self._frames.values()]
            expected = dict.fromkeys(frames, n_steps + 1) | dict.fromkeys(_STEP, n_steps)
            for name, n_rows in expected.items():
                if columns[name].shape[0] != n_rows:
                    raise FormatError(
                        f"{self._folder}: episode {number}: {name}: expected {n_rows:,} rows for "
                        f"{n_steps:,} rewards, found {columns[name].shape[0]:,}"
                    )
            for name in columns.keys() - self._first.keys():
                self._losses.add(f"column {name}: not in the first episode, left out")
            used = {role: self._column(role, number, columns) for role in self._tables.used}
            stop = 0
            for block in blocks(used, n_steps):
                stop += len(block["episode"])
                for key, name in zip(self._frames, frames, strict=True):
                    block[final_name(key)] = columns[name].read(stop, stop + (stop == n_steps))
                yield block

    def _column(self, role: str, number: int, columns: Mapping[str, Column]) -> Column:
        """The steps of an episode in one column; 0 where it has none as in the first one."""
        one, name, n = self._columns[role], self._called.get(role, ""), columns["rewards"].shape[0]
        value, ends = np.int64(0), np.array([n])
        if role == "episode":
            value = np.int64(number)
        elif role in self._attributes:
            value = self._about[number].get(self._attributes[role], NO_SEED)
        elif role in self._resets:
            column = columns.get(f"infos/{self._resets[role]}")
            if column is not None and column.shape[:1] == (n + 1,):
                return PerEpisode(column.read(0, 1), ends)
        elif not role.startswith("extras/"):
            return Part(columns[name], 0, n)
        else:
            column, more = columns.get(name), int(role in self._with_reset)
            if column is not None and column.shape[:1] == (n + more,):
                return Part(column, more, n)
            self._losses.add(f"{name}: not in this episode as in the first: zeros")
        return PerEpisode(np.full((1, *one.shape[1:]), value, one.dtype), ends)
