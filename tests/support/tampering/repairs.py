"""What `repair` must keep, worked out from a model of the lane and from what was damaged.

Invariant: nothing of `mmreplay.maintenance` is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from mmreplay.format import layout
from tests.support.oracle.checks import check_same, check_verified
from tests.support.oracle.model import CONTEXT_ROWS, LaneModel, Played

__all__ = ["Lost", "check_kept", "check_parts", "parts_left", "set_attributes"]

Part = tuple[Played, int, int]
"""Steps [start, stop) of an episode that come out as one of their own."""


def set_attributes(path: Path, *, sealed: bool = False, **changes: Any) -> None:
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = layout.digest(own)
    path.write_text(json.dumps(document))


@dataclass
class Lost:
    """What can be read no more of a lane of n environments."""

    # (row, environment) of which a column other than frames is lost
    columns: set[tuple[int, int]] = field(default_factory=set)
    frames: set[tuple[int, int]] = field(default_factory=set)  # of which the frames are
    # whose episode ended, and whose final observation is lost
    finals: set[tuple[int, int]] = field(default_factory=set)

    @property
    def any(self) -> set[tuple[int, int]]:
        """Entries that are not whole."""
        return self.columns | self.frames

    def is_sound(self, one: Played, number: int) -> bool:
        """Whether a step is whole, and the observation after it."""
        here, after = (one.first + number, one.env), (one.first + number + 1, one.env)
        if here in self.any:
            return False
        is_last = one.over and number == len(one.steps) - 1
        return here not in self.finals if is_last else after not in self.frames


def parts_left(model: LaneModel, lost: Lost, base: int = 0, *, skip: bool) -> list[Part]:
    """The episodes that a repair leaves, in the order of their first transitions."""
    stop = _prefix(model, lost, base)
    if base and stop < base + CONTEXT_ROWS:
        stop = 0
    out: list[Part] = []
    for one in model.episodes:
        start = max(base - one.first, 0)
        runs: list[list[int]] = []
        for number in range(start, len(one.steps)):
            row = one.first + number
            # What a prefix keeps of an evicted episode can be seen only from its context on.
            if (row < stop or skip) and lost.is_sound(one, number):
                if runs and runs[-1][1] == number:
                    runs[-1][1] += 1
                else:
                    runs.append([number, number + 1])
        out += [(one, first, last) for first, last in runs]
    return sorted(out, key=lambda part: (part[0].first + part[1]) * model.n + part[0].env)


def _prefix(model: LaneModel, lost: Lost, base: int) -> int:
    """The row before which all is sound, and can be ended."""
    rows = model.rows
    for row in range(base, len(rows)):
        whole = all((row, env) not in lost.any for env in range(model.n))
        sound = all(lost.is_sound(one, row - one.first) for one in rows[row].values())
        if not whole or not sound:
            break
    else:
        return len(rows)
    runs = row > base and any(
        not (one.over and one.last == row - 1) for one in rows[row - 1].values()
    )
    return row - (runs and any((row, env) in lost.frames for env in range(model.n)))


def check_parts(path: Path, parts: Iterable[Part]) -> None:
    """A store is sound, and its episodes are these, byte for byte."""
    check_verified(path)
    parts = list(parts)
    with mmreplay.open(path) as store:
        assert store.info()["state"] == "closed"
        lengths = [stop - start for _, start, stop in parts]
        assert store.episodes["length"].tolist() == lengths, (store.episodes, lengths)
        for number, (one, start, stop) in enumerate(parts):
            found, steps = store.trajectory(number), one.steps[start:stop]
            what = f"steps {start} to {stop} of the episode of row {one.first}"
            for key in store.schema.frames:
                frames = found.observation[key] if store.schema.is_dict else found.observation
                expected = np.stack([frame[key] for frame in one.frames[start : stop + 1]])
                check_same(frames, expected, f"{what}: {key}")
            check_same(found.action, np.stack([step.action for step in steps]), what)
            check_same(found.reward, np.stack([step.reward for step in steps]), what)
            for name, values in found.extras.items():
                check_same(values, np.stack([step.extras[name] for step in steps]), what)
            flags = [bool(step.non_terminal) for step in steps]
            assert found.non_terminal.tolist() == flags, what
            assert (found.terminated, found.truncated) == (not flags[-1], flags[-1]), what


def check_kept(path: Path, original: Path, n: int) -> None:
    """A store is sound; its n transitions are those of another of the same ids, but for what ended."""
    check_verified(path)
    with mmreplay.open(path) as store, mmreplay.open(original) as other:
        assert len(store) == n
        found, expected = (one.transitions(store.ids, stack=3) for one in (store, other))
        for name in ("id", "observation", "next_observation", "action", "reward", "extras"):
            check_same(getattr(found, name), getattr(expected, name), name)
        check_same(found.non_terminal, expected.non_terminal, "non_terminal")
