"""`Decorated`: batches passed through functions.

Invariant: a function sees each batch once, in memory that belongs to nobody else: not to the
caller's `out`, and the next observation not to the observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.combine import AnyBatch, fill, schema_of, unshared
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Around, Source, WindowSource
from mmreplay.datasets.store_draws import draw_seed, own_generator
from mmreplay.errors import SchemaError
from mmreplay.sampling.windows import Windows
from mmreplay.schema import Schema

Function = Callable[[Any, np.random.Generator], Any]
"""Takes a whole batch, and the generator for whatever it draws; returns a batch."""


class Decorated(Around, WindowSource):
    """A dataset, a buffer, or something around one, each of whose batches goes through functions.

    Args:
        data: what to sample from.
        functions: called in this order as ``function(batch, generator)``; each returns a batch.
            They may write into the arrays that they are given. To put other arrays into their
            place, use `dataclasses.replace`. What is random in them comes from `generator`: one for
            each batch, which follows from the data's random state, so that the same seed gives the
            same batches, also after resuming. A function with a method ``check(settings)`` is asked
            to raise if it does not fit the settings. They are called when a batch is asked for,
            also where the data reads ahead.

    Raises:
        SchemaError: something that is no function, or does not fit the data.

    Attributes:
        data: as given.
        functions: as given.
    """

    update_priorities: Callable[..., Any]
    """The data's own, where it has one."""

    def __init__(self, data: Source, *functions: Function) -> None:
        given: tuple[Any, ...] = functions
        for function in given:
            if not callable(function) or isinstance(function, type):
                raise SchemaError(
                    f"functions: expected functions of a batch and a generator, found "
                    f"{function!r}; a class of mmreplay.transforms is called first, as in "
                    f"RandomShift(4)"
                )
            check = getattr(function, "check", None)
            if check is not None:
                check(data.settings)
        self.data = data
        self.functions = functions
        self.schema: Schema = schema_of(data)
        if hasattr(data, "update_priorities"):
            self.update_priorities = data.update_priorities

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        return self._decorated(self.data.sample(size, replace=replace, group=group), out)

    def _sample_windows(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        """Functions get, and return, the whole `SequenceBatch`."""
        draw = self._attribute_of_data("sample_sequences")
        batch: SequenceBatch = draw(size, *dataclasses.astuple(windows))
        return self._decorated(batch, out)

    def transitions(self, ids: npt.ArrayLike, out: Batch | None = None) -> Batch:
        """The transitions with these ids; of data that has them.

        Args:
            ids: (B,) integers.
            out: a batch that this object returned for as many; overwritten and returned.

        Raises:
            InvalidIdError: an id that is no valid transition, named.
        """
        batch: Batch = self._attribute_of_data("transitions")(ids)
        return self._decorated_undrawn(batch, out)

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        batches = self._attribute_of_data("batches")(**dataclasses.asdict(given))
        return (self._decorated_undrawn(batch, None) for batch in batches)

    def _decorated_undrawn(self, batch: Batch, out: Batch | None) -> Batch:
        """As `_decorated`, of a batch for which the data took no number from its generator."""
        draw_seed(self.generator)  # so that the functions draw others for the next batch
        return self._decorated(batch, out)

    def _decorated(self, batch: AnyBatch, out: AnyBatch | None) -> AnyBatch:
        """A new batch passed through all functions, in `out` if given."""
        batch = unshared(batch)
        generator = own_generator(self)
        for function in self.functions:
            result: Any = function(batch, generator)
            if not isinstance(result, type(batch)) or len(result) != len(batch):
                raise SchemaError(
                    f"{function!r}: expected to get a batch of {len(batch)} back, found "
                    f"{type(result).__name__}; return it, also if it was changed in place, or "
                    f"dataclasses.replace(batch, reward=...) with another array"
                )
            batch = result
        return batch if out is None else fill(out, batch)

    def __repr__(self) -> str:
        return f"<mmreplay.Decorated {self.data!r} {list(self.functions)!r}>"
