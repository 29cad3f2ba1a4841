"""What all draws from a store share: a seed for each, and errors that name the store.

Invariant: all numbers that a draw needs are taken from the generator once, before the store is
read, however often that has to be done again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError

T = TypeVar("T")


def draw_seed(generator: np.random.Generator) -> int:
    """A seed for one draw of which it is not known beforehand how many numbers it takes."""
    return int(generator.integers(1 << 62))


def errors_with_path(path: Path, draw: Callable[[Index], T]) -> Callable[[Index], T]:
    """The same draw, whose errors begin with the store's path."""

    def draw_or_raise(index: Index) -> T:
        try:
            return draw(index)
        except (EmptyBufferError, SchemaError) as error:
            raise type(error)(f"{path}: {error}") from None

    return draw_or_raise
