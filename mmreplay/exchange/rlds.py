"""RLDS episodes, as TensorFlow Datasets writes them: a record per episode, with lists of its steps.

The last step of an episode is only its final observation; its ``is_terminal`` says whether the
episode terminated. The framing of records is eight bytes, for which TensorFlow would be a gigabyte;
protobuf parses the examples in them.

Invariant: a record with a wrong checksum, or that is cut off, is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import Column, Part, PerEpisode, Shape, blocks
from mmreplay.exchange.fields import PREFIX, has_values, is_numeric, is_text, need
from mmreplay.exchange.images import decoded
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, checked_name, open_file, read_json
from mmreplay.exchange.tables import Block, Incoming, Tables, final_name
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.format.compression import crc32c
from mmreplay.ids import Array

_LENGTH, _SUM = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_WORD = 0xFFFFFFFF

_PROTO = """
name: "example.proto" package: "records" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type_name: ".records.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".records.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".records.Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".records.Features.Entry" }
  nested_type { name: "Entry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".records.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: ".records.Features" } }
"""
"""Source: TensorFlow, tensorflow/core/example/example.proto and feature.proto."""


def records(path: Path, kind: str) -> Iterator[bytes]:
    """The records of a file in order; raises FormatError for a damaged one."""
    if kind == "tfrecord":
        yield from _tf_records(path)
    elif kind == "array_record":
        module = need("array_record.python.array_record_module", None, "array-record")
        reader = module.ArrayRecordReader(checked_name(path))
        try:
            for number in range(reader.num_records()):
                yield reader.read([number])[0]
        finally:
            reader.close()
    else:
        raise FormatError(f"{path}: expected files of tfrecord or array_record, found {kind!r:.80}")


def _tf_records(path: Path) -> Iterator[bytes]:
    """Source: TensorFlow, tensorflow/core/lib/io/record_writer.h."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        while head := file.read(_LENGTH.size):
            where = f"{path}: the record at byte {file.tell() - len(head):,}"
            if len(head) < _LENGTH.size:
                raise FormatError(f"{where}: the file ends within it")
            length, checksum = _LENGTH.unpack(head)
            if _masked(head[:8]) != checksum:
                raise FormatError(f"{where}: the checksum of its length is wrong")
            if length + _SUM.size > size - file.tell():
                raise FormatError(f"{where}: the file ends within it")
            data = file.read(length)
            if _masked(data) != _SUM.unpack(file.read(_SUM.size))[0]:
                raise FormatError(f"{where}: its checksum is wrong")
            yield data


def _masked(data: bytes) -> int:
    found = crc32c(data)
    return (((found >> 15) | (found << 17)) + _MASK) & _WORD


class Example:
    """A ``tf.train.Example``: lists of numbers or bytes, by name. Raises FormatError."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        decode_error = need("google.protobuf.message", package="protobuf").DecodeError
        try:
            self.features = _message().FromString(data).features.feature
        except decode_error as error:
            raise FormatError(f"{where}: not a tf.train.Example: {error!s:.200}") from error

    def values(self, name: str, *, is_bytes: bool) -> Any:
        """A feature that is a list of bytes, or of numbers."""
        if name not in self.features:
            raise FormatError(f"{self.where}: has no feature {name!r}, which features.json lists")
        one = self.features[name]
        found = getattr(one, one.WhichOneof("kind") or "float_list").value
        if len(found) and isinstance(found[0], bytes) != is_bytes:
            kinds = ("bytes", "numbers") if is_bytes else ("numbers", "bytes")
            raise FormatError(f"{self.where}: {name}: expected {kinds[0]}, found {kinds[1]}")
        return found

    def numbers(self, name: str, dtype: np.dtype[Any]) -> Array:
        """A feature that is a list of numbers, (n,), as `dtype`."""
        found = self.values(name, is_bytes=False)
        is_float = len(found) > 0 and isinstance(found[0], float)
        rows = np.fromiter(found, np.float32 if is_float else np.int64, len(found))
        out: Array = rows.view(dtype) if dtype == np.uint64 else rows.astype(dtype, copy=False)
        return out


@functools.cache
def _message() -> Any:
    library = functools.partial(need, package="protobuf")
    file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(library("google.protobuf.text_format").Parse(_PROTO, file))
    factory = library("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))


_STEPS, _OBSERVATION, _REWARD, _TERMINAL = "steps", "observation", "reward", "is_terminal"
_MOST_TEXT = 1024  # bytes of a text of an episode
_MARKS = ("is_first", "is_last")  # what the order of the steps also says


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
    """A directory with ``features.json``, or one above it; `split` None joins all splits.

    `last_step` ``"step"`` keeps the last step of an episode as a step, before `final_observation`.
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
    found = sorted(path.parent for path in source.rglob("features.json"))
    if source in found:
        return source
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
    """The rows of a feature in a record as a column; images are decoded when they are read."""

    def __init__(self, leaf: _Leaf, example: Example) -> None:
        self._leaf, self._where = leaf, f"{example.where}: {leaf.path}"
        if leaf.is_image:
            self._values: Any = list(example.values(leaf.path, is_bytes=True))
        elif leaf.dtype.kind == "S":
            texts = [one.rstrip(b"\0") for one in example.values(leaf.path, is_bytes=True)]
            if max(map(len, texts), default=0) > _MOST_TEXT:
                raise FormatError(
                    f"{self._where}: expected a text of at most {_MOST_TEXT:,} bytes; leave it out "
                    f"(leave_out)"
                )
            self._values = np.array(texts, leaf.dtype)
        else:
            values = example.numbers(leaf.path, leaf.dtype)
            if len(values) % max(math.prod(leaf.shape), 1):
                raise FormatError(
                    f"{self._where}: expected rows of shape {leaf.shape}, found {len(values)} "
                    f"numbers"
                )
            self._values = values.reshape(-1, *leaf.shape)

        self.shape: tuple[int, ...] = (len(self._values), *leaf.shape)
        self.dtype = leaf.dtype

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        out: Array = self._values[start:stop]
        return decoded(out, self._leaf.shape, self._where) if self._leaf.is_image else out


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
        self._kind = str(self._info.get("fileFormat", "tfrecord"))
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
        self._episode = {
            f"{PREFIX}{path}": one for path, one in self._leaves(others, "", texts=True)
        }
        columns = {
            role: Shape((0, *one.shape), one.dtype)
            for role, one in (self._steps | self._episode).items()
        }
        columns["episode"] = Shape((0,), np.dtype(np.int64))
        called = {role: one.path.removeprefix("steps/") for role, one in self._steps.items()}
        called |= {role: role.removeprefix(PREFIX) for role in self._episode}
        self._tables = Tables(columns, folder, losses, missing, needs_rewards=False, called=called)
        self._frames = self._tables.frames["observations"]
        self._shards = list(self._shard_paths(split))
        used = {"features.json", "dataset_info.json", *(path.name for path, _ in self._shards)}
        add_other_files(folder, used.__contains__, losses)

    def _parts(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            others = dict(about["featuresDict"]["features"])
            steps = others.pop(_STEPS)["sequence"]["feature"]["featuresDict"]["features"]
        except (KeyError, TypeError) as error:
            raise FormatError(
                f"{self._folder}/features.json: expected RLDS episodes with steps; no {error}"
            ) from error
        return steps, others

    def _leaves(
        self, features: Mapping[str, Any], above: str, *, texts: bool = False
    ) -> Iterator[tuple[str, _Leaf]]:
        """Arrays by their path below `above`, and `texts`; everything else is a loss."""
        for name, about in features.items():
            path = f"{above}/{name}" if above else name
            if "featuresDict" in about:
                inside = about["featuresDict"].get("features", {})
                for below, one in self._leaves(inside, path, texts=texts):
                    yield f"{name}/{below}", one
                continue
            self._named.add(path)
            found = _leaf_of(about, path)
            if found is None and texts and is_text(about):
                found = _Leaf(path, (), np.dtype(f"S{_MOST_TEXT}"))
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
                yield from self._parts_of(example, n_before + number, is_step=is_step)
                number += 1
            if number != length:
                raise FormatError(
                    f"{path}: expected {length} episodes, as dataset_info.json says, found {number}"
                )
            n_before += number

    def _parts_of(self, example: Example, number: int, *, is_step: bool) -> Iterator[Block]:
        """An episode in blocks, with the final observation in the last one, unless `is_step`."""
        used = {*self._tables.used}
        columns = {role: _Rows(one, example) for role, one in self._steps.items() if role in used}
        counts = {self._steps[role].path: rows.shape[0] for role, rows in columns.items()}
        if len(set(counts.values())) > 1:
            raise FormatError(f"{example.where}: lists of different lengths: {counts}")
        for name in example.features:
            above = (name[:at] for at, one in enumerate(name) if one == "/")
            if self._named.isdisjoint((name, *above)):
                self._losses.add(f"feature {name}: not in features.json, left out")
        n_steps = columns["actions"].shape[0] - (not is_step)
        if n_steps < 1:
            self._losses.add("episodes without a step")
            return
        for role, rows in columns.items() if not is_step else ():
            if role != "terminations" and role not in self._frames.values():
                self._losses.add(
                    f"{self._steps[role].path.removeprefix('steps/')} of last steps: not 0, left "
                    f"out, as these steps are only observations; the option last_step=step keeps "
                    f"them",
                    int(has_values(rows.read(n_steps, n_steps + 1))[0]),
                )
        ends = np.array([n_steps])
        parts: dict[str, Column] = {role: Part(one, 0, n_steps) for role, one in columns.items()}
        parts["episode"] = PerEpisode(np.array([number]), ends)
        for role in used.intersection(self._episode):
            one = _Rows(self._episode[role], example)
            if one.shape[0] != 1:
                raise FormatError(
                    f"{example.where}: {self._episode[role].path}: expected one value"
                )
            parts[role] = PerEpisode(one.read(0, 1), ends)
        stop = 0
        for block in blocks(parts, n_steps):
            stop += len(block["actions"])
            if not is_step:
                is_last = stop == n_steps
                if is_last and "terminations" in columns:  # or that of the final observation
                    marks = columns["terminations"].read(stop - 1, stop + 1)
                    block["terminations"][-1:] = marks.max(0, keepdims=True)
                for key, role in self._frames.items():
                    block[final_name(key)] = columns[role].read(stop, stop + is_last)
            yield block
