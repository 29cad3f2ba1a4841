"""Lives left, as environments tell them; for those who take a lost life for the end of a game."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError


def lives_of_one(told: object) -> int:
    """The ``lives`` of an info; SchemaError if it has none."""
    if not isinstance(told, (int, np.integer)):
        raise SchemaError(
            "life_loss: the environment's info has no 'lives'; leave life_loss out for it"
        )
    return int(told)


def lives_of_all(told: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """(N,) a copy of the ``lives`` of the infos of a vector environment; SchemaError for none."""
    if told is None:
        raise SchemaError(
            "life_loss: the environment's infos have no 'lives'; leave life_loss out for it"
        )
    return np.array(told)  # the environment may hand out the same array again and again
