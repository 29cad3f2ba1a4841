"""The files of a LeRobot dataset, as its version 3.0 writes them.

Invariant: an episode lies in one file of steps; no more than a group of rows is in memory, and of
the episodes that are over what one row tells of each.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.exchange.arrow_columns import KEY
from mmreplay.exchange.fields import need
from mmreplay.exchange.lerobot_stats import Stats, stats_of
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import BLOCK_BYTES, Steps
from mmreplay.exchange.stored import Stored
from mmreplay.ids import Array
from mmreplay.pictures.png import png
from mmreplay.schema import FRAME, Field

__all__ = ["write"]

_VERSION = "v3.0"
_FILE_MB, _VIDEO_MB, _FILES_A_CHUNK = 100, 200, 1000
_FILE_BYTES = _FILE_MB << 20
_GROUP_BYTES = 4 * BLOCK_BYTES
_EPISODES_A_GROUP = 500
_PATH = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_FPS = 30
_RGB = 3
_MOST_AXES = 5
_OBSERVATION, _TRUNCATED = "observation", "next.truncated"
_OWN = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""What each dataset has, whatever it is of."""

Rows = Callable[[Steps], Array]
"""A column of some steps."""


def _before(run: Steps, key: str) -> Array:
    return run.observation[key][:-1]


def _extra(run: Steps, name: str) -> Array:
    return run.extras[name]


def _is_last(run: Steps) -> Array:
    """Whether the episode ended with the step."""
    out = np.zeros(len(run), np.bool_)
    out[-1] = run.ends
    return out


def _is_picture(shape: Sequence[int]) -> bool:
    """(h, w), (h, w, 1) or (h, w, 3): what a PNG can be."""
    axes = len(shape)
    return axes == _RGB - 1 or (axes == _RGB and shape[-1] in (1, _RGB))


def write(
    stored: Stored,
    target: Path,
    losses: Losses,
    *,
    fps: int | None = None,
    task: str | None = None,
) -> None:
    """A folder. `fps` is 30, and `task` the environment's name, if nothing else is known."""
    _check(fps, task)
    need("pyarrow.parquet")
    out = _Out(stored, target, losses, fps, task)
    for run in stored.runs():
        out.append(run)
    out.close()


def _check(fps: Any, task: Any) -> None:
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int) or fps < 1):
        raise SchemaError(f"fps: expected a whole number of at least 1, found {fps!r:.80}")
    if task is not None and (not isinstance(task, str) or not task):
        raise SchemaError(f"task: expected a text, found {task!r:.80}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Feature:
    """A column of steps: as info.json describes it, as a store has it, and where it is taken."""

    dtype: str
    shape: tuple[int, ...]
    own: tuple[int, ...]
    rows: Rows
    names: Any = None

    @property
    def is_image(self) -> bool:
        return self.dtype == "image"

    def about(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}

    def hugging_face(self) -> dict[str, Any]:
        """As the metadata of Hugging Face's Parquet files has it."""
        value = {"dtype": self.dtype, "_type": "Value"}
        if self.is_image:
            return {"_type": "Image"}
        if self.shape == (1,):
            return value
        if len(self.shape) == 1:
            return {"feature": value, "length": self.shape[0], "_type": "Sequence"}
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "_type": f"Array{len(self.shape)}D",
        }

    def arrow_type(self) -> Any:
        pa = need("pyarrow")
        if self.is_image:
            return pa.struct({"bytes": pa.binary(), "path": pa.string()})
        kind = pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.shape == (1,):
            return kind
        if len(self.shape) == 1:
            return pa.list_(kind, self.shape[0])
        for _ in self.shape:
            kind = pa.list_(kind)
        return kind

    def arrow(self, rows: Array) -> Any:
        """Rows (n, *shape) as an arrow array; images have their frame's number for a path."""
        pa, kind = need("pyarrow"), self.arrow_type()
        if self.is_image:
            pictures = rows if self.shape[-1] == _RGB else rows[..., 0]
            data = pa.array([png(one) for one in pictures], pa.binary())
            return pa.StructArray.from_arrays([data, pa.nulls(len(rows), pa.string())], type=kind)
        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        if self.shape == (1,):
            return flat
        if len(self.shape) == 1:
            return pa.FixedSizeListArray.from_arrays(flat, type=kind)
        for size in reversed(self.shape):
            offsets = np.arange(0, len(flat) + 1, size, dtype=np.int32)
            flat = pa.ListArray.from_arrays(offsets, flat)
        return flat


class _Parts:
    """Parquet files below a folder, of which another one begins when one is large enough."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._writer: Any = None

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of chunk and file."""
        return divmod(self._number, _FILES_A_CHUNK)

    def _path(self) -> Path:
        chunk, file = self.place
        name = _PATH.format(chunk_index=chunk, file_index=file)
        return self._folder / f"{name}.parquet"

    def is_full(self, more: int) -> bool:
        """Whether the file that is open would be too large with so many bytes more."""
        return self._writer is not None and self._path().stat().st_size + more >= _FILE_BYTES

    def write(self, table: Any) -> None:
        """More rows of the file."""
        if self._writer is None:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._writer = need("pyarrow.parquet").ParquetWriter(
                self._path(), table.schema, compression="snappy"
            )
        self._writer.write(table)

    def next_file(self) -> None:
        """Begin another one."""
        self.close()
        self._number += 1

    def close(self) -> None:
        """Close the file that is open."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class _Out:
    """A dataset that is being written."""

    def __init__(
        self, stored: Stored, target: Path, losses: Losses, fps: int | None, task: str | None
    ) -> None:
        self._stored, self._target = stored, target
        known = stored.metadata.get("lerobot")
        self._known: Mapping[str, Any] = known if isinstance(known, dict) else {}
        self._fps = int(fps or self._known.get("fps") or _FPS)
        tasks = self._known.get("tasks")
        one = task or str(stored.metadata.get("id") or "mmreplay")
        # The numbers of tasks are those of the texts that came with them.
        self._is_numbered = task is None and bool(tasks) and self._has("task_index", "i")
        self._tasks: list[str] = list(tasks or ()) if self._is_numbered else [one]
        self._features = self._chosen(losses)
        losses.add("final observations: LeRobot has none", stored.n_episodes)
        self._totals = self._zeros()
        self._stats = self._zeros()
        self._steps, self._episodes = _Parts(target / "data"), _Parts(target / "meta" / "episodes")
        self._pending: list[dict[str, Any]] = []
        self._pending_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._row_schema: Any = None
        self._episode, self._at, self._index = -1, 0, 0
        self._numbers: set[int] = set()

    def _has(self, name: str, kinds: str) -> bool:
        """Whether there is an extra column of plain numbers of that name."""
        found = self._stored.schema.extras.get(name)
        return found is not None and found.shape == () and found.dtype.kind in kinds

    def _chosen(self, losses: Losses) -> dict[str, _Feature]:
        """Features by name."""
        stored, schema = self._stored, self._stored.schema
        names: Mapping[str, Any] = self._known.get("names") or {}
        called: Mapping[str, str] = self._known.get("observations") or {}
        out: dict[str, _Feature] = {}

        def add(name: str, one: Field, rows: Rows, *, may_be_image: bool = False) -> None:
            is_image = may_be_image and one.dtype == np.uint8 and _is_picture(one.shape)
            shape = one.shape or (1,)
            own_names = names.get(name)
            if is_image:
                shape = (*one.shape, 1)[:3]
                own_names = ["height", "width", "channels"]
            if "/" in name or name in out or len(shape) > _MOST_AXES or 0 in shape:
                losses.add(f"column {name}: LeRobot has no feature of that name or shape")
                return
            dtype = "image" if is_image else one.dtype.name
            out[name] = _Feature(dtype, shape, one.shape, rows, own_names)

        for key, one in stored.frames.items():
            sole = "image" if one.dtype == np.uint8 and _is_picture(one.shape) else "state"
            name = called.get(key) or f"observation.{sole if key == FRAME else key}"
            add(name, one, functools.partial(_before, key=key), may_be_image=True)
        add("action", schema.action, operator.attrgetter("action"))
        add("next.reward", Field((), schema.reward_dtype), operator.attrgetter("reward"))
        add("next.done", Field((), "bool"), _is_last)
        add("next.terminated", Field((), "bool"), operator.attrgetter("terminal"))
        keeps_time = bool(self._known) and self._has("timestamp", "f")
        special = {
            *(["timestamp"] if keeps_time else []),
            *(["task_index"] if self._is_numbered else []),
        }
        for name, one in schema.extras.items():
            if name in special:
                continue
            if name in _OWN:
                losses.add(f"column {name}: LeRobot has its own of that name", stored.n_steps)
                continue
            if name.partition(".")[0] == _OBSERVATION or name == _TRUNCATED:
                losses.add(f"column {name}: not what LeRobot means by that name", stored.n_steps)
                continue
            add(name, one, functools.partial(_extra, name=name))
        rows: dict[str, Rows] = {
            "timestamp": functools.partial(_extra, name="timestamp") if keeps_time else self._times,
            "frame_index": lambda run: np.arange(self._at, self._at + len(run)),
            "episode_index": lambda run: np.full(len(run), self._episode),
            "index": lambda run: np.arange(self._index, self._index + len(run)),
            "task_index": self._task_numbers,
        }
        for name, dtype in _OWN.items():
            out[name] = _Feature(dtype, (1,), (), rows[name])
        return out

    def _times(self, run: Steps) -> Array:
        return np.arange(self._at, self._at + len(run)) / self._fps

    def _task_numbers(self, run: Steps) -> Array:
        if not self._is_numbered:
            return np.zeros(len(run), np.int64)
        numbers: Array = run.extras["task_index"]
        if numbers.min() < 0 or numbers.max() >= len(self._tasks):
            raise SchemaError(
                f"task_index: expected numbers below {len(self._tasks)}, as many as the store's "
                f"metadata has tasks, found {numbers.min()} to {numbers.max()}"
            )
        return numbers

    def _zeros(self) -> dict[str, Stats]:
        return {name: stats_of(one.dtype, one.shape) for name, one in self._features.items()}

    def append(self, run: Steps) -> None:
        """Some steps."""
        if run.begins:
            self._episode += 1
            self._at, self._numbers, self._stats = 0, set(), self._zeros()
            if self._steps.is_full(self._pending_bytes):
                self._flush()
                self._steps.next_file()
        columns: dict[str, Any] = {}
        for name, one in self._features.items():
            rows = one.rows(run).reshape(len(run), *one.shape)
            if not one.is_image:
                rows = rows.astype(one.dtype, copy=False)
            self._stats[name].add(rows)
            if name == "task_index":
                self._numbers |= set(np.unique(rows).tolist())
            columns[name] = one.arrow(rows)
            self._pending_bytes += columns[name].nbytes
        self._pending.append(columns)
        self._at += len(run)
        self._index += len(run)
        if self._pending_bytes >= _GROUP_BYTES:
            self._flush()
        if run.ends:
            self._end()

    def _flush(self) -> None:
        """Write the steps that wait for it as a group of rows."""
        if not self._pending:
            return
        pa = need("pyarrow")
        arrays = [
            pa.chunked_array([part[name] for part in self._pending]) for name in self._features
        ]
        self._steps.write(pa.Table.from_arrays(arrays, schema=self._schema()))
        self._pending, self._pending_bytes = [], 0

    def _schema(self) -> Any:
        """Of the steps, with what tells Hugging Face of images, and an import of shapes."""
        pa = need("pyarrow")
        fields = []
        for name, one in self._features.items():
            kept = json.dumps({"shape": list(one.own)})
            about = {KEY: kept.encode()} if one.own != one.shape and name not in _OWN else None
            fields.append(pa.field(name, one.arrow_type(), metadata=about))
        features = {name: one.hugging_face() for name, one in self._features.items()}
        text = json.dumps({"info": {"features": features}})
        return pa.schema(fields, metadata={b"huggingface": text.encode()})

    def _end(self) -> None:
        """Keep what a row of meta/episodes tells of the episode that ends."""
        chunk, file = self._steps.place
        row: dict[str, Any] = {
            "episode_index": self._episode,
            "tasks": [self._tasks[number] for number in sorted(self._numbers)],
            "length": self._at,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self._index - self._at,
            "dataset_to_index": self._index,
        }
        for name, one in self._stats.items():
            row |= {f"stats/{name}/{what}": value for what, value in one.values().items()}
            self._totals[name].merge(one)
        self._rows.append(row)
        if len(self._rows) >= _EPISODES_A_GROUP:
            self._flush_episodes()

    def _flush_episodes(self) -> None:
        if not self._rows:
            return
        if self._episodes.is_full(0):
            self._episodes.next_file()
        chunk, file = self._episodes.place
        place = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        table = need("pyarrow").Table.from_pylist(
            [row | place for row in self._rows], schema=self._row_schema
        )
        self._row_schema = table.schema
        self._episodes.write(table)
        self._rows = []

    def close(self) -> None:
        """Write what is left, and what tells of all of it."""
        self._flush()
        self._flush_episodes()
        self._steps.close()
        self._episodes.close()
        meta = self._target / "meta"
        _write_tasks(meta / "tasks.parquet", self._tasks)
        stats = {name: one.values() for name, one in self._totals.items()}
        (meta / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")
        info = {
            "codebase_version": _VERSION,
            "robot_type": self._known.get("robot_type"),
            "total_episodes": self._stored.n_episodes,
            "total_frames": self._stored.n_steps,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_A_CHUNK,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": _VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{self._stored.n_episodes}"},
            "data_path": f"data/{_PATH}.parquet",
            "video_path": None,
            "features": {name: one.about() for name, one in self._features.items()},
        }
        (meta / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """The texts are the index of a table of pandas, as LeRobot looks them up by it."""
    pa, index = need("pyarrow"), "__index_level_0__"

    def column(name: str | None, field: str, kind: str, dtype: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": field,
            "pandas_type": kind,
            "numpy_type": dtype,
            "metadata": None,
        }

    about = {
        "index_columns": [index],
        "column_indexes": [
            column(None, "None", "unicode", "object") | {"metadata": {"encoding": "UTF-8"}}
        ],
        "columns": [
            column("task_index", "task_index", "int64", "int64"),
            column(None, index, "unicode", "object"),
        ],
        "pandas_version": "2.0.0",
    }
    columns = {"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks)}
    table = pa.table(columns).replace_schema_metadata({b"pandas": json.dumps(about).encode()})
    need("pyarrow.parquet").write_table(table, path)
