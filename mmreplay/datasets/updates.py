"""`Updates`: stores other values of derived columns, by id.

Invariant: nothing is stored before all ids and values have been checked; a value goes to the
transition of its id, or nowhere. Of each lane, one process changes a column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index
from mmreplay.errors import ClosedError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.schema import as_array
from mmreplay.storage.changing_column import ChangingColumn
from mmreplay.storage.raw_column import RawColumn


class Updates:
    """The columns of a store that one object changes; `n_late` values came after the eviction.

    `names` are locked in all lanes; without `lock` each one when it is first changed.
    """

    def __init__(self, live: LiveLanes, names: Collection[str] = (), *, lock: bool = True) -> None:
        self.n_late = 0
        self._live, self._names, self._is_over = live, [*names], False
        self._held: dict[tuple[str, str], ChangingColumn] = {}
        derived = live.schema.derived
        if unknown := sorted(set(self._names) - derived.keys()):
            raise SchemaError(
                f"{live.path}: update: expected derived columns that are read, of "
                f"{sorted(derived) or 'none'}; found {unknown!r:.200}"
            )
        try:
            for name in self._names if lock else ():
                for lane in range(len(live.readers)):
                    self._hold(lane, f"derived/{name}")
        except BaseException:
            self.close()
            raise

    def _hold(self, lane: int, path: str) -> ChangingColumn:
        reader = self._live.readers[lane]
        key = reader.metadata["uuid"], path  # a repaired lane is another one
        if key not in self._held:
            self._held[key] = ChangingColumn(reader.path, reader.rows.specs[path])
        return self._held[key]

    def update(self, ids: npt.ArrayLike, columns: Mapping[str, object]) -> None:
        """See `Dataset.update`."""
        if self._is_over:
            raise ClosedError(f"{self._live.path}: closed; load it again to update its columns")
        if unknown := sorted(columns.keys() - set(self._names)):
            raise SchemaError(
                f"{self._live.path}: update: expected columns of {self._names or 'none'}, found "
                f"{unknown!r:.200}; a ReplayBuffer updates its derived columns, in the process "
                f"that opened it, and mmreplay.load(PATH, update=[...]) those that it names"
            )
        given, fields = as_array(ids, "ids"), self._live.schema.derived
        wanted = self._live.checked_ids(given.reshape(-1))
        values = {
            f"derived/{name}": fields[name]
            .coerce_rows(value, given.shape, name)
            .reshape(-1, *fields[name].shape)
            for name, value in columns.items()
        }
        if wanted.size:
            self.n_late += self._live.look(lambda index: self._store(index, wanted, values))

    def _store(self, index: Index, ids: Ids, values: Mapping[str, Array]) -> int:
        """Store (B, *field) of each column, by (B,) ids; returns how many were evicted.

        The caller holds the lock of the lanes.
        """
        live, n_late = self._live, 0
        wrong = index.invalid(ids)
        if wrong.any():
            late = index.evicted(ids)
            n_late = int(np.count_nonzero(late))
            live.valid_ids(ids[wrong & ~late & (ids != -1)])(index)  # raises for the first one
            ids, values = ids[~wrong], {path: one[~wrong] for path, one in values.items()}
        if not ids.size:
            return n_late
        lanes = ids >> LANE_SHIFT
        for lane in [0] if index.n_lanes == 1 else distinct(lanes).tolist():
            rows = (ids[lanes == lane] & ROW_MASK) // live.readers[lane].n
            for path in values:
                self._hold(lane, path).begin(rows)
        for path, one in values.items():
            cast("RawColumn", live.columns[path]).put(ids, one)
        return n_late

    def flush(self) -> None:
        """Make all values durable."""
        for column in self._held.values():
            column.sync()

    def close(self) -> None:
        """Make all values durable and let others change them; a second call does nothing."""
        self._is_over = True
        with contextlib.ExitStack() as held:
            for column in self._held.values():
                held.callback(column.release)
            self._held = {}
