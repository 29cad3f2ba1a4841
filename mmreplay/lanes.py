"""Making stores, and writing to all lanes of one: `create` and `VectorWriter`.

Invariant: a store has its name only once it is whole and durable; of two who make the same one,
one does and the other opens it, or is told.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay import files, format
from mmreplay._version import __version__
from mmreplay.background import Background
from mmreplay.errors import (
    DiskFullError,
    FormatError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import ArraySpec
from mmreplay.lane import Writer
from mmreplay.reader import lane_paths, read_metadata, read_specs
from mmreplay.recovery import build_lane
from mmreplay.schema import FRAME, Field, Schema, as_array

__all__ = ["VectorWriter", "create", "split_capacity"]

T = TypeVar("T")

_THREADS = 8
_MAX_METADATA_BYTES = format.MAX_METADATA_BYTES // 2
FLUSH_S = 30.0
"""Seconds between flushes by the clock."""


def split_capacity(capacity: int | None, lanes: int) -> list[int | None]:
    """Capacities of the lanes: as even as can be, exactly `capacity` in all."""
    if capacity is None:
        return [None] * lanes
    if capacity < lanes:
        raise SchemaError(
            f"capacity: expected one transition or more for each of {lanes} lanes, found {capacity}"
        )
    return [capacity // lanes + (number < capacity % lanes) for number in range(lanes)]


class VectorWriter:
    """Appends steps of a vector environment, one lane for each of its environments.

    A step is checked for all lanes before the first one is written.

    Attributes:
        path: the store's directory.
        writers: one `Writer` a lane.
    """

    def __init__(self, path: Path, writers: Sequence[Writer]) -> None:
        """Made by `mmreplay.create`."""
        self.path = path
        self.writers = tuple(writers)
        self.schema = self.writers[0].schema

    def __len__(self) -> int:
        """Lanes."""
        return len(self.writers)

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay of the first lane."""
        return self.writers[0].metadata

    @property
    def n_steps(self) -> int:
        """Transitions committed by this writer since it was opened."""
        return sum(writer.n_steps for writer in self.writers)

    def reset(self, frames: Any, mask: npt.ArrayLike | None = None) -> None:
        """Begin an episode in every lane, or in those where `mask` is True.

        Args:
            frames: (lanes, *frame), or a dict of these.
            mask: (lanes,) bool.

        Raises:
            As `Writer.reset`.
        """
        rows = self._rows(frames)
        chosen = self._chosen(mask)
        for number in chosen:
            self.writers[number].prepare_reset()
        for number in chosen:
            self.writers[number].reset(rows[number])

    def step(
        self,
        actions: Any,
        rewards: npt.ArrayLike,
        frames: Any,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        life_lost: npt.ArrayLike | None = None,
        mask: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """Append one step in every lane, or in those where `mask` is True.

        Args:
            actions: (lanes, *action).
            rewards: (lanes,).
            frames: (lanes, *frame), or a dict of these: the observations after the step, the
                final ones where an episode ended.
            terminated: (lanes,) bool.
            truncated: (lanes,) bool.
            life_lost: (lanes,) bool.
            mask: (lanes,) bool.
            extras: (lanes, ...) each.

        Raises:
            As `Writer.step`; then no lane was changed.
        """
        lanes = len(self.writers)
        rows = self._rows(frames)
        acts = self._actions(actions)
        gains, ends, cuts = (
            self._flags(name, value).tolist()
            for name, value in (
                ("rewards", rewards),
                ("terminated", terminated),
                ("truncated", truncated),
            )
        )
        lost = (
            [False] * lanes if life_lost is None else self._flags("life_lost", life_lost).tolist()
        )
        chosen = self._chosen(mask)
        more = self._extras(extras, chosen) if extras or self.schema.extras else None
        for number in chosen:
            self.writers[number].prepare()
        for n in chosen:
            one = {} if more is None else more[n]
            self.writers[n].step(acts[n], gains[n], rows[n], ends[n], cuts[n], lost[n], **one)

    def _chosen(self, mask: npt.ArrayLike | None) -> Sequence[int]:
        if mask is None:
            return range(len(self.writers))
        return np.flatnonzero(self._flags("mask", mask)).tolist()

    def _rows(self, frames: Any) -> Any:
        """Frames lane by lane, each checked as far as a whole array can be."""
        lanes = len(self.writers)
        if self.schema.is_dict:
            fields = self.schema.frames
            if not isinstance(frames, Mapping) or frames.keys() != fields.keys():
                raise SchemaError(f"frames: expected a dict with the keys {sorted(fields)}")
            whole = {key: one.coerce_many(frames[key], lanes, key) for key, one in fields.items()}
            return [{key: value[n] for key, value in whole.items()} for n in range(lanes)]
        return self.schema.frames[FRAME].coerce_many(frames, lanes, "frames")

    def _actions(self, actions: Any) -> Any:
        one = self.schema.action
        whole = as_array(actions, "actions")
        if whole.shape != (len(self.writers), *one.shape):
            raise self._unfit("actions", whole.shape)
        if whole.dtype != one.dtype:
            whole = Field(whole.shape, one.dtype).coerce_loosely(whole, "actions")
        return whole if one.shape else whole.tolist()

    def _extras(
        self, extras: Mapping[str, Any], chosen: Sequence[int]
    ) -> dict[int, dict[str, npt.NDArray[Any]]]:
        """Lane by lane, what `Writer.step` takes by keyword."""
        fields = self.schema.extras
        for name, value in extras.items():
            shape = as_array(value, name).shape
            if shape[:1] != (len(self.writers),):
                raise self._unfit(name, shape)
        if extras.keys() != fields.keys():
            raise SchemaError(f"extras: expected {sorted(fields)}, found {sorted(extras)}")
        return {
            n: {name: one.coerce_loosely(extras[name][n], name) for name, one in fields.items()}
            for n in chosen
        }

    def _flags(self, name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
        out = as_array(value, name)
        if out.dtype.kind not in "biuf":
            raise SchemaError(f"{name}: expected numbers or bools, found {out.dtype}")
        if out.shape != (len(self.writers),):
            raise self._unfit(name, out.shape)
        return out

    def _unfit(self, name: str, found: object) -> SchemaError:
        return SchemaError(
            f"{name}: expected one for each of {len(self.writers)} lanes, found shape {found}"
        )

    def flush(self) -> None:
        """Make all rows of all lanes durable."""
        for writer in self.writers:
            writer.flush()

    def close(self) -> None:
        """Close every lane, also after one of them failed to."""
        _, failures = _at_once(Writer.close, self.writers)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and lanes."""
        return f"<mmreplay.VectorWriter {self.path} lanes={len(self.writers)}>"


def _at_once(call: Callable[..., T], *arguments: Sequence[Any]) -> tuple[list[T], list[Exception]]:
    """Call for every lane, in threads: most of it is waiting for the disk.

    Returns:
        what came back, in order, and what was raised.
    """
    out: list[T] = []
    failures: list[Exception] = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="mmreplay-lanes") as pool:
        for future in [pool.submit(call, *each) for each in zip(*arguments, strict=True)]:
            try:
                out.append(future.result())
            except Exception as error:  # noqa: BLE001 (the other lanes go on)
                failures.append(error)
    return out, failures


def create(
    path: str | os.PathLike[str],
    frame: Field | Mapping[str, Field] | None = None,
    action: Field | None = None,
    capacity: int | None = None,
    extras: Mapping[str, Field] | None = None,
    reward_dtype: npt.DTypeLike | None = None,
    codec: str | Mapping[str, Any] | None = None,
    *,
    env: Any = None,
    lanes: int | None = None,
    lane: str | None = None,
    padding: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    append: bool = False,
    flush_s: float = FLUSH_S,
) -> Writer | VectorWriter:
    """Make a store and open it for writing.

    Args:
        path: a directory that does not exist yet.
        frame: the field of one unstacked observation, or a dict of them.
        action: the action's field.
        capacity: most transitions to keep, over all lanes; None keeps everything.
        extras: further columns by name, given to `step` by keyword.
        reward_dtype: ``float32`` (the default) or ``float64``.
        codec: the codec of every frame field that names none itself.
        env: a Gymnasium environment, whose spaces give `frame`, `action` and, of a vector
            environment, `lanes`.
        lanes: that many lanes, written together by one `VectorWriter`.
        lane: the name of this process's own lane in a store that many processes write; the same
            name opens the same lane again.
        padding: how stacks are padded when a reader does not say: ``reset`` or ``zero``.
        metadata: anything JSON holds; kept as attributes.mmreplay.env.
        append: open the store if it exists. Fields are then left out, or match.
        flush_s: seconds between flushes by the clock; 0 for none.

    Returns:
        a `Writer`, or a `VectorWriter` if `lanes` were asked for.

    Raises:
        StoreExistsError: something is at `path` already.
        SchemaError: fields that are missing, cannot be stored, or do not match.
        LockedError: somebody else writes there.
        DiskFullError: no room; nothing was changed.
    """
    where = Path(path)
    if lane is not None and lanes is not None:
        raise SchemaError("lane and lanes: give one of them: a lane of this process, or all lanes")
    if capacity is not None:
        capacity = _checked_capacity(capacity)
    if padding not in (None, "reset", "zero"):
        raise SchemaError(f"padding: expected 'reset' or 'zero', found {padding!r}")
    if env is not None:
        from mmreplay.adapters.gymnasium import env_fields  # noqa: PLC0415 (an extra)

        found = env_fields(env)
        frame, action = frame or found.frame, action or found.action
        lanes = lanes if lanes is not None or lane is not None else found.lanes
    maker = _Maker(where, frame, action, extras, reward_dtype, codec, padding, metadata, flush_s)
    if where.exists() or where.is_symlink():
        if lane is None and not append:
            raise StoreExistsError(
                f"{where}: there is something already; append to it, if it is a store "
                f"(append=True, --append), or choose another path"
            )
        return maker.open(capacity, lanes, lane)
    if not where.parent.is_dir():
        raise StoreNotFoundError(f"{where.parent}: there is no such directory; make it first")
    made = maker.make(capacity, lanes, lane)
    if not made and lane is None and not append:
        raise StoreExistsError(f"{where}: somebody else made it at this moment")
    try:
        return maker.open(capacity, lanes, lane)
    except DiskFullError:
        if made and lane is None:  # it holds no row yet, and the same call shall work again
            files.remove_tree(where)
        raise


class _Maker:
    """What `create` was asked for, with the steps of making and opening."""

    def __init__(
        self,
        path: Path,
        frame: Field | Mapping[str, Field] | None,
        action: Field | None,
        extras: Mapping[str, Field] | None,
        reward_dtype: npt.DTypeLike | None,
        codec: str | Mapping[str, Any] | None,
        padding: str | None,
        metadata: Mapping[str, Any] | None,
        flush_s: float,
    ) -> None:
        self._path = path
        self._frame, self._action, self._extras = frame, action, extras
        self._reward, self._codec = reward_dtype, codec
        self._padding, self._metadata = padding, metadata
        if format.json_size({"env": dict(metadata or {})}) > _MAX_METADATA_BYTES:
            raise SchemaError(
                f"metadata: expected at most {_MAX_METADATA_BYTES:,} bytes of JSON; keep large "
                f"things in files of their own"
            )
        if flush_s < 0:
            raise SchemaError(f"flush_s: expected seconds, 0 for never; found {flush_s!r}")
        self._flush_s = flush_s

    def _schema(self) -> Schema:
        if self._frame is None or self._action is None:
            missing = "frame" if self._frame is None else "action"
            raise SchemaError(
                f"{self._path}: {missing}: a new store needs one, for example "
                f"{missing}=mmreplay.Field((84, 84)), or env="
            )
        return Schema.make(
            self._frame, self._action, self._extras, self._reward or "float32", self._codec
        )

    def _attributes(self, capacity: int | None, name: str | None = None) -> dict[str, Any]:
        own: dict[str, Any] = {
            "capacity": capacity,
            "padding": self._padding or "reset",
            "env": dict(self._metadata or {}),
            "versions": {"mmreplay": __version__, "numpy": np.__version__},
        }
        return {**own, "name": name} if name is not None else own

    def make(self, capacity: int | None, lanes: int | None, lane: str | None) -> bool:
        """Build the store beside its place and move it there; False if another was first."""
        schema = self._schema()
        built = self._beside()
        try:
            if lanes is None and lane is None:
                attributes = self._attributes(capacity)
                build_lane(built, schema, format.plan(schema, None), attributes)
            else:
                self._build_group(built, schema, capacity, lanes)
            files.sync_tree(built)
            return files.replace_directory(built, self._path)
        finally:
            files.remove_tree(built)

    def _beside(self) -> Path:
        return self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}.tmp")

    def _build_group(
        self, built: Path, schema: Schema, capacity: int | None, lanes: int | None
    ) -> None:
        if lanes is not None and lanes < 1:
            raise SchemaError(f"lanes: expected 1 or more, found {lanes}")
        specs = format.plan(schema, lanes or 0)
        files.make_directory(built)
        shares = split_capacity(capacity, lanes) if lanes else []
        for number, share in enumerate(shares):
            build_lane(built / format.lane_name(number), schema, specs, self._attributes(share))
        layout = {
            name: {"chunk": s.chunk_rows, "inner": s.inner_rows, "codec": s.codec}
            for name, s in specs.items()
        }
        own = {
            "format": format.FORMAT,
            "kind": "lanes",
            "uuid": uuid.uuid4().hex,
            "schema": schema.to_json(),
            "layout": layout,
            **self._attributes(shares[0] if shares else capacity),
        }
        files.write_file(built / "zarr.json", format.group_json(own))

    def open(
        self, capacity: int | None, lanes: int | None, lane: str | None
    ) -> Writer | VectorWriter:
        """Open what is there for writing; what does not match is refused before that."""
        root = read_metadata(self._path)
        background = Background(self._flush_s)
        if lane is not None:
            if root["kind"] != "lanes":
                raise SchemaError(f"{self._path}: a store of one lane; lane= needs one of many")
            paths = [self._named_lane(root, lane, capacity)]
        elif root["kind"] == "lane":
            if lanes is not None:
                raise SchemaError(f"{self._path}: a store of one lane, expected {lanes} lanes")
            paths = [self._path]
        else:
            paths = lane_paths(self._path)
            if lanes is not None and lanes != len(paths):
                raise SchemaError(f"{self._path}: expected {lanes} lanes, found {len(paths)}")
        for path in paths:
            self._check(path)
        shares = split_capacity(capacity, len(paths))

        def open_one(path: Path, share: int | None) -> Writer:
            return Writer(path, background=background, changes=self._changes(share))

        writers, failures = _at_once(open_one, paths, shares)
        if failures:
            _at_once(Writer.close, writers)
            raise failures[0]
        if lane is not None or root["kind"] == "lane":
            return writers[0]
        return VectorWriter(self._path, writers)

    def _changes(self, capacity: int | None) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if capacity is not None:
            changes["capacity"] = capacity
        if self._metadata is not None:
            changes["env"] = dict(self._metadata)
        if self._padding is not None:
            changes["padding"] = self._padding
        return changes

    def _check(self, path: Path) -> None:
        """Compare what was asked for with what is there.

        Raises:
            SchemaError: rows or codecs differ.
        """
        where = str(path / "zarr.json")
        there = format.schema_from_json(read_metadata(path).get("schema"), where)
        specs, _ = read_specs(path, there)
        self._compare(path, there, specs)

    def _compare(self, path: Path, there: Schema, specs: Mapping[str, ArraySpec]) -> None:
        asked = Schema.make(
            self._frame if self._frame is not None else there.frame,
            self._action or there.action,
            self._extras if self._extras is not None else there.extras,
            self._reward or there.reward_dtype,
            self._codec,
        )
        if not asked.same_data(there):
            raise SchemaError(
                f"{path}: expected {_words(there)}, found {_words(asked)}; leave the fields "
                f"out to take the store's, or choose another path"
            )
        for name, one in asked.frames.items():
            spec = specs[f"frames/{name}" if asked.is_dict else "frames"]
            if one.codec is not None and spec.codec != format.codec_document(one.codec, spec):
                raise SchemaError(
                    f"{path}: {spec.path}: expected codec {spec.codec_name!r}, found "
                    f"{one.codec!r}; leave it out to take the store's"
                )

    def _named_lane(self, root: dict[str, Any], name: str, capacity: int | None) -> Path:
        """The lane of that name; made, under the lock of the store's directory, if need be."""
        lock = files.DirectoryLock(self._path, patience_s=30.0, who=lambda: "")
        try:
            for litter in self._path.glob(".lane-*.tmp"):
                files.remove_tree(litter)
            try:
                paths = lane_paths(self._path)
            except FormatError:  # the first lane of the store is this one
                paths = []
            for path in paths:
                if read_metadata(path).get("name") == name:
                    return path
            where = str(self._path / "zarr.json")
            schema = format.schema_from_json(root.get("schema"), where)
            specs = format.plan_from_layout(schema, root.get("layout"), where)
            self._compare(self._path, schema, specs)
            number = 1 + max((int(path.name[5:]) for path in paths), default=-1)
            built = self._path / f".{format.lane_name(number)}.tmp"
            self._padding = self._padding or root["padding"]
            if self._metadata is None:
                self._metadata = root.get("env")
            share = capacity if capacity is not None else root["capacity"]
            build_lane(built, schema, specs, self._attributes(share, name))
            files.sync_tree(built)
            path = self._path / format.lane_name(number)
            if not files.replace_directory(built, path):
                raise StoreExistsError(f"{path}: there already, though nobody may make it now")
            return path
        finally:
            lock.release()


def _checked_capacity(capacity: object) -> int:
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)) or capacity < 1:
        raise SchemaError(f"capacity: expected 1 or more transitions, or None; found {capacity!r}")
    return int(capacity)


def _words(schema: Schema) -> str:
    return ", ".join(f"{path} {one.shape} {one.dtype}" for path, one in schema.columns().items())
