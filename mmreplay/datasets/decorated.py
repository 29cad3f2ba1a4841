"""`Decorated`: batches passed through functions.

Invariant: a function sees each batch once, in memory that is its own: it shares none with the
caller's `out`, and the next observation shares none with the observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_takes
from mmreplay.batches.batch import Batch
from mmreplay.batches.combine import AnyBatch, fill, schema_of, unshared
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Around, Source, WindowSource
from mmreplay.datasets.store_draws import draw_seed, own_generator
from mmreplay.errors import SchemaError
from mmreplay.sampling.windows import Windows

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
        self.schema = schema_of(data)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        batch: Batch = self.data.sample(size, replace=replace, group=group)
        return self._decorated(batch, out)

    def _sample_windows(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        batch: SequenceBatch = self.data.sample_sequences(size, *dataclasses.astuple(windows))
        return self._decorated(batch, out)

    def transitions(self, ids: npt.ArrayLike, out: Batch | None = None) -> Batch:
        """The transitions with these ids.

        Args:
            ids: (B,) integers.
            out: a batch that this object returned for the same B; overwritten and returned.

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
        batch = unshared(batch)
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
        return batch if out is None else fill(out, batch)

    def __repr__(self) -> str:
        return f"<mmreplay.Decorated {self.data!r} {list(self.functions)!r}>"
