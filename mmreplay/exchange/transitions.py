"""Flat tables of transitions as steps: where episodes end, and the observation after them.

Invariant: each observation of a run is one of the table's, and the one after the last step is
either the table's own or counted as a loss.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.exchange.losses import Losses
from mmreplay.ids import Array

Frames = dict[str, Array]  # observations by key, (n, *frame) each; a single one under `FRAME`
FinalObservation = Literal["repeat", "drop"]
"""Whether a last step without a known next observation repeats its own, or is left out."""

_REPEATED = (
    "final observations that the source does not have: the last observation of the episode is "
    "repeated"
)
_DROPPED = "last steps of truncated episodes: left out, as the observation after them is missing"
_BROKEN = (
    "observations that do not continue from the step before: the episode is truncated before them"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Consecutive transitions, (n, ...) each; `final` has a row per end of an episode.

    `episode` are its fields; of each episode the row of its first step counts.
    """

    observation: Frames
    action: Array
    reward: Array
    terminal: Array
    ends: Array
    extras: dict[str, Array]
    next_observation: Frames | None = None
    final: Frames | None = None
    episode: dict[str, Array] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)


def to_steps(tables: Iterable[Table], missing: FinalObservation, losses: Losses) -> Iterator[Steps]:
    """The steps of a table in blocks; observations after terminal steps are always repeated."""
    begins = True
    for block, after in itertools.pairwise(itertools.chain(tables, [None])):
        if block is None:
            return
        table = block if block.next_observation is None else _cut(block, after, losses)
        start, n_final = 0, _n_rows(table.final)
        for number, stop in enumerate((np.flatnonzero(table.ends) + 1).tolist()):
            is_dropped = number >= n_final and _is_dropped(table, stop - 1, missing)
            if number < n_final:
                last = _rows(table.final or {}, number)
            else:
                last = _rows(table.observation, stop - 1)
                losses.add(_DROPPED if is_dropped else _REPEATED)
            if stop - is_dropped > start:
                yield _run(table, start, stop - is_dropped, last, begins=begins, ends=True)
            start, begins = stop, True
        if after is not None and start < len(table):
            # Without its last step, an episode may end here.
            ends = bool(after.ends[0]) and not _n_rows(after.final)
            ends = ends and after.next_observation is None and _is_dropped(after, 0, missing)
            last = _rows(after.observation, 0)
            yield _run(table, start, len(table), last, begins=begins, ends=ends)
            begins = False


def _is_dropped(table: Table, row: int, missing: FinalObservation) -> bool:
    return missing == "drop" and not table.terminal[row]


def _rows(frames: Frames, row: int) -> Frames:
    return {key: rows[row : row + 1] for key, rows in frames.items()}


def _n_rows(frames: Frames | None) -> int:
    return len(next(iter(frames.values()))) if frames else 0


def _cut(table: Table, following: Table | None, losses: Losses) -> Table:
    """The same with ends where the next observation does not continue, and with final ones."""
    goes_on = np.ones(len(table), np.bool_)
    after = table.next_observation or {}
    for key, rows in table.observation.items():
        parts = [rows[1:], rows[:1] if following is None else following.observation[key][:1]]
        expected = np.concatenate(parts).reshape(len(table), -1)
        found = np.ascontiguousarray(after[key]).reshape(len(table), -1)
        goes_on &= (found.view(np.uint8) == expected.view(np.uint8)).all(1)
    losses.add(_BROKEN, int((~goes_on & ~table.ends).sum()))
    ends = table.ends | ~goes_on
    return dataclasses.replace(
        table, ends=ends, final={key: rows[ends] for key, rows in after.items()}
    )


def _run(table: Table, start: int, stop: int, last: Frames, *, begins: bool, ends: bool) -> Steps:
    part = slice(start, stop)
    frames = {
        key: np.concatenate((rows[part], last[key])) for key, rows in table.observation.items()
    }
    extras = {key: rows[part] for key, rows in table.extras.items()}
    return Steps(
        frames,
        table.action[part],
        table.reward[part],
        table.terminal[part],
        extras,
        begins,
        ends,
        {name: rows[start] for name, rows in table.episode.items()},
    )
