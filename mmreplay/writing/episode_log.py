"""The fields of a lane's episodes, while it is open for writing.

Invariants:
- An episode's number is how many episodes with a step began before it in its lane, those of one row
  by environment. Its fields lie there, whole, before its first step is committed.
- What was put since the last `sync` is durable after the next one.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from time import time_ns
from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.format.episode_fields import STARTED, EpisodeField
from mmreplay.format.layout import ArraySpec, episode_path
from mmreplay.format.plan import episode_specs
from mmreplay.ids import Array, Ids, distinct
from mmreplay.schema import Field, as_array
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import Window
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.texts import Text
from mmreplay.writing.log import Arrays

_MOST_WINDOWS = 256
_NONE = np.empty(0, np.int64)


class EpisodeLog(Arrays):
    """The arrays of the fields, by number of episode; those of `base` and later ones are kept.

    Attributes:
        fields: by name; `before` reads and writes.
        head: how many episodes have begun, as of the opening, and at last as of the close.
    """

    def __init__(self, path: AnyPath, fields: Mapping[str, EpisodeField]) -> None:
        super().__init__(path, episode_specs(fields))
        self.fields, self.head = dict(fields), 0
        self._windows: dict[tuple[str, int], Window] = {}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self._touched: collections.deque[Ids] = collections.deque()

    def open(self, *, recovered: bool) -> None:
        """Forget what lies past the head; after a crash, what is kept may not be durable."""
        for spec in self.specs.values():
            chunk, rest = divmod(self.head, spec.chunk_rows)
            # Pages that stay clean ask nothing of a full disk.
            if rest and self._window(spec, chunk).rows[rest:].any():
                self._window(spec, chunk).rows[rest:] = 0
            self.fresh.append(self.path / spec.path)
        self.sums.forget(self.head + 1, 0)
        self.sums.sync()
        if recovered:
            self._touched.append(np.arange(self.base, self.head))

    def put(self, numbers: Ids, values: Mapping[str, Array]) -> None:
        """Store (n, ...) values by path, numbers ascending; DiskFullError: nothing was changed."""
        if not numbers.size:
            return
        places, low, high = [], int(numbers[0]), int(numbers[-1])
        for path, rows in values.items():
            spec = self.specs[path]
            if (chunk := low // spec.chunk_rows) == high // spec.chunk_rows:  # nearly always
                places.append((self._window(spec, chunk), numbers, rows))
                continue
            chunks = numbers // spec.chunk_rows
            for chunk in distinct(chunks).tolist():
                here = (chunks == chunk).nonzero()[0]
                places.append((self._window(spec, chunk), numbers[here], rows[here]))
        for window, at, part in places:
            window.rows[at - window.start] = part
        self._touched.append(numbers)

    def _window(self, spec: ArraySpec, chunk: int) -> Window:
        window = self._windows.get((spec.path, chunk))
        if window is None:
            if len(self._windows) >= _MOST_WINDOWS:
                del self._windows[next(iter(self._windows))]
            window = self._windows[spec.path, chunk] = self.open_window(spec, chunk)
        return window

    def finish(self, head: int) -> None:
        """No more is stored, and so many episodes have begun."""
        self.head = head
        self._windows.clear()

    def sync(self) -> None:
        """Make durable what was stored since the last call, and names."""
        n, n_fresh = len(self._touched), len(self.fresh)
        numbers = np.concatenate([_NONE, *(self._touched[i] for i in range(n))])
        durable_writes.sync_all(
            chunk_files.chunk_path(self.path, spec, chunk)
            for spec in self.specs.values()
            for chunk in distinct(numbers // spec.chunk_rows).tolist()
            if chunk >= self.base // spec.chunk_rows  # else it was evicted
        )
        self.sums.sync()
        durable_writes.sync_all(directories=dict.fromkeys(self.fresh[i] for i in range(n_fresh)))
        for _ in range(n):  # not before: interrupted, it is done by the next call
            self._touched.popleft()
        for _ in range(n_fresh):
            self.fresh.popleft()


class EpisodeValues:
    """Values of fields of episodes of `n` environments; `where` is the lane, for messages."""

    def __init__(
        self, where: object, fields: Mapping[str, EpisodeField], n: int, *, has_axis: bool
    ) -> None:
        self._where, self._given, self._n, self._has_axis = where, fields, n, has_axis

    def checked(self, given: Mapping[str, Any], which: Ids) -> dict[str, Array]:
        """(k, ...) by path, of k environments; SchemaError for what does not fit."""
        return {episode_path(name): self._rows(name, value, which) for name, value in given.items()}

    def _rows(self, name: str, value: Any, which: Ids) -> Array:
        field = self._given.get(name)
        if field is None:
            raise SchemaError(
                f"{self._where}: {name}: not a field of episodes of this store, which has "
                f"{sorted(self._given) or 'none'}; declare it at creation (episode=), or add "
                f"it to the closed store with mmreplay.tag"
            )
        k, is_text = which.size, isinstance(field, Text)
        is_one = isinstance(value, (str, bytes)) if is_text else np.ndim(value) == len(field.shape)
        if is_one or not self._has_axis:  # the same for all of them
            return np.broadcast_to(field.coerce_loosely(value, name), (k, *field.shape))
        values = value if is_text else as_array(value, name)
        if np.ndim(values) == 0 or len(values) != self._n:
            raise SchemaError(
                f"{name}: expected one for all environments, or one for each of {self._n}; found "
                f"{value!r:.80}"
            )
        if isinstance(field, Text):
            texts = [field.coerce_loosely(values[e], name) for e in which.tolist()]
            return np.array(texts, np.uint8).reshape(k, *field.shape)
        if not k:
            return np.empty((0, *field.shape), field.dtype)
        return Field((k, *field.shape), field.dtype).coerce_loosely(values[which], name)


class Episodes(EpisodeValues):
    """What a writer of `n` environments is given of their episodes; `has_axis` as of its lane."""

    def __init__(self, log: EpisodeLog, n: int, *, has_axis: bool) -> None:
        super().__init__(log.path, log.fields, n, has_axis=has_axis)
        self._log = log
        self._begun = log.head
        # Of the episode of each environment's newest step.
        self._numbers = np.full(n, -1)
        # The row of the newest first steps, their environments and numbers: counted once committed.
        self._next: tuple[int, Ids, Ids] | None = None
        # Of the episode that begins with each environment's next step.
        self._fields = {
            spec.path: np.zeros((n, *spec.row_shape), spec.dtype) for spec in log.specs.values()
        }

    def begun(self, head: int) -> int:
        """How many episodes have begun below row `head`, the one to come."""
        if self._next is not None and self._next[0] < head:
            _, which, numbers = self._next
            self._numbers[which] = numbers
            self._begun, self._next = int(numbers[-1]) + 1, None
        return self._begun

    def reset(self, which: Ids, values: Mapping[str, Array]) -> None:
        """Take the `checked` fields of the episodes that begin in some environments."""
        for path, rows in self._fields.items():
            rows[which] = values.get(path, time_ns() if path == _STARTED else 0)

    def store(self, row: int, which: Ids) -> None:
        """Store the fields of the episodes whose first step is the next row."""
        numbers = self.begun(row) + np.arange(which.size)
        self._log.put(numbers, {path: rows[which] for path, rows in self._fields.items()})
        self._next = row, which, numbers

    def change(self, head: int, which: Ids, values: Mapping[str, Array]) -> None:
        """Change `checked` fields of the episodes of the newest steps of some environments."""
        self.begun(head)
        numbers = self._numbers[which]
        if (numbers < 0).any():
            raise SchemaError(
                f"{self._log.path}: episode(): environment {which[numbers < 0][0]} has made no "
                f"step since this writer was opened; mmreplay.tag changes the fields of older "
                f"episodes, once the store is closed"
            )
        kept = numbers.argsort()
        kept = kept[numbers[kept] >= self._log.base]  # of evicted ones nothing is left
        self._log.put(numbers[kept], {path: rows[kept] for path, rows in values.items()})


_STARTED = episode_path(STARTED)
