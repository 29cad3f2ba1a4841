"""Sequences of rows of one environment across its episodes: ids and columns in, a batch out.

Invariant: a step whose mask is True is, byte for byte, the transition with its id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from mmreplay.batches.batch import Column, arrays_of, fields_of, with_each
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import Index, Steps
from mmreplay.episode_index.steps import Pending
from mmreplay.ids import Array, Ids
from mmreplay.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """The `steps` of all rows, and their numbers in their episodes, (B, T) from 1 on.

    Where a number is 0 there is no step; another one stands there.
    """

    steps: Steps
    numbers: Ids

    @property
    def pending(self) -> Pending:
        """As of `Steps`."""
        return self.steps.pending


class CrossingGatherer(BatchGatherer[SequenceBatch]):
    """Rebuilds such sequences of one store, one length and one set of settings."""

    def __init__(self, schema: Schema, settings: Settings, length: int, burn_in: int) -> None:
        super().__init__(schema, settings)
        self._each = TransitionGatherer(schema, settings)
        self._times, self._burn_in = np.arange(-burn_in, length), burn_in

    def locate(self, index: Index, ids: Ids) -> Crossing:
        """Look up the rows around these, (B,), the first ones after the burn-in."""
        rows, numbers = index.across(ids, self._times)
        there = numbers.reshape(-1) > 0
        found = rows.reshape(-1)[there]
        if not found.size:
            found = index.at(np.zeros(1, np.int64))
        steps = found[np.maximum(there.cumsum() - 1, 0)]
        return Crossing(self._each.locate(index, steps), numbers)

    def renewed(self, index: Index, places: Crossing) -> Crossing:
        """The same in an index that has followed its lanes since."""
        return dataclasses.replace(places, steps=self._each.renewed(index, places.steps))

    def oldest(self, places: Crossing) -> Ids:
        """The ids of all steps that are read: int64 (n,)."""
        return places.steps.ids

    def fetch(
        self, columns: Mapping[str, Column], places: Crossing, out: SequenceBatch | None = None
    ) -> SequenceBatch:
        """Read sequences; raises as `SequenceGatherer.fetch`."""
        numbers, steps = places.numbers, self._each.fetch(columns, places.steps)
        absent = (numbers == 0).reshape(-1)
        if absent.any():
            for array in arrays_of(steps).values():
                array[absent] = 0
            steps.id[absent] = -1

        def in_time(array: Array) -> Array:
            return array.reshape(*numbers.shape, *array.shape[1:])

        fields = with_each(fields_of(steps), in_time) | {
            "weight": np.ones(len(numbers), np.float32)
        }
        batch = SequenceBatch(
            **fields,
            mask=numbers > 0,
            step=np.maximum(numbers - 1, 0),
            first=numbers == 1,
            burn_in=self._burn_in,
        )
        return batch if out is None else self.copy(batch, out)
