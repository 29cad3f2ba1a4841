"""Frames that say what they are: lane, row and first row of their episode stand in their bytes.

Invariant: a frame is torn, or in the wrong place, if and only if its bytes are not those that
`Described.make` gives for the place that it claims.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.gather import Batch
from mmreplay.schema import Field
from mmreplay.testing.model import LANE_SHIFT

__all__ = ["Described", "Plot"]

Array = npt.NDArray[Any]
_HEADER = 3
_LEAST_BYTES = 8 * _HEADER
_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """Frames of one field, of 24 bytes or more, that describe themselves.

    Args:
        field: any field but one of bools.
    """

    field: Field

    def make(self, lane: int, row: int, start: int) -> Array:
        """The frame of a row of the episode that begins at row `start`."""
        n_bytes = self.field.row_bytes
        header = np.array([lane, row, start], "<u8").view(np.uint8)
        fill = self._fill(np.array([[lane, row, start]]), n_bytes - _LEAST_BYTES)[0]
        whole = np.concatenate((header, fill))
        frame: Array = whole.view(self.field.dtype).reshape(self.field.shape)
        return frame

    @staticmethod
    def _fill(places: Array, n_bytes: int) -> Array:
        first = places[:, 0] * 17 + places[:, 1] * 31 + places[:, 2] * 7
        fill: Array = (first[:, None] + np.arange(n_bytes) // 3) % 251
        return fill.astype(np.uint8)

    def read(self, frames: Array) -> Array:
        """(..., 3) lane, row and start of each frame.

        Raises:
            AssertionError: a frame that is not whole.
        """
        ndim = len(self.field.shape)
        outer = frames.shape[: frames.ndim - ndim]
        whole: Array = np.ascontiguousarray(frames).reshape(-1).view(np.uint8)
        flat = whole.reshape(-1, self.field.row_bytes)
        header = np.ascontiguousarray(flat[:, :_LEAST_BYTES]).view("<u8").astype(np.int64)
        fill = self._fill(header, flat.shape[1] - _LEAST_BYTES)
        torn = (flat[:, _LEAST_BYTES:] != fill).any(axis=1)
        if torn.any():
            raise AssertionError(
                f"{int(torn.sum())} frames of {len(torn)} are torn; the first claims to be "
                f"lane, row, start = {header[torn][0].tolist()}"
            )
        return header.reshape(*outer, _HEADER)


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """What happens at each row of each lane: a pure function, known to writer and checker alike.

    Args:
        seed: of everything.
        frames: how frames look, by key; the sole one under ``frame``.
    """

    seed: int
    frames: dict[str, Described]

    def _noise(self, lane: int, row: int) -> int:
        """64 bits (splitmix64; Steele, Lea and Flood 2014)."""
        x = (self.seed * 0x9E3779B97F4A7C15 + lane * 0xD1B54A32D192ED03 + row + 1) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return x ^ (x >> 31)

    def frame(self, lane: int, row: int, start: int) -> Array | dict[str, Array]:
        """The frame, or the dict of frames."""
        out = {name: one.make(lane, row, start) for name, one in self.frames.items()}
        return out if len(out) > 1 else next(iter(out.values()))

    def action(self, lane: int, row: int) -> int:
        """An int64."""
        return self._noise(lane, row) >> 8 & 0xFFFFFF

    def reward(self, lane: int, row: int) -> float:
        """A multiple of 1/8 that float32 holds."""
        return (self._noise(lane, row) >> 40 & 0xFF) / 8 - 16

    def extra(self, lane: int, row: int) -> float:
        """A float32."""
        return float(np.float32(row) / 3)

    def event(self, lane: int, row: int) -> str:
        """What the step that makes this row is: a plain one, or the end of something."""
        pick = self._noise(lane, row) & 0x3F
        names = ("terminated", "truncated", "both", "life_lost", "interrupted", "terminated")
        return names[pick] if pick < len(names) else ""

    def flags(self, lane: int, row: int) -> tuple[bool, bool, bool]:
        """terminated, truncated and life_lost of the step that makes this row."""
        event = self.event(lane, row)
        return event in {"terminated", "both"}, event in {"truncated", "both"}, event == "life_lost"

    def begins(self, lane: int, row: int) -> bool:
        """Whether this row is a reset, whatever happened to the writer."""
        return row == 0 or self.event(lane, row - 1) in {
            "terminated",
            "truncated",
            "both",
            "interrupted",
        }

    def check_batch(self, batch: Batch, stack: int, padding: str = "reset") -> None:
        """A batch of one-step transitions fits together, whatever else is being written.

        Raises:
            AssertionError: a torn frame, a frame of another row, a wrong scalar.
        """
        lanes, rows = batch.id >> LANE_SHIFT, batch.id & ((1 << LANE_SHIFT) - 1)
        for name, one in self.frames.items():
            for which, offset in (("observation", 0), ("next_observation", 1)):
                whole = getattr(batch, which)
                frames = whole[name] if isinstance(whole, dict) else whole
                newest = one.read(frames[:, -1])
                start = newest[:, 2]
                wanted = rows[:, None] + offset + np.arange(1 - stack, 1)
                inside = wanted >= start[:, None]
                np.maximum(wanted, start[:, None], out=wanted)
                seen = frames if padding == "reset" else frames[inside]
                expected = np.stack(
                    np.broadcast_arrays(lanes[:, None], wanted, start[:, None]), axis=-1
                )
                if padding == "zero":
                    expected = expected[inside]
                    if frames[~inside].tobytes().strip(b"\0"):
                        raise AssertionError(f"{which}: padding that is not zero")
                found = one.read(seen)
                if not np.array_equal(found, expected):
                    wrong = np.argwhere((found != expected).any(-1))[0]
                    raise AssertionError(
                        f"{which} of id {int(batch.id[wrong[0]])}: expected lane, row, start = "
                        f"{expected[tuple(wrong)].tolist()}, found {found[tuple(wrong)].tolist()}"
                    )
                if offset and not (start <= rows).all():
                    raise AssertionError("a transition leads into another episode")
        for lane, row, action, reward, flag in zip(
            lanes.tolist(),
            rows.tolist(),
            batch.action.tolist(),
            batch.reward.tolist(),
            batch.non_terminal.tolist(),
            strict=True,
        ):
            ended, _, lost = self.flags(lane, row + 1)
            expected_scalars = (self.action(lane, row), self.reward(lane, row), not (ended or lost))
            if (action, reward, flag) != expected_scalars:
                raise AssertionError(
                    f"row {row} of lane {lane}: expected {expected_scalars}, found "
                    f"{(action, reward, flag)}"
                )
