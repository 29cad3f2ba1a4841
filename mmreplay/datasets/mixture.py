"""`Mixture`: batches of rows from several datasets and buffers.

Invariant: a batch has the requested number of rows, grouped by source in the order of the sources,
and names the source of each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.combine import concatenated, fill, schema_of
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.source import Source
from mmreplay.datasets.store_draws import check_groups, own_generator
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.schema import Field, Schema

Floats = npt.NDArray[np.float64]


class Mixture(Source):
    """Several sources of batches as one, each with its share of every batch.

    A source is a dataset, a buffer or a wrapper of one. The share of an empty source goes to the
    others, in proportion to theirs, so training can begin on offline data before the first step is
    recorded.

    Args:
        data: one source or more, with the same columns and settings.
        weights: each source's share, relative to the others; None for equal shares.
        exact: True splits each batch by the weights; a share that is not a whole number of rows
            is rounded up or down, and right on average. False draws the source of each row.
            Groups are split in the same way.
        mark: name of the extra of each batch with the number of the source: (B,) int64.

    Raises:
        SchemaError: sources that differ, invalid weights.

    Attributes:
        data: as given.
        exact: as given.
        schema: of a batch: the sources', and the mark.

    Source: Ball et al. 2023, Efficient Online Reinforcement Learning with Offline Data, section
        4.1: symmetric sampling, half of each batch from either source.
    """

    def __init__(
        self,
        data: Sequence[Source],
        weights: npt.ArrayLike | None = None,
        *,
        exact: bool = True,
        mark: str = "source",
    ) -> None:
        given: Any = data
        if not isinstance(given, Iterable) or isinstance(given, (str, Dataset)):
            raise SchemaError(f"data: expected a list of sources of batches, found {given!r}")
        self.data = tuple(data)
        if not self.data:
            raise SchemaError("data: expected one source of batches or more, found none")
        schema = _check_alike(self.data)
        if mark in schema.extras:
            raise SchemaError(
                f"{self.data[0]!r} has an extra named {mark!r} already; give the mark of sources "
                f"another name with mark="
            )
        extras = {**schema.extras, mark: Field((), "int64")}
        self.schema: Schema = dataclasses.replace(schema, extras=extras)
        self.exact = exact
        self._mark = mark
        self.weights = np.ones(len(self.data)) if weights is None else weights

    @property
    def weights(self) -> Floats:
        """Each source's share; their sum is 1. Can be changed between batches."""
        return self._weights.copy()

    @weights.setter
    def weights(self, given: npt.ArrayLike) -> None:
        try:
            weights = np.array(given, np.float64)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"weights: expected numbers, found {given!r}") from error
        sound = weights.shape == (len(self.data),) and np.isfinite(weights).all()
        if not sound or (weights < 0).any() or not weights.any():
            raise SchemaError(
                f"weights: expected {len(self.data)} numbers, 0 or more and not all 0, found "
                f"{given!r}"
            )
        self._weights: Floats = weights / weights.sum()

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the sources'."""
        return self.data[0].settings

    @property
    def generator(self) -> np.random.Generator:
        """The first source's. The split of batches follows from the random states of all."""
        return self.data[0].generator

    def __len__(self) -> int:
        """Transitions that can be sampled, of all sources."""
        return sum(map(len, self.data))

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        unit = group or 1
        if group is not None:
            check_groups(size, group, replace=replace)
        counts = self._counts(size // unit) * unit
        some = counts.nonzero()[0].tolist()
        parts = [
            self.data[number].sample(int(counts[number]), replace=replace, group=group)
            for number in some
        ]
        batch = concatenated(parts, [repr(self.data[number]) for number in some])
        batch.extras[self._mark] = np.arange(len(counts)).repeat(counts)
        return batch if out is None else fill(out, batch)

    def _counts(self, size: int) -> npt.NDArray[np.int64]:
        """Rows, or groups of them, from each source."""
        weights = self._weights * [len(source) > 0 for source in self.data]
        if not weights.any():
            raise EmptyBufferError(
                f"{list(self.data)!r}: none of the sources with a weight has a transition yet; a "
                f"transition needs a reset and a step"
            )
        weights /= weights.sum()
        generator = own_generator(self)
        if not self.exact:
            return np.asarray(generator.multinomial(size, weights), np.int64)
        # One draw rounds all borders between sources, so each number of rows is right on average.
        # They are rounded before, so that 0.1 + 0.2 does not move one.
        borders = np.round(weights.cumsum() * size, _DIGITS)
        whole = np.floor(borders)
        whole += generator.random() < borders - whole
        return np.diff(whole, prepend=0).astype(np.int64)

    def update_priorities(
        self, ids: npt.ArrayLike, errors: npt.ArrayLike, source: npt.ArrayLike
    ) -> None:
        """Pass errors to the sources that sample by priority; the others ignore them.

        Args:
            ids: (B,) of a batch.
            errors: (B,).
            source: (B,) the source of each id: the batch's ``extras["source"]``.

        Raises:
            SchemaError: arrays of different lengths, or an invalid number of a source.
        """
        wanted, values, numbers = np.asarray(ids), np.asarray(errors), np.asarray(source)
        if wanted.ndim != 1 or not wanted.shape == values.shape == numbers.shape:
            raise SchemaError(
                f"ids, errors and source: expected (B,) each, found {wanted.shape}, "
                f"{values.shape}, {numbers.shape}"
            )
        wrong = numbers[~np.isin(numbers, np.arange(len(self.data)))]
        if wrong.size:
            raise SchemaError(
                f"source: expected numbers from 0 to {len(self.data) - 1}, found {wrong[0]}"
            )
        for number, dataset in enumerate(self.data):
            here = numbers == number
            if hasattr(dataset, "update_priorities") and here.any():
                dataset.update_priorities(wanted[here], values[here])

    def __repr__(self) -> str:
        return f"<mmreplay.Mixture {list(self.data)!r} weights={self._weights.tolist()}>"


_DIGITS = 9


def _check_alike(data: Sequence[Source]) -> Schema:
    """The schema of all sources; arrays of decorated ones are compared in each batch."""
    first = data[0]
    schema = schema_of(first)
    for other in data[1:]:
        if not schema.same_data(schema_of(other)):
            raise SchemaError(
                f"expected sources with the same columns, found in {other!r}: "
                f"{schema.differences(schema_of(other))} as in {first!r}"
            )
        if other.settings != first.settings:
            raise SchemaError(
                f"expected sources with the same settings, found {first.settings} in {first!r} "
                f"and {other.settings} in {other!r}"
            )
    return schema
