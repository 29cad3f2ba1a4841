"""Opening the lanes of a store for writing, all of them or one by its name.

Invariant: what does not match the store is refused before any of its lanes is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Sequence
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
from mmreplay.storage.lane_metadata import lane_paths, read_metadata, read_specs
from mmreplay.system import checked_reads, durable_writes, locks
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.writing import build_lane
from mmreplay.writing.background import Background
from mmreplay.writing.request import Request, split_capacity
from mmreplay.writing.vector_writer import VectorWriter, run_in_threads
from mmreplay.writing.writer import Writer

__all__ = ["open_lanes", "release_all"]


def open_lanes(
    request: Request,
    directory: HeldDirectory,
    capacity: int | None,
    lanes: int | None,
    lane: str | None,
) -> Writer | VectorWriter:
    """Open what is in a directory for writing; what does not match is refused before that."""
    store = directory.root
    root = read_metadata(store)
    background = Background(request.flush_s)
    if lane is not None:
        if root["kind"] != "lanes":
            raise SchemaError(f"{store}: a store of one lane; lane= needs one of many")
        paths = [_named_lane(request, store, root, lane, capacity)]
    elif root["kind"] == "lane":
        if lanes is not None:
            raise SchemaError(f"{store}: a store of one lane, expected {lanes} lanes")
        paths = [store]
    else:
        paths = lane_paths(store)
        if lanes is not None and lanes != len(paths):
            raise SchemaError(f"{store}: expected {lanes} lanes, found {len(paths)}")
    for path in paths:
        _check(request, path)
    durable_writes.sync_name(store)  # as each lane does for its own
    shares = split_capacity(capacity, len(paths))

    def open_one(path: AnyPath, share: int | None) -> Writer:
        return Writer(path, background=background, changes=request.changes(share))

    writers, failures = run_in_threads(open_one, paths, shares)
    if failures:
        release_all(writers)
        if lane is not None and isinstance(failures[0], LockedError):
            raise LockedError(
                f"{failures[0]}; or give this process a lane name of its own (lane=...)"
            ) from failures[0]
        raise failures[0]
    if lane is not None or root["kind"] == "lane":
        return writers[0]
    return VectorWriter(request.path, writers)


def _check(request: Request, path: AnyPath) -> None:
    """Compare what was asked for with what is there.

    Raises:
        SchemaError: rows or codecs differ.
    """
    where = str(path / "zarr.json")
    there = parse.schema_from_json(read_metadata(path).get("schema"), where)
    specs, _ = read_specs(path, there)
    request.compare(path, there, specs)


def _named_lane(
    request: Request, store: AnyPath, root: dict[str, Any], name: str, capacity: int | None
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
            if read_metadata(path).get("name") == name:
                return path
        return _make_lane(request, store, root, name, capacity, paths)
    finally:
        lock.release()


def _make_lane(
    request: Request,
    store: AnyPath,
    root: dict[str, Any],
    name: str,
    capacity: int | None,
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
        build_lane.build_lane(built, schema, specs, filled.attributes(share, name))
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


def release_all(writers: Sequence[Writer]) -> None:
    """Close them, or at least keep nobody out: the caller is given none that could try again."""

    def close(writer: Writer) -> None:
        try:
            writer.close()
        finally:
            writer._release_unclosed()

    run_in_threads(close, writers)
