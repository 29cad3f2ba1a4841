"""Making stores and opening them for writing: `create`.

Invariant: a store has its name only once it is whole and durable; of two who make the same one,
one does and the other opens it, or is told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay._version import __version__
from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import MAX_LANES, ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.schema import Field, Schema
from mmreplay.storage.lane_metadata import lane_paths, read_metadata, read_specs, store_around
from mmreplay.system import durable_writes, locks, user_paths
from mmreplay.system.staging import remove_atomically, staging_directory
from mmreplay.writing.background import Background
from mmreplay.writing.build_lane import build_lane
from mmreplay.writing.vector_writer import VectorWriter, run_in_threads
from mmreplay.writing.writer import Writer

__all__ = ["FLUSH_S", "create", "release_all", "split_capacity"]

_MAX_NAME = 255
_MAX_METADATA_BYTES = layout.MAX_METADATA_BYTES // 2
FLUSH_S = 30.0
_FOREVER_S = 1e9
"""Seconds between flushes by the clock."""

_MAX_CAPACITY = (1 << LANE_SHIFT) - 1
"""As many transitions as a lane can have rows."""


def split_capacity(capacity: int | None, lanes: int) -> list[int | None]:
    """Capacities of the lanes: as even as can be, exactly `capacity` in all."""
    if capacity is None:
        return [None] * lanes
    if capacity < lanes:
        raise SchemaError(
            f"capacity: expected one transition or more for each of {lanes} lanes, found {capacity}"
        )
    return [capacity // lanes + (number < capacity % lanes) for number in range(lanes)]


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
        capacity: most transitions to keep, over all lanes, the newest. None keeps everything, or,
            reopening, what the store's own capacity keeps.
        extras: further columns by name, given to `step` by keyword.
        reward_dtype: ``float32`` (the default) or ``float64``.
        codec: the codec of every frame field that names none itself.
        env: a Gymnasium environment, whose spaces give `frame`, `action` and, of a vector
            environment, `lanes`.
        lanes: that many lanes, written together by one `VectorWriter`.
        lane: the name of this process's own lane in a store that many processes write; the same
            name opens the same lane again.
        padding: how stacks are padded when a reader does not say: ``reset`` or ``zero``; None for
            what `env` does if it is a `FrameStack`, else ``reset``.
        metadata: anything JSON holds; kept as attributes.mmreplay.env.
        append: open the store if it exists. Fields are then left out, or match.
        flush_s: seconds between flushes by the clock; 0 for none.

    Returns:
        a `Writer`, or a `VectorWriter` if `lanes` were asked for.

    Raises:
        StoreExistsError: something is at `path` already.
        StoreNotFoundError: there is no directory above it.
        SchemaError: fields that are missing, cannot be stored, or do not match; an argument that
            is none; a path within another store.
        FormatError, CorruptStoreError: what is there is no store, or a damaged one.
        LockedError: somebody else writes there.
        DiskFullError: no room; nothing was changed.
        FailedStoreError: a write or fsync failed.
    """
    where = user_paths.path_to_create(path)
    if lane is not None and lanes is not None:
        raise SchemaError("lane and lanes: give one of them: a lane of this process, or all lanes")
    if lane is not None:
        _check_name(lane)
    capacity = whole_number_or_none("capacity", capacity, 1, _MAX_CAPACITY)
    stack_padding: str | None = None
    if env is not None:
        from mmreplay.env_fields import (  # noqa: PLC0415 (an extra)
            advice_for_a_loop,
            advice_on_stacks,
            env_fields,
        )

        found = env_fields(env)
        if (advice := advice_for_a_loop(env)) is not None:
            warnings.warn(advice, stacklevel=2)
        if frame is None and (advice := advice_on_stacks(env)) is not None:
            warnings.warn(advice, stacklevel=2)
        stack_padding = found.padding
        frame, action = frame or found.frame, action or found.action
        lanes = lanes if lanes is not None or lane is not None else found.lanes
    lanes = whole_number_or_none("lanes", lanes, 1, MAX_LANES)
    asked = _Request(
        where,
        frame,
        action,
        extras,
        reward_dtype,
        codec,
        padding,
        _checked_metadata(metadata),
        _checked_flush_s(flush_s),
        stack_padding,
    )
    if os.path.lexists(where):
        if lane is None and not append:
            raise StoreExistsError(
                f"{where}: there is something already; append to it, if it is a store "
                f"(append=True, --append), or choose another path"
            )
        return asked.open(capacity, lanes, lane)
    user_paths.check_parent(where)
    if (store := store_around(where)) is not None:
        raise SchemaError(f"{where}: lies within the store {store}; choose another path")
    made = asked.make(capacity, lanes, lane)
    if not made and lane is None and not append:
        raise StoreExistsError(f"{where}: somebody else made it at this moment")
    try:
        return asked.open(capacity, lanes, lane)
    except DiskFullError:
        if made and lane is None:  # it holds no row yet, and the same call shall work again
            remove_atomically(where)
        raise


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """What `create` was asked for, with the steps of making and opening."""

    path: Path
    frame: Field | Mapping[str, Field] | None
    action: Field | None
    extras: Mapping[str, Field] | None
    reward_dtype: npt.DTypeLike | None
    codec: str | Mapping[str, Any] | None
    padding: str | None
    metadata: Mapping[str, Any] | None
    flush_s: float
    stack_padding: str | None = None  # of the environment's stacks; counts in a new store

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        if self.padding not in (None, "reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {self.padding!r}")
        if len(layout.dump({"env": self.metadata or {}})) > _MAX_METADATA_BYTES:
            raise SchemaError(
                f"metadata: expected at most {_MAX_METADATA_BYTES:,} bytes of JSON; keep large "
                f"things in files of their own"
            )

    def _schema(self) -> Schema:
        if self.frame is None or self.action is None:
            missing = "frame" if self.frame is None else "action"
            example = '(84, 84), "uint8"' if missing == "frame" else '(), "int64"'
            raise SchemaError(
                f"{self.path}: {missing}: a new store needs one, for example "
                f"{missing}=mmreplay.Field({example}), or env="
            )
        return Schema.make(
            self.frame, self.action, self.extras, self.reward_dtype or "float32", self.codec
        )

    def attributes(self, capacity: int | None, name: str | None = None) -> dict[str, Any]:
        own: dict[str, Any] = {
            "capacity": capacity,
            "padding": self.padding or self.stack_padding or "reset",
            "env": dict(self.metadata or {}),
            "versions": {"mmreplay": __version__, "numpy": np.__version__},
        }
        return {**own, "name": name} if name is not None else own

    def make(self, capacity: int | None, lanes: int | None, lane: str | None) -> bool:
        """Build the store beside its place and move it there; False if another was first."""
        schema = self._schema()
        try:
            with staging_directory(self.path) as built:
                if lanes is None and lane is None:
                    attributes = self.attributes(capacity)
                    build_lane(built, schema, plan.plan_arrays(schema, None), attributes)
                else:
                    self._build_group(built, schema, capacity, lanes)
                durable_writes.sync_tree(built)
                return durable_writes.replace_directory(built, self.path)
        except FailedStoreError as error:
            if self.path.exists():
                raise
            raise _unmade(self.path, error) from error

    def _build_group(
        self, built: Path, schema: Schema, capacity: int | None, lanes: int | None
    ) -> None:
        specs = plan.plan_arrays(schema, lanes or 0)
        shares = split_capacity(capacity, lanes) if lanes else []
        for number, share in enumerate(shares):
            build_lane(built / layout.lane_name(number), schema, specs, self.attributes(share))
        own = {
            "format": layout.FORMAT,
            "kind": "lanes",
            "uuid": uuid.uuid4().hex,
            "schema": schema.to_json(),
            "layout": layout.layout_json(specs),
            **self.attributes(shares[0] if shares else capacity),
        }
        durable_writes.write_file(built / "zarr.json", layout.group_json(own))

    def open(
        self, capacity: int | None, lanes: int | None, lane: str | None
    ) -> Writer | VectorWriter:
        """Open what is there for writing; what does not match is refused before that."""
        root = read_metadata(self.path)
        background = Background(self.flush_s)
        if lane is not None:
            if root["kind"] != "lanes":
                raise SchemaError(f"{self.path}: a store of one lane; lane= needs one of many")
            paths = [self._named_lane(root, lane, capacity)]
        elif root["kind"] == "lane":
            if lanes is not None:
                raise SchemaError(f"{self.path}: a store of one lane, expected {lanes} lanes")
            paths = [self.path]
        else:
            paths = lane_paths(self.path)
            if lanes is not None and lanes != len(paths):
                raise SchemaError(f"{self.path}: expected {lanes} lanes, found {len(paths)}")
        for path in paths:
            self._check(path)
        durable_writes.sync_name(self.path)  # as each lane does for its own
        shares = split_capacity(capacity, len(paths))

        def open_one(path: Path, share: int | None) -> Writer:
            return Writer(path, background=background, changes=self._changes(share))

        writers, failures = run_in_threads(open_one, paths, shares)
        if failures:
            release_all(writers)
            raise failures[0]
        if lane is not None or root["kind"] == "lane":
            return writers[0]
        return VectorWriter(self.path, writers)

    def _changes(self, capacity: int | None) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if capacity is not None:
            changes["capacity"] = capacity
        if self.metadata is not None:
            changes["env"] = dict(self.metadata)
        if self.padding is not None:
            changes["padding"] = self.padding
        return changes

    def _check(self, path: Path) -> None:
        """Compare what was asked for with what is there.

        Raises:
            SchemaError: rows or codecs differ.
        """
        where = str(path / "zarr.json")
        there = parse.schema_from_json(read_metadata(path).get("schema"), where)
        specs, _ = read_specs(path, there)
        self._compare(path, there, specs)

    def _compare(self, path: Path, there: Schema, specs: Mapping[str, ArraySpec]) -> None:
        asked = Schema.make(
            self.frame if self.frame is not None else there.frame,
            self.action or there.action,
            self.extras if self.extras is not None else there.extras,
            self.reward_dtype or there.reward_dtype,
            self.codec,
        )
        if not asked.same_data(there):
            raise SchemaError(
                f"{path}: expected {_words(there)}, found {_words(asked)}; leave the fields "
                f"out to take the store's, or choose another path"
            )
        for name, one in asked.frames.items():
            spec = specs[asked.frame_paths[name]]
            if one.codec is not None and spec.codec != plan.codec_of(one, spec.path):
                raise SchemaError(
                    f"{path}: {spec.path}: expected codec {spec.codec_name!r}, found "
                    f"{one.codec!r}; leave it out to take the store's"
                )

    def _named_lane(self, root: dict[str, Any], name: str, capacity: int | None) -> Path:
        """The lane of that name; made, under the lock of the store's directory, if need be."""
        lock = locks.DirectoryLock(self.path, patience_s=30.0, who=lambda: "")
        try:
            for litter in self.path.glob(".lane-*.tmp"):
                durable_writes.remove_tree(litter)
            try:
                paths = lane_paths(self.path)
            except FormatError:  # the first lane of the store is this one
                paths = []
            for path in paths:
                if read_metadata(path).get("name") == name:
                    return path
            where = str(self.path / "zarr.json")
            schema = parse.schema_from_json(root.get("schema"), where)
            specs = plan.plan_from_layout(schema, root.get("layout"), where)
            self._compare(self.path, schema, specs)
            number = 1 + max((int(path.name[5:]) for path in paths), default=-1)
            built = self.path / f".{layout.lane_name(number)}.tmp"
            filled = dataclasses.replace(
                self,
                padding=self.padding or root["padding"],
                metadata=root.get("env") if self.metadata is None else self.metadata,
            )
            share = capacity if capacity is not None else root["capacity"]
            path = self.path / layout.lane_name(number)
            try:
                build_lane(built, schema, specs, filled.attributes(share, name))
                durable_writes.sync_tree(built)
                is_new = durable_writes.replace_directory(built, path)
            except BaseException as error:
                if path.exists():
                    raise
                with contextlib.suppress(MmreplayError):
                    durable_writes.remove_tree(built)  # on a full disk, its room too
                if isinstance(error, FailedStoreError):
                    raise _unmade(path, error) from error
                raise
            if not is_new:
                raise StoreExistsError(f"{path}: there already, though nobody may make it now")
            return path
        finally:
            lock.release()


def release_all(writers: Sequence[Writer]) -> None:
    """Close them, or at least keep nobody out: the caller is given none that could try again."""

    def close(writer: Writer) -> None:
        try:
            writer.close()
        finally:
            writer._release_unclosed()

    run_in_threads(close, writers)


def _check_name(lane: object) -> None:
    if not isinstance(lane, str) or not 0 < len(lane) <= _MAX_NAME:
        raise SchemaError(f"lane: expected a name of 1 to {_MAX_NAME} letters, found {lane!r:.80}")


def _checked_metadata(metadata: object) -> dict[str, Any] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise SchemaError(f"metadata: expected a dict, found {type(metadata).__name__}")
    return parse.plain(dict(metadata))


def _checked_flush_s(seconds: object) -> float:
    # NaN is not 0 or more, either.
    if not isinstance(seconds, (int, float, np.integer, np.floating)) or not seconds >= 0:
        raise SchemaError(f"flush_s: expected seconds, 0 for never; found {seconds!r}")
    return float(seconds) if seconds < _FOREVER_S else 0.0


def _unmade(path: Path, error: FailedStoreError) -> FailedStoreError:
    """What to say where no row was ever committed, and none can be read."""
    cause = error.__cause__
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
    return FailedStoreError(
        f"{path}: could not be made: {reason}; nothing is left of it: check the disk and make it "
        f"again, or choose another path"
    )


def _words(schema: Schema) -> str:
    return ", ".join(f"{path} {one.shape} {one.dtype}" for path, one in schema.columns().items())
