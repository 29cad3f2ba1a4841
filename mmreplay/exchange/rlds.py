"""RLDS episodes, as TensorFlow Datasets writes them: a record per episode, with lists of its steps.

The last step of an episode is only its final observation; its ``is_terminal`` says whether the
episode terminated.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.encoded_images import decoded
from mmreplay.exchange.fields import (
    Extras,
    add_extra,
    extra_name,
    field,
    flags,
    is_numeric,
    key_names,
    need,
    reward_dtype,
)
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, read_json
from mmreplay.exchange.steps import Incoming, block_steps
from mmreplay.exchange.tf_records import Example, records
from mmreplay.exchange.transitions import FinalObservation, Table, to_steps
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

__all__ = ["read"]

_STEPS, _OBSERVATION, _REWARD, _TERMINAL = "steps", "observation", "reward", "is_terminal"
_PLACES = ("is_first", "is_last")
"""What the order of the steps also says."""

_ENCODINGS = ("numbers", "image", "bytes", "zlib")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    split: str | None = None,
    action: str = "action",
    last_step: Literal["observation", "step"] = "observation",
    final_observation: FinalObservation = "repeat",
) -> Iterator[Incoming]:
    """A directory with ``features.json``, or one above it.

    `split` None joins all splits; `action` chooses one of several action arrays; `last_step`
    ``"step"`` keeps the last step of an episode as a step, with `final_observation` after it.
    """
    need("google.protobuf", package="protobuf")
    folder = _folder(source)
    if folder != source:
        inside = f"{folder.relative_to(source).as_posix()}/"
        add_other_files(source, lambda name: name.startswith(inside), losses)
    dataset = _Dataset(folder, losses, split, action, is_step=last_step == "step")
    yield dataset.incoming(final_observation)


def _folder(source: Path) -> Path:
    """The only folder with ``features.json``; raises FormatError."""
    if (source / "features.json").exists():
        return source
    found = sorted(path.parent for path in source.rglob("features.json"))
    if len(found) != 1:
        which = ", ".join(str(one.relative_to(source)) for one in found[:9])
        raise FormatError(
            f"{source}: expected one features.json, found {len(found)}"
            + (f": choose one of {which}" if found else "")
        )
    return found[0]


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """A feature that is an array: its name in a record, and the encoding of its rows."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    encoding: Literal["numbers", "image", "bytes", "zlib"]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _Rows:
    """The rows of a feature in a record, decoded when they are sliced."""

    def __init__(self, leaf: _Leaf, example: Example) -> None:
        self._leaf, self._where = leaf, f"{example.where}: {leaf.path}"
        if leaf.encoding != "numbers":
            self._values: Any = example.blobs(leaf.path)
            return
        values = example.numbers(leaf.path, leaf.dtype)
        if len(values) % max(math.prod(leaf.shape), 1):
            raise FormatError(
                f"{self._where}: expected rows of shape {leaf.shape}, found {len(values)} numbers"
            )
        self._values = values.reshape(-1, *leaf.shape)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, part: slice) -> Array:
        leaf, values = self._leaf, self._values[part]
        if leaf.encoding == "numbers":
            out: Array = values
            return out
        if leaf.encoding == "image":
            return decoded(values, leaf.shape, self._where)
        rows = [np.frombuffer(self._unpacked(one), leaf.dtype) for one in values]
        return np.stack(rows).reshape(-1, *leaf.shape)

    def _unpacked(self, data: bytes) -> bytes:
        size = self._leaf.row_bytes
        if self._leaf.encoding == "zlib":
            data = zlib.decompressobj().decompress(data, size + 1)
        if len(data) != size:
            raise FormatError(f"{self._where}: expected {size} bytes, found {len(data)}")
        return data


def _above(name: str) -> list[str]:
    return [name[:at] for at, one in enumerate(name) if one == "/"]


def _leaf_of(about: Mapping[str, Any], path: str) -> _Leaf | None:
    """A feature of features.json as an array; None if it is not an array of one shape."""
    if "classLabel" in about:
        return _Leaf(path, (), np.dtype(np.int64), "numbers")
    is_image = "image" in about
    one = about.get("image") or about.get("tensor")
    if one is None:
        return None
    shape = tuple(int(n) for n in one.get("shape", {}).get("dimensions", ()))
    try:
        dtype = np.dtype(str(one.get("dtype") or ("uint8" if is_image else "")))
    except TypeError:  # texts, and dtypes that numpy does not have
        return None
    encoding = str(one.get("encoding") or "none").lower()
    kept: Any = "image" if is_image else {"none": "numbers"}.get(encoding, encoding)
    fits = is_numeric(dtype) and min(shape, default=1) > 0 and (not is_image or dtype == np.uint8)
    return _Leaf(path, shape, dtype, kept) if fits and kept in _ENCODINGS else None


class _Dataset:
    """An opened dataset."""

    def __init__(
        self, folder: Path, losses: Losses, split: str | None, action: str, *, is_step: bool
    ) -> None:
        self._folder, self._losses, self._is_step = folder, losses, is_step
        self._info = read_json(folder / "dataset_info.json")
        about = read_json(folder / "features.json")
        steps, others = self._parts(about)
        self._named: set[str] = set()
        leaves = {
            path: one
            for path, one in self._leaves(steps, _STEPS)
            if losses.takes(path, needed=path in (action, _REWARD, _TERMINAL, *_PLACES))
        }
        seen = {
            path.removeprefix(f"{_OBSERVATION}").lstrip("/"): one
            for path, one in leaves.items()
            if path.split("/")[0] == _OBSERVATION
        }
        if not seen:
            raise FormatError(f"{folder}: expected steps with an observation, found {list(steps)}")
        if action not in leaves:
            arrays = ", ".join(path for path in leaves if path.split("/")[0] != _OBSERVATION)
            raise FormatError(
                f"{folder}: expected a feature {action!r} that is an array, as a store has one "
                f"action; found {arrays}; choose one with the option `action`"
            )
        keys = {key: seen[path] for key, path in key_names(seen, folder).items()}
        self._frames = {FRAME: next(iter(keys.values()))} if len(keys) == 1 else keys
        self._action = leaves[action]
        self._reward, self._terminal = leaves.get(_REWARD), leaves.get(_TERMINAL)
        known = {action, _REWARD, _TERMINAL, *_PLACES}
        self._fields: Extras = {}
        self._extras = {
            extra_name(path): one
            for path, one in leaves.items()
            if path not in known
            and path.split("/")[0] != _OBSERVATION
            and add_extra(self._fields, path, extra_name(path), one.shape, one.dtype, losses)
        }
        self._episode = {
            extra_name(f"episode.{path}"): one
            for path, one in self._leaves(others, "")
            if losses.takes(path)
        }
        self._shards = list(self._shard_paths(split))
        used = {"features.json", "dataset_info.json", *(path.name for path, _ in self._shards)}
        add_other_files(folder, used.__contains__, losses)

    def _parts(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The features of a step, and those of an episode."""
        try:
            others = dict(about["featuresDict"]["features"])
            steps = others.pop(_STEPS)["sequence"]["feature"]["featuresDict"]["features"]
        except (KeyError, TypeError) as error:
            raise FormatError(
                f"{self._folder}/features.json: expected RLDS episodes with steps; no {error}"
            ) from error
        return steps, others

    def _leaves(self, features: Mapping[str, Any], above: str) -> Iterator[tuple[str, _Leaf]]:
        """Arrays by their path below `above`; everything else is a loss."""
        for name, about in features.items():
            path = f"{above}/{name}" if above else name
            if "featuresDict" in about:
                inside = about["featuresDict"].get("features", {})
                for below, one in self._leaves(inside, path):
                    yield f"{name}/{below}", one
                continue
            self._named.add(path)
            found = _leaf_of(about, path)
            if found is None:
                self._losses.add(f"feature {path}: not numbers of one shape")
            else:
                yield name, found

    def _shard_paths(self, split: str | None) -> Iterator[tuple[Path, int]]:
        """Files in order, and how many episodes each has."""
        info = self._info
        splits = {one["name"]: one for one in info["splits"]}
        if split is not None and split not in splits:
            raise SchemaError(f"split: expected one of {', '.join(splits)}, found {split!r:.80}")
        if split is None and len(splits) > 1:
            self._losses.add(f"splits: {', '.join(splits)} are joined", 1)
        for name, one in splits.items():
            if split not in (None, name):
                continue
            lengths = [int(n) for n in one.get("shardLengths", ())]
            template = one.get("filepathTemplate") or _TEMPLATE
            for number, length in enumerate(lengths):
                index, count = f"{number:05d}", f"{len(lengths):05d}"
                text = template
                for part, value in {
                    "{DATASET}": info["name"],
                    "{SPLIT}": name,
                    "{FILEFORMAT}": self._kind,
                    "{SHARD_INDEX}": index,
                    "{NUM_SHARDS}": count,
                    "{SHARD_X_OF_Y}": f"{index}-of-{count}",
                }.items():
                    text = text.replace(part, value)
                yield self._folder / Path(text).name, length

    @property
    def _kind(self) -> str:
        return str(self._info.get("fileFormat", "tfrecord"))

    def incoming(self, missing: FinalObservation) -> Incoming:
        """Fields, metadata and steps."""
        frames = {key: field(one.shape, one.dtype, one.path) for key, one in self._frames.items()}
        self._rewards = np.dtype("float32")
        if self._reward is None:
            self._losses.add("rewards: the source has none, so they are 0")
        else:
            self._rewards = reward_dtype(self._reward.dtype, "reward")
        if self._terminal is None:
            self._losses.add("is_terminal: the source has none, so all episodes are truncated")
        of_episode = {name: Field(one.shape, one.dtype) for name, one in self._episode.items()}
        about = {"name": self._info["name"], "version": self._info.get("version")}
        return Incoming(
            frames,
            field(self._action.shape, self._action.dtype, self._action.path),
            self._rewards,
            dict(self._fields.values()) | of_episode,
            to_steps(self._tables(), missing, self._losses),
            {"rlds": about},
        )

    def _tables(self) -> Iterator[Table]:
        for path, length in self._shards:
            number = 0
            for data in records(path, self._kind):
                yield from self._episode_tables(Example(data, f"{path}: episode {number}"))
                number += 1
            if number != length:
                raise FormatError(
                    f"{path}: expected {length} episodes, as dataset_info.json says, found {number}"
                )

    def _episode_tables(self, example: Example) -> Iterator[Table]:
        """An episode, a block at a time."""
        leaves = [self._action, *self._frames.values(), *self._extras.values()]
        leaves += [one for one in (self._reward, self._terminal) if one is not None]
        columns = {one.path: _Rows(one, example) for one in leaves}
        counts = {path: len(rows) for path, rows in columns.items()}
        if len(set(counts.values())) > 1:
            raise FormatError(f"{example.where}: lists of different lengths: {counts}")
        for name in example.names():
            if not any(part in self._named for part in (name, *_above(name))):
                self._losses.add(f"feature {name}: not in features.json, left out")
        n_rows = len(columns[self._action.path])
        n_steps = n_rows if self._is_step else n_rows - 1
        if n_steps < 1:
            self._losses.add("episodes without a step")
            return
        rewards: Array = np.zeros(n_rows, self._rewards)
        if self._reward is not None:
            rewards = columns[self._reward.path][:].reshape(n_rows)
        terminal = np.zeros(n_rows, np.bool_)
        if self._terminal is not None:
            path = self._terminal.path
            terminal = flags(columns[path][:], f"{example.where}: {path}")
        self._losses.add(
            "is_terminal before the last step of an episode: left out", int(terminal[:-1].sum())
        )
        if not self._is_step:
            for one in leaves:
                is_lost = one is not self._terminal and one not in self._frames.values()
                self._losses.add(
                    f"{one.path.removeprefix('steps/')} of last steps: not 0, left out, as these "
                    f"steps are only observations; the option last_step=step keeps them",
                    int(is_lost and bool(columns[one.path][-1:].any())),
                )
        of_episode = {}
        for name, leaf in self._episode.items():
            of_episode[name] = _Rows(leaf, example)[:2]
            if len(of_episode[name]) != 1:
                raise FormatError(f"{example.where}: {leaf.path}: expected one value")
        size = block_steps(sum(one.row_bytes for one in leaves))
        for start in range(0, n_steps, size):
            stop = min(start + size, n_steps)
            n, ends = stop - start, np.arange(start, stop) == n_steps - 1
            # The final observation is in the same list.
            more = int(stop == n_steps and not self._is_step)
            frames = {
                key: columns[one.path][start : stop + more] for key, one in self._frames.items()
            }
            extras = {name: columns[one.path][start:stop] for name, one in self._extras.items()}
            extras |= {name: np.repeat(rows, n, 0) for name, rows in of_episode.items()}
            yield Table(
                {key: rows[:n] for key, rows in frames.items()},
                columns[self._action.path][start:stop],
                rewards[start:stop],
                ends & terminal[-1],
                ends,
                extras,
                None,
                {key: rows[n:] for key, rows in frames.items()} if more else None,
            )
