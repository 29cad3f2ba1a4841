"""What all draws from a store share: `Draw`, a seed for each, and errors that name the store.

Invariant: all numbers that a draw needs are taken from the generator once, before the store is
read, however often that has to be done again.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from mmreplay.episode_index import Index, Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.kept_frames import KeptFrames
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.located import LateRebuilder
from mmreplay.sampling.grouped import grouped_ids

T = TypeVar("T")
Read = TypeVar("Read")


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that takes longer for each batch
class Draw(Generic[Read]):
    """One batch, for which all random numbers are drawn.

    Attributes:
        choose: the ids, from the index as it is when it is called; the same numbers give the same
            ids of the same index. It must not hold the dataset, or the two would keep each other,
            and the store's maps, alive.
        gatherer: rebuilds them.
        finish: called with the batch once it is given, in the thread that gets it.
        kept: with which the frames stay that are decoded for it; None if they do not.
    """

    choose: Callable[[Index], Ids]
    gatherer: LateRebuilder[Any, Read]
    finish: Callable[[Read], None] | None = None
    kept: KeptFrames | None = None


def draw_seed(generator: np.random.Generator) -> int:
    """A seed for one draw of which it is not known beforehand how many numbers it takes."""
    return int(generator.integers(1 << 62))


def check_groups(size: int, group: int, *, replace: bool) -> None:
    """Refuse a batch that is no whole number of groups, or is drawn without replacement."""
    if size % group or not replace:
        raise SchemaError(
            f"group: expected groups of which {size:,} transitions are a whole number, drawn with "
            f"replacement; found group={group:,}, replace={replace}"
        )


def draw_groups(
    generator: np.random.Generator, live: LiveLanes, size: int, group: int, *, replace: bool
) -> Callable[[Transitions], Ids]:
    """Draw groups of `group` transitions of a chunk; SchemaError as `check_groups`."""
    check_groups(size, group, replace=replace)
    seed = draw_seed(generator)

    def draw(index: Transitions) -> Ids:
        return grouped_ids(index, live.frame_chunks.at_least(group), size // group, group, seed)

    return draw


def every_id(index: Transitions) -> Ids:
    """All transitions, ascending."""
    return index.ids()


def not_evicted(ids: Ids) -> Callable[[Index], Ids]:
    """Those of the ids that no capacity has evicted since they were listed."""

    def valid(index: Index) -> Ids:
        return np.asarray(ids[~index.invalid(ids)])

    return valid


def state_of_bits(state: Mapping[str, Any], generator: np.random.Generator) -> Any:
    """The random state of a `state_dict`; SchemaError if it is none of this kind of generator."""
    trial = copy.deepcopy(generator).bit_generator
    try:
        trial.state = state["generator"]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        found = f"another: {error!s:.200}"
        if isinstance(error, KeyError) and "generator" not in state:
            found = f"a dict of {', '.join(map(str, state)) or 'nothing'}"
        raise SchemaError(
            f"state: expected what state_dict() returned of a dataset with a "
            f"{type(trial).__name__} generator, found {found:.200}"
        ) from error
    return trial.state


def errors_with_path(path: Path, draw: Callable[[Index], T]) -> Callable[[Index], T]:
    """The same draw, whose errors begin with the store's path."""

    def draw_or_raise(index: Index) -> T:
        try:
            return draw(index)
        except (EmptyBufferError, SchemaError) as error:
            raise type(error)(f"{path}: {error}") from None

    return draw_or_raise
