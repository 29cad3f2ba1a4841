"""What draws have in common: a seed of their own, and errors that name the store.

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

__all__ = ["draw_seed", "naming"]

T = TypeVar("T")


def draw_seed(generator: np.random.Generator) -> int:
    """For a draw that needs more numbers than are known before."""
    return int(generator.integers(1 << 62))


def naming(path: Path, draw: Callable[[Index], T]) -> Callable[[Index], T]:
    """The same draw, whose errors say which store it is."""

    def named(index: Index) -> T:
        try:
            return draw(index)
        except (EmptyBufferError, SchemaError) as error:
            raise type(error)(f"{path}: {error}") from None

    return named
