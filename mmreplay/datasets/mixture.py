"""`Mixture`: batches of rows from several datasets and buffers.

Invariant: a batch has as many rows as were asked for, those of each source side by side and in the
order of the sources, and says of each row where it came from.
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

    A source is a dataset, a buffer, or something around one. One that is still empty has no share;
    the others take it, in proportion to theirs, so that training can begin on offline data before
    the first step is recorded.

    Args:
        data: one source or more, with rows and settings alike.
        weights: each source's share, relative to the others; None for equal shares.
        exact: True splits each batch as the weights say, to the row: where they say no whole
            number, the number is one of the two beside it, and right on average. False draws for
            each row which source it comes from. Where groups are drawn, groups are split so.
        mark: name of the extra of each batch that tells the number of its source: (B,) int64.

    Raises:
        SchemaError: sources that differ, weights that are no shares.

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
                f"{self.data[0]!r} has an extra named {mark!r} already; give the sources' numbers "
                f"another name with mark="
            )
        extras = {**schema.extras, mark: Field((), "int64")}
        self.schema: Schema = dataclasses.replace(schema, extras=extras)
        self.exact = exact
        self._mark = mark
        self.weights = np.ones(len(self.data)) if weights is None else weights

    @property
    def weights(self) -> Floats:
        """Each source's share, summing up to 1. May be set again between batches."""
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
                f"weights: expected {len(self.data)} numbers, 0 or more and not all of them 0, "
                f"found {given!r}"
            )
        self._weights: Floats = weights / weights.sum()

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the sources'."""
        return self.data[0].settings

    @property
    def generator(self) -> np.random.Generator:
        """The first source's. How batches are split follows from the random states of all."""
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
                f"{list(self.data)!r}: no source that has a weight has a transition to sample yet; "
                f"a transition needs a reset and a step"
            )
        weights /= weights.sum()
        generator = own_generator(self)
        if not self.exact:
            return np.asarray(generator.multinomial(size, weights), np.int64)
        # One draw rounds all borders between the sources, so each number of rows is right on
        # average. Rounded before, for 0.1 + 0.2 is no reason to move one.
        borders = np.round(weights.cumsum() * size, _DIGITS)
        whole = np.floor(borders)
        whole += generator.random() < borders - whole
        return np.diff(whole, prepend=0).astype(np.int64)

    def update_priorities(
        self, ids: npt.ArrayLike, errors: npt.ArrayLike, source: npt.ArrayLike
    ) -> None:
        """Hand errors on to the sources that keep priorities; those of others have no effect.

        Args:
            ids: (B,) of a batch.
            errors: (B,).
            source: (B,) which source each id is of: the batch's ``extras["source"]``.

        Raises:
            SchemaError: arrays of different lengths, or the number of no source.
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
            update: Any = getattr(dataset, "update_priorities", None)
            here = numbers == number
            if update is not None and here.any():
                update(wanted[here], values[here])

    def __repr__(self) -> str:
        return f"<mmreplay.Mixture {list(self.data)!r} weights={self._weights.tolist()}>"


_DIGITS = 9


def _check_alike(data: Sequence[Source]) -> Schema:
    """The schema of all sources; a decorated one's arrays are compared when they come."""
    first = data[0]
    schema = schema_of(first)
    for other in data[1:]:
        if not schema_of(other).same_data(schema):
            raise SchemaError(
                f"expected sources with rows alike, found {_rows(schema)} in {first!r} and "
                f"{_rows(schema_of(other))} in {other!r}"
            )
        if other.settings != first.settings:
            raise SchemaError(
                f"expected sources of the same settings, found {first.settings} in {first!r} and "
                f"{other.settings} in {other!r}"
            )
    return schema


def _rows(schema: Schema) -> dict[str, str]:
    return {path: f"{field.dtype} {field.shape}" for path, field in schema.columns().items()}
