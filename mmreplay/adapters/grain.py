"""Grain: a store as a random access source of transitions, or of windows around them.

Invariant: number i is the transition with the i-th smallest id at the time when the source was
created, in every worker and after a restart.
"""

from __future__ import annotations

import zlib
from typing import Any, Unpack

import numpy.typing as npt

from mmreplay.adapters.source import Listed, LoadSettings
from mmreplay.batches.batch import fields_of, with_each
from mmreplay.batches.windows import WindowBatch
from mmreplay.datasets.source import Windowed
from mmreplay.ids import Ids

__all__ = ["TransitionSource", "WindowSource"]


class TransitionSource(Listed):
    """Transitions by number: a `grain.sources.RandomAccessDataSource`, for both of Grain's APIs.

    Several threads may read it, and it can be pickled for worker processes, which open the store
    again. It does not include transitions that are added later.

    Args:
        data: the path of a store, a list of paths or a pattern; or a dataset.
        **settings: of a path, `stack`, `n_step`, `gamma`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of settings beside a dataset.

    Attributes:
        data: the dataset that it reads.
        ids: (len(self),) int64, those of the transitions.
    """

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One transition: a dict of arrays, the fields of `Batch` without the batch axis.

        Raises:
            IndexError: past the end.
            InvalidIdError: it was evicted.
        """
        one: dict[str, Any] = with_each(self.batch([number]), lambda array: array[0, ...])
        return one

    def batch(self, numbers: npt.ArrayLike) -> dict[str, Any]:
        """Several transitions, read at once: a dict of arrays, the fields of `Batch`.

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
        return f"<{type(self).__name__} {names}: {len(self)} ids {which:08x}, {self._read_as}>"

    @property
    def _read_as(self) -> object:
        return self.data.settings


class WindowSource(TransitionSource):
    """Windows by number: those around the transition that `TransitionSource` has at that number.

    A dict of arrays each, the fields of `WindowBatch`; steps beyond an episode are masked.

    Args:
        data, settings: as for `TransitionSource`.
        windows: offsets by name, as for `Dataset.sample_windows`.

    Raises:
        MmreplayError: as `TransitionSource`; SchemaError of windows as `Dataset.sample_windows`.
    """

    def __init__(self, data: Any, windows: Windowed, **settings: Unpack[LoadSettings]) -> None:
        super().__init__(data, **settings)
        self._windows = self.data.field_windows(windows, "pad")

    def _batch(self, ids: Ids) -> WindowBatch:
        batch: WindowBatch = self.data.windows(ids, self._windows)
        return batch

    @property
    def _read_as(self) -> object:
        return self._windows
