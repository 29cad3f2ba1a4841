"""One episode of a store, for pictures: its numbers whole, its frames a block at a time.

Invariant: frames in memory are those of one block, however long the episode is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import any_whole_number
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import LANE_SHIFT, Array
from mmreplay.pictures.images import Image, is_picture, limits_of, plane, to_bytes
from mmreplay.reading.info import environment
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory

_BLOCK = 64
_BLOCK_BYTES = 16 << 20
_SEEN = 16
"""Frames that tell the range of values that are not bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """A frame of the episode, and the step that was taken from there.

    Attributes:
        number: of the step; T for the final frame.
        image: (H, W) or (H, W, 3) uint8.
    """

    number: int
    image: Image


class Episode:
    """An episode of a store that is open.

    Attributes:
        number: in `Store.episodes`, from 0.
        length: T.
        end: ``terminated``, ``truncated`` or ``open``: still running.
        action: (T, *action).
        reward: (T,).
        non_terminal: (T,) bool.

    Args:
        store: where it is.
        number: as `Store.trajectory` takes it.
        key: of the frames, None where there is one that is a picture.

    Raises:
        EmptyBufferError: there is no episode yet.
        SchemaError: no such episode or key, or its frames are no pictures.
    """

    def __init__(self, store: Store, number: int, key: str | None = None) -> None:
        self._store = store
        self._key = _chosen_key(store, key)
        self._uuids, episodes = store.live.uuids, store.episodes
        self.number = _checked_number(number, len(episodes), store)
        episode = episodes[self.number : self.number + 1]
        self.end = str(store.endings(episode)[0])
        self._first, self.length = int(episode["id"][0]), int(episode["length"][0])
        self._stride = store.lanes[self._first >> LANE_SHIFT].environments
        numbers = LazyTrajectory(
            store.live,
            self._first,
            self.length,
            self._stride,
            terminated=False,  # which nothing here asks for
            truncated=False,
            uuids=self._uuids,
        )
        self.action, self.reward = numbers.action, numbers.reward
        self.non_terminal = numbers.non_terminal
        self._names = action_names(store)

    @property
    def total(self) -> float:
        """Its return, without discount."""
        return float(self.reward.sum(dtype=np.float64))

    @property
    def end_text(self) -> str:
        """How it ended, in words."""
        return "still running" if self.end == "open" else self.end

    def action_text(self, number: int) -> str:
        """The action of a step in words, where the environment has some, else in numbers."""
        action = self.action[number]
        if action.ndim == 0 and action.dtype.kind in "iu" and 0 <= action < len(self._names):
            return self._names[int(action)]
        return _in_numbers(action)

    def moments(self, numbers: Sequence[int] | None = None) -> Iterator[Moment]:
        """All T + 1 frames in order, or those of some steps, ascending.

        Raises:
            InvalidIdError: its rows were evicted before they were read.
            SchemaError: another store stands at the path by now.
            CorruptStoreError: frames that cannot be read.
        """
        wanted = range(self.length + 1) if numbers is None else numbers
        field = self._store.schema.frames[self._key]
        every = max(self.length // (_SEEN - 1), 1)
        seen = range(0, self.length + 1, every)
        limits = None if field.dtype == np.uint8 else limits_of(self._planes(seen))
        block = max(1, min(_BLOCK, _BLOCK_BYTES // max(field.row_bytes, 1)))
        for start in range(0, len(wanted), block):
            part = wanted[start : start + block]
            for number, one in zip(part, self._planes(part), strict=True):
                yield Moment(number, to_bytes(one, limits))

    def _planes(self, numbers: Sequence[int]) -> list[Array]:
        """The pictures of some steps, ascending; the final one is what the last step led to."""
        steps = np.minimum(np.asarray(numbers, np.int64), self.length - 1)
        batch = self._store.transitions(self._first + steps * self._stride, stack=None)
        # After the read, which notices another store.
        self._store.live.check_same(self._uuids, "of this episode", "render it again")
        now, after = (
            frames[self._key] if isinstance(frames, dict) else frames
            for frames in (batch.observation, batch.next_observation)
        )
        frames = [(after if n == self.length else now)[i] for i, n in enumerate(numbers)]
        return [one for frame in frames if (one := plane(frame)) is not None]


def action_names(store: Store) -> list[str]:
    """What the environment calls its actions, as far as the store tells; else an empty list."""
    env: Mapping[str, Any] = environment(store.live) or {}
    names = env.get("action_names")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return list(names) if is_list and names else []


def _in_numbers(action: npt.NDArray[Any]) -> str:
    most = 4
    texts = [f"{value:.3g}" for value in action.ravel()[:most].tolist()]
    return " ".join(texts) + (" …" if action.size > most else "")


def _checked_number(number: int, n_episodes: int, store: Store) -> int:
    number = any_whole_number("episode", number)
    if not n_episodes:
        left = "; `mmreplay view` shows what is left of one whose beginning was evicted"
        raise EmptyBufferError(
            f"{store.path}: there is no whole episode in it{left if len(store) else ''}"
        )
    if not -n_episodes <= number < n_episodes:
        raise SchemaError(
            f"episode: expected a number from 0 to {n_episodes - 1}, or from -1 (the last) down to "
            f"-{n_episodes}, found {number}; `mmreplay episodes {store.path}` lists them"
        )
    return number % n_episodes


def _chosen_key(store: Store, key: str | None) -> str:
    """The key of the frames that are shown; that of the schema where they have none."""
    frames = store.schema.frames
    pictures = [name for name, field in frames.items() if is_picture(field.shape)]
    if key is not None and not store.schema.is_dict:
        raise SchemaError(f"key: {store.path}: its frames have no keys; leave it out")
    if not pictures:
        found = ", ".join(f"{field.dtype} {list(field.shape)}" for field in frames.values())
        raise SchemaError(
            f"{store.path}: its frames are no pictures: {found}; `mmreplay plot` draws returns, "
            f"rewards and actions"
        )
    if key is None and len(pictures) == 1:
        return pictures[0]
    if key not in pictures:
        found = "none" if key is None else repr(key)
        raise SchemaError(
            f"key: {store.path}: expected one of {', '.join(map(repr, pictures))}, found {found}"
        )
    return key
