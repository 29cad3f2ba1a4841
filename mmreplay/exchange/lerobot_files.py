"""Writes the files of a LeRobot dataset of version 3.0, and the statistics of its features.

Invariant: memory holds a group of rows, and a row per episode of the current group of episodes.
Quantiles are weighted means of those of blocks of steps, as LeRobot averages those of episodes; of
images a sample of each block counts.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.arguments import whole_number_or_none
from mmreplay.batches.runs import BLOCK_BYTES, Steps
from mmreplay.errors import SchemaError
from mmreplay.exchange.arrow_files import KEY
from mmreplay.exchange.fields import need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.stored import Stored
from mmreplay.format.episode_fields import MOST_BYTES, STARTED
from mmreplay.ids import Array
from mmreplay.pictures import png
from mmreplay.schema import FRAME, Field
from mmreplay.texts import Text

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_IMAGES = 16  # most images of a block that are looked at


class Stats:
    """For each element of a row, or each channel of images from 0 to 1.

    `parts` is (4 + 5, elements): min, max, mean, variance times n, and the quantiles.
    """

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        self._is_image = dtype == "image"
        self._shape = (shape[-1], 1, 1) if self._is_image else tuple(shape)
        self.n = 0
        self.parts: Array = np.empty(0)

    def add(self, rows: Array) -> None:
        """Count (n, …) more, n > 0."""
        n = len(rows)
        if self._is_image:
            values = rows[:: -(-n // _IMAGES)].reshape(-1, self._shape[0]) / 255
        else:
            values = rows.reshape(n, -1).astype(np.float64)
        quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
        parts = values.min(0), values.max(0), values.mean(0), values.var(0) * n, *quantiles
        self._merge(n, np.stack(parts))

    def merge(self, other: Stats) -> None:
        """Count all rows of the other one."""
        self._merge(other.n, other.parts)

    def _merge(self, n: int, parts: Array) -> None:
        """Source: Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, (2.1)."""
        if not self.n:
            self.n, self.parts = n, parts
            return
        a, b, part = self.parts, parts, n / (self.n + n)
        out = a + (b - a) * part
        out[0], out[1] = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
        out[3] = a[3] + b[3] + (b[2] - a[2]) ** 2 * (self.n * part)
        self.n, self.parts = self.n + n, out

    def values(self) -> dict[str, Any]:
        """By name, as lists: min, max, mean, std, quantiles and count."""
        low, high, mean, squares, *quantiles = (one.reshape(self._shape) for one in self.parts)
        found = {"min": low, "max": high, "mean": mean, "std": np.sqrt(squares / self.n)}
        found |= dict(zip(_QUANTILES, quantiles, strict=True))
        return {name: one.tolist() for name, one in found.items()} | {"count": [self.n]}


_GROUP_BYTES = 4 * BLOCK_BYTES
_EPISODES_PER_GROUP = 500
_PATH = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_FIRST = _PATH.format(chunk_index=0, file_index=0)
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
"""Features of every dataset."""

Rows = Callable[[Steps], Array]  # a column of some steps


def _of_steps(part: str, name: str) -> Rows:
    return lambda run: getattr(run, part)[name][: len(run)]  # without a final observation


def _is_last(run: Steps) -> Array:
    out = np.zeros(len(run), np.bool_)
    out[-1] = run.ends
    return out


def _is_picture(field: Field) -> bool:
    """Whether it can be a PNG: (h, w), (h, w, 1) or (h, w, 3)."""
    axes = len(field.shape)
    is_shape = axes == _RGB - 1 or (axes == _RGB and field.shape[-1] in (1, _RGB))
    return field.dtype == np.uint8 and is_shape


def write(
    stored: Stored,
    target: Path,
    losses: Losses,
    *,
    fps: int | None = None,
    task: str | None = None,
) -> None:
    """A folder; `fps` and `task` default to those of the source, or 30 and the environment."""
    fps = whole_number_or_none("fps", fps)
    if task == "":
        raise SchemaError("task: expected a text that is not empty")
    need("pyarrow.parquet")
    out = _Out(stored, target, losses, fps, task)
    for run in stored.runs():
        out.append(run)
    out.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Feature:
    """A column of steps: dtype, shape and names of info.json, its shape in a store, its rows."""

    dtype: str
    shape: tuple[int, ...]
    own: tuple[int, ...]
    rows: Rows
    names: Any = None

    @property
    def is_image(self) -> bool:
        return self.dtype == "image"

    def hugging_face(self) -> dict[str, Any]:
        """For the metadata of Hugging Face's Parquet files."""
        value = {"dtype": self.dtype, "_type": "Value"}
        if self.is_image:
            return {"_type": "Image"}
        if self.shape == (1,):
            return value
        if len(self.shape) == 1:
            return {"feature": value, "length": self.shape[0], "_type": "Sequence"}
        kind = f"Array{len(self.shape)}D"
        return {"shape": list(self.shape), "dtype": self.dtype, "_type": kind}

    def arrow(self, rows: Array) -> Any:
        """Rows (n, *shape) as an arrow array."""
        pa = need("pyarrow")
        if self.is_image:
            pictures = rows if self.shape[-1] == _RGB else rows[..., 0]
            data = pa.array([png(one) for one in pictures], pa.binary())
            paths = pa.nulls(len(rows), pa.string())
            return pa.StructArray.from_arrays([data, paths], names=["bytes", "path"])
        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        if self.shape == (1,):
            return flat
        if len(self.shape) == 1:
            return pa.FixedSizeListArray.from_arrays(flat, self.shape[0])
        for size in reversed(self.shape):
            offsets = np.arange(0, len(flat) + 1, size, dtype=np.int32)
            flat = pa.ListArray.from_arrays(offsets, flat)
        return flat


class _Out:
    def __init__(
        self, stored: Stored, target: Path, losses: Losses, fps: int | None, task: str | None
    ) -> None:
        self._stored, self._target, self._losses = stored, target, losses
        own = stored.metadata.get("lerobot")
        self._known: Mapping[str, Any] = own if isinstance(own, dict) else {}
        self._fps = int(fps or self._known.get("fps") or _FPS)
        tasks = self._known.get("tasks")
        one = task or str(stored.metadata.get("id") or "mmreplay")
        # task_index refers to the tasks of the same source.
        self._is_numbered = task is None and bool(tasks) and self._has("task_index", "i")
        self._tasks: list[str] = list(tasks or ()) if self._is_numbered else [one]
        # A text of each episode, where the store has one called task.
        self._has_tasks = task is None and isinstance(stored.fields.get("task"), Text)
        if self._has_tasks and not self._is_numbered:
            self._tasks = []
        known = {STARTED, "task"} if self._has_tasks else {STARTED}
        others = stored.fields.keys() - known
        losses.add_names("fields of episodes: LeRobot has only tasks", others)
        self._features = self._chosen(losses)
        losses.add("final observations: LeRobot has none", stored.n_episodes)
        self._totals, self._stats = self._new_stats(), self._new_stats()
        (target / "data" / _FIRST).parent.mkdir(parents=True)
        (target / "meta" / "episodes" / _FIRST).parent.mkdir(parents=True)
        self._steps = self._writer(target / "data" / _FIRST, self._schema())
        self._episodes: Any = None
        self._pending: list[dict[str, Any]] = []
        self._pending_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._episode, self._at, self._index = -1, 0, 0
        self._task: int | None = 0  # None where the steps are numbered
        self._numbers: set[int] = set()

    def _writer(self, path: Path, schema: Any) -> Any:
        return need("pyarrow.parquet").ParquetWriter(path, schema, compression="snappy")

    def _has(self, name: str, kinds: str) -> bool:
        found = self._stored.schema.extra_fields.get(name)
        return found is not None and found.shape == () and found.dtype.kind in kinds

    def _chosen(self, losses: Losses) -> dict[str, _Feature]:
        stored, schema = self._stored, self._stored.schema
        names: Mapping[str, Any] = self._known.get("names") or {}
        called: Mapping[str, str] = self._known.get("observations") or {}
        out: dict[str, _Feature] = {}

        def add(name: str, one: Field, rows: Rows, *, is_image: bool = False) -> None:
            shape, own_names = one.shape or (1,), names.get(name)
            if is_image:
                shape = (*one.shape, 1)[:3]
                own_names = ["height", "width", "channels"]
            if "/" in name or name in out or len(shape) > _MOST_AXES or 0 in shape:
                losses.add(f"column {name}: LeRobot has no feature of that name or shape")
                return
            dtype = "image" if is_image else one.dtype.name
            out[name] = _Feature(dtype, shape, one.shape, rows, own_names)

        for key, one in stored.frames.items():
            is_image = _is_picture(one)
            last = key if key != FRAME else "image" if is_image else "state"
            name = called.get(key) or f"observation.{last}"
            add(name, one, _of_steps("observation", key), is_image=is_image)
        add("action", schema.action, operator.attrgetter("action"))
        add("next.reward", Field((), schema.reward_dtype), operator.attrgetter("reward"))
        add("next.done", Field((), "bool"), _is_last)
        add("next.terminated", Field((), "bool"), operator.attrgetter("terminal"))
        rows: dict[str, Rows] = {
            "timestamp": lambda run: np.arange(self._at, self._at + len(run)) / self._fps,
            "frame_index": lambda run: np.arange(self._at, self._at + len(run)),
            "episode_index": lambda run: np.full(len(run), self._episode),
            "index": lambda run: np.arange(self._index, self._index + len(run)),
            "task_index": self._task_numbers,
        }
        kept = set()
        if self._known and self._has("timestamp", "f"):
            rows["timestamp"] = _of_steps("extras", "timestamp")
            kept.add("timestamp")
        if self._is_numbered:
            kept.add("task_index")
        for name, one in schema.extra_fields.items():
            if name in kept:
                continue
            if name in _OWN:
                losses.add(f"column {name}: LeRobot has its own of that name", stored.n_steps)
            elif name.partition(".")[0] == _OBSERVATION or name == _TRUNCATED:
                losses.add(f"column {name}: this name has a meaning in LeRobot", stored.n_steps)
            else:
                add(name, one, _of_steps("extras", name))
        for name, dtype in _OWN.items():
            out[name] = _Feature(dtype, (1,), (), rows[name])
        return out

    def _task_numbers(self, run: Steps) -> Array:
        if self._task is not None:
            return np.full(len(run), self._task)
        numbers: Array = run.extras["task_index"]
        if not 0 <= numbers.min() <= numbers.max() < (most := len(self._known["tasks"])):
            raise SchemaError(
                f"task_index: expected numbers below {most}, the number of tasks in "
                f"the store's metadata, found {numbers.min()} to {numbers.max()}"
            )
        return numbers

    def _task_of(self, run: Steps) -> int | None:
        """The number of the task of the episode that begins; None where its steps are numbered."""
        text = run.episode["task"] if self._has_tasks else b""
        if self._is_numbered:
            known = self._tasks[self._task_numbers(run)[0]].encode()[:MOST_BYTES]
            if text in {b"", known}:  # else it was given another one since
                return None
        elif not self._has_tasks:
            return 0
        task = text.decode(errors="replace") or "mmreplay"
        self._tasks += [task] * (task not in self._tasks)
        return self._tasks.index(task)

    def _new_stats(self) -> dict[str, Stats]:
        return {name: Stats(one.dtype, one.shape) for name, one in self._features.items()}

    def append(self, run: Steps) -> None:
        """Some steps."""
        if run.begins:
            self._episode += 1
            self._losses.add(
                "times when episodes began: LeRobot has none", bool(run.episode[STARTED])
            )
            self._task = None
            self._task = self._task_of(run)
            self._at, self._numbers, self._stats = 0, set(), self._new_stats()
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
            self._end_episode()

    def _flush(self) -> None:
        if not self._pending:
            return
        pa = need("pyarrow")
        arrays = [
            pa.chunked_array([part[name] for part in self._pending]) for name in self._features
        ]
        self._steps.write(pa.Table.from_arrays(arrays, schema=self._steps.schema))
        self._pending, self._pending_bytes = [], 0

    def _schema(self) -> Any:
        """Of the steps, with metadata for Hugging Face (images) and for an import (shapes)."""
        pa = need("pyarrow")
        fields = []
        for name, one in self._features.items():
            kept = json.dumps({"shape": list(one.own)})
            about = {KEY: kept.encode()} if one.own != one.shape and name not in _OWN else None
            dtype = np.uint8 if one.is_image else one.dtype
            kind = one.arrow(np.zeros((0, *one.shape), dtype)).type
            fields.append(pa.field(name, kind, metadata=about))
        features = {name: one.hugging_face() for name, one in self._features.items()}
        text = json.dumps({"info": {"features": features}})
        return pa.schema(fields, metadata={b"huggingface": text.encode()})

    def _end_episode(self) -> None:
        row: dict[str, Any] = {
            "episode_index": self._episode,
            "tasks": [self._tasks[number] for number in sorted(self._numbers)],
            "length": self._at,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": self._index - self._at,
            "dataset_to_index": self._index,
        }
        for name, one in self._stats.items():
            row |= {f"stats/{name}/{what}": value for what, value in one.values().items()}
            self._totals[name].merge(one)
        self._rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) >= _EPISODES_PER_GROUP:
            self._flush_episodes()

    def _flush_episodes(self) -> None:
        if not self._rows:
            return
        schema = self._episodes and self._episodes.schema
        table = need("pyarrow").Table.from_pylist(self._rows, schema=schema)
        if schema is None:
            self._episodes = self._writer(self._target / "meta" / "episodes" / _FIRST, table.schema)
        self._episodes.write(table)
        self._rows = []

    def close(self) -> None:
        """Write what is pending, and the metadata of the dataset."""
        self._flush()
        self._flush_episodes()
        self._steps.close()
        self._episodes.close()
        meta = self._target / "meta"
        _write_tasks(meta / "tasks.parquet", self._tasks)
        stats = {name: one.values() for name, one in self._totals.items()}
        (meta / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")
        info = {
            "codebase_version": "v3.0",
            "robot_type": self._known.get("robot_type"),
            "total_episodes": self._stored.n_episodes,
            "total_frames": self._stored.n_steps,
            "total_tasks": len(self._tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{self._stored.n_episodes}"},
            "data_path": f"data/{_PATH}",
            "video_path": None,
            "features": {
                name: {"dtype": one.dtype, "shape": list(one.shape), "names": one.names}
                for name, one in self._features.items()
            },
        }
        (meta / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """A table whose index in pandas is the text of the task, by which LeRobot looks it up."""
    pa, index = need("pyarrow"), "__index_level_0__"
    column = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
    about = {"index_columns": [index], "column_indexes": [], "columns": [column]}
    columns = {"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks)}
    table = pa.table(columns).replace_schema_metadata({b"pandas": json.dumps(about).encode()})
    need("pyarrow.parquet").write_table(table, path)
