"""Opening a store for writing: its lane, or one of several by its name.

Invariant: what does not match the store is refused before the lane is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from mmreplay.errors import (
    FailedStoreError,
    FormatError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.storage.lane_metadata import (
    LaneDocument,
    kind_and_name,
    lane_paths,
    read_metadata,
)
from mmreplay.system import checked_reads, durable_writes, locks
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.writing import build_lane
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.request import Request, merged
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

AnyWriter = Writer | VectorWriter


def open_lanes(request: Request, directory: HeldDirectory) -> AnyWriter:
    """Open what is in a directory for writing; what does not match is refused before that."""
    store = directory.root
    if request.lane is None:
        if kind_and_name(store)[0] == "lanes":
            raise SchemaError(
                f"{store}: this store has several lanes; name the one to write (lane=...)"
            )
        return _open_one(request, store)
    root = read_metadata(store)
    if root["kind"] != "lanes":
        raise SchemaError(f"{store}: a store of one lane; lane= needs one of many")
    path = _named_lane(request, store, root)
    durable_writes.sync_name(store)  # as the lane does for its own
    try:
        return _open_one(request, path)
    except LockedError as error:
        raise LockedError(
            f"{error}; or give this process a lane name of its own (lane=...)"
        ) from error


def _open_one(request: Request, path: AnyPath) -> AnyWriter:
    """Open a lane of one environment, or of many that step together."""

    def check(document: LaneDocument) -> None:
        n, lanes = document.environments, request.lanes
        if lanes is not None and lanes != n:
            what = "one environment" if n is None else f"{n} environments"
            raise SchemaError(
                f"{path}: a lane of {what}, expected {lanes} that step together, as lanes or env "
                f"says; go on with {what}, or choose another path"
            )
        if n is not None and request.of_one:
            raise SchemaError(
                f"{path}: a lane of {n} environments, expected one of a single environment, as "
                f"env is"
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
    lock = locks.DirectoryLock(store, patience_s=30.0, who=lambda: "")
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
        raise StoreExistsError(f"{path}: there already, though no other process may make it now")
    return path
