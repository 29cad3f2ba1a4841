"""Writers whose threads do nothing, for tests that watch files, calls, maps or threads meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mmreplay.datasets.replay_buffer import ReplayBuffer

_ROUNDS = 3  # a flush may evict, what is evicted may leave checksums to be made, these a flush


def settle(owner: Any) -> None:
    """Wait until a writer's, or a buffer's, background threads have nothing to do.

    What they would begin later is done here; until the owner is called again nothing comes.
    """
    writer = owner.writer if isinstance(owner, ReplayBuffer) else owner
    background = writer._background
    for _ in range(_ROUNDS):
        background.finish_tasks()
        background.tick(timer=False)
    background.finish_tasks()


@contextlib.contextmanager
def quiet(owner: Any) -> Iterator[None]:
    """Hold the background threads still, also those that go by the clock."""
    writer = owner.writer if isinstance(owner, ReplayBuffer) else owner
    settle(writer)
    with writer.files.flush_lock:
        yield
