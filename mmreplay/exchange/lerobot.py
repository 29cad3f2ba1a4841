"""LeRobot datasets of version 3: Parquet files of steps, with images in them or videos beside them.

Observations are called ``observation.…``; ``next.reward`` and ``next.done`` belong to the step
itself. An export writes images as lossless PNG into the Parquet files, and adds
``next.terminated``, as done only says that an episode ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.batches.runs import block_steps
from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_files import KEY, from_arrow, open_parquet, small_table
from mmreplay.exchange.columns import Shape, row_bytes
from mmreplay.exchange.fields import PREFIX, key_name, need
from mmreplay.exchange.images import VideoFrames, decoded
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.parquet import columns_below, files_below
from mmreplay.exchange.source_files import add_other_files, inside, read_json
from mmreplay.exchange.tables import Block, Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.format.episode_fields import MOST_BYTES
from mmreplay.ids import Array
from mmreplay.schema import FRAME

_EPISODE, _TIME, _TASK = "episode_index", "timestamp", "task_index"
_INDICES = ("index", "frame_index")  # what the order of the rows also says

_ROLES = {
    "action": "actions",
    "next.reward": "rewards",
    "reward": "rewards",
    "next.terminated": "terminations",
    "next.truncated": "truncations",
    "next.done": "dones",
    "done": "dones",
    _EPISODE: _EPISODE,
}
_NEEDED = {*_ROLES, *_INDICES, _TIME}
_OBSERVATION = "observation"
_OF_INFO = set(
    "codebase_version storage_format robot_type total_episodes total_frames total_tasks "
    "chunks_size data_files_size_in_mb video_files_size_in_mb fps data_path video_path "
    "features splits".split()
)
"""Entries that are read, or follow from what is."""

_VECTORS = ("actions", "observations")  # roles in which float vectors of length 1 stay vectors

_PICTURES = ("image", "video")
_CHANNELS = (1, 3)
_NUMBERS = {np.dtype(one).name for one in "?bBhHiIlLefd"}
_MOST_TEXT = 300_000  # a limit of the metadata that a store keeps


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A dataset's folder."""
    need("pyarrow.parquet")
    info = read_json(source / "meta" / "info.json")
    version = info.get("codebase_version")
    if not str(version).startswith("v3."):
        raise FormatError(
            f"{source}: expected a dataset of version v3.0, found {version!r:.80}; convert an "
            f"older one with lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    if (stored := info.get("storage_format", "parquet")) != "parquet":
        raise FormatError(
            f"{source}: expected storage_format 'parquet', found {stored!r:.80}; convert it with "
            f"lerobot"
        )
    with ExitStack() as stack:
        yield _Dataset(source, info, losses, stack).incoming(final_observation)


class _Dataset:
    def __init__(
        self, source: Path, info: dict[str, Any], losses: Losses, stack: ExitStack
    ) -> None:
        self._source, self._info, self._losses = source, info, losses
        self._paths = files_below(source / "data")
        self._n = 0
        unknown: set[str] = set()
        for path in self._paths:
            with open_parquet(path) as file:
                self._n += file.metadata.num_rows
                unknown.update(file.schema_arrow.names)
        losses.add_names(
            "columns that info.json does not name", unknown.difference(info["features"])
        )
        losses.add(
            "steps that info.json counts but no file has",
            max(int(info.get("total_frames", 0)) - self._n, 0),
        )
        self._fps = float(info["fps"])
        self._features = {
            name: about for name, about in info["features"].items() if self._is_usable(name, about)
        }
        self._names = self._names_by_role()
        self._shapes: dict[str, Shape] = {}
        self._find_shapes()
        self._videos = {
            name: VideoFrames(one.shape[1:], self._fps, stack)
            for name, one in self._shapes.items()
            if self._features[name]["dtype"] == "video"
        }
        self._starts = {name: self._video_starts(name) for name in self._videos}
        add_other_files(source, self._is_read, losses)
        losses.add_names("entries of info.json", info.keys() - _OF_INFO)
        if len(info.get("splits", ())) > 1:
            losses.add_names("splits: joined", info["splits"])

    def _is_usable(self, name: str, about: Mapping[str, Any]) -> bool:
        """Whether a feature is numbers or pictures, and asked for."""
        if not self._losses.takes(name, needed=name in _NEEDED):
            return False
        kind, more = about["dtype"], about.get("info") or about.get("video_info") or {}
        problem = "" if kind in _PICTURES or kind in _NUMBERS else f"not numbers, but {kind}"
        if any("is_depth_map" in key and more[key] for key in more):
            problem = "a depth map, whose numbers have more than 8 bits"
        self._losses.add(f"feature {name}: {problem}", self._n if problem else 0)
        return not problem

    def _is_read(self, name: str) -> bool:
        folder, _, inside = name.partition("/")
        video = any(inside.startswith(f"{one}/") for one in self._videos)
        return (
            name in ("meta/info.json", "meta/tasks.parquet")
            or (name.startswith("meta/episodes/") and bool(self._videos))
            or (self._source / name in self._paths)
            or (folder == "videos" and video)
        )

    def _names_by_role(self) -> dict[str, str]:
        """What each feature is in a table of transitions, by its name."""
        seen = [name for name in self._features if name.split(".", maxsplit=1)[0] == _OBSERVATION]
        out: dict[str, str] = {}
        for name in self._features:
            if name in seen:
                key = key_name(name.removeprefix(_OBSERVATION).lstrip("."))
                out[name] = "observations" if len(seen) == 1 else f"observations/{key}"
            elif name not in _INDICES:
                role = _ROLES.get(name, f"extras/{name}")
                out[name] = f"extras/{name}" if role in out.values() else role
        return out

    def _find_shapes(self) -> None:
        """Find the shape, with the rows first, and dtype of each feature that is converted."""
        with open_parquet(self._paths[0]) as file:
            own = {one.name: one for one in file.schema_arrow}
        for name in list(self._names):
            about = self._features[name]
            kind, shape = about["dtype"], tuple(about["shape"])
            if kind in _PICTURES:
                dtype = np.dtype(np.uint8)
                if shape[0] in _CHANNELS and shape[-1] not in _CHANNELS:
                    shape = (*shape[1:], shape[0])
            else:
                dtype = np.dtype(kind)
                # LeRobot stores scalars as vectors of length 1.
                role = self._names[name].partition("/")[0]
                if shape == (1,) and (dtype.kind in "iub" or role not in _VECTORS):
                    shape = ()
            if kind != "video" and name not in own:
                raise FormatError(f"{self._paths[0]}: column {name!r} of info.json is missing")
            kept = name in own and (own[name].metadata or {}).get(KEY)
            if kept:  # in our exports
                shape = tuple(json.loads(kept)["shape"])
            self._shapes[name] = Shape((self._n, *shape), dtype)

    def _video_starts(self, name: str) -> dict[int, tuple[Path, float]]:
        """The video of each episode, and the time at which it begins there."""
        out: dict[int, tuple[Path, float]] = {}
        parts = ("chunk_index", "file_index", "from_timestamp")
        columns = ["episode_index", *(f"videos/{name}/{part}" for part in parts)]
        for path in files_below(self._source / "meta" / "episodes"):
            table = small_table(path, columns)
            for number, chunk, file, start in zip(
                *(table[column].to_pylist() for column in columns), strict=True
            ):
                place = f"chunk-{int(chunk):03d}/file-{int(file):03d}.mp4"
                out[int(number)] = inside(self._source, "videos", name, place), float(start)
        return out

    def _constant_tasks(self) -> dict[int, bytes]:
        """The task of each episode that has one, by its number."""
        texts, found = self._tasks(), dict[int, set[int]]()
        if not texts or not {_EPISODE, _TASK} <= self._features.keys():
            return {}
        names = [_EPISODE, _TASK]
        for _, part in columns_below(self._paths, names, 1 << 16):
            pairs = np.stack([part[name].to_numpy(zero_copy_only=False) for name in names], 1)
            for episode, task in np.unique(pairs, axis=0).tolist():
                found.setdefault(int(episode), set()).add(int(task))
        several = sum(len(tasks) > 1 for tasks in found.values())
        self._losses.add("tasks of episodes with several: in the column task_index only", several)
        out = {}
        for episode, (task, *others) in found.items():
            if not others and 0 <= task < len(texts):
                out[episode] = texts[task].encode()[:MOST_BYTES]
        return out

    def incoming(self, missing: FinalObservation) -> Incoming:
        """Fields, metadata and steps."""
        columns = {self._names[name]: one for name, one in self._shapes.items()}
        self._task_of = self._constant_tasks()
        if self._task_of:
            longest = max(map(len, self._task_of.values()))
            columns[f"{PREFIX}task"] = Shape((self._n,), np.dtype(f"S{max(longest, 1)}"))
        called = {role: name for name, role in self._names.items()}
        tables = Tables(
            columns, self._source, self._losses, missing, needs_rewards=False, called=called
        )
        return tables.incoming(self._blocks(), metadata={"lerobot": self._metadata()})

    def _metadata(self) -> dict[str, Any]:
        """What an export needs to write the same dataset."""
        observed = {
            role.partition("/")[2] or FRAME: name
            for name, role in self._names.items()
            if role.startswith("observations")
        }
        about = {
            "fps": self._info["fps"],
            "robot_type": self._info.get("robot_type"),
            "observations": observed,
            "names": {
                name: names
                for name in self._shapes
                if (names := self._features[name].get("names")) is not None
            },
            "tasks": self._tasks(),
        }
        for part in ("tasks", "names"):
            if len(json.dumps(about)) > _MOST_TEXT:
                self._losses.add(f"{part}: more than 300 kB of text")
                del about[part]
        return about

    def _tasks(self) -> list[str]:
        path = self._source / "meta" / "tasks.parquet"
        if not path.exists():
            return []
        table = small_table(path)
        # The text is the index of pandas, whatever its name.
        (text,) = [name for name in table.column_names if name != "task_index"]
        rows = zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True)
        return [str(text) for _, text in sorted(rows)]

    def _blocks(self) -> Iterator[Block]:
        size = block_steps(row_bytes(self._shapes))
        stored = [name for name in self._shapes if name not in self._videos]
        for path, columns in columns_below(self._paths, stored, size):
            block = {name: self._rows(columns[name], name, path) for name in stored}
            block |= {name: self._frames(name, block) for name in self._videos}
            out = {self._names[name]: rows for name, rows in block.items()}
            if self._task_of:
                tasks = [self._task_of.get(one, b"") for one in block[_EPISODE].tolist()]
                out[f"{PREFIX}task"] = np.array(tasks)
            yield out

    def _rows(self, array: Any, name: str, path: Path) -> Array:
        pa, about = need("pyarrow"), self._shapes[name]
        if isinstance(array.type, pa.BaseExtensionType):  # of Hugging Face, if it is imported
            array = array.storage
        if self._features[name]["dtype"] == "image":
            images = array.field("bytes").to_pylist()
            return decoded(images, about.shape[1:], f"{path}: {name}")
        return from_arrow(array, about.shape[1:], about.dtype, f"{path}: {name}")

    def _frames(self, name: str, block: Block) -> Array:
        starts, video, rows = self._starts[name], self._videos[name], []
        for number, time in zip(block[_EPISODE].tolist(), block[_TIME].tolist(), strict=True):
            if number not in starts:
                raise FormatError(f"{self._source}: meta/episodes: has no episode {number}")
            path, start = starts[number]
            rows.append(video.at(path, start + time))
        return np.stack(rows)
