"""The episodes that the page shows, each by the id of its first transition: length, rows, stacks.

Invariant: damaged rows are reported, and the rows around them are returned. Transitions come from
the gatherer and index of `Store.transitions`; only the columns of frames are replaced, by one whose
rows are their own ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import EPISODE_DTYPE, Index, Steps
from mmreplay.errors import CorruptStoreError, InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.episode_columns import joined_tables
from mmreplay.reading.store import Store
from mmreplay.schema import Schema
from mmreplay.viewer.shown_columns import ShownColumn, read_priorities
from mmreplay.viewer.viewed_store import GoneError

_PIECES = 64  # into how many pieces rows are divided, at most, to find the damaged ones

Damage = list[tuple[int, int, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Episode:
    """An episode from its oldest retained step on, whose id is `first`.

    It has `length` steps from there on, and `evicted` before; `end` is as of `Store.endings`.
    """

    first: int
    length: int
    end: str
    evicted: int


def kept_episodes(store: Store) -> tuple[npt.NDArray[np.void], Ids]:
    """All episodes, as `Store.episodes`, and how many steps of each were evicted, (n,).

    A partly evicted one comes last: its return is NaN, its fields are 0 or "".
    """
    firsts = back = np.empty(0, np.int64)

    def drawn(index: Index) -> Ids:
        nonlocal firsts, back
        found = []
        for lane in range(index.n_lanes):
            listed = index.episodes(lane)
            found.append(listed.firsts(np.flatnonzero((listed.steps > 0) & ~listed.whole())))
        firsts = np.sort(np.concatenate(found))
        back = index.span(firsts).back
        return firsts

    # Before the whole ones: an episode that is partly evicted in between must not appear twice.
    left = store.live.lazy_trajectories(drawn)
    whole = store.episodes
    cut = np.zeros(len(left), EPISODE_DTYPE)
    cut["id"], cut["return"] = firsts, np.nan
    for name, values in (
        ("length", map(len, left)),
        ("terminated", (one.terminated for one in left)),
        ("truncated", (one.truncated for one in left)),
    ):
        cut[name] = [*values]
    evicted = np.concatenate([np.zeros(whole.size, np.int64), back])
    return joined_tables([whole, cut]), evicted


def find_episode(store: Store, first: int) -> Episode:
    """The episode whose first retained transition has this id; GoneError or InvalidIdError."""
    lane = first >> LANE_SHIFT
    n_lanes = len(store.live.readers)
    evicted = 0
    if not 0 <= lane < n_lanes:
        raise InvalidIdError(f"No episode begins with id {first}: there is no lane {lane}.")

    def drawn(index: Index) -> Ids:
        nonlocal evicted
        _, oldest, _ = index.window(lane)
        if first & ROW_MASK < oldest:
            raise GoneError(
                f"The episode with id {first}, or its beginning, was evicted: the capacity of this "
                f"store keeps only newer ones."
            )
        ids = np.array([first], np.int64)
        if index.invalid(ids)[0] or (span := index.span(ids)).oldest[0]:
            raise InvalidIdError(f"No episode begins with id {first}.")
        evicted = int(span.back[0])
        return ids

    (found,) = store.live.lazy_trajectories(drawn)
    row = np.zeros(1, EPISODE_DTYPE)
    row[0] = (first, len(found), 0, found.terminated, found.truncated)
    return Episode(first, len(found), str(store.endings(row)[0]), evicted)


def read_rows(
    store: Store, episode: Episode, column: ShownColumn, start: int, stop: int
) -> tuple[Array, Damage]:
    """Rows [start, stop) of an episode in one column, and (start, stop, why) of damaged ones.

    Row 0 is the first retained one; damaged rows are zeros. SchemaError for more rows than the
    episode or a block has, GoneError if it was evicted meanwhile.
    """
    rows = episode.length + (column.kind == "frame")
    if not 0 <= start < stop <= rows or stop - start > column.block:
        raise SchemaError(
            f"{column.name}: expected at most {column.block} of {rows} rows, found "
            f"[{start}, {stop})"
        )
    if column.kind == "priority":
        stride = store.live.readers[episode.first >> LANE_SHIFT].n
        ids = episode.first + np.arange(start, stop, dtype=np.int64) * stride
        return read_priorities(store, ids), []
    try:
        return _read(store, episode, column, start, stop, max((stop - start) // _PIECES, 1))
    except InvalidIdError as error:
        raise GoneError(f"This episode was evicted while it was read. {error}") from error


def _read(
    store: Store, episode: Episode, column: ShownColumn, start: int, stop: int, least: int
) -> tuple[Array, Damage]:
    """As `read_rows`; halves damaged parts down to `least` rows."""
    try:
        return store.live.episode_rows([column.path], episode.first, start, stop)[0], []
    except CorruptStoreError as error:
        if stop - start <= least:
            zeros = np.zeros((stop - start, *column.shape), column.dtype)
            return zeros, [(start, stop, str(error))]
    middle = (start + stop) // 2
    left, damage = _read(store, episode, column, start, middle, least)
    right, more = _read(store, episode, column, middle, stop, least)
    return np.concatenate([left, right]), [*damage, *more]


_ZEROS, _BEFORE = -1, -2


def stacks_of(
    store: Store, first: int, start: int, stop: int, settings: Settings
) -> dict[str, Array]:
    """The transitions [start, stop) of the episode that `find_episode` finds for id `first`.

    ``seen`` and ``following`` (B, k) int32 are the frames of observations, numbered from the first
    retained one of the episode; -1 is a frame of zeros, -2 one before the retained steps. The other
    columns are as in a `Batch`. InvalidIdError if one is not a transition.
    """
    live = store.live
    reader = live.readers[first >> LANE_SHIFT]
    ids = first + np.arange(start, stop, dtype=np.int64) * reader.n
    gatherer = _Places(store.schema, live.gatherer(settings))
    batch = live.gather(live.valid_ids(ids), gatherer)
    places = [batch.observation, batch.next_observation]
    if isinstance(places[0], dict):  # all keys have the same frames
        places = [next(iter(one.values())) for one in places]  # type: ignore[union-attr]
    seen, following = (_frames(first, reader.n, gatherer.last, np.asarray(one)) for one in places)
    # The page has no numbers of 64 bits.
    return {
        "seen": seen.astype(np.int32),
        "following": following.astype(np.int32),
        "reward": batch.reward,
        "discount": batch.discount,
        "non_terminal": batch.non_terminal,
    }


def _frames(first: int, stride: int, last: int, places: Array) -> Ids:
    """The frame numbers of the rows of a `_PlaceColumn`."""
    is_final = (places - 1) >> LANE_SHIFT != first >> LANE_SHIFT
    frames = np.where(is_final, (last - first) // stride + 1, (places - 1 - first) // stride)
    return np.where(places == 0, _ZEROS, np.where(frames < 0, _BEFORE, frames))


class _PlaceColumn:
    """A column of frames whose rows are their own ids, plus 1: zeros are padding."""

    row_shape: tuple[int, ...] = ()
    dtype = np.dtype(np.int64)

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """As any column."""
        if out is None:
            return ids + 1
        np.add(ids, 1, out=out)
        return out


class _Places:
    """A gatherer with ids in place of frames; `last` is that of the episode's last step."""

    def __init__(self, schema: Schema, gatherer: TransitionGatherer) -> None:
        self._paths, self._gatherer = schema.frame_paths.values(), gatherer
        self.last = 0

    def locate(self, index: Index, ids: Ids, /) -> Steps:
        """As `TransitionGatherer`."""
        return self._gatherer.locate(index, ids)

    def fetch(self, columns: Mapping[str, Any], places: Steps, out: Batch | None, /) -> Batch:
        """As `TransitionGatherer`."""
        replaced = dict.fromkeys(self._paths, _PlaceColumn())
        for one in places.over[:1].tolist():  # all of them have the same last step
            until: Any = places.until
            self.last = int(places.at(until[:, None] - 1)[one, 0])
        return self._gatherer.fetch({**columns, **replaced}, places, out)
