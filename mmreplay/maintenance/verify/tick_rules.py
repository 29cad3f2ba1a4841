"""What ticks and starts may hold: docs/format.md, "Vector lanes". Pure: arrays in, text out.

Invariant: a rule speaks only of ticks that no writer changes any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.maintenance.verify.row_rules import Problem

OTHER_ENVIRONMENT = "expected an episode whose start names this environment, found another"
OTHER_FIRST_TICK = (
    "expected the first step of an episode in the tick that its start names, found another"
)

Problems = list[tuple[str, Problem]]
"""Each with the column that it is about."""


@dataclass(frozen=True, slots=True)
class Known:
    """The tick before those that are checked: its rows, or None if it is not kept."""

    count: int | None = None
    episodes: Ids | None = None
    ends: Array | None = None


def check_starts(envs: Ids, ticks: Ids, start: int, width: int) -> Problems:
    """The environments and ticks of starts, from row `start` on."""
    rows = np.arange(start, start + len(envs))
    out: Problems = []
    for path, values, stop in (("env", envs, width), ("tick", ticks, (1 << LANE_SHIFT) // width)):
        wrong = rows[(values < 0) | (values >= stop)]
        text = f"expected 0 to {stop - 1:,}, found another"
        out += [(path, one) for one in wrong_ticks(text, wrong, "row")]
    return out


def check_ticks(
    counts: Ids,
    episodes: Ids,
    ends: Array,
    start: int,
    known: Known,
    starts: tuple[int, int],
    start_of: Callable[[Ids], tuple[Ids, Ids]],
) -> tuple[Problems, Known]:
    """The rules for the rows of ticks from `start` on, and what is known after them.

    `counts` (n,), `episodes` and `ends` (n, width); `starts` are the (base, head) of the starts,
    and `start_of` gives environment and tick of those with these numbers.
    """
    present = episodes >= 0
    n_present = present.sum(1)
    out: Problems = []
    before = 0 if known.count is None and start == 0 else known.count
    first = int(counts[0] - n_present[0]) if before is None else before
    steps = np.diff(counts, prepend=first)
    text = "expected the count of the tick before and one for each step, found another"
    out += _named("count", text, steps != n_present, start)
    text = "environments that were left out: expected the step that is theirs, found another"
    out += _named("episode", text, (expected_partners(present, episodes) != episodes).any(1), start)
    out += _check_episodes(episodes, ends, present, start, known, starts, start_of)
    return out, Known(int(counts[-1]), episodes[-1], ends[-1])


def expected_partners(present: npt.NDArray[np.bool_], episodes: Ids) -> Ids:
    """`episode` as it has to be where an environment was left out, and as it is elsewhere."""
    width = present.shape[1]
    is_below = np.arange(width) < present.sum(1)[:, None]
    out = np.where(present, episodes, -1)
    # As many are left out below the number of steps as there are steps from there on.
    out[~present & is_below] = -1 - np.nonzero(present & ~is_below)[1]
    return out


def _check_episodes(
    episodes: Ids,
    ends: Array,
    present: npt.NDArray[np.bool_],
    start: int,
    known: Known,
    starts: tuple[int, int],
    start_of: Callable[[Ids], tuple[Ids, Ids]],
) -> Problems:
    """Where episodes begin and stop."""
    base, head = starts
    is_known = known.episodes is not None or start == 0
    none = np.full(episodes.shape[1], -1, np.int64)
    old = none if known.episodes is None else known.episodes
    before = np.concatenate((old[None], episodes[:-1]))
    ended = np.zeros(ends.shape[1:], ends.dtype) if known.ends is None else known.ends
    ended = np.concatenate((ended[None], ends[:-1])) != 0
    begins = present & (episodes != before)
    goes_on = present & ~begins
    out: Problems = []
    inside = (episodes >= base) & (episodes < head)
    text = f"expected episodes of the starts [{base:,}, {head:,}), found another"
    out += _named("episode", text, (present & ~inside).any(1), start)
    rows, envs = np.nonzero(begins & inside)
    of_env, of_tick = start_of(episodes[rows, envs])
    wrong = np.zeros(len(episodes), bool)
    wrong[rows[of_env != envs]] = True
    out += _named("episode", OTHER_ENVIRONMENT, wrong, start)
    ticks = rows + start
    odd = of_tick != ticks
    if not is_known:  # some began before the oldest tick that is kept
        odd &= (rows > 0) | (of_tick > ticks)
    wrong = np.zeros(len(episodes), bool)
    wrong[rows[odd]] = True
    out += _named("episode", OTHER_FIRST_TICK, wrong, start)
    text = "expected no step of an episode after its end, found one"
    out += _named("ends", text, (goes_on & ended).any(1), start)
    # In the tick before, which may be one of the piece before.
    stopped = (before >= 0) & (episodes != before) & ~ended
    text = "expected 1 in the last step of an episode that stops, found 0"
    out += _named("ends", text, stopped.any(1), start - 1)
    return out


def _named(path: str, text: str, wrong: Any, start: int) -> Problems:
    """One problem of a column about the ticks where `wrong` is set."""
    return [(path, one) for one in wrong_ticks(text, np.flatnonzero(wrong) + start)]


def wrong_ticks(text: str, wrong: Ids, what: str = "tick") -> list[Problem]:
    """One problem about these ticks, if there are any."""
    if not wrong.size:
        return []
    where = f"{what} {wrong[0]:,}"
    if wrong.size > 1:
        where = f"{wrong.size:,} {what}s, the first of them {wrong[0]:,}"
    return [Problem(f"{text} in {where}", (int(wrong[0]), int(wrong[-1]) + 1))]
