"""Frames that say what they are: player, number and first row of their episode stand in their bytes.

A player is an environment, counted over all lanes. Frame t of an episode is the one before the
player's step of row t, frame t + 1 the one after it; an episode's first frame has the number of the
row of its first step.

Invariant: a frame is torn, or in the wrong place, if and only if its bytes are not those that
`Described.make` gives for the place that it claims.
"""

import dataclasses

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.schema import Field
from tests.support.oracle.model import LANE_SHIFT

_HEADER = 3
_LEAST_BYTES = 8 * _HEADER
_MASK = (1 << 64) - 1
_ROW_MASK = (1 << LANE_SHIFT) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """Frames of one field, of 24 bytes or more, that describe themselves."""

    field: Field

    def make(self, player, number, start):
        """A frame of the player's episode that begins with row `start`."""
        n_bytes = self.field.row_bytes
        header = np.array([player, number, start], "<u8").view(np.uint8)
        fill = self._fill(np.array([[player, number, start]]), n_bytes - _LEAST_BYTES)[0]
        whole = np.concatenate((header, fill))
        return whole.view(self.field.dtype).reshape(self.field.shape)

    @staticmethod
    def _fill(places, n_bytes):
        first = places[:, 0] * 17 + places[:, 1] * 31 + places[:, 2] * 7
        fill = (first[:, None] + np.arange(n_bytes) // 3) % 251
        return fill.astype(np.uint8)

    def read(self, frames):
        """(..., 3) player, number and start of each frame."""
        ndim = len(self.field.shape)
        outer = frames.shape[: frames.ndim - ndim]
        whole = np.ascontiguousarray(frames).reshape(-1).view(np.uint8)
        flat = whole.reshape(-1, self.field.row_bytes)
        header = np.ascontiguousarray(flat[:, :_LEAST_BYTES]).view("<u8").astype(np.int64)
        fill = self._fill(header, flat.shape[1] - _LEAST_BYTES)
        torn = (flat[:, _LEAST_BYTES:] != fill).any(axis=1)
        if torn.any():
            raise AssertionError(
                f"{int(torn.sum())} frames of {len(torn)} are torn; the first claims to be "
                f"player, number, start = {header[torn][0].tolist()}"
            )
        return header.reshape(*outer, _HEADER)


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """What happens in each row to each player: a pure function, known to writer and checker alike."""

    seed: int
    frames: dict[str, Described]
    n: int = 1

    def _noise(self, player, row):
        """64 bits (splitmix64; Steele, Lea and Flood 2014)."""
        x = (self.seed * 0x9E3779B97F4A7C15 + player * 0xD1B54A32D192ED03 + row + 1) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return x ^ (x >> 31)

    def frame(self, player, number, start):
        """The frame, or the dict of frames."""
        out = {name: one.make(player, number, start) for name, one in self.frames.items()}
        return out if len(out) > 1 else next(iter(out.values()))

    def action(self, player, row):
        """An int64."""
        return self._noise(player, row) >> 8 & 0xFFFFFF

    def reward(self, player, row):
        """A multiple of 1/8 that float32 holds."""
        return (self._noise(player, row) >> 40 & 0xFF) / 8 - 16

    def extra(self, player, row):
        """A float32."""
        return float(np.float32(row) / 3)

    def event(self, player, row):
        """What the step of this row is: a plain one, or the end of something."""
        pick = self._noise(player, row) & 0x3F
        names = ("terminated", "truncated", "both", "life_lost", "interrupted", "terminated")
        return names[pick] if pick < len(names) else ""

    def flags(self, player, row):
        """terminated, truncated and life_lost of the step of this row."""
        event = self.event(player, row)
        return event in {"terminated", "both"}, event in {"truncated", "both"}, event == "life_lost"

    def begins(self, player, row):
        """Whether an episode begins with this row, whatever happened to the writer."""
        over = ("terminated", "truncated", "both", "interrupted")
        return row == 0 or self.event(player, row - 1) in over

    def places(self, ids):
        """Players and rows of transitions."""
        entries = ids & _ROW_MASK
        return (ids >> LANE_SHIFT) * self.n + entries % self.n, entries // self.n

    def check_batch(self, batch, stack, padding="reset", n_step=1, gamma=0.99):
        """A batch fits together, whatever else is being written."""
        players, rows = self.places(batch.id)
        steps = np.ones(len(rows), np.int64) if n_step == 1 else self._steps(batch, rows)
        if not ((steps >= 1) & (steps <= n_step)).all():
            raise AssertionError(f"returns of {steps.tolist()} steps; expected 1 to {n_step}")
        for name, one in self.frames.items():
            for which, offset in (("observation", 0 * steps), ("next_observation", steps)):
                whole = getattr(batch, which)
                frames = whole[name] if isinstance(whole, dict) else whole
                newest = one.read(frames[:, -1])
                start = newest[:, 2]
                wanted = (rows + offset)[:, None] + np.arange(1 - stack, 1)
                inside = wanted >= start[:, None]
                np.maximum(wanted, start[:, None], out=wanted)
                seen = frames if padding == "reset" else frames[inside]
                expected = np.stack(
                    np.broadcast_arrays(players[:, None], wanted, start[:, None]), axis=-1
                )
                if padding == "zero":
                    expected = expected[inside]
                    if frames[~inside].tobytes().strip(b"\0"):
                        raise AssertionError(f"{which}: padding that is not zero")
                found = one.read(seen)
                if not np.array_equal(found, expected):
                    wrong = np.argwhere((found != expected).any(-1))[0]
                    raise AssertionError(
                        f"{which} of id {int(batch.id[wrong[0]])}: expected player, number, start "
                        f"= {expected[tuple(wrong)].tolist()}, found {found[tuple(wrong)].tolist()}"
                    )
                if not (start <= rows).all():
                    raise AssertionError("a transition leads into another episode")
        each = (players, rows, steps, batch.action, batch.reward, batch.non_terminal)
        for player, row, m, *scalars in zip(*(x.tolist() for x in each), strict=True):
            ended, _, lost = self.flags(player, row + m - 1)
            total = sum(gamma**k * self.reward(player, row + k) for k in range(m))
            known = [self.action(player, row), float(np.float32(total)), not (ended or lost)]
            if scalars != known:
                raise AssertionError(f"row {row} of {player}: expected {known}, found {scalars}")
        return steps

    def _steps(self, batch, rows):
        """How many steps each return of a batch has, by the frame that comes after it."""
        name, one = next(iter(self.frames.items()))
        after = batch.next_observation
        newest = (after[name] if isinstance(after, dict) else after)[:, -1]
        return one.read(newest)[:, 1] - rows

    def check_sequences(self, batch, stack):
        """The windows of a batch, of one-step returns, fit together."""
        mask = batch.mask
        flat = {
            one.name: _at(getattr(batch, one.name), mask)
            for one in dataclasses.fields(Batch)
            if one.name not in {"weight", "extras", "terminated", "truncated"}
        }
        size = int(mask.sum())
        none = np.zeros(size, np.bool_)
        rest = {"weight": np.ones(size, np.float32), "extras": {}}
        self.check_batch(Batch(**flat, **rest, terminated=none, truncated=none), stack)
        both = mask[:, 1:] & mask[:, :-1]
        if not (np.diff(batch.id)[both] == self.n).all() or (batch.id[~mask] != -1).any():
            raise AssertionError("steps of a window that do not follow each other")
        if batch.first[:, 1:][both].any():
            raise AssertionError("an episode that begins inside a window")

    def check_trajectory(self, found):
        """An episode is whole, from its first row on, and all its rows are of it."""
        players, rows = self.places(found.ids)
        player, first = int(players[0]), int(rows[0])
        numbers = np.arange(first, first + len(rows) + 1)
        if (players != player).any() or (rows != numbers[:-1]).any():
            raise AssertionError(f"trajectory at {int(found.ids[0])}: ids {found.ids.tolist()}")
        expected = np.stack(
            (np.full(len(numbers), player), numbers, np.full(len(numbers), first)), -1
        )
        for name, one in self.frames.items():
            whole = found.observation
            frames = whole[name] if isinstance(whole, dict) else whole
            if not np.array_equal(one.read(frames), expected):
                raise AssertionError(f"trajectory at {int(found.ids[0])}: rows of another place")
        each = zip(rows.tolist(), found.action.tolist(), found.reward.tolist(), strict=True)
        for row, action, reward in each:
            scalars = (self.action(player, row), self.reward(player, row))
            if (action, reward) != scalars:
                raise AssertionError(f"row {row} of {player}: expected {scalars}")


def _at(values, mask):
    """The values where the mask is True, also of a dict of them."""
    if isinstance(values, dict):
        return {name: one[mask] for name, one in values.items()}
    return values[mask]
