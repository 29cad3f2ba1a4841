"""`Decorated`: batches passed through functions.

Invariant: a function sees each batch once, in memory that belongs to nobody else: not to the
caller's `out`, and the next observation not to the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.combine import AnyBatch, Source, fill, schema_of, unshared
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.datasets.draws import draw_seed
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.schema import Schema

Function = Callable[[Any, np.random.Generator], Any]
"""Takes a whole batch, and the generator for whatever it draws; returns a batch."""


class Decorated:
    """A dataset, a buffer, or something around one, each of whose batches goes through functions.

    Args:
        data: what to sample from.
        functions: called in this order as ``function(batch, generator)``; each returns a batch.
            They may write into the arrays that they are given. To put other arrays into their
            place, use `dataclasses.replace`. What is random in them comes from `generator`: one for
            each batch, seeded by a number of the data's, so that the same seed gives the same
            batches, also after resuming. A function with a method ``check(settings)`` is asked to
            raise if it does not fit the settings. They are called when a batch is asked for, also
            where the data reads ahead.

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

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the data's."""
        return self.data.settings

    @property
    def generator(self) -> np.random.Generator:
        """What draws: the data's."""
        return self.data.generator

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending; of data that has them."""
        return np.asarray(self._attribute_of_data("ids"), np.int64)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data)

    def sample(
        self,
        batch_size: int,
        out: Batch | None = None,
        *,
        replace: bool = True,
        group: int | None = None,
    ) -> Batch:
        """Draw transitions as the data does.

        Args:
            batch_size: B.
            out: a batch that this object returned for the same B; overwritten and returned.
            replace: whether a transition may come twice in a batch.
            group: m draws groups of m neighbours; see `Dataset.sample`.

        Raises:
            EmptyBufferError: there is no transition yet.
            SchemaError: as of the data.
        """
        return self._decorated(self.data.sample(batch_size, replace=replace, group=group), out)

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        boundary: str = "drop",
        stride: int = 1,
        out: SequenceBatch | None = None,
    ) -> SequenceBatch:
        """Draw windows as the data does, of data that has them; see `Dataset.sample_sequences`.

        Functions get, and return, the whole `SequenceBatch`.
        """
        draw = self._attribute_of_data("sample_sequences")
        batch: SequenceBatch = draw(batch_size, length, burn_in, boundary, stride)
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
        return self._decorated(batch, out)

    def batches(
        self,
        batch_size: int,
        epochs: int | None = 1,
        *,
        shuffle: bool | Literal["full"] = True,
        shuffle_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Every transition once an epoch, of data that has epochs; see `Dataset.batches`."""
        batches = self._attribute_of_data("batches")(
            batch_size,
            epochs,
            shuffle=shuffle,
            shuffle_rows=shuffle_rows,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            epoch=epoch,
        )
        return (self._decorated(batch, None) for batch in batches)

    def _attribute_of_data(self, name: str) -> Any:
        attribute = getattr(self.data, name, None)
        if attribute is None:
            raise SchemaError(f"{self.data!r} has no {name}, so nothing around it has")
        return attribute

    def _decorated(self, batch: AnyBatch, out: AnyBatch | None) -> AnyBatch:
        """A new batch passed through all functions, in `out` if given."""
        batch = unshared(batch)
        # One number of the data's, however many the functions take: batches that the data reads
        # ahead are then drawn from where its generator will stand.
        generator = np.random.default_rng(draw_seed(self.generator))
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
