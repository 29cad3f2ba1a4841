"""The buffer whose samples have goals that their own episode reached.

Invariant: what is stored is not changed; `buffer[i]` is the experience as it was appended.
"""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl

LENGTHS = (4, 6, 1, 5)
DESIRED = -1.0


def goal_states(episode, t):
    return np.array([episode, t]), np.array([DESIRED]), np.array([10.0 * episode + t])


def tasks(terminated):
    """Episodes of steps towards a goal that none of them reaches."""
    return [
        (
            goal_states(episode, t),
            np.array([t]),
            -1.0,
            0.0 if terminated and t == length - 1 else 1.0,
            goal_states(episode, t + 1),
            {"bonus": float(t)},
        )
        for episode, length in enumerate(LENGTHS)
        for t in range(length)
    ]


def reward(achieved, desired, info):
    assert achieved.shape == desired.shape == (1,)
    return -abs(float(achieved[0] - desired[0])) + 100 * info["bonus"]


@pytest.mark.parametrize(("terminated", "capacity"), [(True, None), (False, 9)])
def test_goals_come_from_the_rest_of_the_same_episode(experiences, terminated, capacity):
    every = tasks(terminated)
    with nnabla_rl.HindsightReplayBuffer(reward, 0.5, capacity) as buffer:
        buffer.append_all(every)
        buffer.seed(1)
        kept = every if capacity is None else every[-capacity:]
        assert len(buffer) == len(kept)
        seen = {}
        for _ in range(120):
            found, info = buffer.sample_indices(range(len(kept)))
            assert info["weights"].shape == (len(kept), 1)
            for i, (one, original) in enumerate(zip(found, kept, strict=True)):
                (s, goal, achieved), a, r, flag, (s_next, next_goal, next_achieved), more = one
                assert np.array_equal(s, original[0][0])
                assert np.array_equal(achieved, original[0][2])
                assert np.array_equal(s_next, original[4][0])
                assert np.array_equal(next_achieved, original[4][2])
                assert (a, flag, more) == (original[1], original[3], original[5])
                assert goal == next_goal
                if goal[0] == DESIRED:
                    assert r == -1.0
                else:
                    assert r == reward(next_achieved, goal, more)
                counts = seen.setdefault(i, {})
                counts[goal[0]] = counts.get(goal[0], 0) + 1
        for i, counts in seen.items():
            episode, t = kept[i][0][0]
            future = [10.0 * episode + later for later in range(t + 1, LENGTHS[int(episode)] + 1)]
            assert counts.keys() == {DESIRED, *future}
            found = np.array([counts[goal] for goal in (DESIRED, *future)])
            assert (
                experiences.goodness(found, np.array([0.5, *[0.5 / len(future)] * len(future)])) < 5
            )
        assert all(buffer[i][2] == -1.0 and buffer[i][0][1] == DESIRED for i in range(len(kept)))
        drawn, _ = buffer.sample(len(kept))
        places = [(int(one[0][0][0]), int(one[0][0][1])) for one in drawn]
        assert len(set(places)) == len(kept)


def test_experiences_without_goals_are_refused():
    with nnabla_rl.HindsightReplayBuffer(reward) as buffer:
        good = tasks(True)[0]
        with pytest.raises(RuntimeError, match="expected a tuple"):
            buffer.append((np.zeros(2), *good[1:]))
        with pytest.raises(RuntimeError, match="expected a tuple"):
            buffer.append((good[0][:2], *good[1:]))
        with pytest.raises(ValueError, match="one number"):
            buffer.append((*good[:2], np.zeros(2), *good[3:]))
        buffer.append((*good[:2], np.array([-1.0]), *good[3:]))
        assert buffer[0][2] == -1.0
        buffer.append(tasks(True)[1])
        with pytest.raises(NotImplementedError):
            buffer.sample(1, 2)
