"""What tests ask of a writer, and of the store that it has written so far."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import mmreplay
from mmreplay import Field
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import Checkpoint, CheckpointFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmreplay import Store, VectorWriter, Writer


FRAME, ACTION = Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)


def attributes(path: Path) -> dict[str, Any]:
    """attributes.mmreplay of a store or lane, unchecked."""
    own: dict[str, Any] = json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
    return own


def check(story: Any, writer: Any) -> None:
    """What can be read is the story."""
    with mmreplay.open(writer.path) as store:
        story.check(store)


def assert_store_matches(story: Any, writer: Writer, start: int = 0) -> None:
    """Every row from `start` on, and the ids of all transitions, are those of the story."""
    with mmreplay.open(writer.path) as store:
        story.check(store, start=start)
        first = store.lanes[0].first
        expected = [row for row in story.transitions(writer.path) if row >= first]
        assert store.ids.tolist() == expected


def checkpoint(writer: Writer) -> Checkpoint:
    """The best slot."""
    return CheckpointFile(writer.path / ".live" / "checkpoint", writer.metadata["uuid"]).best


def chunks(writer: Writer, path: str = "rewards") -> list[int]:
    """The chunk files of a column that are there."""
    return chunk_files.chunk_files(writer.path, writer.files.rows.specs[path])


class LaneWriters:
    """The writers of all lanes of a store, each of one environment, stepped one after the other."""

    def __init__(self, path: Path, writers: Sequence[Writer]) -> None:
        self.path, self.writers, self.schema = path, tuple(writers), writers[0].schema

    def _part(self, frames: Any, lane: int) -> Any:
        return (
            {key: one[lane] for key, one in frames.items()} if self.schema.is_dict else frames[lane]
        )

    def reset(self, frames: Any, mask: Any = None) -> None:
        """Begin an episode in every lane, or in those of a mask."""
        for lane in np.flatnonzero(np.ones(len(self.writers)) if mask is None else mask).tolist():
            self.writers[lane].reset(self._part(frames, lane))

    def step(
        self,
        actions: Any,
        rewards: Any,
        frames: Any,
        terminated: Any,
        truncated: Any,
        *,
        life_lost: Any = None,
        mask: Any = None,
        **extras: Any,
    ) -> None:
        """Append one step in every lane, or in those of a mask."""
        for lane in np.flatnonzero(np.ones(len(self.writers)) if mask is None else mask).tolist():
            self.writers[lane].step(
                actions[lane],
                rewards[lane],
                self._part(frames, lane),
                terminated[lane],
                truncated[lane],
                life_lost=False if life_lost is None else life_lost[lane],
                **{name: one[lane] for name, one in extras.items()},
            )

    def flush(self) -> None:
        """Flush every lane."""
        for one in self.writers:
            one.flush()

    def close(self) -> None:
        """Close every lane."""
        for one in self.writers:
            one.close()

    def _release_unclosed(self) -> None:
        for one in self.writers:
            one._release_unclosed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_lanes(
    path: Path, *, n_lanes: int, capacity: int | None = None, flush_s: float = 0, **arguments: Any
) -> LaneWriters:
    """Make a store of lanes named 0 to n_lanes - 1, or open those that are there.

    `capacity` is that of all of them.
    """
    writers: list[Any] = []
    try:
        for number in range(n_lanes):
            share = capacity and capacity // n_lanes + (number < capacity % n_lanes)
            own = arguments | {"lane": str(number), "capacity": share, "flush_s": flush_s}
            writers.append(mmreplay.create(path, **own))
    except BaseException:
        for one in writers:
            one._release_unclosed()
        raise
    return LaneWriters(path, writers)


def go_on(path: Path) -> Writer | VectorWriter | LaneWriters:
    """Open what `make_lanes` or `create` made, to append to it; no clock flushes it."""
    n_lanes = len([*path.glob("lane-*")])
    if n_lanes:
        return make_lanes(path, n_lanes=n_lanes)
    return mmreplay.create(path, append=True, flush_s=0)


def rows_of(store: Store, env: int) -> SimpleNamespace:
    """The columns of one environment, its episodes one after the other, T + 1 rows each."""
    width = store.lanes[0].environments
    numbers = np.flatnonzero(store.episodes["id"] % width == env).tolist()
    episodes = [store.trajectory(number) for number in numbers]
    shown: list[Any] = [one.observation for one in episodes]
    zero = np.zeros_like(episodes[0].action[:1])
    return SimpleNamespace(
        frames={key: np.concatenate([one[key] for one in shown]) for key in shown[0]}
        if store.schema.is_dict
        else np.concatenate(shown),
        actions=np.concatenate([part for one in episodes for part in (one.action, zero)]),
        rewards=np.concatenate([np.append(one.reward, 0) for one in episodes]),
        non_terminals=np.concatenate(
            [np.append(one.non_terminal, one.non_terminal[-1]) for one in episodes]
        ),
        resets=np.concatenate([np.arange(len(one) + 1) == 0 for one in episodes]),
    )


def drain(writer: Writer) -> None:
    """Wait for what the sealing thread has to do."""
    writer._background.finish_tasks()
