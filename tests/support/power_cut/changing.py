"""Values that change after their row is committed: priorities, and those of derived columns.

Invariant: what is found in a place was given to that place, and not before it was made durable
last; after a kill it is what was given last. Nothing is past the head.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay import Field
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.writing.create import AnyWriter
from tests.support.oracle.model import LaneModel
from tests.support.prioritized import column_of, release

Array = npt.NDArray[Any]


class Versions:
    """What each place may hold: as it was when it was made durable, and all that came since."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], list[Any]] = {}

    def give(self, path: str, entry: int, value: Any) -> None:
        self._known.setdefault((path, entry), [np.zeros_like(value)]).append(value)

    def of(self, path: str, entry: int) -> list[Any]:
        return self._known.get((path, entry), [0.0])

    def take(self, path: str, entry: int, value: Any) -> None:
        """The power has left this, which is durable."""
        if (path, entry) in self._known:
            self._known[path, entry] = [value]

    def forget(self, path: str, stop: int) -> None:
        """Entries from `stop` on are durable zeros."""
        self._known = {
            (of, entry): known
            for (of, entry), known in self._known.items()
            if of != path or entry < stop
        }

    def lengths(self, path: str) -> dict[tuple[str, int], int]:
        """How many versions there are now."""
        return {key: len(known) for key, known in self._known.items() if key[0] == path}

    def are_durable(self, lengths: Mapping[tuple[str, int], int]) -> None:
        """Those that there were then."""
        for key, length in lengths.items():
            if key in self._known:
                self._known[key] = self._known[key][length - 1 :]


class Derived:
    """The values of derived columns of a lane; without any, nothing is drawn and nothing kept.

    Attributes:
        exact: whether the newest ones are there: no power was lost since the last opening.
        promised: False where others link and restore files, of which nothing is promised.
    """

    def __init__(self, fields: Mapping[str, Field], n: int) -> None:
        self._fields, self._n = fields, n
        self.versions = Versions()
        self.exact = self.promised = True
        self._unsure: set[tuple[str, int]] = set()  # changed by a call that did not return

    def __bool__(self) -> bool:
        return bool(self._fields)

    def copy(self) -> Derived:
        return copy.deepcopy(self)

    def all(self, numbers: Array) -> dict[str, Array]:
        """Values of all columns: (n, *field shape), of which each number is another one."""
        return {
            name: np.stack([np.full(one.shape, v, one.dtype) for v in numbers])
            for name, one in self._fields.items()
            if len(numbers)
        }

    def some(self, luck: random.Random, numbers: Array) -> dict[str, Array]:
        """As `all`, of some columns."""
        return {name: one for name, one in self.all(numbers).items() if luck.random() < 0.6}

    def give(self, entry: int, values: Mapping[str, Any]) -> None:
        """A step is about to; 0 to the columns that it does not name."""
        for name, one in self._fields.items():
            self.versions.give(name, entry, values.get(name, np.zeros(one.shape, one.dtype)))

    def change(self, entry: int, values: Mapping[str, Any]) -> None:
        """An update is about to."""
        for name, value in values.items():
            self.versions.give(name, entry, value)
            self._unsure.add((name, entry))

    def returned(self) -> None:
        """The update did."""
        self._unsure.clear()

    def take(self, view: Any, lane: LaneModel, *, for_good: bool = False) -> None:
        """Compare what is there, and put it into the model; it is all that there is `for_good`."""
        for name in self._fields:
            base = view.base
            found = view.extras[name][:].reshape(-1, self._n, *self._fields[name].shape)
            for row in range(max(base, view.base), min(len(found), len(lane.rows))):
                for env, one in lane.rows[row].items():
                    entry, value = row * self._n + env, found[row, env].copy()
                    self._check(name, entry, value)
                    step = one.steps[row - one.first]
                    extras = {**step.extras, name: value}
                    one.steps[row - one.first] = type(step)(
                        step.action, step.reward, step.non_terminal, extras
                    )
                    if for_good and not self.exact:
                        self.versions.take(name, entry, value)
                    elif for_good and (name, entry) in self._unsure:
                        self.versions.give(name, entry, value)
            if for_good:
                self.versions.forget(name, len(lane.rows) * self._n)
        if for_good:
            self._unsure.clear()
            self.exact = True

    def _check(self, name: str, entry: int, value: Array) -> None:
        known = self.versions.of(name, entry)
        if self.exact:
            known = known[-9:] if (name, entry) in self._unsure else known[-1:]
        # Of a value of several numbers, each by itself.
        right = np.zeros(value.shape, np.bool_)
        for one in known:
            right |= value == one
        if self.promised and not right.all():
            raise AssertionError(
                f"derived {name} of {entry}: expected one of {known}, found {value}"
            )


class Priorities:
    """Those of the transitions of a lane, as a prioritized buffer keeps them."""

    path = "priorities"

    def __init__(self, lane: LaneModel) -> None:
        self._lane = lane
        self._column: PriorityColumn | None = None
        self.versions = Versions()
        self._is_unsure = False  # whether power was lost since they were read

    def open(self, writer: AnyWriter, *, exact: bool) -> None:
        """As a prioritized buffer does; compares those that are there."""
        # Killed on the way to read them, the next writer is the first to see what the power left.
        self._is_unsure |= not exact
        exact = not self._is_unsure
        files, n = writer.files, self._lane.n
        start, stop = writer.base * n, writer.rows * n
        files.add_priorities()
        if self._column is not None:  # of a writer that is gone
            release(self._column)
        column = column_of(files.path, (start, stop), files.environments)
        # So that there is something past the head.
        column.reach(np.array([stop + 1]), lambda _: (start, start, stop + 1))
        if column.values[column.positions(np.array([stop]))[0] :].any():
            raise AssertionError(f"{writer.path}: priorities past the head: expected zeros")
        found = column.values[column.positions(np.arange(start, stop))].tolist()
        for entry, value in enumerate(found, start):
            known = self.versions.of(self.path, entry)
            if value not in (known[-1:] if exact else known):
                raise AssertionError(
                    f"{writer.path}: priority of {entry}: expected {known}, found {value}"
                )
            if not exact:  # what the power has left is all that there is
                self.versions.take(self.path, entry, value)
        self.versions.forget(self.path, stop)
        self._is_unsure = False
        self._column = column

    def give(self, writer: AnyWriter, luck: random.Random) -> None:
        """One to a transition that may be sampled."""
        lane, column = self._lane, self._column
        if column is None or lane.first == len(lane.rows):
            return
        row = luck.randrange(lane.first, len(lane.rows))
        entry = row * lane.n + luck.choice(sorted(lane.rows[row]))
        start, stop = writer.base * lane.n, writer.rows * lane.n
        column.reach(np.array([stop]), lambda _: (start, start, stop))
        column.values[column.positions(np.array([entry]))] = value = luck.random() + 1
        self.versions.give(self.path, entry, value)
