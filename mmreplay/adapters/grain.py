"""Grain: a store as a random access source of transitions.

Invariant: number i is the i-th transition that there was when the source was made, by ascending id,
in every worker and after a restart.
"""

from __future__ import annotations

import dataclasses
import zlib
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.adapters.source import opened, reading_listed, uuids_of
from mmreplay.batches.batch import Batch

__all__ = ["TransitionSource"]


class TransitionSource:
    """Transitions by number: a `grain.sources.RandomAccessDataSource`, for both of Grain's APIs.

    Threads may read from it at once, and it can be pickled for worker processes, which open the
    store again. Of stores that grow, transitions that come later are not in it.

    Args:
        data: the path of a store, a list of paths or a pattern; or a dataset.
        stack: of a path, as for `mmreplay.load`, and so are those that follow; a dataset has its
            own.
        n_step: most steps of a return.
        gamma: discount a step.
        padding: ``reset`` or ``zero``.
        stack_axis: 0 or -1.
        clip_reward: (low, high).

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of settings beside a dataset.

    Attributes:
        data: the dataset that it reads.
        ids: (len(self),) int64, those of the transitions.
    """

    def __init__(
        self,
        data: Any,
        *,
        stack: int | EllipsisType | None = ...,
        n_step: int | None = None,
        gamma: float | None = None,
        padding: str | None = None,
        stack_axis: int | None = None,
        clip_reward: tuple[float, float] | None = None,
    ) -> None:
        settings = {
            "stack": stack,
            "n_step": n_step,
            "gamma": gamma,
            "padding": padding,
            "stack_axis": stack_axis,
            "clip_reward": clip_reward,
        }
        self.data = opened(data, settings)
        self._uuids = uuids_of(self.data)
        self.ids = self.data.ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One transition: a dict of arrays, the fields of `Batch` without the batch axis.

        Raises:
            IndexError: past the end.
            InvalidIdError: it was evicted since.
        """
        batch = self.batch([number])
        return _with_each(batch, lambda array: array[0, ...])

    def batch(self, numbers: npt.ArrayLike) -> dict[str, Any]:
        """Several transitions, read at once: a dict of arrays, the fields of `Batch`.

        For ``grain.MapDataset.range(len(source)).shuffle().batch(256).map(source.batch)``: Grain
        itself reads a source one by one.

        Args:
            numbers: (B,) integers.

        Raises:
            IndexError: past the end.
            InvalidIdError: one that was evicted since.
            SchemaError: another store stands at the path by now.
        """
        with reading_listed(self.data, self._uuids):
            batch: Batch = self.data.transitions(self.ids[np.asarray(numbers)])
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}

    def __repr__(self) -> str:
        """The transitions and how they are rebuilt: by it Grain knows a checkpoint's source."""
        names = ", ".join(path.name for path in self.data.paths)
        which = zlib.crc32(self.ids.tobytes())
        return f"<TransitionSource {names}: {len(self)} ids {which:08x}, {self.data.settings}>"


def _with_each(batch: dict[str, Any], change: Any) -> dict[str, Any]:
    return {
        name: _with_each(value, change) if isinstance(value, dict) else change(value)
        for name, value in batch.items()
    }
