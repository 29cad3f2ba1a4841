"""`Lookup`: what was drawn from the index and looked up in it, to be read by any thread.

Invariant: what is read later is what would have been read at once, or nothing; it does not depend
on when, or how fast, a thread reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.storage.chunk_files import EvictedError

Read = TypeVar("Read")


class Rebuilder(Protocol[Read]):
    """Makes batches, or what else is read, of ids."""

    def locate(self, index: Index, ids: Ids, /) -> Any:
        """Look up in the index what is needed of it; the result has `pending`, as `Steps`."""

    def fetch(self, columns: Mapping[str, Any], places: Any, out: Read | None, /) -> Read:
        """Read what lies there."""


class LateRebuilder(Rebuilder[Read], Protocol[Read]):
    """One that may read long after it has looked up: a `BatchGatherer`."""

    def renewed(self, index: Index, places: Any, /) -> Any:
        """The same in an index that has followed its lanes since."""

    def oldest(self, places: Any, /) -> Ids:
        """The ids of the oldest steps that are read there."""

    def copy(self, read: Read, out: Read, /) -> Read:
        """Fill `out` with what was read; raises SchemaError if it does not fit."""


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that takes longer for each batch
class Lookup(Generic[Read]):
    """What `gatherer` found in the lanes; `version` and `n_remaps` of their index and columns."""

    lanes: JoinedLanes
    columns: Mapping[str, Any]
    gatherer: LateRebuilder[Read]
    places: Any
    version: int
    n_remaps: int

    def fetch(self, out: Read | None = None) -> Read | None:
        """Read it, without a lock; None if rows or sessions may have gone away meanwhile."""
        lanes = self.lanes
        try:
            read = self.gatherer.fetch(self.columns, self.places, out)
        except EvictedError:
            return None
        except IndexError:
            if lanes.remaps.count == self.n_remaps:
                raise
            return None
        return read if lanes.kept_all(self.n_remaps, self.places.pending) else None

    def renewed(self, lanes: JoinedLanes) -> Lookup[Read] | None:
        """The same as of now; None if the lanes are others, or a step that is read was evicted.

        The caller holds the lanes' lock. Rows that can be sampled have all frames of their stacks.
        """
        if lanes is not self.lanes:
            return None
        index = lanes.index
        if index.version == self.version and lanes.remaps.count == self.n_remaps:
            return self
        oldest = self.gatherer.oldest(self.places)
        firsts = np.array([index.window(lane)[1] for lane in range(index.n_lanes)])
        if (oldest & ROW_MASK < firsts[oldest >> LANE_SHIFT]).any():
            return None
        places = self.places
        if not lanes.is_settled(places.pending):
            places = self.gatherer.renewed(index, places)
        return dataclasses.replace(
            self, places=places, version=index.version, n_remaps=lanes.remaps.count
        )
