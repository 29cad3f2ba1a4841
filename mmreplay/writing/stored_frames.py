"""Frames of closed stores that become shards of a new lane, without passing its tail.

Invariant: only this process writes, a shard when it is whole; those beside it decode and compress.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable

import numpy as np

from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.storage import shard_file
from mmreplay.storage.state_page import TAIL_START
from mmreplay.system.forks import Child
from mmreplay.writing.log import Log

_DECODED_BYTES = 2 << 20  # at a time: they are compressed from the processor's cache


class StoredFrames:
    """`read` fills an array with frames of a column, by path and ids.

    Shards of them are made in `n_processes` beside this one, if that is more than 1.
    """

    def __init__(self, read: Callable[[str, Ids, Array], object], n_processes: int) -> None:
        self.read, self._n = read, n_processes
        # Of rows that are in no shard yet: the first one, and the ids of their frames.
        self._rows: dict[tuple[Log, str], tuple[int, Ids]] = {}
        self._idle: collections.deque[Child] = collections.deque()
        # The shards that are being made, in order: by whom, of what, and what writes them.
        self._begun: collections.deque[
            tuple[Child, tuple[ArraySpec, Ids], Callable[[bytes], None]]
        ] = collections.deque()
        self._children: list[Child] = []

    def put(self, log: Log, path: str, row: int, ids: Ids) -> None:
        """Take the frames of rows from `row` on; those below it do not change any more."""
        start, before = self._rows.get((log, path), (row, ids))
        self._rows[log, path] = start, np.append(before[: row - start], ids)
        self._make(log, path, row - (row - start) % log.half)

    def finish(self, log: Log) -> None:
        """Write all shards of a log."""
        for path in [path for one, path in self._rows if one is log]:
            self._make(log, path, log.head)
        while self._begun:
            self._receive()()
        log.state.words[TAIL_START] = log.head  # nothing is left to be sealed

    def end(self) -> None:
        """End the processes."""
        for child in self._children:
            child.end()

    def _make(self, log: Log, path: str, stop: int) -> None:
        """Make shards of the rows below `stop`."""
        start, ids = self._rows[log, path]
        while start < stop:
            n, spec = min(log.half, stop - start), log.specs[path]
            request = spec, ids[:n]
            write = functools.partial(log.write_shard, spec, start, durable=False)
            self._rows[log, path] = start, ids = start + n, ids[n:]
            if len(self._children) < self._n > 1:
                with contextlib.suppress(OSError, AttributeError):  # no more can be forked
                    self._children.append(Child(self._shard))
                    self._idle.append(self._children[-1])
            if not self._children:
                write(self._shard(request))
                continue
            write_oldest = None if self._idle else self._receive()
            child = self._idle.popleft()
            with contextlib.suppress(OSError):  # it was ended: to receive says so, too
                child.send(request)
            self._begun.append((child, request, write))
            if write_oldest is not None:
                write_oldest()

    def _receive(self) -> Callable[[], None]:
        """Wait for the shard that was begun first; returns what writes it."""
        child, request, write = self._begun.popleft()
        self._idle.append(child)
        try:
            return functools.partial(write, child.receive())
        except (EOFError, OSError):  # by an error, which comes here as well, or from outside
            return functools.partial(write, self._shard(request))

    def _shard(self, request: tuple[ArraySpec, Ids]) -> bytes:
        """The file of a shard with these frames; called in the children, too."""
        spec, ids = request
        codec, inner = compression.make_codec(spec.codec or {}), spec.inner_rows
        n = max(_DECODED_BYTES // spec.inner_bytes, 1) * inner
        rows: Array = np.empty((n, *spec.row_shape), spec.dtype)
        encoded: list[bytes] = []
        for start in range(0, ids.size, n):
            part = ids[start : start + n]
            self.read(spec.path, part, rows[: part.size])
            rows[part.size :] = 0  # of the last chunk of a short shard
            for chunk in range(0, part.size, inner):
                data = rows[chunk : chunk + inner].reshape(-1).view(np.uint8)
                encoded.append(compression.encode(codec, data))
        return shard_file.assemble(spec, encoded)
