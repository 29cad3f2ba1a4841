"""`Mixture`: several sources as one.

Invariant: a batch has the requested number of rows, grouped by source in the order of the sources,
and names the source of each row.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.settings import Settings
from mmreplay.datasets.source import Source
from mmreplay.datasets.store_draws import check_groups, own_generator
from mmreplay.datasets.wrappers import difference, fill, kinds, schema_of
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.schema import Field, Schema

Floats = npt.NDArray[np.float64]

_DIGITS = 9


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

    _lacks = (
        "its sources share neither ids nor epochs; use sample(), one of the sources in `data`, or "
        "mmreplay.load(mixture.paths)"
    )
    schema: Schema

    def __init__(
        self,
        data: Sequence[Source],
        weights: npt.ArrayLike | None = None,
        *,
        exact: bool = True,
        mark: str = "source",
    ) -> None:
        given: Any = data
        if not isinstance(given, Iterable) or isinstance(given, (str, Source)):
            raise SchemaError(f"data: expected a list of sources of batches, found {given!r}")
        self.data = tuple(data)
        if not self.data:
            raise SchemaError("data: expected one source of batches or more, found none")
        schema = _check_alike(self.data)
        if mark in schema.extra_fields:
            raise SchemaError(
                f"{self.data[0]!r} has an extra named {mark!r} already; give the mark of sources "
                f"another name with mark="
            )
        extras = {**schema.extras, mark: Field((), "int64")}
        self.schema = dataclasses.replace(schema, extras=extras)
        self.exact = exact
        self._mark = mark
        self.weights = np.ones(len(self.data)) if weights is None else weights

    @property
    def weights(self) -> Floats:
        """Each source's share; their sum is 1. Can be changed between batches."""
        share: Floats = self._weights / self._weights.sum()
        return share

    @weights.setter
    def weights(self, given: npt.ArrayLike) -> None:
        self._weights = self._checked(given)

    def _checked(self, given: npt.ArrayLike) -> Floats:
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
        return weights

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the sources'."""
        return self.data[0].settings

    @property
    def generator(self) -> np.random.Generator:
        """The first source's. The split of batches follows from the random states of all."""
        return self.data[0].generator

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for source in self.data for path in source.paths)

    def __len__(self) -> int:
        return sum(map(len, self.data))

    def state_dict(self) -> dict[str, Any]:
        states = [source.state_dict() for source in self.data]
        return {"sources": states, "weights": self._weights.tolist()}

    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        try:
            states, weights = [*state["sources"]], self._checked(state["weights"])
            parts = [
                source._restoring(one)  # noqa: SLF001 (of another source)
                for source, one in zip(self.data, states, strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                f"state: expected what state_dict() of a Mixture of {len(self.data)} sources "
                f"returned, found another: {error!s:.200}"
            ) from error

        def restore() -> None:
            for part in parts:
                part()
            self._weights = weights

        return restore

    def refresh(self) -> Self:
        for source in self.data:
            source.refresh()
        return self

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for source in self.data:
                stack.callback(source.close)

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
        batch = _concatenated(parts, [self.data[number] for number in some])
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
        return f"<mmreplay.Mixture {list(self.data)!r} weights={self.weights.tolist()}>"


def _check_alike(data: Sequence[Source]) -> Schema:
    """The schema of all sources; arrays of decorated ones are compared in each batch."""
    first = data[0]
    schema = schema_of(first)
    for other in data[1:]:
        if not schema.same_data(schema_of(other)):
            raise SchemaError(
                f"expected sources with the same columns, but {other!r} differs from "
                f"{first!r}: {schema.differences(schema_of(other))}"
            )
        if other.settings != first.settings:
            raise SchemaError(
                f"expected sources with the same settings, found {first.settings} in {first!r} "
                f"and {other.settings} in {other!r}"
            )
    return schema


def _concatenated(batches: Sequence[Batch], sources: Sequence[object]) -> Batch:
    """The rows of several batches, one batch after the other, from these sources."""
    parts = [arrays_of(batch) for batch in batches]
    found = [kinds(part, from_axis=1) for part in parts]
    for source, kind in zip(sources, found, strict=True):
        if kind != found[0]:
            raise SchemaError(
                f"expected batches with the same arrays, found {difference(found[0], kind)} from "
                f"{sources[0]!r} and {source!r}; load and decorate them alike"
            )
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Batch):
        value = getattr(batches[0], field.name)
        if isinstance(value, dict):
            fields[field.name] = {key: joined[f"{field.name}[{key!r}]"] for key in value}
        else:
            fields[field.name] = joined[field.name]
    return Batch(**fields)
