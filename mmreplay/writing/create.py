"""Making stores and opening them for writing: `create`.

Invariant: a store has its name only once it is whole and durable; of two processes that make the
same one, one does, and the other opens it or gets an error. What does not match a store is refused
before its lane is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.format.layout import MAX_ENVIRONMENTS
from mmreplay.ids import LANE_SHIFT
from mmreplay.schema import Field, Schema
from mmreplay.storage.lane_metadata import (
    LaneDocument,
    check_surroundings,
    hold_store,
    kind_and_name,
    lane_paths,
    read_metadata,
)
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.system.limits import ReachedLimitError
from mmreplay.system.locks import DirectoryLock
from mmreplay.system.staging import remove_atomically, staging_directory
from mmreplay.writing import build_lane
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.request import Request, Resume, merged
from mmreplay.writing.seal import Background
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

AnyWriter = Writer | VectorWriter

FLUSH_S = 30.0
"""Seconds between flushes by the clock."""

_FOREVER_S = 1e9
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
    derived: Mapping[str, Field] | None = None,
    env: Any = None,
    lanes: int | None = None,
    lane: str | None = None,
    padding: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    append: bool = False,
    resume: Resume | None = None,
    flush_s: float = FLUSH_S,
    episode: Mapping[str, EpisodeField] | None = None,
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
        derived: extra columns that may be changed later, as by `Dataset.update`; a step may be
            without a value, and has 0 then. A store may have more of them already.
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
        episode: what is stored of each episode, by name: a `Text` or a `Field` of a shape and a
            dtype, given to `reset` and `episode` by keyword; 0 or "" where nothing is given.

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
    capacity = whole_number_or_none("capacity", capacity, 1, _MAX_CAPACITY)
    stack_padding = about_env = advice = None
    if env is not None:
        from mmreplay.writing.env_fields import (  # noqa: PLC0415 (an extra)
            advice_for_a_loop,
            advice_on_stacks,
            env_fields,
            env_metadata,
            warn_caller,
        )
        from mmreplay.writing.simulators import as_vector  # noqa: PLC0415

        env = as_vector(env)
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
        derived,
        reward_dtype,
        codec,
        padding,
        None if metadata is None else parse.plain(metadata),
        _checked_flush_s(flush_s),
        capacity,
        lanes,
        lane,
        ("auto" if append or lane is not None else False) if resume is None else resume,
        stack_padding,
        about_env,
        of_one=env is not None and lanes is None,
        episode=episode,
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
        return _open_lanes(request, hold_store(where))
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
        writer = _open_lanes(request, made or hold_store(where))
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


def _open_lanes(request: Request, directory: HeldDirectory) -> AnyWriter:
    """Open what is in a directory for writing; what does not match is refused before that."""
    store = directory.root
    if request.lane is None:
        try:
            return _open_one(request, store)
        except (FormatError, LockedError):  # of lanes, or another process is adding one
            if kind_and_name(store)[0] == "lanes":
                raise SchemaError(
                    f"{store}: this store has several lanes; name the one to write (lane=...) in "
                    f"create or RecordExperience: a buffer writes a store of its own"
                ) from None
            raise
    root = read_metadata(store)
    if root["kind"] != "lanes":
        raise SchemaError(
            f"{store}: has one lane, without a name; leave out lane=, or write to another path"
        )
    path = _named_lane(request, store, root)
    durable_writes.sync_name(store)  # as the lane does for its own
    try:
        return _open_one(request, path)
    except LockedError as error:
        raise LockedError(f"{error}; or give this process its own lane (lane=...)") from error


def _open_one(request: Request, path: AnyPath) -> AnyWriter:
    """Open a lane of one environment, or of many that step together."""

    def check(document: LaneDocument) -> None:
        n, lanes = document.environments, request.lanes
        if lanes is not None and lanes != n:
            what = "one environment" if n is None else f"{n} environments"
            raise SchemaError(
                f"{path}: a lane of {what}, expected {lanes} that step together, as given by "
                f"lanes or env; continue with {what}, or choose another path"
            )
        if n is not None and request.of_one:
            raise SchemaError(
                f"{path}: a lane of {n} environments, but env is a single environment; pass a "
                f"vector environment of {n}, or choose another path"
            )
        request.check_capacity(n)
        request.compare(path, document.schema, document.rows)
        request.check_env(path, document.metadata.get("env"))

    return open_writer(path, request.changes(), request.flush_s, check)


def open_writer(
    path: AnyPath,
    changes: Mapping[str, Any],
    flush_s: float,
    check: Callable[[LaneDocument], None] = lambda _: None,
) -> AnyWriter:
    """Open a lane for writing: reopen a closed one, recover another; see `LockedLane`."""
    files = LockedLane(path, changes, check)
    kind = Writer if files.environments is None else VectorWriter
    return kind(files, Background(flush_s))


def _named_lane(request: Request, store: AnyPath, root: dict[str, Any]) -> AnyPath:
    """The lane of that name; made if it is missing, under the lock of the store's directory."""
    lock = DirectoryLock(store, patience_s=30.0, who=lambda: "")
    try:
        for litter in fnmatch.filter(checked_reads.names(store), ".lane-*.tmp"):
            durable_writes.remove_tree(store / litter)
        try:
            paths = lane_paths(store)
        except FormatError:  # the first lane of the store is this one
            paths = []
        for path in paths:
            if kind_and_name(path)[1] == request.lane:
                if request.resume is False:
                    raise StoreExistsError(
                        f"{path}: the lane {request.lane!r} exists already; choose another name, "
                        f"or pass resume=True to continue it"
                    )
                return path
        if request.resume is True:
            raise StoreNotFoundError(
                f"{store}: no lane {request.lane!r} to resume; check its name, or pass "
                f"resume='auto' to create it"
            )
        return _make_lane(request, store, root, paths)
    finally:
        lock.release()


def _make_lane(
    request: Request, store: AnyPath, root: dict[str, Any], others: list[AnyPath]
) -> AnyPath:
    where = str(store / "zarr.json")
    schema = parse.schema_from_json(root.get("schema"), where)
    specs = plan.plan_from_layout(schema, root.get("layout"), where)
    request.compare(request.path, schema, specs)
    number = 1 + max((int(path.name[5:]) for path in others), default=-1)
    built = store / f".{layout.lane_name(number)}.tmp"
    filled = dataclasses.replace(
        request,
        padding=request.padding or root["padding"],
        metadata=merged(root.get("env") or {}, request.metadata or {}),
        capacity=request.capacity if request.capacity is not None else root["capacity"],
    )
    path = store / layout.lane_name(number)
    try:
        wanted = plan.with_codecs(request.completed(schema), specs)
        planned = plan.plan_lane(wanted, request.lanes, filled.capacity, in_group=True)
        if request.lanes is None:
            planned = dataclasses.replace(planned, rows=specs)
        attributes = {**filled.attributes(), "name": request.lane}
        build_lane.build_lane(built, schema, planned, request.lanes, attributes)
        durable_writes.sync_tree(built)
        is_new = durable_writes.replace_directory(built, path)
    except BaseException as error:
        if path.exists():
            raise
        with contextlib.suppress(MmreplayError):
            durable_writes.remove_tree(built)  # on a full disk, its room too
        if isinstance(error, FailedStoreError):
            cause = error.__cause__
            reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
            raise FailedStoreError(
                f"{path}: could not be made: {reason}; nothing is left behind: check the disk and "
                f"call again"
            ) from error
        raise
    if not is_new:
        raise StoreExistsError(f"{path}: already exists; move it away, or choose another path")
    return path


def _checked_flush_s(seconds: object) -> float:
    # NaN is not 0 or more, either.
    if not isinstance(seconds, (int, float, np.integer, np.floating)) or not seconds >= 0:
        raise SchemaError(f"flush_s: expected seconds, 0 for never; found {seconds!r}")
    return float(seconds) if seconds < _FOREVER_S else 0.0
