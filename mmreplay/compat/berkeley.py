"""The frame buffer of the Berkeley deep reinforcement learning homework.

Invariant: a sampled observation equals what `encode_recent_observation` returned when its frame was
the newest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.datasets.replay_buffer import ReplayBuffer as CoreBuffer
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Array
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field

__all__ = ["ReplayBuffer"]


class ReplayBuffer(DeferredStore):
    """Frames from `store_frame`, and their actions and rewards from `store_effect`.

    Keeps `size` transitions, whose indices run through [0, size); an observation has
    `frame_history_len` frames. `path` is the store's directory; None for a temporary one.
    """

    def __init__(self, size: int, frame_history_len: int, path: StorePath = None) -> None:
        super().__init__(path, whole_number("size", size))
        self.size, self.frame_history_len = size, frame_history_len
        self.next_idx = 0
        self._recent: LazyFrames | None = None
        self._waiting: int | None = None  # the index of the newest frame, until it is terminal
        self._effect: tuple[Array, float] | None = None
        if (stored := self._stored(dicts=False)) is not None:
            self._begin(stored[0])

    def _begin(self, frame: Field) -> None:
        stack = None if len(frame.shape) == 1 else self.frame_history_len
        self._open(
            CoreBuffer,
            stack=stack,
            # As the original, which draws from numpy's global generator.
            seed=int(np.random.randint(1 << 31)),  # noqa: NPY002
            frame=frame,
            action=Field((), "int32"),
            padding="zero",
            stack_axis=-1,
        )

    def store_frame(self, frame: npt.ArrayLike) -> int:
        """Store the newest frame; returns its index in [0, size), for `store_effect`.

        A frame is (h, w, c) or (h, w) uint8, or floats in [0, 1]. A low-dimensional observation
        (d,) keeps its dtype and is not stacked. SchemaError for another shape or dtype than the
        first one.
        """
        given = np.asarray(frame)
        if self._core is None:
            self._begin(Field(given.shape, given.dtype if given.ndim == 1 else "uint8"))
        core = self.core
        given = core.store.schema.frames[FRAME].coerce(given, "frame")
        if self._effect is None or self._recent is None:
            core.reset(given)
            k = self.frame_history_len
            self._recent = LazyFrames.first(given, k, stack_axis=-1, padding="zero")
        else:
            core.step(*self._effect, given)
            self._recent = self._recent.followed_by(given)
        self._effect = None
        self._waiting = idx = self.next_idx
        self.next_idx = (idx + 1) % self.size
        return idx

    def store_effect(self, idx: int, action: int, reward: float, done: bool) -> None:
        """Store the action and reward of the newest frame, at `idx`; `done` ends the episode."""
        if self._recent is None or idx != self._waiting:
            raise SchemaError(
                f"store_effect: expected the index that store_frame() returned last, "
                f"{self._waiting}, found {idx}; store each frame's effect before the next frame, "
                f"and only once after done"
            )
        effect = self.core.store.schema.action.coerce_loosely(action, "action"), float(reward)
        if done:
            # The next frame is never read; the last one replaces it.
            self.core.step(*effect, self._recent.frame(-1), terminated=True)
        self._effect = None if done else effect
        self._waiting = None if done else idx

    def encode_recent_observation(self) -> Array:
        """The newest k frames of this episode, after zeros if there are fewer: (h, w, c * k) uint8.

        A low-dimensional observation comes back as it is. EmptyBufferError if no frame was stored
        since the buffer was created or opened.
        """
        if self._recent is None:
            raise EmptyBufferError(f"{self!r}: there is no frame yet; call store_frame() first")
        newest = self._recent.frame(-1)
        return newest.copy() if newest.ndim == 1 else np.asarray(self._recent)

    def can_sample(self, batch_size: int) -> bool:
        """Whether there are `batch_size` transitions."""
        return batch_size <= len(self)

    def sample(self, batch_size: int) -> tuple[Array, Array, Array, Array, Array]:
        """Draw distinct transitions; EmptyBufferError or SchemaError if there are fewer.

        Returns observations (B, h, w, c * k) uint8, actions (B,) int32, rewards (B,) float32, next
        observations, and (B,) float32, 1 where the episode ended.
        """
        batch: Any = self.core.sample(batch_size, replace=False)
        done = (~batch.non_terminal).astype(np.float32)
        return batch.observation, batch.action, batch.reward, batch.next_observation, done
