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

from mmreplay.batches.batch import Batch, Column, Observation, shapes_of, with_each
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index, Span
from mmreplay.errors import SchemaError
from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.ids import Array, Ids
from mmreplay.schema import Schema

BOUNDARIES = ("pad", "drop")
OBSERVATION = "observation"
_FARTHEST = 1 << 20


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
class FieldWindows:
    """Windows that were asked for, checked; equal ones are read alike.

    `columns` are names, offsets, flat, and their shapes.
    """

    columns: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
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
        return cls(tuple((name, *_offsets(name, one)) for name, one in windows.items()), boundary)

    @property
    def lead(self) -> int:
        """Steps before the drawn one that are needed."""
        return max(0, *(-min(offsets) for _, offsets, _ in self.columns))

    @property
    def beyond(self) -> int:
        """Steps after the drawn one that are needed; the last one shows two observations."""
        return max(0, *(max(offsets) - is_seen(name) for name, offsets, _ in self.columns))

    @property
    def frames(self) -> tuple[int, int]:
        """Frames behind and ahead of the drawn step's own that are read."""
        seen = [0, *(n for name, offsets, _ in self.columns if is_seen(name) for n in offsets)]
        return -min(seen), max(seen)

    def check_evicting(self, *, evicts: bool) -> None:
        """Raise SchemaError for offsets beyond the context that a capacity keeps."""
        if evicts and self.lead > CONTEXT_ROWS:
            raise SchemaError(
                f"windows: expected offsets of -{CONTEXT_ROWS} or more if a capacity evicts rows, "
                f"found {-self.lead}; older rows are not kept"
            )


def is_seen(name: str) -> bool:
    """Whether it is an observation: an episode of T steps has T + 1."""
    return name.partition(".")[0] == OBSERVATION


def _offsets(name: str, given: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets, flat, and their shape; SchemaError for what are none."""
    if isinstance(given, range):  # as most are; the other way takes longer
        out, shape = tuple(given), (len(given),)
    else:
        try:
            array = np.asarray(given)
        except ValueError:  # of several lengths
            array = np.empty(0)
        out, shape = tuple(array.ravel().tolist()) if array.dtype.kind in "iu" else (), array.shape
    if not out or min(out) < -_FARTHEST or max(out) > _FARTHEST:
        raise SchemaError(
            f"windows: {name}: expected steps from the drawn one, whole numbers from "
            f"-{_FARTHEST:,} to {_FARTHEST:,}, one or more; found {given!r:.80}"
        )
    return out, shape


def paths_of(schema: Schema) -> Paths:
    """The path of the column of each name, or the paths by key of dict observations."""
    out: Paths = {**schema.field_paths, "non_terminal": "non_terminals"}
    return out | {OBSERVATION: schema.frame_paths} if schema.is_dict else out


class WindowGatherer(BatchGatherer[WindowBatch]):
    """Reads windows of one store."""

    def __init__(self, schema: Schema, windows: FieldWindows) -> None:
        super().__init__(schema, Settings())
        self._windows, self._paths = windows, paths_of(schema)
        # Columns with the same offsets are looked up once.
        self._times = {
            (offsets, is_seen(name)): np.array(offsets, np.int64)
            for name, offsets, _ in windows.columns
        }

    def locate(self, index: Index, ids: Ids) -> Span:
        """Look up the episodes around these steps, (B,)."""
        return index.span(ids, self._windows.frames[1])

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
        size = span.steps.ids.size
        batch = self._allocate(columns, size) if out is None else self._fitting(columns, out, size)
        batch.id[:] = span.steps.ids
        batch.weight.fill(1)
        places = {key: _places(span, times, key[1]) for key, times in self._times.items()}
        for name, offsets, _ in self._windows.columns:
            rows, inside = places[offsets, is_seen(name)]
            mask, field = batch.mask[name], batch.fields[name]
            paths: Any = self._paths[name]
            mask.reshape(rows.shape)[...] = inside
            if isinstance(field, dict):
                for key, one in field.items():
                    _fill(one, columns[paths[key]], rows)
                continue
            _fill(field, columns[paths], rows)
            if name == "reward":
                field[~mask] = 0
        return batch

    def _allocate(self, columns: Mapping[str, Column], size: int) -> WindowBatch:
        fields, mask = dict[str, Observation](), dict[str, npt.NDArray[np.bool_]]()
        for name, _, shape in self._windows.columns:

            def room(path: str, name: str = name, shape: tuple[int, ...] = shape) -> Array:
                column = columns[path]
                dtype = np.bool_ if name == "non_terminal" else column.dtype
                return np.empty((size, *shape, *column.row_shape), dtype)

            fields[name], mask[name] = (
                with_each(self._paths[name], room),
                np.empty((size, *shape), np.bool_),
            )
        return WindowBatch(fields, mask, np.empty(size, np.int64), np.empty(size, np.float32))


def _fill(out: Array, column: Column, rows: Ids) -> None:
    """Read rows, (B, n), into an array of as many, (B, *offsets, ...)."""
    if out.dtype == column.dtype:
        column.take(rows, out.reshape(*rows.shape, *column.row_shape))
    else:  # flags
        np.not_equal(column.take(rows).reshape(out.shape), 0, out)


def _places(span: Span, times: Ids, seen: bool) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Where the rows of a column stand, and which lie in the episode: (B, n) each."""
    low, high = -span.back[:, None], (span.left + (seen - 1))[:, None]
    inside = (times >= low) & (times <= high)
    if not inside.all():
        times = np.minimum(np.maximum(times, low), high)
    return span.steps.frames(times) if seen else span.steps.at(times), inside
