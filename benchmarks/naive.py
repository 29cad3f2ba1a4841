"""What a batch must be: rebuilt from a tape with plain loops, nothing shared with mmreplay."""

from __future__ import annotations

import numpy as np

import mmreplay
from benchmarks.experience import Layout, Tape

__all__ = ["check_batch"]


def check_batch(
    batch: mmreplay.Batch,
    tape: Tape,
    layout: Layout = Layout.ONE,
    *,
    stack: int = 4,
    n_step: int = 1,
    gamma: float = 0.99,
) -> None:
    """Compare every array of a batch, byte for byte."""
    places = tape.places(batch.id, layout).tolist()
    ends = set(np.flatnonzero(tape.resets).tolist()) | set(tape.lanes)
    for b, place in enumerate(places):
        assert place + 1 not in ends, f"row {place} is no transition"
        begin = place
        while not tape.resets[begin]:
            begin -= 1
        total, steps, flag = 0.0, 0, 1
        for row in range(place, place + n_step):
            if row + 1 in ends:
                break
            total += gamma**steps * float(tape.rewards[row])
            steps += 1
            flag = int(tape.non_terminals[row])
            if not flag:
                break
        for frames, newest in (
            (batch.observation, place),
            (batch.next_observation, place + steps),
        ):
            assert isinstance(frames, np.ndarray)
            for age in range(stack):
                expected = tape.frames[max(newest - age, begin)]
                assert np.array_equal(frames[b, stack - 1 - age], expected), (place, age)
        assert batch.action[b] == tape.actions[place]
        assert batch.reward[b] == np.float32(total)
        assert batch.discount[b] == np.float32(gamma**steps * flag)
        assert batch.non_terminal[b] == bool(flag)
        assert batch.weight[b] == 1
