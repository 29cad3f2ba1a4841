"""Chooses episodes by return, number and environment.

Invariant: episodes are chosen whole, and stay in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import mask_of
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import environments

__all__ = ["Choice", "EpisodeNumbers", "choose"]

Choice = npt.NDArray[np.void]
EpisodeNumbers = npt.ArrayLike | Callable[[npt.NDArray[np.void]], npt.ArrayLike]
"""Numbers of episodes, a mask over all of them, or a function of the table that returns either."""


def choose(
    table: npt.NDArray[np.void],
    widths: Sequence[int],
    *,
    min_return: float | None,
    episodes: EpisodeNumbers | None,
    envs: Iterable[int] | None,
) -> Choice:
    """The chosen episodes, in the order of the table.

    Args:
        table: (n,) of `Store.episodes`.
        widths: environments of each lane.
        min_return: least return.
        episodes: which episodes.
        envs: which environments, counted over all lanes.

    Raises:
        SchemaError: there is no such episode or environment, or an argument is not valid.
        EmptyBufferError: no episode is chosen.
    """
    mask = np.ones(len(table), np.bool_)
    if min_return is not None:
        mask &= table["return"] >= _number(min_return)  # NaN is not
    if episodes is not None:
        given = episodes(table) if callable(episodes) else episodes
        mask &= mask_of("episodes", given, len(table), "episodes")
    if envs is not None:
        wanted = mask_of("envs", _listed(envs), sum(widths), "environments")
        mask &= wanted[environments(table["id"], widths)]
    if not mask.any():
        best = np.nanmax(table["return"], initial=-math.inf)
        more = f"; the greatest return is {best:g}" if best > -math.inf else ""
        raise EmptyBufferError(
            f"none of {len(table):,} whole episodes was chosen{more}: choose others"
        )
    out: Choice = table[mask]
    return out


def _listed(envs: Any) -> Any:
    return list(envs) if isinstance(envs, Iterable) else envs


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise SchemaError(f"min_return: expected a number, found {value!r:.80}")
    return number
