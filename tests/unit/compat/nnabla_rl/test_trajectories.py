"""Buffers of trajectories, against a list of lists.

Invariant: the newest `num_trajectories` count, and of those that went nothing is left in any
length, index or probability.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmreplay.compat import nnabla_rl
from mmreplay.compat.nnabla_rl import trajectories
from tests.support.effort import by_effort

ENDS = ("terminated", "truncated", "interrupted")
# How many steps follow one another, and how many after that, as if from other episodes.
PIECES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@pytest.fixture
def small_reclaim(monkeypatch):
    """Disk is freed after few experiences."""
    monkeypatch.setattr(trajectories, "_FEWEST_TO_RECLAIM", 10)


@pytest.mark.usefixtures("small_reclaim")
@given(
    st.lists(st.tuples(PIECES, st.sampled_from(ENDS)), min_size=1, max_size=9),
    st.one_of(st.none(), st.integers(1, 4)),
)
@settings(deadline=None, max_examples=by_effort(3, 8, 8))  # each makes a store
def test_trajectories_against_a_list_of_lists(experiences, episodes, most):
    every = []
    with nnabla_rl.TrajectoryReplayBuffer(most) as buffer:
        assert (len(buffer), buffer.trajectory_num, buffer.capacity) == (0, 0, most)
        for number, (pieces, end) in enumerate(episodes):
            steps = [
                experiences.known(one)
                for piece, length in enumerate(pieces)
                for one in experiences.episode_of(10 * number + piece, length, end)
            ]
            buffer.append_trajectory(steps)
            every.append(steps)
            kept = every if most is None else every[-most:]
            flat = [one for steps in kept for one in steps]
            assert len(buffer) == len(flat)
            assert buffer.trajectory_num == len(kept)
        for i, steps in enumerate(kept):
            assert experiences.same(buffer.get_trajectory(i), steps)
        for i, one in enumerate(flat):
            assert experiences.same(buffer[i], one)
        found, info = buffer.sample_trajectories(len(kept))
        found = [found] if len(kept) == 1 else list(found)
        assert sorted(steps[0][2] for steps in found) == [steps[0][2] for steps in kept]
        assert info["weights"].shape == (len(kept), 1)
        with pytest.raises(ValueError, match="at most"):
            buffer.sample_trajectories(len(kept) + 1)
        for length in range(1, max(map(len, kept)) + 2):
            index = 0
            for steps in kept:
                for t in range(len(steps)):
                    if length > len(steps):
                        with pytest.raises(RuntimeError, match="shorter than"):
                            buffer.sample_indices_portion([index], length)
                    else:
                        begin = min(t, len(steps) - length)
                        (part,), _ = buffer.sample_indices_portion([index], length)
                        assert experiences.same(part, steps[begin : begin + length])
                    index += 1
        with pytest.raises(IndexError):
            buffer.get_trajectory(len(kept))
        with pytest.raises(IndexError):
            buffer.sample_indices_portion([len(flat)])


def test_portions_are_drawn_by_length_among_those_long_enough(experiences):
    lengths = (2, 5, 3, 8, 1)
    with nnabla_rl.TrajectoryReplayBuffer(4) as buffer:
        buffer.seed(3)
        for number, length in enumerate(lengths):
            buffer.append_trajectory(experiences.episode_of(number, length, "terminated"))
        counts = {}
        for _ in range(300):
            parts, info = buffer.sample_trajectories_portion(4, 3)
            assert info["weights"].shape == (4, 1)
            for part in parts:
                numbers = [one[2] for one in part]
                assert numbers == [numbers[0] + j for j in range(3)]
                counts[numbers[0]] = counts.get(numbers[0], 0) + 1
        shares = {
            100.0 * e + t: lengths[e] / 16 / (lengths[e] - 2)
            for e in (1, 2, 3)
            for t in range(lengths[e] - 2)
        }
        assert counts.keys() == shares.keys()
        found = np.array([counts[key] for key in shares])
        assert experiences.goodness(found, np.array([*shares.values()])) < 4
        with pytest.raises(RuntimeError, match="8 steps is shorter than 9"):
            buffer.sample_trajectories_portion(1, 9)


@pytest.mark.usefixtures("small_reclaim")
def test_the_disk_of_removed_trajectories_is_freed(experiences, tmp_path):
    path = tmp_path / "few.zarr"
    with nnabla_rl.TrajectoryReplayBuffer(2, path=path) as buffer:
        for number in range(9):
            buffer.append_trajectory(experiences.episode_of(number, 20, "truncated"))
        assert len(buffer) == 40
        assert len(buffer.core.store) <= 90
    with nnabla_rl.TrajectoryReplayBuffer(2, path=path) as buffer:
        assert [one[2] for one in buffer.get_trajectory(0)] == [700.0 + t for t in range(20)]


def test_a_trajectory_that_loses_a_life_is_one_episode(experiences):
    with nnabla_rl.TrajectoryReplayBuffer() as buffer:
        for call in (buffer.append, buffer.append_all):
            with pytest.raises(NotImplementedError):
                call(experiences.step(0, 0))
        with pytest.raises(ValueError, match="one experience or more"):
            buffer.append_trajectory([])
        assert len(buffer) == 0
        # A lost life: terminal, and the game goes on.
        steps = [
            experiences.step(0, 0),
            experiences.step(0, 1, "terminated"),
            experiences.step(0, 2),
        ]
        buffer.append_trajectory(steps)
        assert experiences.same(buffer.get_trajectory(-1), steps)
        assert buffer.trajectory_num == 1


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        (0, np.array([None]), "expected numbers"),
        (1, np.zeros(3), "action: expected shape"),
        (2, "much", "could not convert"),
        (4, np.zeros(5, np.float32), "frame: expected shape"),
    ],
)
def test_a_trajectory_with_a_step_that_does_not_fit_is_refused_whole(
    experiences, part, value, text
):
    steps = experiences.episode_of(0, 3, None)
    wrong = list(steps[2])
    wrong[part] = value
    with nnabla_rl.TrajectoryReplayBuffer() as buffer:
        buffer.append_trajectory(steps[:2])
        before = buffer.trajectory_num, len(buffer)
        with pytest.raises(ValueError, match=text):
            buffer.append_trajectory([*steps[:2], tuple(wrong)])
        assert (buffer.trajectory_num, len(buffer)) == before
        buffer.append_trajectory(steps)
        assert (buffer.trajectory_num, len(buffer)) == (before[0] + 1, before[1] + 3)
        assert experiences.same(buffer.get_trajectory(-1), steps)


@pytest.mark.usefixtures("small_reclaim")
def test_a_trajectory_in_pieces_is_one_also_after_reopening_and_eviction(tmp_path, experiences):
    path = tmp_path / "pieces.zarr"

    def pieces(number):
        rng = np.random.default_rng(number)
        return [
            (rng.random(2), 0, float(10 * number + t), float(t % 2), rng.random(2), {})
            for t in range(6)
        ]

    with nnabla_rl.TrajectoryReplayBuffer(2, path=path) as buffer:
        for number in range(20):
            buffer.append_trajectory(pieces(number))
        assert len(buffer) == 12
        assert len(buffer.core.store) < 20 * 6
    with nnabla_rl.TrajectoryReplayBuffer(3, path=path) as buffer:
        kept = [pieces(number) for number in range(20 - buffer.trajectory_num, 20)]
        assert len(kept) >= 2
        assert experiences.same([buffer.get_trajectory(i) for i in range(len(kept))], kept)
        flat = [one for steps in kept for one in steps]
        for index in range(len(flat) - 1):
            # Step 1 has non_terminal = 1, and what follows it is in the same trajectory; step 5
            # has so, too, and what follows it is not.
            if index % 6 == 5:
                with pytest.raises(ValueError, match="end of an episode"):
                    buffer.sample_indices([index], 2)
            else:
                (first,), (second,) = buffer.sample_indices([index], 2)[0]
                assert experiences.same([first, second], flat[index : index + 2])
