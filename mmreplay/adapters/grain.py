"""Grain: a store as a random access source of transitions, or of windows around them.

Invariant: number i is the transition with the i-th smallest id at the time when the source was
created, in every worker and after a restart.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy.typing as npt

from mmreplay.adapters.source import Listed
from mmreplay.batches.batch import fields_of, with_each

__all__ = ["TransitionSource"]


class TransitionSource(Listed):
    """Transitions by number: a `grain.sources.RandomAccessDataSource`, for both of Grain's APIs.

    Several threads may read it, and it can be pickled for worker processes, which open the store
    again. It does not include transitions that are added later.

    Args:
        data: the path of a store, a list of paths or a pattern; or a dataset.
        windows: offsets by name, as for `Dataset.sample_windows`: elements have the fields of
            `WindowBatch`, and what lies beyond the episode is masked.
        **settings: of a path, `stack`, `n_step`, `gamma`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of settings beside a dataset, of windows as
            `Dataset.sample_windows`.

    Attributes:
        data: the dataset that it reads.
        ids: (len(self),) int64, those of the transitions.
    """

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One transition: a dict of arrays, the fields of a batch without the batch axis.

        Raises:
            IndexError: past the end.
            InvalidIdError: it was evicted.
        """
        one: dict[str, Any] = with_each(self.batch([number]), lambda array: array[0, ...])
        return one

    def batch(self, numbers: npt.ArrayLike) -> dict[str, Any]:
        """Several transitions, read at once: a dict of arrays, the fields of a batch.

        For ``grain.MapDataset.range(len(source)).shuffle().batch(256).map(source.batch)``: Grain
        itself reads a source one by one.

        Args:
            numbers: (B,) integers.

        Raises:
            IndexError: past the end.
            InvalidIdError: a transition that was evicted.
            SchemaError: the path now holds another store.
        """
        return fields_of(self._read(numbers))

    def __repr__(self) -> str:
        """The transitions and settings: Grain compares this text with that of a checkpoint."""
        names = ", ".join(path.name for path in self.data.paths)
        which = zlib.crc32(self.ids.tobytes())
        read_as = self._windows or self.data.settings
        return f"<TransitionSource {names}: {len(self)} ids {which:08x}, {read_as}>"
