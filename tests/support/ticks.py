"""A vector environment's steps, and what a lane of them must hold: kept in plain Python lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from mmreplay import Field

__all__ = ["FIELDS", "TickModel", "assert_closed_lane_matches"]

FIELDS: dict[str, Any] = {
    "frame": Field((3,), "float32", "raw", chunk=8),
    "action": Field((), "int64", chunk=8),
    "extras": {"x": Field((), "int8")},
}
"""Of the lanes that a `TickModel` writes, in short chunks."""


class TickModel:
    """Gives a `VectorWriter` its calls, and knows the rows that they must leave.

    Values follow from the tick and the environment. `ticks` and `starts` are lists of rows, each a
    dict by column; `current` is the number of each environment's running episode, None for none.

    Args:
        writer: of `FIELDS`.
        n: environments.
    """

    def __init__(self, writer: Any, n: int) -> None:
        self.writer, self.n = writer, n
        self.ticks: list[dict[str, Any]] = []
        self.starts: list[dict[str, Any]] = []
        self.current: list[int | None] = [None] * n
        self.calls = 0

    def frames(self) -> Any:
        """(N, 3), never the same again, never 0."""
        self.calls += 1
        return (self.calls * 8 + np.arange(self.n)[:, None] / 4 + np.arange(1, 4) / 64).astype("f4")

    def reopened(self, writer: Any) -> None:
        """Go on with another writer: all episodes are over."""
        self.writer = writer
        self.end(range(self.n))

    def end(self, which: Any) -> None:
        """Episodes end where they are."""
        for e in which:
            if self.ticks and self.ticks[-1]["episode"][e] == self.current[e]:
                self.ticks[-1]["ends"][e] = 1
            self.current[e] = None

    def reset(self, which: Any = None) -> None:
        """Begin episodes, in all environments if `which` is None."""
        frames, chosen = self.frames(), range(self.n) if which is None else sorted(which)
        mask = None if which is None else np.isin(np.arange(self.n), list(which))
        self.writer.reset(frames, mask)
        self.end(chosen)
        for e in chosen:
            self.current[e] = len(self.starts)
            self.starts.append({"frames": frames[e], "env": e, "tick": len(self.ticks)})

    def step(self, terminated: Any = (), truncated: Any = (), lost: Any = ()) -> None:
        """A step of all environments of which an episode runs."""
        frames, t, n = self.frames(), len(self.ticks), self.n
        mask = np.array([one is not None for one in self.current])
        flags = [np.isin(np.arange(n), list(one)) for one in (terminated, truncated, lost)]
        given = {
            "actions": t * 10 + np.arange(n),
            "rewards": (t + np.arange(n) / 8).astype("f4"),
            "frames": frames,
            "x": (np.arange(n) % 100).astype("i1"),
        }
        self.writer.step(
            *(given[name] for name in ("actions", "rewards", "frames")),
            *flags[:2],
            life_lost=flags[2],
            mask=None if mask.all() else mask,
            x=given["x"],
        )
        row: dict[str, Any] = {
            name: np.where(_like(mask, one), one, 0) for name, one in given.items()
        }
        row["extras/x"] = row.pop("x")
        row["non_terminals"] = mask & ~flags[0] & ~flags[2]
        row["ends"] = (mask & (flags[0] | flags[1])).astype(int)
        episode = [-1 if one is None else one for one in self.current]
        n_here = int(mask.sum())
        high = [e for e in range(n_here, n) if mask[e]]
        for e in range(n_here):
            if not mask[e]:
                episode[e] = -1 - high.pop(0)
        row["episode"] = episode
        row["count"] = (self.ticks[-1]["count"] if self.ticks else 0) + n_here
        self.ticks.append(row)
        for e in np.flatnonzero(row["ends"]).tolist():
            self.current[e] = None

    def play(self, n_steps: int, seed: int = 0) -> None:
        """Steps with random ends; some environments wait before their next episode begins."""
        rng = np.random.default_rng(seed)
        for _ in range(n_steps):
            idle = [e for e in range(self.n) if self.current[e] is None]
            begin = [e for e in idle if rng.random() < 0.7 or len(idle) == self.n]
            begin += [
                e for e in range(self.n) if self.current[e] is not None and rng.random() < 0.03
            ]
            if begin:
                self.reset(begin)
            here = [e for e in range(self.n) if self.current[e] is not None]
            ends = [[e for e in here if rng.random() < 0.1] for _ in range(3)]
            self.step(*ends)

    def cut(self, n_ticks: int, n_starts: int) -> None:
        """What a power cut leaves."""
        del self.ticks[n_ticks:], self.starts[n_starts:]


def _like(mask: Any, values: Any) -> Any:
    return mask.reshape(-1, *[1] * (values.ndim - 1))


def assert_closed_lane_matches(
    model: TickModel, path: Path, first_tick: int = 0, first_start: int = 0
) -> None:
    """Every array of a closed vector lane, read by zarr, is the model's; evicted rows may be 0."""
    group = zarr.open_group(str(path), mode="r")
    for name, rows, first in (
        ("ticks", model.ticks, first_tick),
        ("starts", model.starts, first_start),
    ):
        for column in rows[0]:
            array = group[f"{name}/{column}"]
            assert isinstance(array, zarr.Array)
            assert array.shape[0] == len(rows), (name, column)
            expected = np.array([row[column] for row in rows[first:]])
            found = np.asarray(array[first:])
            assert np.array_equal(found, expected.astype(found.dtype)), (name, column)
