"""RLDS episodes, as TensorFlow Datasets writes them: a record per episode, with lists of its steps.

The last step of an episode is only its final observation; its ``is_terminal`` says whether the
episode terminated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.batches.runs import block_steps
from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import Shape, row_bytes
from mmreplay.exchange.encoded_images import decoded
from mmreplay.exchange.fields import has_values, is_numeric, need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, read_json
from mmreplay.exchange.tables import Block, Incoming, Tables
from mmreplay.exchange.tf_records import Example, records
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.ids import Array

_STEPS, _OBSERVATION, _REWARD, _TERMINAL = "steps", "observation", "reward", "is_terminal"
_EPISODE = "extras/episode."
_MARKS = ("is_first", "is_last")
"""What the order of the steps also says."""


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
    dataset = _Dataset(folder, losses, split, action, final_observation)
    yield dataset.incoming(is_step=last_step == "step")


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
    """A feature that is an array: its name in a record, and the fields of its rows."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_image: bool = False


class _Rows:
    """The rows of a feature in a record, decoded when they are sliced."""

    def __init__(self, leaf: _Leaf, example: Example) -> None:
        self._leaf, self._where = leaf, f"{example.where}: {leaf.path}"
        if leaf.is_image:
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
        out: Array = self._values[part]
        return decoded(out, self._leaf.shape, self._where) if self._leaf.is_image else out


def _above(name: str) -> list[str]:
    return [name[:at] for at, one in enumerate(name) if one == "/"]


def _leaf_of(about: Mapping[str, Any], path: str) -> _Leaf | None:
    """A feature of features.json as an array; None if it is encoded, or not of one shape."""
    if "classLabel" in about:
        return _Leaf(path, (), np.dtype(np.int64))
    is_image = "image" in about
    one = about.get("image") or about.get("tensor")
    if one is None:
        return None
    shape = tuple(int(n) for n in one.get("shape", {}).get("dimensions", ()))
    try:
        dtype = np.dtype(str(one.get("dtype") or ("uint8" if is_image else "")))
    except TypeError:  # texts, and dtypes that numpy does not have
        return None
    fits = is_numeric(dtype) and min(shape, default=1) > 0
    is_plain = str(one.get("encoding") or "none").lower() == "none"
    fits = fits and (dtype == np.uint8 if is_image else is_plain)
    return _Leaf(path, shape, dtype, is_image) if fits else None


class _Dataset:
    """An opened dataset."""

    def __init__(
        self,
        folder: Path,
        losses: Losses,
        split: str | None,
        action: str,
        missing: FinalObservation,
    ) -> None:
        self._folder, self._losses = folder, losses
        self._info = read_json(folder / "dataset_info.json")
        steps, others = self._parts(read_json(folder / "features.json"))
        self._named: set[str] = set()
        roles = {action: "actions", _REWARD: "rewards", _TERMINAL: "terminations"}
        leaves = {
            path: one
            for path, one in self._leaves(steps, _STEPS)
            if path not in _MARKS and losses.takes(path, needed=path in roles)
        }
        seen = [path for path in leaves if path.split("/")[0] == _OBSERVATION]
        if not seen:
            raise FormatError(f"{folder}: expected steps with an observation, found {list(steps)}")
        if action not in leaves:
            arrays = ", ".join(path for path in leaves if path not in seen)
            raise FormatError(
                f"{folder}: expected a feature {action!r} that is an array, as a store has one "
                f"action; found {arrays}; choose one with the option `action`"
            )
        if _TERMINAL not in leaves:
            losses.add("is_terminal: the source has none, so all episodes are truncated")
        key_of = {path: path.removeprefix(_OBSERVATION) if len(seen) > 1 else "" for path in seen}
        roles |= {path: f"observations{key}" for path, key in key_of.items()}
        self._steps = {roles.get(path, f"extras/{path}"): one for path, one in leaves.items()}
        self._episode = {f"{_EPISODE}{path}": one for path, one in self._leaves(others, "")}
        columns = {
            role: Shape((0, *one.shape), one.dtype)
            for role, one in (self._steps | self._episode).items()
        }
        columns["episode"] = Shape((0,), np.dtype(np.int64))
        called = {role: one.path.removeprefix("steps/") for role, one in self._steps.items()}
        called |= {role: role.removeprefix(_EPISODE) for role in self._episode}
        self._tables = Tables(columns, folder, losses, missing, needs_rewards=False, called=called)
        self._size = block_steps(row_bytes({one: columns[one] for one in self._tables.used}))
        self._frames = self._tables.frames["observations"]
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
                self._losses.add(f"feature {path}: encoded, or not numbers of one shape")
            else:
                yield name, found

    def _shard_paths(self, split: str | None) -> Iterator[tuple[Path, int]]:
        """Files in order, and how many episodes each has."""
        splits = {one["name"]: one for one in self._info["splits"]}
        if split is not None and split not in splits:
            raise SchemaError(f"split: expected one of {', '.join(splits)}, found {split!r:.80}")
        if split is None and len(splits) > 1:
            self._losses.add(f"splits: {', '.join(splits)} are joined", 1)
        for name, one in splits.items():
            if split in (None, name):
                lengths = [int(n) for n in one.get("shardLengths", ())]
                start = f"{self._info['name']}-{name}.{self._kind}"
                for number, length in enumerate(lengths):
                    file = f"{start}-{number:05d}-of-{len(lengths):05d}"
                    yield self._folder / Path(file).name, length

    @property
    def _kind(self) -> str:
        return str(self._info.get("fileFormat", "tfrecord"))

    def incoming(self, *, is_step: bool) -> Incoming:
        """Fields, metadata and steps; `is_step`: the last step of an episode is one."""
        about = {"name": self._info["name"], "version": self._info.get("version")}
        return self._tables.incoming(self._blocks(is_step=is_step), metadata={"rlds": about})

    def _blocks(self, *, is_step: bool) -> Iterator[Block]:
        n_before = 0
        for path, length in self._shards:
            number = 0
            for data in records(path, self._kind):
                example = Example(data, f"{path}: episode {number}")
                for block, n_rows in self._parts_of(example, is_step=is_step):
                    yield block | {"episode": np.full(n_rows, n_before + number)}
                number += 1
            if number != length:
                raise FormatError(
                    f"{path}: expected {length} episodes, as dataset_info.json says, found {number}"
                )
            n_before += number

    def _parts_of(self, example: Example, *, is_step: bool) -> Iterator[tuple[Block, int]]:
        """An episode in blocks, with the final observation in the last one, unless `is_step`."""
        used = {*self._tables.used}
        columns = {role: _Rows(one, example) for role, one in self._steps.items() if role in used}
        counts = {self._steps[role].path: len(rows) for role, rows in columns.items()}
        if len(set(counts.values())) > 1:
            raise FormatError(f"{example.where}: lists of different lengths: {counts}")
        for name in example.names():
            if not any(part in self._named for part in (name, *_above(name))):
                self._losses.add(f"feature {name}: not in features.json, left out")
        n_steps = len(columns["actions"]) - (not is_step)
        if n_steps < 1:
            self._losses.add("episodes without a step")
            return
        for role, rows in columns.items() if not is_step else ():
            if role != "terminations" and role not in self._frames.values():
                self._losses.add(
                    f"{self._steps[role].path.removeprefix('steps/')} of last steps: not 0, left "
                    f"out, as these steps are only observations; the option last_step=step keeps "
                    f"them",
                    int(has_values(rows[-1:])[0]),
                )
        of_episode = {}
        for role in used.intersection(self._episode):
            leaf = self._episode[role]
            of_episode[role] = _Rows(leaf, example)[:2]
            if len(of_episode[role]) != 1:
                raise FormatError(f"{example.where}: {leaf.path}: expected one value")
        for start in range(0, n_steps, self._size):
            stop = min(start + self._size, n_steps)
            block = {role: rows[start:stop] for role, rows in columns.items()}
            block |= {role: np.repeat(row, stop - start, 0) for role, row in of_episode.items()}
            if not is_step:
                is_last = stop == n_steps
                if is_last and "terminations" in columns:  # or that of the final observation
                    marks = columns["terminations"][stop - 1 :]
                    block["terminations"][-1:] = marks.max(0, keepdims=True)
                for key, role in self._frames.items():
                    block[f"final {key}"] = columns[role][stop : stop + is_last]
            yield block, stop - start
