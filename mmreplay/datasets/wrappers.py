"""`Decorated`: a source whose batches go through functions.

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
from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import AnyBatch, FieldWindows, WindowBatch
from mmreplay.datasets.around import Around
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Source, Windowed, WindowSource
from mmreplay.datasets.store_draws import draw_seed, own_generator
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.sampling.draws import Windows
from mmreplay.schema import Schema

Function = Callable[[Any, np.random.Generator], Any]
"""Takes a whole batch, and the generator for its draws; returns a batch."""


class Decorated(Around["Decorated"], WindowSource["Decorated"]):
    """A dataset, a buffer or a wrapper of one, each of whose batches goes through functions.

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

    _lacks = "its functions change batches and nothing else; for what is stored, use its `data`"
    schema: Schema

    def __init__(self, data: Source, *functions: Function) -> None:
        given: tuple[Any, ...] = functions
        for function in given:
            if isinstance(function, type):
                raise SchemaError(
                    f"functions: expected functions of (batch, generator), found {function!r}; "
                    f"create an instance of it, as in RandomShift(4)"
                )
            check_takes("functions", function, "batch", "generator")
        self.schema = schema_of(data)
        super().__init__(data)
        self.functions = functions
        self._check(data.settings)

    def _check(self, settings: Settings) -> None:
        """Let the functions refuse these settings."""
        for function in self.functions:
            if hasattr(function, "check"):
                function.check(settings)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        return self._decorated(self.data.sample(size, replace=replace, group=group), out)

    def _sample_sequences(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        batch = self.data.sample_sequences(size, **windows.arguments())
        return self._decorated(batch, out)

    def _sample_portions(self, size: int, windows: Windows) -> SequenceBatch:
        return self._decorated(self.data.sample_portions(size, windows.length), None)

    def _transitions(self, ids: npt.ArrayLike, out: Batch | None, changes: dict[str, Any]) -> Batch:
        self._check(dataclasses.replace(self.settings, **changes))
        return self._decorated_undrawn(self.data.transitions(ids, **changes), out)

    def field_windows(self, windows: Windowed, boundary: str) -> FieldWindows:
        """See `WindowSource`."""
        fields: FieldWindows = self.data.field_windows(windows, boundary)
        return fields

    def _sample_windows(
        self, size: int, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        batch: WindowBatch = self.data.sample_windows(size, fields)
        return self._decorated(batch, out)

    def _windows(
        self, ids: npt.ArrayLike, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        batch: WindowBatch = self.data.windows(ids, fields)
        return self._decorated_undrawn(batch, out)

    def _window_batches(self, given: EpochArguments, fields: FieldWindows) -> Iterator[WindowBatch]:
        batches = self.data.window_batches(windows=fields, **dataclasses.asdict(given))
        return (self._decorated_undrawn(batch) for batch in batches)

    def _batches(self, given: EpochArguments, windows: Windows | None) -> Iterator[Any]:
        method: Any = self.data.batches if windows is None else self.data.sequence_batches
        of_windows = {} if windows is None else windows.arguments()
        batches = method(**dataclasses.asdict(given), **of_windows)
        return (self._decorated_undrawn(batch) for batch in batches)

    def _decorated_undrawn(self, batch: AnyBatch, out: AnyBatch | None = None) -> AnyBatch:
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
        return batch if out is None else fill(out, batch)

    def __repr__(self) -> str:
        return f"<mmreplay.Decorated {self.data!r} {list(self.functions)!r}>"


def schema_of(source: object) -> Schema:
    """The schema of a source's batches; SchemaError if it is not a source."""
    if not isinstance(source, Source):
        raise SchemaError(
            f"data: expected what mmreplay.load returns, a replay buffer, or a wrapper of one, "
            f"found {source!r}"
        )
    return source.schema


def _unshared(batch: Any) -> Any:
    """The same batch, with observations that are writeable and do not share memory."""
    if isinstance(batch, WindowBatch):
        return batch
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


def fill(out: object, batch: AnyBatch) -> AnyBatch:
    """Copy a batch into `out`; SchemaError if their arrays differ in shape or dtype."""
    if not isinstance(out, type(batch)):
        raise SchemaError(f"out: expected a {type(batch).__name__}, found {type(out).__name__}")
    arrays, expected = (
        {key: one for key, one in arrays_of(each).items() if isinstance(one, np.ndarray)}
        for each in (out, batch)
    )
    found = kinds(expected), kinds(arrays)
    if found[0] != found[1] or not all(array.flags.writeable for array in arrays.values()):
        raise SchemaError(
            f"out: expected a batch of {len(batch)} that this object returned with the same "
            f"settings, found {difference(*found)}; call once without out= and pass what came back"
        )
    for key, array in arrays.items():
        np.copyto(array, expected[key])
    return out


def kinds(arrays: dict[str, Any], from_axis: int = 0) -> dict[str, str]:
    """Dtype and shape of each array, in words."""
    return {key: f"{one.dtype} {one.shape[from_axis:]}" for key, one in arrays.items()}


def difference(first: dict[str, str], second: dict[str, str]) -> str:
    """In words: the first array that differs."""
    for key in [*first, *second]:
        if first.get(key) != second.get(key):
            return f"{key}: {first.get(key, 'none')} and {second.get(key, 'none')}"
    return "arrays that are read-only"
