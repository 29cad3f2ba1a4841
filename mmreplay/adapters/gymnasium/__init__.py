"""Gymnasium: environments as a source of rows.

    FrameStack          stacks frames without copying them
    advice_for_a_loop   what somebody who steps an environment by hand must know of it
    advice_on_stacks    likewise, of one whose observations are stacks
    env_fields          what a store of this environment's rows looks like
    record              steps environments and stores every transition
    step_only           the same loop with nothing recorded, to measure what recording costs

Invariant: every recorded transition was made by the environment (an autoreset is none), and every
episode ends with the observation that the environment ended it with.
"""

from __future__ import annotations

from mmreplay.adapters import MissingExtraError

try:
    import gymnasium as _gymnasium  # noqa: F401 (fails here, with a message, or nowhere)
except ImportError as error:
    raise MissingExtraError(
        'stepping environments needs gymnasium: pip install "mmreplay[gymnasium]", '
        'or with Atari: pip install "mmreplay[atari]"'
    ) from error

from mmreplay.adapters.gymnasium.autoreset import advice_for_a_loop
from mmreplay.adapters.gymnasium.framestack import FrameStack
from mmreplay.adapters.gymnasium.progress import RecordProgress
from mmreplay.adapters.gymnasium.recorder import RecordResult, record, step_only
from mmreplay.adapters.gymnasium.signals import stop_on_signals
from mmreplay.adapters.gymnasium.spaces import EnvFields, advice_on_stacks, env_fields

__all__ = [
    "EnvFields",
    "FrameStack",
    "RecordProgress",
    "RecordResult",
    "advice_for_a_loop",
    "advice_on_stacks",
    "env_fields",
    "record",
    "step_only",
    "stop_on_signals",
]
