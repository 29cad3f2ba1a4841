"""What rows may hold: docs/semantics.md, "Rows". Pure: arrays in, text out.

Invariant: a rule speaks only of rows that no writer changes any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mmreplay import episode_index
from mmreplay.format.layout import CONTEXT_ROWS, ArraySpec
from mmreplay.ids import Array, Ids

_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that was broken.

    Attributes:
        message: what was expected and what was found.
        rows: [start, stop) of the rows concerned.
    """

    message: str
    rows: tuple[int, int] | None = None


@dataclass(slots=True)
class Rows:
    """What is known of a lane's rows while its columns are read one after the other.

    Attributes:
        base: the oldest row kept.
        head: rows committed.
        closed: whether the newest row is finished; that of an open lane may change at any time.
        starts: rows with a reset, ascending, as far as the reset bits have been read.
        sound: whether the reset bits could be read and match their checksums; if not, no rule
            that needs them is applied.
        last_flag: (row, non-terminal flag) of the last row of the chunk before.
        n_odd: NaN and infinite values in the column that is being read.
        first_odd: the first row with one.
    """

    base: int
    head: int
    closed: bool
    starts: Ids = field(default_factory=lambda: _NO_ROWS)
    sound: bool = True
    last_flag: tuple[int, int] | None = None
    n_odd: int = 0
    first_odd: int = 0

    @property
    def settled(self) -> int:
        """Rows below this one change no more."""
        return self.head if self.closed else self.head - 1

    def chunks(self, spec: ArraySpec, stop: int) -> range:
        """The chunk files that hold rows from base to `stop`."""
        return range(self.base // spec.chunk_rows, -(-stop // spec.chunk_rows))

    def remember(self, path: str, data: Array, start: int) -> None:
        """Keep what the rules for later rows and columns need of rows from `start` on."""
        first, stop = max(start, self.base), min(start + len(data), self.head)
        if stop <= first:
            return
        if path == "resets":
            here = np.flatnonzero(data[first - start : stop - start]) + first
            self.starts = np.concatenate((self.starts, here))
        elif path == "non_terminals" and data.ndim == 1:  # those of ticks have rules of their own
            self.last_flag = (stop - 1, int(data[stop - 1 - start]))

    def count_odd(self, values: Array, start: int) -> None:
        """Count NaN and infinite values in rows from `start` on, (n, ...) of them."""
        odd = ~np.isfinite(values)
        n = int(np.count_nonzero(odd))
        if not n:
            return
        first = int(odd.reshape(len(values), -1).any(1).argmax()) + start
        self.first_odd = min(self.first_odd, first) if self.n_odd else first
        self.n_odd += n

    def finals(self, start: int, stop: int) -> Ids:
        """The final rows of episodes among [start, stop)."""
        if not self.sound:
            return _NO_ROWS
        ends = self.starts - 1
        if self.closed:
            ends = np.append(ends, self.head - 1)
        return ends[(ends >= max(start, self.base)) & (ends < min(stop, self.settled))]


def apply_to(spec: ArraySpec) -> bool:
    """Whether there is any rule for the values of a raw column."""
    return not spec.path.startswith("frames") or spec.dtype.kind in "bf"


def check_values(spec: ArraySpec, data: Array, start: int, rows: Rows) -> list[Problem]:
    """Check the rows of one chunk of a raw column: (chunk rows, *row_shape), from `start` on."""
    first, stop = max(start, rows.base), min(start + len(data), rows.head)
    kept = data[first - start : max(stop, first) - start]
    if spec.path == "resets":
        return _check_bits(kept, first, "reset bits") + _check_row_0(kept, first)
    if spec.path == "ends":
        return _check_bits(kept, first, "flags")
    if spec.path == "non_terminals":
        return _check_bits(kept[: rows.settled - first], first, "flags") + _check_flags(
            data, start, rows
        )
    problems: list[Problem] = []
    if spec.dtype == np.bool_:
        problems += _check_bits(kept.view(np.uint8), first, "bools")
    if spec.dtype.kind == "f" and len(kept):
        rows.count_odd(kept[: max(rows.settled - first, 0)], first)
    if not spec.path.startswith("frames"):
        problems += _check_finals(data, start, rows)
    return problems


def _check_bits(values: Array, first: int, what: str) -> list[Problem]:
    """Values that are 0 or 1."""
    above = (values > 1).any(tuple(range(1, values.ndim)))
    wrong = np.flatnonzero(above) + first
    return _wrong_rows(f"{what}: expected 0 or 1, found other values", wrong)


def _check_row_0(flags: Array, first: int) -> list[Problem]:
    """The first row of a lane begins an episode."""
    if first > 0 or not flags.size or flags[0]:
        return []
    return [Problem("expected a reset in row 0, the first of all, found none", (0, 1))]


def _check_flags(data: Array, start: int, rows: Rows) -> list[Problem]:
    """A final row's flag is that of the row before; of a reset without a step, 1."""
    finals = rows.finals(start, start + len(data))
    if not finals.size:
        return []
    before = finals - 1 - start
    expected = data[before]  # of a row in the chunk before: put right below
    known = finals > rows.base
    if before[0] < 0:
        last = rows.last_flag
        known[0] &= last is not None and last[0] == finals[0] - 1
        expected[0] = last[1] if last is not None else 0
    alone = np.isin(finals, rows.starts)
    expected[alone] = 1
    wrong = finals[(known | alone) & (data[finals - start] != expected)]
    return _wrong_rows("final rows: expected the flag of the row before, found another", wrong)


def _check_finals(data: Array, start: int, rows: Rows) -> list[Problem]:
    """A final row has no action, reward or extra."""
    finals = rows.finals(start, start + len(data))
    if not finals.size:
        return []
    wrong = finals[(data[finals - start] != 0).reshape(finals.size, -1).any(1)]
    return _wrong_rows("final rows: expected zeros, found other values", wrong)


def zero_past(data: npt.NDArray[np.uint8], head: int, what: str = "rows") -> list[Problem]:
    """Bytes past the last row must be zero."""
    return others_past(int(np.count_nonzero(data)), head, what)


def others_past(n_other: int, head: int, what: str = "rows") -> list[Problem]:
    """So many bytes past the last row are not zero."""
    if not n_other:
        return []
    text = f"expected zeros past the last of {head:,} {what}, found {n_other:,} other bytes"
    return [Problem(text)]


def check_index(stored: Ids, rows: Rows) -> list[Problem]:
    """``episodes/starts`` against the reset bits."""
    if not rows.sound:
        return []
    expected = rows.starts[rows.starts >= rows.base]
    if np.array_equal(stored, expected):
        return []
    n = min(stored.size, expected.size)
    place = int(np.append(np.flatnonzero(stored[:n] != expected[:n]), n)[0])
    wanted = f"row {expected[place]:,}" if place < expected.size else "its end"
    found = f"row {stored[place]:,}" if place < stored.size else "its end"
    return [
        Problem(
            f"expected the {expected.size:,} rows with a reset bit, found {stored.size:,}, and at "
            f"entry {place:,} {found} for {wanted}"
        )
    ]


def check_first(
    rows: Rows, first: int, capacity: int | None
) -> tuple[list[Problem], list[Problem]]:
    """The oldest row of a closed lane against its capacity: problems, and what is only odd."""
    if capacity is None:
        if first:
            return [Problem(f"first: expected 0 where no capacity is set, found {first:,}")], []
        return [], []
    if not rows.sound:
        return [], []
    starts = rows.starts[rows.starts >= rows.base]
    expected = episode_index.first_row(
        starts, episode_index.floor_row(max(first - CONTEXT_ROWS, 0)), rows.head, capacity
    )
    if expected != first:
        return [
            Problem(
                f"first: expected {expected:,}, from which on the {capacity:,} transitions of the "
                f"capacity lie, found {first:,}"
            )
        ], []
    begun = np.count_nonzero((starts > first) & (starts < rows.head))
    count = max(rows.head - 1 - first, 0) - int(begun)
    if first and count < capacity:
        return [], [
            Problem(
                f"older rows were evicted, though {count:,} transitions are fewer than the "
                f"capacity of {capacity:,}: was it raised since, or were rows lost to damage?"
            )
        ]
    return [], []


def _wrong_rows(text: str, wrong: Ids) -> list[Problem]:
    """One problem about these rows, if there are any."""
    if not wrong.size:
        return []
    rows = f"row {wrong[0]:,}"
    if wrong.size > 1:
        rows = f"{wrong.size:,} rows, the first of them {wrong[0]:,}"
    return [Problem(f"{text} in {rows}", (int(wrong[0]), int(wrong[-1]) + 1))]
