"""`Batch`: transitions as arrays; and the columns that they are read from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids
from mmreplay.pictures import strip_png

Observation = Array | dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """Transitions as arrays, the batch axis first.

    Attributes:
        observation: (B, k, *frame) as stored, or a dict of these; no k axis for ``stack=None``;
            (B, *frame, k) for ``stack_axis=-1``.
        next_observation: the same after m steps. Both may share memory.
        action: (B, *action) as stored.
        reward: (B,) n-step returns in the rewards' dtype.
        discount: (B,) gamma ** m * non_terminal, in the rewards' dtype.
        non_terminal: (B,) bool.
        id: (B,) int64, lane << 40 | row * N + environment.
        weight: (B,) float32 importance weights; 1 if sampled uniformly.
        extras: the declared extra columns, (B, ...) each.
        terminated: (B,) bool, whether the last of the m steps ended its episode as terminated.
        truncated: (B,) bool, whether as truncated. Both are False in the middle of an episode,
            also after a lost life, and at the end of a running one.
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    discount: Array
    non_terminal: npt.NDArray[np.bool_]
    id: Ids
    weight: npt.NDArray[np.float32]
    extras: dict[str, Array]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        return shapes_of(self)

    def _repr_png_(self) -> bytes | None:
        return strip_png(self.observation)


class Column(Protocol):
    """Rows by id."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id, copied, into `out` if given."""


def fields_of(batch: Any) -> dict[str, Any]:
    """The fields of a batch or trajectory by name."""
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value, or those in nested dicts, changed."""
    if isinstance(value, dict):
        return {name: with_each(one, change) for name, one in value.items()}
    return change(value)


def arrays_of(batch: Any) -> dict[str, Any]:
    """Every array of a batch by its name, as in ``extras['x']``."""
    return {name: one for pair in fields_of(batch).items() for name, one in _named(*pair)}


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, one in value.items():
        yield from _named(f"{name}[{key!r}]", one)


def shapes_of(batch: Any) -> str:
    """A batch in a line: the shape and dtype of each array, and other values."""
    parts = [
        f"{name}={one.dtype}{list(one.shape)}" if hasattr(one, "shape") else f"{name}={one!r}"
        for name, one in arrays_of(batch).items()
    ]
    return f"{type(batch).__name__}({', '.join(parts)})"
