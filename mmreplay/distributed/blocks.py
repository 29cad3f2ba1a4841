"""A block: some steps of a lane as columns, and the calls between them, to be sent elsewhere.

Invariant: nothing is decoded before its size is known to be the one that the lane's fields and the
block's own numbers imply; `unpack` returns exactly what was packed, or raises.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.errors import CorruptStoreError, SchemaError
from mmreplay.format import compression
from mmreplay.format.layout import CODECS, episode_path
from mmreplay.ids import Array
from mmreplay.schema import Field, Schema

RESET, EPISODE, END = "reset", "episode", "end_episodes"
"""The calls between steps, by the names of a writer's methods."""
TERMINATED, TRUNCATED, LIFE_LOST, MASK = "terminated", "truncated", "life_lost", "mask"
"""Columns of flags beside those of the schema; the last two may be missing."""
MOST_STEPS = 1 << 16

_FLAG = Field((), "bool")
_LARGE_BYTES = 1024
_MOST_BYTES = (1 << 31) - 64  # what blosc compresses as one


class Event(NamedTuple):
    """A call between two steps: `at` steps of the block come before it."""

    at: int
    call: str
    mask: Array  # (N,) bool: the environments that are meant
    values: dict[str, Any]  # (k, ...) of these: frames and fields of episodes, by path


class State(NamedTuple):
    """What a receiver that lost the running episodes must be told to begin them again."""

    running: Array  # (N,) bool
    values: dict[str, Array]  # (N, ...) newest frames and fields of the running episodes, by path

    def after(self, event: Event) -> State:
        """The state after a call."""
        if event.call == RESET:
            values = {path: rows.copy() for path, rows in self.values.items()}
            for path, rows in event.values.items():
                values[path][event.mask] = rows
            return State(self.running | event.mask, values)
        return State(self.running & ~event.mask, self.values) if event.call == END else self

    def after_step(self, columns: Mapping[str, Array], k: int, frame_paths: Any) -> State:
        """The state after step k of these columns; its arrays are not copied."""
        over = columns[TERMINATED][k] | columns[TRUNCATED][k]  # what is left out runs in no case
        newest = {path: columns[path][k] for path in frame_paths}
        return State(self.running & ~over, self.values | newest)


@dataclasses.dataclass(slots=True)
class Block:
    """(K, N, ...) columns by path, and the calls between the steps, in order."""

    start: State  # before the first of them
    columns: dict[str, Array] = dataclasses.field(default_factory=dict)
    events: list[Event] = dataclasses.field(default_factory=list)
    steps: int = 0

    def put(self, values: Mapping[str, Array], most: int) -> None:
        """Write the values of the next step, (N, ...) by path; `steps` says when it counts."""
        for path, rows in values.items():
            if path not in self.columns:  # it was 0 so far; a mask was everyone
                made = np.ones if path == MASK else np.zeros
                self.columns[path] = made((most, *rows.shape), rows.dtype)
            self.columns[path][self.steps] = rows
        for path in self.columns.keys() - values.keys():
            self.columns[path][self.steps] = path == MASK

    def whole(self) -> Block:
        """Without the room for more steps."""
        columns = {path: rows[: self.steps] for path, rows in self.columns.items()}
        return Block(self.start, columns, self.events, self.steps)

    def rest(self, k: int, frame_paths: Any) -> Block:
        """What follows step k, for a receiver that has the steps before it and no running episode.

        Episodes that run there begin again, with the frame and the fields that they had.
        """
        state, events = self.start, iter(self.events)
        event = next(events, None)
        for step in range(k):
            while event is not None and event.at <= step:
                state, event = state.after(event), next(events, None)
            state = state.after_step(self.columns, step, frame_paths)
        again = {path: rows[state.running] for path, rows in state.values.items()}
        begin = [Event(0, RESET, state.running, again)] if state.running.any() else []
        later = [one._replace(at=one.at - k) for one in self.events if one.at >= k]
        columns = {path: rows[k:] for path, rows in self.columns.items()}
        return Block(state, columns, begin + later, self.steps - k)


Packed = tuple[int, dict[str, bytes], list[Event]]
"""Steps, the columns, and events whose values are bytes as well: for any pickle."""


def pack(block: Block, schema: Schema) -> Packed:
    """Compress a block."""
    pixels = {
        path for path in schema.frame_paths.values() if _field(path, schema).dtype.kind != "f"
    }

    def encoded(path: str, rows: Array) -> bytes:
        # Steps of one environment one after the other: they resemble each other.
        data = np.ascontiguousarray(rows.swapaxes(0, 1) if rows.ndim > 1 else rows)
        is_fast = path not in pixels or data.nbytes < _LARGE_BYTES
        return compression.encode(_codec(), data.reshape(-1).view(np.uint8), fast=is_fast)

    columns = {path: encoded(path, rows) for path, rows in block.columns.items() if block.steps}
    events = [
        one._replace(values={path: encoded(path, rows[None]) for path, rows in one.values.items()})
        for one in block.events
    ]
    return block.steps, columns, events


def unpack(packed: Packed, schema: Schema, n: int) -> Block:
    """The block of a lane of N environments; its `start` is empty.

    Raises:
        SchemaError: not a block of such a lane.
        CorruptStoreError: a column is damaged, or of another length.
    """
    steps, columns, events = packed
    whole_number("steps", steps, 0, MOST_STEPS)
    # Without the extras: the writer knows which of them may be missing.
    needed = {*schema.columns(), TERMINATED, TRUNCATED} - {*schema.extra_paths.values()}
    missing = sorted(needed - columns.keys())
    if steps and missing:
        raise SchemaError(f"block: expected the columns {sorted(needed)}, without {missing}")
    out = {path: _decoded(path, data, (steps, n), schema) for path, data in columns.items()}
    unpacked, last = [], 0
    for at, call, mask, values in events:
        if call not in (RESET, EPISODE, END) or not last <= at <= steps:
            raise SchemaError(f"block: expected calls in order, found {call!r:.80} at {at!r:.80}")
        if mask.dtype != np.bool_ or mask.shape != (n,):
            raise SchemaError(f"block: expected a mask of {n} bools, found {mask!r:.80}")
        k, last = int(np.count_nonzero(mask)), at
        rows = {path: _decoded(path, data, (1, k), schema)[0] for path, data in values.items()}
        unpacked.append(Event(at, call, mask, rows))
    return Block(State(np.zeros(n, np.bool_), {}), out, unpacked, steps)


def check_size(schema: Schema, n: int) -> None:
    """Raise SchemaError for frames of N environments that are too large to be sent."""
    for path in schema.frame_paths.values():
        if (size := _field(path, schema).row_bytes * n) > _MOST_BYTES:
            raise SchemaError(
                f"{path}: {n} environments have {size:,} bytes per step, at most {_MOST_BYTES:,} "
                f"can be sent; give each actor fewer environments"
            )


def _decoded(path: str, data: bytes, lead: tuple[int, int], schema: Schema) -> Array:
    """(K, k, ...) of a column, in which the steps of each environment lie together."""
    field, (steps, k) = _field(path, schema), lead
    out = np.empty((k, steps, *field.shape), field.dtype)
    stored, flat = np.frombuffer(data, np.uint8), out.reshape(-1).view(np.uint8)
    try:
        compression.check(_codec(), stored, flat.size)
        compression.decode(_codec(), stored, flat)
    except CorruptStoreError as error:
        raise CorruptStoreError(f"block: {path}: {error}") from error
    return out.swapaxes(0, 1)


def _field(path: str, schema: Schema) -> Any:
    """The field of a column, a flag, or a field of episodes; SchemaError if there is none."""
    fields = {episode_path(name): one for name, one in schema.episode.items()}
    fields |= {**schema.columns(), **dict.fromkeys((TERMINATED, TRUNCATED, LIFE_LOST, MASK), _FLAG)}
    if path not in fields:
        raise SchemaError(f"block: {path!r:.80} is not a column of this store")
    return fields[path]


@functools.cache
def _codec() -> compression.ChunkCodec:
    return compression.make_codec(CODECS["lz4"])
