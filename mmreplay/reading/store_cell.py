"""What a notebook shows of a store: what is known without reading it, and a few frames.

Invariant: of a store of any size some frames are decoded and nothing else is read; what cannot be
is told in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index
from mmreplay.errors import MmreplayError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.pictures.cells import MOST_FRAMES, Cell, even
from mmreplay.pictures.images import is_picture
from mmreplay.reading.info import environment
from mmreplay.reading.lane_state import lane_state, store_state
from mmreplay.reading.live_lanes import LiveLanes

_DECODED_BYTES = 64 << 20
"""The most that is decoded for the frames of a cell, and two frames at least."""
_MOST_LANES = 64
"""Whose states are looked up."""
_MOST_FIELDS = 16


def store_cell(lanes: LiveLanes, paths: Sequence[Path]) -> Cell:
    """The store's table, and frames from its first transition to its last."""
    cell = Cell(f"Store {paths[0]}")
    if len(paths) > 1:
        cell.title = f"{len(paths):,} stores, {paths[0]} the first"
    rows = cell.rows
    try:
        n_transitions = lanes.look(lambda index: index.n_transitions)
    except MmreplayError as error:  # closed, or another store has its path by now
        rows.append(("rows", f"cannot be read: {error}"))
        return cell
    readers = lanes.readers
    states = [lane_state(one.path, closed=one.is_closed) for one in readers[:_MOST_LANES]]
    env = environment(lanes) or {}
    if isinstance(env.get("id"), str):
        rows.append(("environment", env["id"]))
    n_environments = sum(reader.n for reader in readers)
    rows += [
        ("state", store_state(states)),
        ("lanes", f"{len(readers):,}"),
        ("environments", f"{n_environments:,}"),
        ("transitions", f"{n_transitions:,}"),
    ]
    for name, field in [*lanes.schema.columns().items()][:_MOST_FIELDS]:
        spec = readers[0].rows.specs[name]
        shape = f" {list(field.shape)}" if field.shape else ""
        rows.append((name, f"{field.dtype}{shape}, {spec.codec_name}"))
    if n_transitions and any(is_picture(one.shape) for one in lanes.schema.frames.values()):
        try:
            _add_frames(cell, lanes)
        except (MmreplayError, OSError) as error:
            rows.append(("frames", f"cannot be shown: {error}"))
    return cell


def _add_frames(cell: Cell, lanes: LiveLanes) -> None:
    n_shown = max(2, min(MOST_FRAMES, _DECODED_BYTES // _chunk_bytes(lanes)))

    def draw(index: Index) -> Ids:
        return index.at(even(index.n_transitions, n_shown))

    batch = lanes.gather(draw, lanes.gatherer(Settings(stack=None)))
    cell.frames = batch.observation
    cell.captions = [_place(lanes, one) for one in batch.id.tolist()]


def _chunk_bytes(lanes: LiveLanes) -> int:
    """What is decoded for one observation, of all its keys."""
    specs = lanes.readers[0].rows.specs
    total = 0
    for name, path in lanes.schema.frame_paths.items():
        rows = 1 if specs[path].is_raw else specs[path].inner_rows
        total += 2 * rows * lanes.schema.frames[name].row_bytes  # it and the next, maybe apart
    return total


def _place(lanes: LiveLanes, one: int) -> str:
    lane, entry = one >> LANE_SHIFT, one & ROW_MASK
    row, env = divmod(entry, lanes.readers[lane].n)
    where = f"row {row:,}" if lanes.readers[lane].n == 1 else f"row {row:,}, env {env}"
    return where if len(lanes.readers) == 1 else f"lane {lane}, {where}"
