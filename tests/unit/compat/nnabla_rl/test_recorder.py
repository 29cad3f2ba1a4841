"""How appended experiences become episodes of a store, and which stores are opened.

Invariant: an experience whose state is the s_next before goes on with that episode.
"""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl
from mmreplay.errors import FormatError


def test_experiences_in_no_order_are_episodes_of_one_step(experiences):
    rng = np.random.default_rng(0)
    steps = [experiences.step(e, t) for e in range(4) for t in range(5)]
    shuffled = [steps[i] for i in rng.permutation(20)]
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append_all(shuffled)
        assert all(experiences.same(buffer[i], one) for i, one in enumerate(shuffled))


@pytest.mark.parametrize(("flag", "info"), [(0.0, {}), (1.0, {"TimeLimit.truncated": True})])
def test_an_end_in_the_info_ends_the_episode_though_the_state_stays(flag, info):
    here = np.zeros(2)
    with nnabla_rl.ReplayBuffer() as buffer:
        for end in (False, True, False):
            told = (flag, here, info) if end else (1.0, here, {})
            buffer.append((here, 0, 0.0, *told))
        assert buffer.core.store.episodes["length"].tolist() == [2, 1]


def test_an_environment_may_write_over_its_state():
    state = np.zeros(2)
    with nnabla_rl.ReplayBuffer() as buffer:
        for t in range(4):
            before = state.copy()
            state += 1
            buffer.append((before, t, 0.0, 1.0, state, {}))
        assert [buffer[i][4].tolist() for i in range(4)] == [[i + 1] * 2 for i in range(4)]
        assert len(buffer.core.store.episodes) == 1


def test_a_refused_first_experience_does_not_settle_the_shapes(experiences):
    with nnabla_rl.ReplayBuffer() as buffer:
        with pytest.raises(ValueError, match="expected shape"):
            buffer.append((np.zeros(2), np.zeros(3), 0.0, 1.0, np.zeros(5), {}))
        buffer.append(experiences.step(0, 0))
        assert experiences.same(buffer[0], experiences.step(0, 0))


def test_a_dropped_buffer_removes_its_temporary_store(experiences, in_memory):
    dropped = nnabla_rl.ReplayBuffer()
    dropped.append(experiences.step(0, 0))
    assert list(in_memory.iterdir())
    del dropped
    assert not list(in_memory.iterdir())


def test_a_store_at_a_path_is_continued(experiences, tmp_path):
    path = tmp_path / "kept.zarr"
    steps = [experiences.known(one) for one in experiences.episode_of(0, 6, "terminated", "tuple")]
    with nnabla_rl.ReplayBuffer(4, path=path) as buffer:
        buffer.append_all(steps[:3])
    with nnabla_rl.ReplayBuffer(4, path=path) as buffer:
        assert len(buffer) == 3
        assert experiences.same(buffer[2], steps[2])
        buffer.append_all(steps[3:])
        assert [experiences.same(buffer[i], steps[2 + i]) for i in range(4)] == [True] * 4


def test_a_store_made_without_nnabla_rl_is_refused(tmp_path):
    import mmreplay

    path = tmp_path / "other.zarr"
    mmreplay.create(path, mmreplay.Field((2,)), mmreplay.Field(())).close()
    with pytest.raises(FormatError, match="found one that none of its classes made"):
        nnabla_rl.ReplayBuffer(path=path)
    with mmreplay.create(path, append=True) as writer:  # and is not locked by the attempt
        writer.reset(np.zeros(2, np.uint8))


def test_a_store_of_another_class_is_refused_and_stays_as_it_is(tmp_path, experiences):
    class Mine(nnabla_rl.ReplayBuffer):
        """A class of the user's: its store is that of the class it derives from."""

    path = tmp_path / "kept.zarr"
    with Mine(path=path) as mine:
        mine.append_all(experiences.episode_of(0, 5, None))
    for other in (
        lambda: nnabla_rl.TrajectoryReplayBuffer(2, path=path),
        lambda: nnabla_rl.PrioritizedReplayBuffer(2, path=path),  # a capacity would evict
        lambda: nnabla_rl.DecorableReplayBuffer(2, len, path=path),
    ):
        with pytest.raises(
            FormatError, match=r"expected a store of .*Buffer, found one of .*ReplayBuffer"
        ):
            other()
    with nnabla_rl.ReplayBuffer(path=path) as buffer:
        assert len(buffer) == 5
