"""Making stores and opening them for writing: `create`.

Invariant: a store has its name only once it is whole and durable; of two
processes that make the same one, one does, and the other opens it or gets an error.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import (
    DiskFullError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import MAX_ENVIRONMENTS
from mmreplay.ids import LANE_SHIFT
from mmreplay.schema import Field, Schema
from mmreplay.storage.lane_metadata import check_surroundings, hold_store, read_metadata
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.system.limits import ReachedLimitError
from mmreplay.system.locks import DirectoryLock
from mmreplay.system.staging import remove_atomically, staging_directory
from mmreplay.writing import build_lane
from mmreplay.writing.open_lanes import AnyWriter, open_lanes
from mmreplay.writing.request import Request, Resume

FLUSH_S = 30.0
"""Seconds between flushes by the clock."""

_FOREVER_S = 1e9
_MAX_NAME = 255
_MAX_CAPACITY = (1 << LANE_SHIFT) - 1


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
    resume: Resume | None = None,
    flush_s: float = FLUSH_S,
) -> AnyWriter:
    """Make a store and open it for writing.

    Args:
        path: a directory that does not exist yet.
        frame: the field of one unstacked observation, or a dict of them.
        action: the action's field.
        capacity: most transitions to keep, over all environments, the newest. None keeps
            everything, or, reopening, what the store's own capacity keeps.
        extras: further columns by name, given to `step` by keyword.
        reward_dtype: ``float32`` (the default) or ``float64``.
        codec: the codec of every frame field that names none itself.
        env: a Gymnasium environment, whose spaces give `frame`, `action` and, of a vector
            environment, `lanes`.
        lanes: a lane of that many environments, which step together.
        lane: the name of this process's own lane in a store that many processes write; the same
            name opens the same lane again.
        padding: how stacks are padded when a reader does not say: ``reset`` or ``zero``; None for
            what `env` does if it is a `FrameStack`, else ``reset``.
        metadata: a dict of anything JSON holds; put into attributes.mmreplay.env, which keeps what
            it has under other keys, and of a new store what `env` says of itself: its id, how many
            it is, what its actions are called, versions.
        append: open the store if it exists. Fields are then left out, or match.
        resume: True needs a store, with `lane` that lane of it, False a free path; ``auto`` takes
            either. None for ``auto`` with `append` or `lane`, else False.
        flush_s: seconds between flushes by the clock; 0 for none.

    Returns:
        a `Writer`; a `VectorWriter` of a lane of many environments.

    Raises:
        StoreExistsError: something is at `path` already.
        StoreNotFoundError: there is no directory above it; or no store, which `resume` needs.
        SchemaError: fields that are missing, cannot be stored, or do not match; an argument that
            is not valid; a path within another store; another environment's store.
        FormatError, CorruptStoreError: what is there is not a store, or is damaged.
        LockedError: another process writes there.
        DiskFullError: no room; nothing was changed.
        FailedStoreError: a write or fsync failed.
    """
    where = user_paths.path_to_create(path)
    if lane is not None:
        _check_name(lane)
    capacity = whole_number_or_none("capacity", capacity, 1, _MAX_CAPACITY)
    stack_padding = about_env = advice = None
    if env is not None:
        from mmreplay.env_fields import (  # noqa: PLC0415 (an extra)
            advice_for_a_loop,
            advice_on_stacks,
            env_fields,
            env_metadata,
            warn_caller,
        )

        found = env_fields(env)
        advice = advice_for_a_loop(env)
        if frame is None and (on_stacks := advice_on_stacks(env)) is not None:
            warn_caller(on_stacks)
        stack_padding, about_env = found.padding, env_metadata(env)
        frame, action = frame or found.frame, action or found.action
        lanes = lanes if lanes is not None else found.lanes
    lanes = whole_number_or_none("lanes", lanes, 1, MAX_ENVIRONMENTS)
    request = Request(
        where,
        frame,
        action,
        extras,
        reward_dtype,
        codec,
        padding,
        _checked_metadata(metadata),
        _checked_flush_s(flush_s),
        capacity,
        lanes,
        lane,
        ("auto" if append or lane is not None else False) if resume is None else resume,
        stack_padding,
        about_env,
        of_one=env is not None and lanes is None,
    )
    writer = _open_or_make(request)
    if advice is not None:
        writer._advice = advice
    return writer


def _open_or_make(request: Request) -> AnyWriter:
    # Of a store of lanes, `resume` is about the lane.
    where, may_exist = request.path, request.resume is not False or request.lane is not None
    if os.path.lexists(where):
        if not may_exist:
            raise StoreExistsError(
                f"{where}: already exists; use --append (append=True) to continue it, if it is a "
                f"store (of a buffer or RecordExperience resume=True), or choose another path"
            )
        return open_lanes(request, hold_store(where))
    check_surroundings(where)
    if request.resume is True:
        raise StoreNotFoundError(
            f"{where}: there is no store here to resume; check the path, or pass resume='auto' to "
            f"create one"
        )
    made = _make(request)
    if made is None and not may_exist:
        raise StoreExistsError(f"{where}: another process has just created it")
    try:
        writer = open_lanes(request, made or hold_store(where))
    except (DiskFullError, ReachedLimitError):
        if made is not None and request.lane is None:  # without rows; this call may work later
            remove_atomically(made)
        raise
    writer.files.is_new = made is not None and request.lane is None
    return writer


def give_up(writer: AnyWriter) -> None:
    """Close a writer after a failed call, and remove the store if that call made it."""
    is_new, uuid_of_it = writer.files.is_new, writer.metadata["uuid"]
    try:
        with contextlib.suppress(MmreplayError, OSError):  # the error that led here comes first
            writer.close()
    finally:
        writer._release_unclosed()
    if not is_new:
        return
    with contextlib.suppress(MmreplayError, OSError):
        lock = DirectoryLock(writer.path, patience_s=0, who=lambda: "")
        try:
            if read_metadata(lock.directory.root)["uuid"] == uuid_of_it:
                remove_atomically(lock.directory)
        finally:
            lock.release()


def _make(request: Request) -> HeldDirectory | None:
    """Build the store beside its path and move it there; None if another process was first."""
    schema = request.schema()
    with staging_directory(request.path) as built:
        if request.lane is not None:
            _build_group(built, schema, request.attributes())
        else:
            planned = plan.plan_lane(schema, request.lanes, request.capacity)
            build_lane.build_lane(built, schema, planned, request.lanes, request.attributes())
        durable_writes.sync_tree(built)
        made = HeldDirectory(built, named=request.path)
        target = built.with_name(request.path.name)
        return made if durable_writes.replace_directory(built, target) else None


def _build_group(built: AnyPath, schema: Schema, attributes: Mapping[str, Any]) -> None:
    """A store to which lanes will come one by one."""
    planned = plan.plan_lane(schema, None, attributes["capacity"], in_group=True)
    own = {
        "format": layout.FORMAT,
        "kind": "lanes",
        "uuid": uuid.uuid4().hex,
        "schema": schema.to_json(),
        "layout": layout.layout_json(planned.rows),
        **attributes,
    }
    durable_writes.write_new(built / "zarr.json", layout.group_json(own))


def _check_name(lane: object) -> None:
    if not isinstance(lane, str) or not 0 < len(lane) <= _MAX_NAME:
        raise SchemaError(f"lane: expected a name of 1 to {_MAX_NAME} letters, found {lane!r:.80}")


def _checked_metadata(metadata: object) -> dict[str, Any] | None:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise SchemaError(f"metadata: expected a dict, found {type(metadata).__name__}")
    return None if metadata is None else parse.plain(dict(metadata))


def _checked_flush_s(seconds: object) -> float:
    # NaN is not 0 or more, either.
    if not isinstance(seconds, (int, float, np.integer, np.floating)) or not seconds >= 0:
        raise SchemaError(f"flush_s: expected seconds, 0 for never; found {seconds!r}")
    return float(seconds) if seconds < _FOREVER_S else 0.0
