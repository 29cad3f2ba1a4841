"""Flat tables of transitions as steps: where episodes end, and what stands after their last step.

Invariant: each observation of a run is one of the table's, and the one after the last step is
either the table's own or counted as a loss.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Frames, Steps
from mmreplay.ids import Array

__all__ = ["FinalObservation", "Table", "check_final", "to_steps"]

FinalObservation = Literal["repeat", "drop"]
"""What becomes of a last step after which no observation is known."""

_REPEATED = (
    "final observations that the source does not have: the last observation of the episode stands "
    "in their place"
)
_DROPPED = (
    "last steps of truncated episodes: left out, as the source does not have the observation after "
    "them"
)
_BROKEN = (
    "places where an observation does not go on from the one before: an episode was cut off there"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Consecutive transitions, (n, ...) each.

    Attributes:
        observation: before the steps, by key.
        action: what was done.
        reward: what it gave.
        terminal: bool: the world ended, or a life was lost.
        ends: bool: the episode ended.
        extras: further columns.
        next_observation: after the steps; None if the table has none.
        final: after the last steps of those episodes that end here, one row each; None if the
            table does not know.
    """

    observation: Frames
    action: Array
    reward: Array
    terminal: Array
    ends: Array
    extras: dict[str, Array]
    next_observation: Frames | None = None
    final: Frames | None = None

    def __len__(self) -> int:
        return len(self.reward)


def check_final(given: object) -> None:
    """Raise SchemaError unless it is a `FinalObservation`."""
    if given not in ("repeat", "drop"):
        raise SchemaError(f"final_observation: expected 'repeat' or 'drop', found {given!r:.80}")


def to_steps(tables: Iterable[Table], missing: FinalObservation, losses: Losses) -> Iterator[Steps]:
    """The steps of a table that comes in blocks of rows.

    Args:
        tables: the blocks, in order.
        missing: what to do with the last step of a truncated episode without a final observation:
            keep it with its own observation repeated, or leave it out. After a terminal step
            the observation does not count, so it is always repeated.
        losses: counts these, and where `next_observation` is not the observation of the next row.
    """
    begins, held = True, None
    for table in tables:
        if not len(table):
            continue
        if table.next_observation is not None:
            yield from _joined(table, held, losses, begins=begins)
            begins, held = bool(table.ends[-1]), _last(table)
            continue
        joined = table if held is None else _concatenated(held, table)
        held = None if joined.ends[-1] else _last(joined)
        bounds = [0, *(np.flatnonzero(joined.ends) + 1).tolist()]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            yield from _ended(joined, start, stop, number, missing, losses, begins=begins)
            begins = True
        if held is not None and len(joined) - bounds[-1] > 1:
            yield _run(joined, bounds[-1], len(joined) - 1, None, begins=begins, ends=False)
            begins = False
    if held is not None and held.next_observation is None:
        losses.add("an episode that the source breaks off: it ends as truncated")
        yield from _ended(held, 0, 1, 0, missing, losses, begins=begins)


def _ended(
    table: Table,
    start: int,
    stop: int,
    number: int,
    missing: FinalObservation,
    losses: Losses,
    *,
    begins: bool,
) -> Iterator[Steps]:
    """The rows of an episode that ends with row stop - 1, the `number`-th to do so here."""
    if table.final is not None:
        last = {key: rows[number : number + 1] for key, rows in table.final.items()}
        yield _run(table, start, stop, last, begins=begins, ends=True)
    elif missing == "repeat" or table.terminal[stop - 1]:
        losses.add(_REPEATED)
        last = {key: rows[stop - 1 : stop] for key, rows in table.observation.items()}
        yield _run(table, start, stop, last, begins=begins, ends=True)
    else:
        losses.add(_DROPPED)
        if stop - start > 1:
            yield _run(table, start, stop - 1, None, begins=begins, ends=True)


def _joined(table: Table, before: Table | None, losses: Losses, *, begins: bool) -> Iterator[Steps]:
    """The rows of a table that has the observations after its steps."""
    after = table.next_observation or {}
    goes_on = ~table.ends[:-1] & _equal(
        {key: rows[:-1] for key, rows in after.items()},
        {key: rows[1:] for key, rows in table.observation.items()},
    )
    losses.add(_BROKEN, int((~goes_on & ~table.ends[:-1]).sum()))
    if not begins and before is not None:
        first = {key: rows[:1] for key, rows in table.observation.items()}
        if not _equal(before.next_observation or {}, first)[0]:
            losses.add(_BROKEN)
            begins = True
    bounds = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(table)]
    for start, stop in itertools.pairwise(bounds):
        last = {key: rows[stop - 1 : stop] for key, rows in after.items()}
        ends = stop < len(table) or bool(table.ends[-1])
        yield _run(table, start, stop, last, begins=begins, ends=ends)
        begins = True


def _run(
    table: Table, start: int, stop: int, last: Frames | None, *, begins: bool, ends: bool
) -> Steps:
    """Rows [start, stop), followed by `last`, or by the table's next row."""
    observation = table.observation
    if last is None:
        frames = {key: rows[start : stop + 1] for key, rows in observation.items()}
    else:
        frames = {
            key: np.concatenate((rows[start:stop], last[key])) for key, rows in observation.items()
        }
    part = slice(start, stop)
    extras = {key: rows[part] for key, rows in table.extras.items()}
    return Steps(
        frames, table.action[part], table.reward[part], table.terminal[part], extras, begins, ends
    )


def _equal(first: Frames, second: Frames) -> Array:
    """(n,) bool: which rows are the same, byte for byte."""
    n_rows = len(next(iter(first.values())))
    out = np.ones(n_rows, np.bool_)
    for key, rows in first.items() if n_rows else ():
        a, b = (np.ascontiguousarray(one).reshape(n_rows, -1) for one in (rows, second[key]))
        out &= (a.view(np.uint8) == b.view(np.uint8)).all(1)
    return out


def _last(table: Table) -> Table:
    """Its last row, alone; copied, or it would keep all of them."""

    def of(frames: Frames | None) -> Frames | None:
        return frames and {key: rows[-1:].copy() for key, rows in frames.items()}

    return Table(
        of(table.observation) or {},
        table.action[-1:].copy(),
        table.reward[-1:].copy(),
        table.terminal[-1:].copy(),
        table.ends[-1:].copy(),
        of(table.extras) or {},
        of(table.next_observation),
    )


def _concatenated(first: Table, second: Table) -> Table:
    def of(a: Frames, b: Frames) -> Frames:
        return {key: np.concatenate((a[key], rows)) for key, rows in b.items()}

    return Table(
        of(first.observation, second.observation),
        np.concatenate((first.action, second.action)),
        np.concatenate((first.reward, second.reward)),
        np.concatenate((first.terminal, second.terminal)),
        np.concatenate((first.ends, second.ends)),
        of(first.extras, second.extras),
        None,
        second.final,
    )
