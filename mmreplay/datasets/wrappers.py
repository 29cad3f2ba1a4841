"""`Decorated` and `Mixture`: wrappers of datasets, buffers and each other.

Invariants:
- A function of `Decorated` sees each batch once, in memory that is its own: it shares none with
  the caller's `out`, and the next observation shares none with the observation.
- A batch of a `Mixture` has the requested number of rows, grouped by source in the order of the
  sources, and names the source of each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_takes
from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.sequences import AnyBatch, SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Around, Source, WindowSource
from mmreplay.datasets.store_draws import check_groups, draw_seed, own_generator
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Array
from mmreplay.sampling.draws import Windows
from mmreplay.schema import Field, Schema

Floats = npt.NDArray[np.float64]

_DIGITS = 9

Function = Callable[[Any, np.random.Generator], Any]
"""Takes a whole batch, and the generator for its draws; returns a batch."""


class Decorated(Around, WindowSource):
    """A dataset, a buffer or a wrapper of one, each of whose batches goes through functions.

    Methods that the data does not have raise its AttributeError.

    Args:
        data: what to sample from.
        functions: called in this order as ``function(batch, generator)``; each returns a batch.
            They may write into the arrays that they get; to use other arrays, call
            `dataclasses.replace`. What is random in them comes from `generator`: one per batch,
            which follows from the data's random state, so the same seed gives the same batches,
            also after resuming. A function with a method ``check(settings)`` can refuse the
            settings there. They are called when a batch is requested, also if the data reads
            ahead.

    Raises:
        SchemaError: something that is not such a function, or does not fit the data.

    Attributes:
        data: as given.
        functions: as given.
    """

    def __init__(self, data: Source, *functions: Function) -> None:
        given: tuple[Any, ...] = functions
        for function in given:
            if isinstance(function, type):
                raise SchemaError(
                    f"functions: expected functions of (batch, generator), found {function!r}; "
                    f"create an instance of it, as in RandomShift(4)"
                )
            check_takes("functions", function, "batch", "generator")
            if hasattr(function, "check"):
                function.check(data.settings)
        super().__init__(data)
        self.functions = functions
        self.schema = _schema_of(data)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        batch: Batch = self.data.sample(size, replace=replace, group=group)
        return self._decorated(batch, out)

    def _sample_windows(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        batch: SequenceBatch = self.data.sample_sequences(size, *dataclasses.astuple(windows))
        return self._decorated(batch, out)

    def transitions(self, ids: npt.ArrayLike, out: Batch | None = None) -> Batch:
        """The transitions with these ids, (B,) integers, in `out` if given.

        Raises:
            InvalidIdError: an id that is not a valid transition, named.
        """
        return self._decorated_undrawn(self.data.transitions(ids), out)

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        batches = self.data.batches(**dataclasses.asdict(given))
        return (self._decorated_undrawn(batch) for batch in batches)

    def _decorated_undrawn(self, batch: Batch, out: Batch | None = None) -> Batch:
        """As `_decorated`, of a batch for which the data drew no random number."""
        draw_seed(self.generator)  # so that the functions draw others for the next batch
        return self._decorated(batch, out)

    def _decorated(self, batch: AnyBatch, out: AnyBatch | None) -> AnyBatch:
        """A batch passed through all functions, in `out` if given."""
        batch = _unshared(batch)
        generator = own_generator(self)
        for function in self.functions:
            result: Any = function(batch, generator)
            if not isinstance(result, type(batch)) or len(result) != len(batch):
                raise SchemaError(
                    f"{function!r}: expected it to return a batch of {len(batch)}, found "
                    f"{type(result).__name__}; return the batch, also if it was changed in place, "
                    f"or dataclasses.replace(batch, reward=...) with another array"
                )
            batch = result
        return batch if out is None else _fill(out, batch)

    def __repr__(self) -> str:
        return f"<mmreplay.Decorated {self.data!r} {list(self.functions)!r}>"


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
        if mark in schema.extra_fields:
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
        batch = _concatenated(parts, [self.data[number] for number in some])
        batch.extras[self._mark] = np.arange(len(counts)).repeat(counts)
        return batch if out is None else _fill(out, batch)

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


def _check_alike(data: Sequence[Source]) -> Schema:
    """The schema of all sources; arrays of decorated ones are compared in each batch."""
    first = data[0]
    schema = _schema_of(first)
    for other in data[1:]:
        if not schema.same_data(_schema_of(other)):
            raise SchemaError(
                f"expected sources with the same columns, but {other!r} differs from "
                f"{first!r}: {schema.differences(_schema_of(other))}"
            )
        if other.settings != first.settings:
            raise SchemaError(
                f"expected sources with the same settings, found {first.settings} in {first!r} "
                f"and {other.settings} in {other!r}"
            )
    return schema


def _schema_of(source: object) -> Schema:
    """The schema of a source's batches; SchemaError if it is not a source."""
    schema = getattr(source, "schema", None)
    if schema is None:
        schema = getattr(getattr(source, "store", None), "schema", None)
    if not isinstance(schema, Schema) or not callable(getattr(source, "sample", None)):
        raise SchemaError(
            f"data: expected what mmreplay.load returns, a replay buffer, or a wrapper of one, "
            f"found {source!r}"
        )
    return schema


def _unshared(batch: AnyBatch) -> AnyBatch:
    """The same batch, with observations that are writeable and do not share memory."""
    seen, following = batch.observation, batch.next_observation
    if isinstance(seen, dict) and isinstance(following, dict):
        pairs = {key: _own(seen[key], following[key]) for key in seen}
        seen = {key: pair[0] for key, pair in pairs.items()}
        following = {key: pair[1] for key, pair in pairs.items()}
    else:
        seen, following = _own(seen, following)
    return dataclasses.replace(batch, observation=seen, next_observation=following)


def _own(seen: Any, following: Any) -> tuple[Array, Array]:
    if np.may_share_memory(seen, following):
        following = following.copy()
    return seen if seen.flags.writeable else seen.copy(), following


def _concatenated(batches: Sequence[Batch], sources: Sequence[object]) -> Batch:
    """The rows of several batches, one batch after the other, from these sources."""
    parts = [arrays_of(batch) for batch in batches]
    kinds = [_kinds(part, from_axis=1) for part in parts]
    for source, kind in zip(sources, kinds, strict=True):
        if kind != kinds[0]:
            raise SchemaError(
                f"expected batches with the same arrays, found {_difference(kinds[0], kind)} from "
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


def _fill(out: object, batch: AnyBatch) -> AnyBatch:
    """Copy a batch into `out`; SchemaError if their arrays differ in shape or dtype."""
    if not isinstance(out, type(batch)):
        raise SchemaError(f"out: expected a {type(batch).__name__}, found {type(out).__name__}")
    arrays, expected = (
        {key: one for key, one in arrays_of(each).items() if isinstance(one, np.ndarray)}
        for each in (out, batch)
    )
    kinds = _kinds(expected), _kinds(arrays)
    if kinds[0] != kinds[1] or not all(array.flags.writeable for array in arrays.values()):
        raise SchemaError(
            f"out: expected a batch of {len(batch)} that this object returned with the same "
            f"settings, found {_difference(*kinds)}; call once without out= and pass what came back"
        )
    for key, array in arrays.items():
        np.copyto(array, expected[key])
    return out


def _kinds(arrays: dict[str, Any], from_axis: int = 0) -> dict[str, str]:
    """Dtype and shape of each array, in words."""
    return {key: f"{one.dtype} {one.shape[from_axis:]}" for key, one in arrays.items()}


def _difference(first: dict[str, str], second: dict[str, str]) -> str:
    """In words: the first array that differs."""
    for key in [*first, *second]:
        if first.get(key) != second.get(key):
            return f"{key}: {first.get(key, 'none')} and {second.get(key, 'none')}"
    return "arrays that are read-only"
