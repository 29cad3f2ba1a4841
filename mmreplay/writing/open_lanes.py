"""Opening a store for writing: its lane, or one of several by its name.

Invariant: what does not match the store is refused before the lane is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from typing import Any

from mmreplay.errors import (
    FailedStoreError,
    FormatError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.format.columns import lane_columns, tick_columns
from mmreplay.storage.lane_metadata import lane_paths, read_metadata, read_name, read_specs
from mmreplay.system import checked_reads, durable_writes, locks
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.writing import build_lane
from mmreplay.writing.background import Background
from mmreplay.writing.request import Request, check_capacity
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

__all__ = ["AnyWriter", "open_lanes"]

AnyWriter = Writer | VectorWriter


def open_lanes(
    request: Request,
    directory: HeldDirectory,
    capacity: int | None,
    lanes: int | None,
    lane: str | None,
) -> AnyWriter:
    """Open what is in a directory for writing; what does not match is refused before that."""
    store = directory.root
    root = read_metadata(store)
    if lane is not None:
        if root["kind"] != "lanes":
            raise SchemaError(f"{store}: a store of one lane; lane= needs one of many")
        path = _named_lane(request, store, root, lane, capacity, lanes)
        try:
            return _open_one(request, store, path, capacity, lanes)
        except LockedError as error:
            raise LockedError(
                f"{error}; or give this process a lane name of its own (lane=...)"
            ) from error
    if root["kind"] == "lanes":
        raise SchemaError(
            f"{store}: a store of several lanes; name the one to write (lane=...), or read them "
            f"all with mmreplay.load"
        )
    return _open_one(request, store, store, capacity, lanes)


def _open_one(
    request: Request, store: AnyPath, path: AnyPath, capacity: int | None, lanes: int | None
) -> Writer | VectorWriter:
    """Open a lane of one environment, or of many that step together."""
    metadata = read_metadata(path)
    width = metadata.get("width")
    if lanes is not None and lanes != width:
        what = "one environment" if width is None else f"{width} environments"
        raise SchemaError(
            f"{path}: a lane of {what}, expected {lanes} that step together, as lanes or env says; "
            f"go on with {what}, or choose another path"
        )
    if width is not None and request.of_one:
        raise SchemaError(
            f"{path}: a lane of {width} environments, expected one of a single environment, as "
            f"env is"
        )
    check_capacity(capacity, width)
    _check(request, path)
    if path is not store:
        durable_writes.sync_name(store)  # as the lane does for its own
    kind = Writer if width is None else VectorWriter
    return kind(path, background=Background(request.flush_s), changes=request.changes(capacity))


def _check(request: Request, path: AnyPath) -> None:
    """Compare what was asked for with what is there.

    Raises:
        SchemaError: rows or codecs differ.
    """
    metadata = read_metadata(path)
    there = parse.schema_from_json(metadata.get("schema"), str(path / "zarr.json"))
    if metadata["kind"] == "vector":
        checked_reads.check_directories(path, *layout.LOGS)
        columns = tick_columns(there, metadata["width"])
        specs, _ = read_specs(path / layout.TICKS, columns)
    else:
        specs, _ = read_specs(path, lane_columns(there))
    request.compare(path, there, specs)


def _named_lane(
    request: Request,
    store: AnyPath,
    root: dict[str, Any],
    name: str,
    capacity: int | None,
    lanes: int | None,
) -> AnyPath:
    """The lane of that name; made, under the lock of the store's directory, if need be."""
    lock = locks.DirectoryLock(store, patience_s=30.0, who=lambda: "")
    try:
        for litter in fnmatch.filter(checked_reads.names(store), ".lane-*.tmp"):
            durable_writes.remove_tree(store / litter)
        try:
            paths = lane_paths(store)
        except FormatError:  # the first lane of the store is this one
            paths = []
        for path in paths:
            if read_name(path) == name:
                return path
        return _make_lane(request, store, root, name, capacity, lanes, paths)
    finally:
        lock.release()


def _make_lane(
    request: Request,
    store: AnyPath,
    root: dict[str, Any],
    name: str,
    capacity: int | None,
    lanes: int | None,
    others: list[AnyPath],
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
        metadata=root.get("env") if request.metadata is None else request.metadata,
    )
    share = capacity if capacity is not None else root["capacity"]
    path = store / layout.lane_name(number)
    try:
        attributes = filled.attributes(share, name)
        if lanes is None:
            build_lane.build_lane(built, schema, specs, attributes)
        else:
            wanted = plan.with_codecs(request.completed(schema), specs)
            logs = plan.plan_vector(wanted, lanes, share)
            build_lane.build_vector_lane(built, schema, logs, lanes, attributes)
        durable_writes.sync_tree(built)
        is_new = durable_writes.replace_directory(built, path)
    except BaseException as error:
        if path.exists():
            raise
        with contextlib.suppress(MmreplayError):
            durable_writes.remove_tree(built)  # on a full disk, its room too
        if isinstance(error, FailedStoreError):
            raise build_lane.unmade(path, error) from error
        raise
    if not is_new:
        raise StoreExistsError(f"{path}: there already, though nobody may make it now")
    return path
