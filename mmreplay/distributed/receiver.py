"""The owner of all lanes of a store, to which senders append.

Invariants:
- A block is appended at the head that its sender knows, or not at all; a sender whose lane another
  one has opened since is refused.
- What `append` has returned is committed: it survives a kill of any process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

from mmreplay.distributed import blocks
from mmreplay.distributed.blocks import EPISODE, LIFE_LOST, MASK, RESET, Block, Event, Packed
from mmreplay.distributed.limiter import Limiter, Limits
from mmreplay.distributed.transport import Opened
from mmreplay.errors import FailedStoreError, LockedError, MmreplayError
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.format.layout import EPISODES
from mmreplay.ids import Array
from mmreplay.reading.store import open_store
from mmreplay.schema import FRAME, Schema
from mmreplay.texts import Text, stored_bytes
from mmreplay.writing.create import AnyWriter, create


@dataclasses.dataclass(slots=True)
class _Lane:
    writer: Any  # of `create`
    n: int
    has_axis: bool
    token: int | None  # of the sender that owns it
    stepped: Array  # (N,) bool: has made a step since this receiver opened the lane


class Receiver:
    """Writes the lanes of one store; one thread at a time may call it. A context manager.

    Args:
        path: the store, which is created with the first lane.
        fields: keywords of `create`: frame, action, capacity of each lane, extras, ….
        limits: of samples per insert; None for those that the page beside the store has.
        flush_s: seconds between flushes by the clock; 0 for none.

    Raises:
        SchemaError, FormatError, CorruptStoreError: see `create` and `Limiter.made`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, Any],
        limits: Limits | None = None,
        *,
        flush_s: float = 30.0,
    ) -> None:
        self.path, self._fields, self._flush_s = path, dict(fields), flush_s
        self._lanes: dict[str, _Lane] = {}
        self.limiter = Limiter.made(path, limits or Limits(), self._n_transitions)

    def _n_transitions(self) -> int:
        """What is in the store by now, if there is one."""
        if not os.path.lexists(self.path):
            return 0
        try:
            with open_store(self.path) as store:
                return len(store)
        except MmreplayError:  # of no lane yet; what is damaged is reported where it is opened
            return 0

    def open(self, name: str, environments: int | None) -> Opened:
        """Give a lane to the caller, and end its running episodes; see `create` for errors."""
        lane = self._lane(name, environments)
        with self._failing(name):
            lane.writer.end_episodes()
        lane.token = secrets.randbits(62)
        return Opened(lane.token, lane.writer.rows, lane.writer.schema, str(lane.writer.path))

    def prepare(self, names: Iterable[str], environments: int | None) -> None:
        """Open lanes before their senders do, so that readers find all of them."""
        for name in names:
            self._lane(name, environments)

    def _lane(self, name: str, environments: int | None) -> _Lane:
        if name not in self._lanes:
            options = {**self._fields, "lane": name, "flush_s": self._flush_s}
            writer: AnyWriter = create(self.path, lanes=environments, **options)
            n = writer.files.n
            stepped = np.zeros(n, np.bool_)
            self._lanes[name] = _Lane(writer, n, environments is not None, None, stepped)
        return self._lanes[name]

    def append(self, name: str, token: int, start: int, packed: Packed) -> int | None:
        """Append a block: the head after it, or None if the sender must open the lane again.

        Raises:
            LockedError: another sender has opened the lane since.
            SchemaError, CorruptStoreError: not a block of this lane.
            DiskFullError, FailedStoreError: see `Writer.step`; the steps before that are there.
        """
        lane = self._lanes.get(name)
        if lane is None or lane.token is None:
            return None  # this receiver is a new one
        if lane.token != token:
            raise LockedError(
                f"{lane.writer.path}: another sender has opened this lane since; it has one writer "
                f"at a time: give each actor a lane of its own"
            )
        writer = lane.writer
        if writer.rows != start:
            return None
        schema: Schema = writer.schema
        block = blocks.unpack(packed, schema, lane.n)
        before = writer.n_steps
        try:
            with self._failing(name):
                _replay(block, lane, schema)
        finally:
            self.limiter.insert(writer.n_steps - before)
        head: int = writer.rows
        return head

    @property
    def is_ahead(self) -> bool:
        """Whether the answers to `append` are to wait until more was sampled."""
        return self.limiter.inserts_ahead()

    @contextlib.contextmanager
    def _failing(self, name: str) -> Any:
        """A writer that has failed is let go of: the next `open` recovers its lane."""
        try:
            yield
        except FailedStoreError:
            with contextlib.suppress(MmreplayError):
                self._lanes.pop(name).writer.close()
            raise

    def close(self) -> None:
        """Leave plain zarr: close all lanes, also those that nobody has opened since a kill."""
        environments: dict[str, int | None] = {}
        with contextlib.suppress(MmreplayError), open_store(self.path) as store:
            for reader in store.live.readers:
                about = reader.metadata
                if not about["closed"] and about.get("name"):
                    environments[about["name"]] = about["environments"]
        for name, n in environments.items():
            self._lane(name, n)
        for name in [*self._lanes]:
            self._lanes[name].writer.close()
            del self._lanes[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _replay(block: Block, lane: _Lane, schema: Schema) -> None:
    """Make the calls of a block."""
    writer, columns, events = lane.writer, block.columns, iter(block.events)
    one: Any = (lambda row: row) if lane.has_axis else (lambda row: row[0])
    extras = {path.partition("/")[2]: path for path in columns if _is_extra(path)}
    flags = [columns.get(name) for name in (blocks.TERMINATED, blocks.TRUNCATED)]
    event = next(events, None)
    for k in range(block.steps):
        while event is not None and event.at <= k:
            _repeat(event, lane, schema)
            event = next(events, None)
        frames = {key: one(columns[path][k]) for key, path in schema.frame_paths.items()}
        more = {name: one(columns[path][k]) for name, path in extras.items()}
        if LIFE_LOST in columns:
            more[LIFE_LOST] = one(columns[LIFE_LOST][k])
        made = columns[MASK][k] if MASK in columns else True
        if MASK in columns:
            more[MASK] = made
        writer.step(
            one(columns["actions"][k]),
            one(columns["rewards"][k]),
            frames if schema.is_dict else frames[FRAME],
            *(one(flag[k]) for flag in flags if flag is not None),
            **more,
        )
        lane.stepped |= made
    while event is not None:
        _repeat(event, lane, schema)
        event = next(events, None)


def _repeat(event: Event, lane: _Lane, schema: Schema) -> None:
    """Make a call between two steps."""
    if event.call == EPISODE:
        # Of the episode of a step that an earlier receiver wrote nothing is known here.
        known = lane.stepped[event.mask]
        mask = event.mask & lane.stepped
        if not known.any():
            return
        values = {path: rows[known] for path, rows in event.values.items()}
        event = event._replace(mask=mask, values=values)
    which = (event.mask,) if lane.has_axis else ()
    if event.call == RESET:
        frames = {key: _spread(event, path, lane) for key, path in schema.frame_paths.items()}
        fields = _fields(event, lane, schema.episode)
        lane.writer.reset(frames if schema.is_dict else frames[FRAME], *which, **fields)
    elif event.call == EPISODE:
        lane.writer.episode(*which, **_fields(event, lane, schema.episode))
    else:
        lane.writer.end_episodes(*which)


def _spread(event: Event, path: str, lane: _Lane) -> Array:
    """(N, ...) of what was given for some environments; one environment has no axis."""
    rows: Array = event.values[path]
    if not lane.has_axis:
        alone: Array = rows[0]
        return alone
    out = np.zeros((lane.n, *rows.shape[1:]), rows.dtype)
    out[event.mask] = rows
    return out


def _fields(event: Event, lane: _Lane, declared: Mapping[str, EpisodeField]) -> dict[str, Any]:
    """Fields of episodes as a writer takes them."""
    out: dict[str, Any] = {}
    for path in event.values:
        folder, _, name = path.partition("/")
        if folder != EPISODES:
            continue
        value = _spread(event, path, lane)
        if not isinstance(declared[name], Text):
            out[name] = value
        else:
            out[name] = stored_bytes(value) if lane.has_axis else stored_bytes(value[None])[0]
    return out


def _is_extra(path: str) -> bool:
    return "/" in path and path.partition("/")[0] not in ("frames", EPISODES)
