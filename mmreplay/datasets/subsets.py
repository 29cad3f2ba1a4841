"""Which transitions `Dataset.select` and `Dataset.split` choose.

Invariant: what is chosen could be sampled by the dataset when it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import mask_of
from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, InvalidIdError, SchemaError
from mmreplay.ids import Ids, distinct
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.store import Store
from mmreplay.sampling.episode_sums import EpisodeSums
from mmreplay.sampling.selection import Keys, Selection

Episodes = npt.NDArray[np.void]
EpisodeChoice = npt.ArrayLike | Callable[[Episodes], npt.ArrayLike]
"""A mask over `Dataset.episodes`, numbers in it, or a function of it that returns either."""
IdChoice = npt.ArrayLike | Callable[[Ids], npt.ArrayLike]
"""Ids, a mask over `Dataset.ids`, or a function of them that returns either."""


def episode_table(store: Store, selection: Selection | None) -> Episodes:
    """The whole episodes of a store, or those whose steps are all selected."""
    known = store.episodes_by_environment()
    if selection is not None:
        check_lanes(selection, store.live)
        known = known[selection.runs_of(known["id"], known["length"]) >= 0]
    return known


def chosen(
    store: Store,
    selection: Selection | None,
    episodes: EpisodeChoice | None,
    ids: IdChoice | None,
    every_id: Callable[[], Ids],
) -> Selection:
    """What is chosen of a store or a selection with these ids; see `Dataset.select`."""
    if episodes is None and ids is None:
        raise SchemaError(
            "select: expected episodes= or ids=: a mask, numbers, or a function that returns either"
        )
    out = selection
    if episodes is not None:
        table = episode_table(store, selection)
        given = episodes(table) if callable(episodes) else episodes
        table = table[mask_of("episodes", given, len(table), "episodes")]
        out = _of_runs(store.live, np.ascontiguousarray(table["id"]), table["length"])
    if ids is not None:
        wanted = _wanted(store, selection, ids, every_id)
        if out is not None:
            wanted = wanted[out.runs_of(wanted) >= 0]
        out = store.live.look(lambda index: _of_ids(store.live, index, wanted))
    if out is None or not out.keys.size:
        raise EmptyBufferError(
            f"{store.path}: nothing is selected of {len(store):,} transitions in "
            f"{len(store.episodes):,} whole episodes; `episodes` and `ids` list what there is"
        )
    return out


def parts(
    store: Store, selection: Selection | None, fraction: float, seed: int
) -> tuple[Selection, Selection]:
    """Two parts of the episodes of a store, or of a selection; see `Dataset.split`."""
    checked: Any = fraction
    if not isinstance(checked, (float, np.floating)) or not 0 < checked < 1:
        raise SchemaError(
            f"fraction: expected the share of the first part, above 0 and below 1; found "
            f"{fraction!r:.80}"
        )

    def read(index: Index) -> tuple[Selection, Ids]:
        if selection is None:  # all episodes with a step that can be sampled
            sums = EpisodeSums(lambda steps: np.asarray(steps > 0, np.int64))
            firsts, steps, _, _ = sums.at(np.arange(sums.follow(index)))
            now = _of_runs(store.live, firsts, steps)
        else:
            now = selection.now(index)
        return now, now.keys - index.span(now.firsts()).back

    whole, begins = store.live.look(read)
    # Runs of one episode stay together: they follow one another, with the same begin.
    numbers = (np.diff(begins, prepend=-1) != 0).cumsum() - 1
    n = int(numbers[-1]) + 1 if numbers.size else 0
    if n < 2:  # noqa: PLR2004 (two parts)
        raise SchemaError(
            f"{store.path}: split: expected two episodes or more, one for each part; found {n}"
        )
    size = min(max(round(n * float(fraction)), 1), n - 1)
    is_mine = np.zeros(n, np.bool_)
    is_mine[np.random.default_rng(seed).permutation(n)[:size]] = True
    mine = is_mine[numbers]
    return whole.taken(mine), whole.taken(~mine)


def check_lanes(selection: Selection, live: LiveLanes) -> None:
    """Raise SchemaError if a selection is of other lanes than the present ones."""
    live.check_same(selection.uuids, "that was selected from", "select again")


def _environments(live: LiveLanes) -> list[int]:
    return [reader.n for reader in live.readers]


def _of_runs(live: LiveLanes, firsts: Ids, steps: Ids) -> Selection:
    """Runs of steps, by the ids of their first steps, in any order."""
    keys = Keys(_environments(live)).of(firsts)
    order = keys.argsort(kind="stable")
    return Selection(keys[order], steps[order], _environments(live), live.uuids)


def _wanted(
    store: Store, selection: Selection | None, ids: IdChoice, every_id: Callable[[], Ids]
) -> Ids:
    """The requested ids; raises InvalidIdError for one that cannot be sampled."""
    given: Any = ids
    every = None
    if callable(ids):
        every = every_id()
        given = ids(every)
    array = np.asarray(given)
    if array.dtype == np.bool_:
        every = every_id() if every is None else every  # once: a writer may continue meanwhile
        if array.shape != every.shape:
            raise SchemaError(
                f"ids: expected a bool for each of {every.size:,} ids; found {array.shape}"
            )
        return np.asarray(every[array])
    wanted = distinct(store.live.checked_ids(given))
    store.live.look(store.live.valid_ids(wanted))
    if selection is not None:
        outside = wanted[selection.runs_of(wanted) < 0]
        if outside.size:
            raise InvalidIdError(
                f"{store.path}: id {outside[0]} is not among the transitions that were selected "
                f"before; see ids"
            )
    return wanted


def _of_ids(live: LiveLanes, index: Index, ids: Ids) -> Selection:
    """Runs of consecutive ids, each of one episode, without evicted ones."""
    ids = ids[~index.invalid(ids)]
    lanes = _environments(live)
    keys = Keys(lanes).of(ids)
    order = keys.argsort(kind="stable")
    keys = keys[order]
    begins = keys - index.span(ids[order]).back  # of the episode
    is_first = (np.diff(keys, prepend=-2) != 1) | (np.diff(begins, prepend=-1) != 0)
    firsts = is_first.nonzero()[0]
    return Selection(keys[firsts], np.diff(firsts, append=keys.size), lanes, live.uuids)
