"""Windows of columns, each with offsets of its own: ids and columns in, a `WindowBatch` out.

Invariant: only the rows that the offsets name are read, and their values are those stored: no
stacks, returns or clipping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch, Column, Observation, shapes_of
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index, Span
from mmreplay.errors import SchemaError
from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.ids import Array, Ids
from mmreplay.schema import FRAME, Schema

BOUNDARIES = ("pad", "drop")
OBSERVATION = "observation"
_FARTHEST = 1 << 20
_BOOL = np.dtype(np.bool_)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowBatch:
    """Columns around B steps as arrays, the batch axis first; ``batch["action"]`` is one of them.

    Attributes:
        fields: of each name that was asked for (B, *offsets, ...) as stored, or for
            ``observation`` of dict observations a dict of these. Where the mask is False, rewards
            are 0, and all else is as in the nearest step of the episode.
        mask: of each name (B, *offsets) bool, whether its episode has a step, or an observation,
            there.
        id: (B,) int64 of the steps, lane << 40 | row * N + environment.
        weight: (B,) float32 importance weights; 1 if sampled uniformly.
    """

    fields: dict[str, Observation]
    mask: dict[str, npt.NDArray[np.bool_]]
    id: Ids
    weight: npt.NDArray[np.float32]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        return shapes_of(self)


AnyBatch = TypeVar("AnyBatch", Batch, SequenceBatch, WindowBatch)


Paths = dict[str, str | dict[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """One column of a window: its name, its offsets, flat, and their shape."""

    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    is_seen: bool  # an observation: an episode of T steps has T + 1


@dataclasses.dataclass(frozen=True, slots=True)
class FieldWindows:
    """Windows that were asked for, checked; equal ones are read alike."""

    columns: tuple[Asked, ...]
    boundary: str

    @classmethod
    def of(cls, windows: Any, boundary: str, known: Paths) -> FieldWindows:
        """From names and offsets as a user gave them; SchemaError if one is not `known`."""
        if isinstance(windows, cls):
            return windows
        if boundary not in BOUNDARIES:
            raise SchemaError(f"boundary: expected one of {BOUNDARIES}, found {boundary!r:.80}")
        if not isinstance(windows, Mapping) or not windows:
            raise SchemaError(
                f"windows: expected offsets by name, as {{'action': range(8)}}; found "
                f"{windows!r:.80}"
            )
        for name in windows:
            if name not in known:
                raise SchemaError(
                    f"windows: expected names among {', '.join(sorted(known))}; found {name!r:.80}"
                )
        return cls(tuple(_asked(name, given) for name, given in windows.items()), boundary)

    @property
    def lead(self) -> int:
        """Steps before the drawn one that are needed."""
        return max(0, *(-min(one.offsets) for one in self.columns))

    @property
    def beyond(self) -> int:
        """Steps after the drawn one that are needed; the last one shows two observations."""
        return max(0, *(max(one.offsets) - one.is_seen for one in self.columns))

    @property
    def frames(self) -> tuple[int, int]:
        """Frames behind and ahead of the drawn step's own that are read."""
        seen = [0, *(offset for one in self.columns if one.is_seen for offset in one.offsets)]
        return -min(seen), max(seen)

    def check_evicting(self, *, evicts: bool) -> None:
        """Raise SchemaError for offsets beyond the context that a capacity keeps."""
        if evicts and self.lead > CONTEXT_ROWS:
            raise SchemaError(
                f"windows: expected offsets of -{CONTEXT_ROWS} or more if a capacity evicts rows, "
                f"found {-self.lead}; older rows are not kept"
            )


def _asked(name: str, given: Any) -> Asked:
    shape: tuple[int, ...]
    if isinstance(given, range):  # as most are; the other way takes longer
        offsets, shape = tuple(given), (len(given),)
    else:
        try:
            array = np.asarray(given)
        except ValueError:  # of several lengths
            array = np.empty(0)
        is_whole = array.dtype.kind in "iu"
        offsets, shape = tuple(array.ravel().tolist()) if is_whole else (), array.shape
    if not offsets or min(offsets) < -_FARTHEST or max(offsets) > _FARTHEST:
        raise SchemaError(
            f"windows: {name}: expected steps from the drawn one, whole numbers from "
            f"-{_FARTHEST:,} to {_FARTHEST:,}, one or more; found {given!r:.80}"
        )
    is_seen = name == OBSERVATION or name.startswith(f"{OBSERVATION}.")
    return Asked(name, offsets, shape, is_seen)


def paths_of(schema: Schema) -> Paths:
    """The path of the column of each name, or the paths by key of dict observations."""
    frames = schema.frame_paths
    own = {"action": "actions", "reward": "rewards", "non_terminal": "non_terminals"}
    if not schema.is_dict:
        return {**schema.extra_paths, **own, OBSERVATION: frames[FRAME]}
    parts = {f"{OBSERVATION}.{key}": path for key, path in frames.items()}
    return {**schema.extra_paths, **own, **parts, OBSERVATION: frames}


class WindowGatherer(BatchGatherer[WindowBatch]):
    """Reads windows of one store."""

    def __init__(self, schema: Schema, windows: FieldWindows) -> None:
        super().__init__(schema, Settings())
        paths = paths_of(schema)
        self._columns = [(one, paths[one.name]) for one in windows.columns]
        # Columns with the same offsets are looked up once.
        self._offsets = {
            (one.offsets, one.is_seen): np.array(one.offsets, np.int64) for one in windows.columns
        }
        self._reach = windows.frames[1]

    def locate(self, index: Index, ids: Ids) -> Span:
        """Look up the episodes around these steps, (B,)."""
        return index.span(ids, self._reach)

    def renewed(self, index: Index, span: Span) -> Span:
        """The same windows in an index that has followed its lanes since."""
        return dataclasses.replace(span, steps=index.renewed(span.steps))

    def oldest(self, span: Span) -> Ids:
        """The ids of the steps: what is before them is kept as long: int64 (B,)."""
        return span.steps.ids

    def fetch(
        self, columns: Mapping[str, Column], span: Span, out: WindowBatch | None = None
    ) -> WindowBatch:
        """Read windows, from the `span` of `locate` and the columns as they were then.

        Raises SchemaError if `out` does not fit; EvictedError, CorruptStoreError as the columns.
        """
        size = span.back.size
        batch = self._allocate(columns, size) if out is None else self._fitting(columns, out, size)
        batch.id[:] = span.steps.ids
        batch.weight.fill(1)
        found_at = {
            (offsets, is_seen): _places(span, times, is_seen=is_seen)
            for (offsets, is_seen), times in self._offsets.items()
        }
        for one, paths in self._columns:
            places, inside = found_at[one.offsets, one.is_seen]
            batch.mask[one.name][...] = inside.reshape(size, *one.shape)
            found: Any = batch.fields[one.name]
            if isinstance(paths, str):
                self._fill(columns[paths], places, found)
            else:
                for key, path in paths.items():
                    self._fill(columns[path], places, found[key])
            if one.name == "reward":
                found[~batch.mask[one.name]] = 0
        return batch

    @staticmethod
    def _fill(column: Column, places: Ids, target: Array) -> None:
        if target.dtype == _BOOL != column.dtype:  # flags
            np.not_equal(column.take(places).reshape(target.shape), 0, out=target)
        else:
            column.take(places, target.reshape(*places.shape, *column.row_shape))

    def _allocate(self, columns: Mapping[str, Column], size: int) -> WindowBatch:
        """Arrays for a batch of `size`, not filled."""

        def made(one: Asked, path: str) -> Array:
            dtype = _BOOL if one.name == "non_terminal" else columns[path].dtype
            return np.empty((size, *one.shape, *columns[path].row_shape), dtype)

        fields: dict[str, Observation] = {
            one.name: made(one, paths)
            if isinstance(paths, str)
            else {key: made(one, path) for key, path in paths.items()}
            for one, paths in self._columns
        }
        masks = {one.name: np.empty((size, *one.shape), np.bool_) for one, _ in self._columns}
        return WindowBatch(fields, masks, np.empty(size, np.int64), np.empty(size, np.float32))


def _places(span: Span, times: Ids, *, is_seen: bool) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Where the rows of a column stand, and which lie in the episode: (B, n) each."""
    low, high = -span.back[:, None], (span.left + (is_seen - 1))[:, None]
    inside = (times >= low) & (times <= high)
    if not inside.all():
        times = np.minimum(np.maximum(times, low), high)
    return span.steps.frames(times) if is_seen else span.steps.at(times), inside
