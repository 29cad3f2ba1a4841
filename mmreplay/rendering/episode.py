"""One episode of a store, for pictures: read its numbers at once, and its frames in blocks.

Invariant: at most one block of frames is in memory, however long the episode is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import LANE_SHIFT, Array
from mmreplay.pictures import Image, limits_of, plane, to_bytes
from mmreplay.reading.info import action_names
from mmreplay.reading.store import Store
from mmreplay.schema import Field

_BLOCK = 64
_BLOCK_BYTES = 16 << 20
_MOST_NUMBERS = 4
_SEEN = 16  # frames that give the range of values that are not bytes


class Moment(NamedTuple):
    """The frame before step `number`, (H, W) or (H, W, 3); T is the final frame."""

    number: int
    image: Image


class Episode:
    """An episode of an open store: `number` as for `Store.trajectory`, `key` as for `render`.

    `end` is ``terminated``, ``truncated`` or ``open`` (still running), `shape` the (height, width)
    of its frames, `action` (T, *action), `reward` and `non_terminal` (T,),
    `total` its return.
    """

    def __init__(self, store: Store, number: int, key: str | None = None) -> None:
        self._store = store
        self._key = _chosen_key(store, key)
        self._field = store.schema.frames[self._key]
        self.shape: tuple[int, int] = _picture(self._field).shape[:2]
        self._uuids, episodes = store.live.uuids, store.episodes
        number = whole_number("episode", number, None)
        self.number = _checked_number(number, len(episodes), store)
        episode = episodes[self.number : self.number + 1]
        self.end = str(store.endings(episode)[0])
        self.end_text = "still running" if self.end == "open" else self.end
        self._first, self.length = int(episode["id"][0]), int(episode["length"][0])
        self._stride = store.lanes[self._first >> LANE_SHIFT].environments
        numbers = store.live.lazy_trajectory(self._uuids, self._first, self.length)
        self.action, self.reward = numbers.action, numbers.reward
        self.non_terminal = numbers.non_terminal
        self.total = float(self.reward.sum(dtype="float64"))
        self._names = action_names(store.live)

    def action_text(self, number: int) -> str:
        """The action of a step: its name if it has one, else up to four of its numbers."""
        action = self.action[number]
        if action.ndim == 0 and action.dtype.kind in "iu" and 0 <= action < len(self._names):
            return self._names[int(action)]
        shown = " ".join(f"{value:.3g}" for value in action.ravel()[:_MOST_NUMBERS].tolist())
        return shown + (" …" if action.size > _MOST_NUMBERS else "")

    def moments(self, numbers: Sequence[int]) -> Iterator[Moment]:
        """The frames of these steps, ascending; T is the final frame."""
        limits = None
        if self._field.dtype != np.uint8:
            every = max(self.length // (_SEEN - 1), 1)
            limits = limits_of(self._planes(range(0, self.length + 1, every)))
        block = max(1, min(_BLOCK, _BLOCK_BYTES // max(self._field.row_bytes, 1)))
        for start in range(0, len(numbers), block):
            part = numbers[start : start + block]
            for number, one in zip(part, self._planes(part), strict=True):
                yield Moment(number, to_bytes(one, limits))

    def _planes(self, numbers: Sequence[int]) -> list[Array]:
        """The images of these steps; the final one is the next observation of the last step."""
        steps = np.minimum(np.asarray(numbers, np.int64), self.length - 1)
        batch = self._store.transitions(self._first + steps * self._stride, stack=None)
        # After the read, which opens a store that was created at the path meanwhile.
        self._store.live.check_same(self._uuids, "of this episode", "render it again")
        now, after = (
            frames[self._key] if isinstance(frames, dict) else frames
            for frames in (batch.observation, batch.next_observation)
        )
        frames = [(after if n == self.length else now)[i] for i, n in enumerate(numbers)]
        return [one for frame in frames if (one := plane(frame)) is not None]


def _checked_number(number: int, n_episodes: int, store: Store) -> int:
    if not n_episodes:
        left = "; `mmreplay view` also shows episodes whose beginning was evicted"
        raise EmptyBufferError(f"{store.path}: has no whole episode{left if len(store) else ''}")
    if not -n_episodes <= number < n_episodes:
        raise SchemaError(
            f"episode: expected a number from 0 to {n_episodes - 1}, or from -1 (the last) down to "
            f"-{n_episodes}, found {number}; `mmreplay episodes {store.path}` lists them"
        )
    return number % n_episodes


def _chosen_key(store: Store, key: str | None) -> str:
    frames = store.schema.frames
    pictures = [name for name, field in frames.items() if _picture(field).size]
    if key is not None and not store.schema.is_dict:
        raise SchemaError(f"key: the observations of {store.path} are not dicts; leave it out")
    if not pictures:
        found = ", ".join(f"{field.dtype} {list(field.shape)}" for field in frames.values())
        raise SchemaError(
            f"{store.path}: its observations are not images: {found}; `mmreplay plot` draws "
            f"returns, rewards and actions"
        )
    if key is None and len(pictures) == 1:
        return pictures[0]
    if key not in pictures:
        found = "" if key is None else f", found {key!r}"
        raise SchemaError(
            f"key: {store.path} has several images: choose {' or '.join(map(repr, pictures))}"
            f"{found}"
        )
    return key


def _picture(field: Field) -> Array:
    """The image that a frame of zeros would give; empty if frames are not images."""
    found = plane(np.broadcast_to(np.uint8(0), field.shape))
    return np.empty(0) if found is None else found
