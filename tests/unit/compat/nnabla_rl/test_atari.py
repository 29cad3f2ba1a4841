"""Buffers of stacked screens, against the stacks that were appended.

Invariant: a state comes out as the stack that was appended: float32 in [0, 1].
"""

import pytest

from mmreplay.compat import nnabla_rl
from tests.support.atari_games import game


@pytest.mark.parametrize(
    ("end", "stack", "dtype", "single", "capacity"),
    [
        ("terminated", 4, "float32", False, 9),
        ("interrupted", 4, "uint8", False, 9),
        ("terminated", 4, "float64", True, 1),
        ("interrupted", 4, "uint8", True, 3),
        ("interrupted", 1, "float32", False, 5),
        ("terminated", 2, "float32", False, 100),
        ("interrupted", 6, "uint8", True, 4),
    ],
)
def test_stacks_of_screens_stay_in_their_episode(experiences, end, stack, dtype, single, capacity):
    expected = []
    with nnabla_rl.MemoryEfficientAtariBuffer(capacity, stack) as buffer:
        for number, length in enumerate((3, 5, 1, 7, 2)):
            steps, wanted = game(number, length, end, stack, dtype, single)
            for one, other in zip(steps, wanted, strict=True):
                buffer.append(one)
                expected.append(other)
                kept = expected[-capacity:]
                assert len(buffer) == len(kept)
                assert experiences.same(buffer[0], kept[0])
                assert experiences.same(buffer[-1], kept[-1])
        assert all(experiences.same(buffer[i], one) for i, one in enumerate(kept))
        found, _ = buffer.sample(len(kept))
        assert all(experiences.same(one, next(k for k in kept if k[2] == one[2])) for one in found)


def test_an_atari_trajectory_slices_as_a_list_does(experiences):
    with nnabla_rl.MemoryEfficientAtariTrajectoryBuffer(2) as buffer:
        games = [game(number, length, "interrupted") for number, length in enumerate((3, 6, 5))]
        for steps, _ in games:
            buffer.append_trajectory(steps)
        assert len(buffer) == 11
        for number in range(2):
            wanted = games[number + 1][1]
            found = buffer.get_trajectory(number)
            assert len(found) == len(wanted)
            assert experiences.same(list(found), wanted)
            for key in (
                slice(None),
                slice(1, 3),
                slice(-2, None),
                slice(None, None, -2),
                slice(9, 4),
            ):
                assert experiences.same(found[key], wanted[key])
            assert experiences.same(found[-1], wanted[-1])
            with pytest.raises(IndexError):
                found[len(wanted)]
        assert experiences.same(buffer[6], games[2][1][0])
        (part,), _ = buffer.sample_indices_portion([4], 3)
        assert experiences.same(part, games[1][1][3:6])
        one, _ = buffer.sample_trajectories()
        assert len(one) in {5, 6}


def test_a_trajectory_of_several_games_reads_as_one(experiences):
    (first, wanted_first), (second, wanted_second) = (
        game(number, 3, "terminated") for number in range(2)
    )
    with nnabla_rl.MemoryEfficientAtariTrajectoryBuffer() as buffer:
        buffer.append_trajectory(first + second)
        assert buffer.trajectory_num == 1
        assert experiences.same(list(buffer.get_trajectory(0)), wanted_first + wanted_second)
        assert experiences.same(buffer.get_trajectory(0)[2:4], [wanted_first[2], wanted_second[0]])


def test_a_trajectory_goes_on_with_a_game_from_its_beginning_only(experiences):
    (first, wanted), (second, _) = (game(number, 5, "interrupted") for number in range(2))
    with nnabla_rl.MemoryEfficientAtariTrajectoryBuffer() as buffer:
        for steps in (first[2:], first + second[1:], first[:2] + first[3:]):
            with pytest.raises(ValueError, match="one screen repeated"):
                buffer.append_trajectory(steps)
        assert len(buffer) == 0
        buffer.append_trajectory(first)
        assert experiences.same(list(buffer.get_trajectory(0)), wanted)
