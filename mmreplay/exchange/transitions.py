"""Flat tables of transitions as steps: where episodes end, and the observation after them.

Invariant: each observation of a run is one of the table's, and the one after the last step is
either the table's own or counted as a loss.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from mmreplay.batches.runs import Frames, Steps
from mmreplay.exchange.losses import Losses
from mmreplay.ids import Array

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
    """Consecutive transitions, (n, ...) each; `final` has a row per end of an episode."""

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


def to_steps(tables: Iterable[Table], missing: FinalObservation, losses: Losses) -> Iterator[Steps]:
    """The steps of a table that comes in blocks of rows.

    After a terminal step the observation does not count, so it is repeated whatever `missing` is.
    """
    begins, held = True, None
    for table in tables:
        if not len(table):
            continue
        joined = table if held is None else _concatenated(held, table)
        if joined.next_observation is not None:
            joined = _cut(joined, joined.next_observation, losses)
        held = None if joined.ends[-1] else _last(joined)
        bounds = [0, *(np.flatnonzero(joined.ends) + 1).tolist()]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            yield from _ended(joined, start, stop, number, missing, losses, begins=begins)
            begins = True
        if held is not None and len(joined) - bounds[-1] > 1:
            yield _run(joined, bounds[-1], len(joined) - 1, None, begins=begins, ends=False)
            begins = False
    if held is not None:
        losses.add("an unfinished episode at the end of the source: truncated")
        held = dataclasses.replace(held, final=held.next_observation)
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
    """The rows of an episode that ends with row stop - 1, the `number`-th end of this table."""
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


def _cut(table: Table, after: Frames, losses: Losses) -> Table:
    """The same with ends where `after` does not continue, and with final observations."""
    ends = table.ends.copy()
    goes_on = _equal(
        {key: rows[:-1] for key, rows in after.items()},
        {key: rows[1:] for key, rows in table.observation.items()},
    )
    losses.add(_BROKEN, int((~goes_on & ~ends[:-1]).sum()))
    ends[:-1] |= ~goes_on
    return dataclasses.replace(
        table, ends=ends, final={key: rows[ends] for key, rows in after.items()}
    )


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
    """Its last row alone, copied, so that the others can be freed."""
    return _mapped(lambda rows: rows[-1:].copy(), dataclasses.replace(table, final=None))


def _concatenated(first: Table, second: Table) -> Table:
    joined = _mapped(
        lambda *rows: np.concatenate(rows), first, dataclasses.replace(second, final=None)
    )
    return dataclasses.replace(joined, final=second.final)


def _mapped(call: Callable[..., Array], *tables: Table) -> Table:
    """A table of what `call` makes of each array of some tables."""

    def of(*columns: Any) -> Any:
        if isinstance(columns[0], dict):
            return {key: of(*(one[key] for one in columns)) for key in columns[0]}
        return None if columns[0] is None else call(*columns)

    names = [one.name for one in dataclasses.fields(Table)]
    return Table(*(of(*(getattr(one, name) for one in tables)) for name in names))
