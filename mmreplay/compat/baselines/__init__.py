"""The replay buffers and frame stacks of OpenAI's baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmreplay.compat.baselines.buffers import LazyFrames, PrioritizedReplayBuffer, ReplayBuffer

if TYPE_CHECKING:
    from mmreplay.compat.baselines.framestack import FrameStack

__all__ = ["FrameStack", "LazyFrames", "PrioritizedReplayBuffer", "ReplayBuffer"]


def __getattr__(name: str) -> Any:
    if name == "FrameStack":
        from mmreplay.compat.baselines.framestack import FrameStack  # noqa: PLC0415 (an extra)

        globals()[name] = FrameStack  # the next use of the name does not come here
        return FrameStack
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "FrameStack"})
