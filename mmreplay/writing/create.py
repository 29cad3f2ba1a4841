"""Making stores and opening them for writing: `create`.

Invariant: a store has its name only once it is whole and durable; of two who make the same one,
one does and the other opens it, or is told.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import DiskFullError, FailedStoreError, SchemaError, StoreExistsError
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import MAX_LANES
from mmreplay.ids import LANE_SHIFT
from mmreplay.schema import Field, Schema
from mmreplay.storage.lane_metadata import hold_store, store_around
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.system.limits import ReachedLimitError
from mmreplay.system.staging import remove_atomically, staging_directory
from mmreplay.writing import build_lane
from mmreplay.writing.open_lanes import open_lanes
from mmreplay.writing.request import Request, split_capacity
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

__all__ = ["FLUSH_S", "create"]

FLUSH_S = 30.0
"""Seconds between flushes by the clock."""

_FOREVER_S = 1e9
_MAX_NAME = 255
_MAX_CAPACITY = (1 << LANE_SHIFT) - 1
"""As many transitions as a lane can have rows."""


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
            warn_caller,
        )

        found = env_fields(env)
        if (advice := advice_for_a_loop(env)) is not None:
            warn_caller(advice)
        if frame is None and (advice := advice_on_stacks(env)) is not None:
            warn_caller(advice)
        stack_padding = found.padding
        frame, action = frame or found.frame, action or found.action
        lanes = lanes if lanes is not None or lane is not None else found.lanes
    lanes = whole_number_or_none("lanes", lanes, 1, MAX_LANES)
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
        stack_padding,
    )
    if os.path.lexists(where):
        if lane is None and not append:
            raise StoreExistsError(
                f"{where}: there is something already; append to it, if it is a store "
                f"(append=True, --append), or choose another path"
            )
        return open_lanes(request, hold_store(where), capacity, lanes, lane)
    user_paths.check_parent(where)
    if (store := store_around(where)) is not None:
        raise SchemaError(f"{where}: lies within the store {store}; choose another path")
    made = _make(request, capacity, lanes, lane)
    if made is None and lane is None and not append:
        raise StoreExistsError(f"{where}: somebody else made it at this moment")
    try:
        return open_lanes(request, made or hold_store(where), capacity, lanes, lane)
    except (DiskFullError, ReachedLimitError):
        if made is not None and lane is None:  # it holds no row yet, and this call shall work again
            remove_atomically(made)
        raise


def _make(
    request: Request, capacity: int | None, lanes: int | None, lane: str | None
) -> HeldDirectory | None:
    """Build the store beside its place and move it there; None if another was first."""
    schema = request.schema()
    try:
        with staging_directory(request.path) as built:
            if lanes is None and lane is None:
                attributes = request.attributes(capacity)
                build_lane.build_lane(built, schema, plan.plan_arrays(schema, None), attributes)
            else:
                _build_group(built, request, schema, capacity, lanes)
            durable_writes.sync_tree(built)
            made = HeldDirectory(built, named=request.path)
            target = built.with_name(request.path.name)
            return made if durable_writes.replace_directory(built, target) else None
    except ReachedLimitError:
        raise
    except FailedStoreError as error:
        if request.path.exists():
            raise
        raise build_lane.unmade(request.path, error) from error


def _build_group(
    built: AnyPath, request: Request, schema: Schema, capacity: int | None, lanes: int | None
) -> None:
    specs = plan.plan_arrays(schema, lanes or 0)
    shares = split_capacity(capacity, lanes) if lanes else []
    for number, share in enumerate(shares):
        lane = built / layout.lane_name(number)
        build_lane.build_lane(lane, schema, specs, request.attributes(share))
    own = {
        "format": layout.FORMAT,
        "kind": "lanes",
        "uuid": uuid.uuid4().hex,
        "schema": schema.to_json(),
        "layout": layout.layout_json(specs),
        **request.attributes(shares[0] if shares else capacity),
    }
    durable_writes.write_file(built / "zarr.json", layout.group_json(own))


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
