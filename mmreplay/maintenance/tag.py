"""`tag`: fields of the episodes of a closed store, given afterwards.

Invariant: a store has all of the new values or none. A copy by hard links, in which the fields are
written, takes the place of the store, with the same ids and uuids; nothing changes in place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from mmreplay.arguments import mask_of
from mmreplay.errors import LockedError, SchemaError
from mmreplay.format import compression, layout
from mmreplay.format.episode_fields import EpisodeField, episode_fields
from mmreplay.format.plan import episode_specs
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.maintenance.added_columns import documents_below
from mmreplay.maintenance.copy_lane import check_intact, lock_all
from mmreplay.maintenance.pack import EpisodeNumbers
from mmreplay.maintenance.repair.store import lanes_of, place_of
from mmreplay.maintenance.repair.swap import RepairSite
from mmreplay.reading.episode_columns import LaneEpisodes
from mmreplay.reading.store import Store
from mmreplay.schema import Field, as_array
from mmreplay.storage import chunk_files
from mmreplay.storage.changing_column import lock_columns
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.storage.raw_column import RawColumn
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.texts import Text, encoded
from mmreplay.writing import build_lane


def tag(path: str | os.PathLike[str], episodes: EpisodeNumbers | None = None, **fields: Any) -> int:
    """Give fields of episodes of a closed store a value; a field that it does not have is added.

    A text that is longer than those before makes room for it. If this is interrupted, the store is
    as it was, or has all of the values. Returns the number of episodes.

    Args:
        path: the store, which no process may be writing.
        episodes: as for `Dataset.select`; None for all.
        fields: one value for all of these episodes, or one for each: texts, bools, whole numbers
            (a new field is int64), other numbers (float64), or arrays.

    Raises:
        StoreNotFoundError, FormatError, CorruptStoreError: there is no store, or a damaged one.
        LockedError: a process is writing it, or updates a column, or was killed while it wrote.
        SchemaError: no field, a name that is taken, values that do not fit, or no such episode.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing was changed.
    """
    if not fields:
        raise SchemaError("tag: expected a field and its value, as in tag(path, quality='good')")
    site = RepairSite(place_of(user_paths.as_path(path)), "tag", "before-tag")
    root = site.store
    if not site.is_left():
        read_metadata(root)  # raises the error, if there is no store
    with site.naming_the_store(), site, contextlib.ExitStack() as locked:
        read_metadata(root)
        lanes = lanes_of(root)
        held = lock_all([*lanes, root], locked)
        for lane in lanes:
            lock_columns(lane, locked)  # updates would go to the store that is exchanged
        with Store([root]) as store:
            firsts = _chosen(store, episodes)
            given = {
                name: _Values(store.live.fields.get(name), name, one, firsts.size)
                for name, one in fields.items()
            }
            durable_writes.share_tree(root, site.new)
            for number, lane in enumerate(lanes):
                here = (firsts >> LANE_SHIFT == number).nonzero()[0]
                new = site.new / lane.name if lane != root else site.new
                _write_lane(store, number, new, firsts[here] & ROW_MASK, here, given)
        if root not in lanes:
            own = _with_fields(read_metadata(root), given)
            durable_writes.write_file(site.new / "zarr.json", layout.group_json(own))
        durable_writes.sync_tree(site.new)
        durable_writes.remove_tree(site.swap(held[root].directory))
    return int(firsts.size)


def _chosen(store: Store, episodes: EpisodeNumbers | None) -> Ids:
    """The ids of the first steps of the chosen episodes."""
    for reader in store.live.readers:
        if not reader.is_closed:
            raise LockedError(
                f"{reader.path}: its writer ended without close(); run `mmreplay repair`, or open "
                f"it for writing and close it, then tag it"
            )
    table = store.episodes_by_environment()
    if episodes is None:
        return np.array(table["id"])
    given = episodes(table) if callable(episodes) else episodes
    return np.array(table["id"][mask_of("episodes", given, len(table), "episodes")])


class _Values:
    """What a field of n episodes becomes: `field`, and (n, ...) `rows` as they are stored."""

    def __init__(self, known: EpisodeField | None, name: str, value: Any, n: int) -> None:
        array = as_array(value, name)
        is_text = isinstance(known, Text) or (known is None and array.dtype.kind in "US")
        n_axes = len(known.shape) if isinstance(known, Field) else 0
        values = [value] if array.ndim == n_axes else value
        if array.ndim != n_axes and len(values) != n:
            found = f"found {len(values):,}"
            raise SchemaError(
                f"{name}: expected one value, or one for each of {n:,} episodes; {found}"
            )
        self.field: EpisodeField
        if is_text:
            widths = [len(encoded(one, name)) for one in values]
            self.field = Text(max([*widths, 1 if known is None else known.shape[0]]))
        else:
            self.field = known or Field(array.shape[1:], array.dtype)
        if known is None:
            episode_fields({name: self.field})
        rows = [self.field.coerce_loosely(one, name) for one in values]
        parts = np.array(rows, self.field.dtype).reshape(-1, *self.field.shape)
        self.rows: Array = np.broadcast_to(parts, (n, *self.field.shape))


def _with_fields(own: Mapping[str, Any], given: Mapping[str, _Values]) -> dict[str, Any]:
    """Attributes that declare these fields, too."""
    schema, new = own["schema"], {name: one.field.to_json() for name, one in given.items()}
    return {**own, "schema": {**schema, "episode": {**schema.get("episode", {}), **new}}}


def _write_lane(
    store: Store,
    number: int,
    lane: AnyPath,
    firsts: Ids,
    places: Ids,
    given: Mapping[str, _Values],
) -> None:
    """Write fields of one lane's episodes, by the entries of their first steps, into its copy."""
    reader = store.live.readers[number]
    resets = cast("RawColumn", store.live.columns["resets"])
    numbers, base, head = LaneEpisodes(reader, resets).numbers(firsts)
    for name, one in given.items():
        path = layout.episode_path(name)
        spec = episode_specs({name: one.field})[path]
        size, start = spec.chunk_rows, base - base % spec.chunk_rows
        rows = np.zeros((-(-(head - start) // size) * size, *spec.row_shape), spec.dtype)
        old = reader.document.episodes.get(path)
        if old is not None:
            for chunk in range(base // old.chunk_rows, -(-head // old.chunk_rows)):
                check_intact(reader.rows, old, chunk, head)
            kept = chunk_files.read_rows(reader.rows, old, base, head)
            rows[(slice(base - start, head - start), *map(slice, old.row_shape))] = kept
        rows[numbers - start] = one.rows[places]
        _write_array(lane, spec, rows.reshape(-1, size, *spec.row_shape), start, head)
    for group in layout.group_paths(f"{above}{layout.EPISODES}/x" for above in ("", "checksums/")):
        durable_writes.write_file(lane / group / "zarr.json", layout.group_json(), durable=False)
    own = _with_fields(reader.metadata, given)
    build_lane.write_metadata(lane, own, documents_below(lane))


def _write_array(
    lane: AnyPath, spec: layout.ArraySpec, chunks: Array, start: int, head: int
) -> None:
    """Write an array of `head` rows and its checksums; chunk files from that of row `start` on."""
    sums = layout.checksum_spec(spec.path)
    first, n_chunks = start // spec.chunk_rows, -(-head // spec.chunk_rows)
    values = np.zeros(-(-n_chunks // sums.chunk_rows) * sums.chunk_rows, sums.dtype)
    for one, n_rows in ((spec, head), (sums, n_chunks)):
        durable_writes.remove_tree(lane / one.path)
        durable_writes.make_directory(lane / one.path)
        durable_writes.write_new(lane / one.path / "zarr.json", layout.array_json(one, n_rows))
    for chunk, rows in enumerate(chunks, first):
        data = np.ascontiguousarray(rows).tobytes()
        durable_writes.write_new(chunk_files.chunk_path(lane, spec, chunk), data)
        values[chunk] = compression.crc32c(data) or 1
    for file, part in enumerate(values.reshape(-1, sums.chunk_rows)):
        durable_writes.write_new(chunk_files.chunk_path(lane, sums, file), part.tobytes())
