"""The buffers that draw uniformly, against plain lists of what was appended.

Invariant: index 0 is the oldest experience that counts, ``len(buffer) - 1`` the newest.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmreplay.compat import nnabla_rl
from tests.support.effort import by_effort

ENDS = ("terminated", "truncated", "interrupted")

EPISODES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(ENDS)), min_size=1, max_size=8)


@given(EPISODES, st.one_of(st.none(), st.integers(1, 12)), st.sampled_from(["array", "tuple"]))
@settings(deadline=None, max_examples=by_effort(3, 25, 100))  # each makes a store
def test_every_index_is_what_was_appended(experiences, episodes, capacity, kind):
    appended = [
        one
        for number, (length, end) in enumerate(episodes)
        for one in experiences.episode_of(number, length, end, kind)
    ]
    kept = appended if capacity is None else appended[-capacity:]
    with nnabla_rl.ReplayBuffer(capacity) as buffer:
        assert len(buffer) == 0
        assert buffer.capacity == capacity
        for count, experience in enumerate(appended, 1):
            buffer.append(experience)
            assert len(buffer) == min(count, capacity or count)
            assert experiences.same(buffer[-1], experiences.known(experience))
        for i, experience in enumerate(kept):
            assert experiences.same(buffer[i], experiences.known(experience))
            assert experiences.same(buffer[i - len(buffer)], experiences.known(experience))
        assert all(
            experiences.same(a, experiences.known(b)) for a, b in zip(buffer, kept, strict=True)
        )
        for wrong in (len(buffer), -len(buffer) - 1):
            with pytest.raises(IndexError):
                buffer[wrong]


def test_a_decoration_sees_each_experience_that_comes_out(experiences):
    def halved(experience):
        experience[0][:] = 0  # memory of its own
        return (*experience[:2], experience[2] / 2, *experience[3:])

    with nnabla_rl.DecorableReplayBuffer(10, halved) as buffer:
        buffer.append_all(experiences.episode_of(1, 4, "terminated"))
        assert [buffer[i][2] for i in range(4)] == [50.0, 50.5, 51.0, 51.5]
        found, _ = buffer.sample(3, 2)
        assert all(one[2] < 60 and not one[0].any() for run in found for one in run)
        assert all(one[2] < 60 for one in buffer.sample_indices([0, 3])[0])
        assert buffer[1][4].tolist() == [1.0, 2.0]


def test_replacement_sampling_draws_more_than_there_are(experiences):
    with nnabla_rl.ReplacementSamplingReplayBuffer(5) as buffer:
        with pytest.raises(ValueError, match="empty"):
            buffer.sample(2)
        buffer.append_all(experiences.episode_of(0, 3, "terminated"))
        found, info = buffer.sample(20)
        assert len(found) == 20
        assert {one[2] for one in found} == {0.0, 1.0, 2.0}
        assert info["weights"].shape == (20, 1)
    with nnabla_rl.ReplayBuffer(5) as buffer:
        buffer.append_all(experiences.episode_of(0, 3, "terminated"))
        assert sorted(one[2] for one in buffer.sample(3)[0]) == [0.0, 1.0, 2.0]
        with pytest.raises(ValueError, match="at most 3"):
            buffer.sample(4)


def test_a_seed_repeats_the_draws(experiences):
    def drawn(early):
        with nnabla_rl.ReplayBuffer() as buffer:
            if early:
                buffer.seed(7)
            buffer.append_all(experiences.episode_of(0, 50, "terminated"))
            if not early:
                buffer.seed(7)
            return [one[2] for _ in range(3) for one in buffer.sample(9, 2)[0][0]]

    assert drawn(True) == drawn(True) == drawn(False)
