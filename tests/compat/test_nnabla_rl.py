"""nnabla-rl's buffers against plain lists of the experiences that were appended.

Invariant: whatever an index, a run or a trajectory gives, it is what a list of everything that was
appended gives for it.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmreplay.compat import nnabla_rl
from mmreplay.compat.nnabla_rl import trajectories
from mmreplay.errors import ClosedError, FormatError, SchemaError

TERMINATED, TRUNCATED, INTERRUPTED = "terminated", "truncated", "interrupted"
ENDS = (TERMINATED, TRUNCATED, INTERRUPTED)


def same(one, other):
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


def step(episode, t, end=None, kind="array"):
    """Step t of an episode, with states that no other episode has."""

    def state(number):
        part = np.array([episode, number], np.float32)
        return (part, np.uint8(number % 256), part[:1] * 2) if kind == "tuple" else part

    flag = 0.0 if end == TERMINATED else 1.0
    info: dict = {"TimeLimit.truncated": True} if end == TRUNCATED else {}
    info |= {"episode": float(episode), "deep": {"pair": np.array([t, episode])}}
    return state(t), np.array([t]), 100.0 * episode + t, flag, state(t + 1), info


def episode_of(number, length, end, kind="array"):
    return [step(number, t, end if t == length - 1 else None, kind) for t in range(length)]


EPISODES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(ENDS)), min_size=1, max_size=8)


def known(experience):
    """Of an experience, what has a column: the first one has no time limit in its info."""
    info = {k: v for k, v in experience[5].items() if k != "TimeLimit.truncated"}
    return (*experience[:5], info)


class Lists:
    """The naive model: everything in a list, with the number of its episode and how that ended."""

    def __init__(self, episodes, capacity=None, kind="array"):
        self.every, self.links = [], []
        for number, (length, end) in enumerate(episodes):
            steps = episode_of(number, length, end, kind)
            self.every += steps
            # Whether the next one may be read on from here: in the same episode, or past a terminal.
            self.links += [True] * (length - 1) + [end == TERMINATED]
        self.capacity = capacity

    @property
    def kept(self):
        return self.every if self.capacity is None else self.every[-self.capacity :]

    def runs(self, num_steps):
        """Indices that a run may begin with."""
        links = self.links[len(self.every) - len(self.kept) :]
        last = len(links) - num_steps
        return [i for i in range(last + 1) if all(links[i : i + num_steps - 1])]


def test_the_first_info_decides_on_the_columns():
    with nnabla_rl.ReplayBuffer() as buffer:
        infos = [
            {"n": 1, "f": np.float32(2), "deep": {"a": np.arange(3), "b": {"c": True}}, "s": "x"},
            {"n": 1.5, "deep": {"a": np.arange(3) + 1}, "new": 7},
            {"n": None, "deep": 5, "f": np.float32(1)},
        ]
        for t, info in enumerate(infos):
            buffer.append((np.array([t]), 0, 0.0, 1.0, np.array([t + 1]), info))
        assert same(
            buffer[0][5],
            {"n": 1.0, "f": np.float32(2), "deep": {"a": np.arange(3), "b": {"c": True}}},
        )
        assert same(buffer[1][5], {"n": 1.5, "deep": {"a": np.arange(3) + 1}})
        assert same(buffer[2][5], {"f": np.float32(1)})
        assert type(buffer[0][5]["deep"]["b"]["c"]) is bool


@given(EPISODES, st.one_of(st.none(), st.integers(1, 12)), st.sampled_from(["array", "tuple"]))
@settings(deadline=None, max_examples=30)  # each makes a store
def test_every_index_is_what_was_appended(episodes, capacity, kind):
    naive = Lists(episodes, capacity, kind)
    with nnabla_rl.ReplayBuffer(capacity) as buffer:
        assert len(buffer) == 0
        assert buffer.capacity == capacity
        appended = naive.every
        # The first one has no time limit in its info, so that the entry has no column.
        appended = [known(appended[0]), *appended[1:]] if len(appended[0][5]) > 2 else appended
        for count, experience in enumerate(appended, 1):
            buffer.append(experience)
            assert len(buffer) == min(count, capacity or count)
            assert same(buffer[-1], known(experience))
        for i, experience in enumerate(naive.kept):
            assert same(buffer[i], known(experience))
            assert same(buffer[i - len(buffer)], known(experience))
        assert all(same(a, known(b)) for a, b in zip(buffer, naive.kept, strict=True))
        for wrong in (len(buffer), -len(buffer) - 1):
            with pytest.raises(IndexError):
                buffer[wrong]


@given(EPISODES, st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 5), st.integers(0, 9))
@settings(deadline=None, max_examples=30)  # each makes a store
def test_runs_follow_one_another_and_cross_terminal_states_alone(episodes, capacity, steps, seed):
    naive = Lists(episodes, capacity)
    kept, runs = naive.kept, naive.runs(steps)
    with nnabla_rl.ReplayBuffer(capacity) as buffer:
        buffer.append_all(naive.every)
        buffer.seed(seed)
        place = {experience[2]: i for i, experience in enumerate(kept)}
        if not runs:
            with pytest.raises(ValueError, match="expected at most 0"):
                buffer.sample(1, steps)
        else:
            found, info = buffer.sample(len(runs), steps)  # never more, and it ends
            columns = found if steps > 1 else (found,)
            assert isinstance(found, tuple if steps > 1 else list)
            assert len(columns) == steps
            assert sorted(place[one[2]] for one in columns[0]) == runs
            for j, column in enumerate(columns):
                for begin, one in zip(columns[0], column, strict=True):
                    assert same(one[:5], kept[place[begin[2]] + j][:5])
            assert same(info["weights"], np.ones((len(runs), 1)))
            with pytest.raises(ValueError, match=f"at most {len(runs)}"):
                buffer.sample(len(runs) + 1, steps)
        for i in range(len(kept)):
            if i in runs:
                found, info = buffer.sample_indices([i], steps)
                columns = found if steps > 1 else (found,)
                assert same([c[0][:5] for c in columns], [e[:5] for e in kept[i : i + steps]])
                assert info["weights"].shape == (1, 1)
            elif i + steps > len(kept):
                with pytest.raises(IndexError):
                    buffer.sample_indices([i], steps)
            else:
                with pytest.raises(ValueError, match="end of an episode"):
                    buffer.sample_indices([i], steps)


def goodness(counts, shares=None):
    """How many standard deviations chi-squared is off (Wilson and Hilferty 1931)."""
    shares = np.ones(counts.size) / counts.size if shares is None else shares
    expected = counts.sum() * shares
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    squared = float(((counts - expected) ** 2 / expected).sum())
    return ((squared / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread)


LENGTHS = [(3, TERMINATED), (5, INTERRUPTED), (1, TRUNCATED), (6, TRUNCATED), (4, TERMINATED)]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "kind", [nnabla_rl.ReplayBuffer, nnabla_rl.ReplacementSamplingReplayBuffer]
)
def test_runs_are_drawn_uniformly(kind, steps):
    naive = Lists(LENGTHS, 17)
    with kind(17) as buffer:
        buffer.append_all(naive.every)
        buffer.seed(4)
        runs = naive.runs(steps)
        place = {experience[2]: i for i, experience in enumerate(naive.kept)}
        counts = np.zeros(len(naive.kept))
        for _ in range(2000):
            found, _ = buffer.sample(3, steps)
            for one in found if steps == 1 else found[0]:
                counts[place[one[2]]] += 1
        assert counts.nonzero()[0].tolist() == runs
        assert goodness(counts[runs]) < 4


def test_with_replacement_more_can_be_drawn_than_there_are():
    with nnabla_rl.ReplacementSamplingReplayBuffer(5) as buffer:
        with pytest.raises(ValueError, match="empty"):
            buffer.sample(2)
        buffer.append_all(episode_of(0, 3, TERMINATED))
        found, info = buffer.sample(20)
        assert len(found) == 20
        assert {one[2] for one in found} == {0.0, 1.0, 2.0}
        assert info["weights"].shape == (20, 1)
    with nnabla_rl.ReplayBuffer(5) as buffer:
        buffer.append_all(episode_of(0, 3, TERMINATED))
        assert sorted(one[2] for one in buffer.sample(3)[0]) == [0.0, 1.0, 2.0]
        with pytest.raises(ValueError, match="at most 3"):
            buffer.sample(4)


def test_a_seed_repeats_the_draws():
    def drawn(early):
        with nnabla_rl.ReplayBuffer() as buffer:
            if early:
                buffer.seed(7)
            buffer.append_all(episode_of(0, 50, TERMINATED))
            if not early:
                buffer.seed(7)
            return [one[2] for _ in range(3) for one in buffer.sample(9, 2)[0][0]]

    assert drawn(True) == drawn(True) == drawn(False)


def test_a_decoration_sees_each_experience_that_comes_out():
    def halved(experience):
        experience[0][:] = 0  # memory of its own
        return (*experience[:2], experience[2] / 2, *experience[3:])

    with nnabla_rl.DecorableReplayBuffer(10, halved) as buffer:
        buffer.append_all(episode_of(1, 4, TERMINATED))
        assert [buffer[i][2] for i in range(4)] == [50.0, 50.5, 51.0, 51.5]
        found, _ = buffer.sample(3, 2)
        assert all(one[2] < 60 and not one[0].any() for run in found for one in run)
        assert all(one[2] < 60 for one in buffer.sample_indices([0, 3])[0])
        assert buffer[1][4].tolist() == [1.0, 2.0]


def test_arrays_as_rewards_and_numbers_as_states_keep_their_shape():
    with nnabla_rl.ReplayBuffer(3) as buffer:
        for t in range(5):
            buffer.append(
                (t, np.int32(t), np.array([t, -t], np.float32), np.array([1.0]), t + 1, {})
            )
        for i, t in enumerate((2, 3, 4)):
            s, a, r, non_terminal, s_next, info = buffer[i]
            assert (int(s), a, non_terminal, int(s_next), info) == (t, t, 1.0, t + 1, {})
            assert same(r, np.array([t, -t], np.float32))


def test_experiences_in_no_order_are_episodes_of_one_step():
    rng = np.random.default_rng(0)
    steps = [step(e, t) for e in range(4) for t in range(5)]
    shuffled = [steps[i] for i in rng.permutation(20)]
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append_all(shuffled)
        assert all(same(buffer[i], one) for i, one in enumerate(shuffled))


@pytest.mark.parametrize(("flag", "info"), [(0.0, {}), (1.0, {"TimeLimit.truncated": True})])
def test_an_end_that_is_told_ends_the_episode_though_the_state_stays(flag, info):
    here = np.zeros(2)
    with nnabla_rl.ReplayBuffer() as buffer:
        for end in (False, True, False):
            told = (flag, here, info) if end else (1.0, here, {})
            buffer.append((here, 0, 0.0, *told))
        assert buffer._recorder.buffer.store.episodes["length"].tolist() == [2, 1]


def test_an_environment_that_writes_over_its_state_is_no_new_episode():
    state = np.zeros(2)
    with nnabla_rl.ReplayBuffer() as buffer:
        for t in range(4):
            before = state.copy()
            state += 1
            buffer.append((before, t, 0.0, 1.0, state, {}))
        assert [buffer[i][4].tolist() for i in range(4)] == [[i + 1] * 2 for i in range(4)]
        assert len(buffer._recorder.buffer.store.episodes) == 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ((1, 2, 3), "expected \\(s, a, r"),
        ("text", "expected \\(s, a, r"),
        ((np.zeros(2), 0, 0.0, 1.0, np.zeros(2), 7), "info: expected a dict"),
        ((np.array([None]), 0, 0.0, 1.0, np.zeros(2), {}), "found object"),
    ],
)
def test_what_is_no_experience_is_refused(wrong, text):
    with nnabla_rl.ReplayBuffer() as buffer, pytest.raises(ValueError, match=text):
        buffer.append(wrong)


def test_values_out_of_range_are_value_errors():
    for capacity in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="capacity"):
            nnabla_rl.ReplayBuffer(capacity)
    with nnabla_rl.ReplayBuffer(5) as buffer:
        assert buffer.update_priorities(np.ones(3)) is None
        with pytest.raises(IndexError):
            buffer[0]
        with pytest.raises(ValueError, match="empty"):
            buffer.sample()
        buffer.append_all(episode_of(0, 3, TERMINATED))
        for arguments in ((0,), (-1,), (1, 0), (1, -1), (1.5,)):
            with pytest.raises(ValueError, match="expected 1 or more"):
                buffer.sample(*arguments)
        for indices in (([],), ([0], 0), ([0.5],)):
            with pytest.raises(ValueError, match="expected"):
                buffer.sample_indices(*indices)
        assert len(buffer.sample_indices(np.array([2, 0]))[0]) == 2


# ---------------------------------------------------------------- where the store is


def test_a_temporary_store_goes_and_one_at_a_path_stays(in_memory):
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append(step(0, 0))
        assert list(in_memory.iterdir())
    assert not list(in_memory.iterdir())
    with pytest.raises(ClosedError):
        buffer.append(step(0, 1))
    with pytest.raises(ClosedError):
        len(buffer)
    buffer.close()
    dropped = nnabla_rl.ReplayBuffer()
    dropped.append(step(0, 0))
    del dropped
    assert not list(in_memory.iterdir())


def test_a_store_at_a_path_is_gone_on_with(tmp_path):
    path = tmp_path / "kept.zarr"
    steps = [known(one) for one in episode_of(0, 6, TERMINATED, "tuple")]
    with nnabla_rl.ReplayBuffer(4, path=path) as buffer:
        buffer.append_all(steps[:3])
    with nnabla_rl.ReplayBuffer(4, path=path) as buffer:
        assert len(buffer) == 3
        assert same(buffer[2], steps[2])
        buffer.append_all(steps[3:])
        assert [same(buffer[i], steps[2 + i]) for i in range(4)] == [True] * 4


def test_a_store_of_something_else_is_refused(tmp_path):
    import mmreplay

    path = tmp_path / "other.zarr"
    mmreplay.create(path, mmreplay.Field((2,)), mmreplay.Field(())).close()
    with pytest.raises(FormatError, match="was not made by"):
        nnabla_rl.ReplayBuffer(path=path)
    with mmreplay.create(path, append=True) as writer:  # and is not locked by the attempt
        writer.reset(np.zeros(2, np.uint8))


# ---------------------------------------------------------------- Atari


def screens_of(number, length, shape=(84, 84)):
    """One screen more than steps; no two alike."""
    rng = np.random.default_rng([number, length])
    return rng.integers(0, 256, (length + 1, *shape), np.uint8)


def game(number, length, end, stack=4, dtype="float32", single=False):
    """An episode as an environment with stacked screens gives it, and as it must come back."""
    pixels = screens_of(number, length)
    stacks = [pixels[[max(t - j, 0) for j in reversed(range(4))]] for t in range(length + 1)]
    wanted = [pixels[[max(t - j, 0) for j in reversed(range(stack))]] for t in range(length + 1)]
    shown = [one[-1] if single else one for one in stacks]
    if dtype != "uint8":
        shown = [one.astype(dtype) / np.dtype(dtype).type(255) for one in shown]
    wanted = [one.astype(np.float32) / np.float32(255) for one in wanted]
    steps, expected = [], []
    for t in range(length):
        flag = 0.0 if end == TERMINATED and t == length - 1 else 1.0
        rest = (np.array([t]), float(1000 * number + t), flag)
        steps.append((shown[t], *rest, shown[t + 1], {}))
        expected.append((wanted[t], *rest, wanted[t + 1], {}))
    return steps, expected


@pytest.mark.parametrize("end", [TERMINATED, INTERRUPTED])
@pytest.mark.parametrize(
    ("stack", "dtype", "single", "capacity"),
    [
        (4, "float32", False, 9),
        (4, "uint8", False, 9),
        (4, "float64", True, 1),
        (4, "uint8", True, 3),
        (1, "float32", False, 5),
        (2, "float32", False, 100),
        (6, "uint8", True, 4),
    ],
)
def test_stacks_of_screens_stay_in_their_episode(end, stack, dtype, single, capacity):
    expected = []
    with nnabla_rl.MemoryEfficientAtariBuffer(capacity, stack) as buffer:
        for number, length in enumerate((3, 5, 1, 7, 2)):
            steps, wanted = game(number, length, end, stack, dtype, single)
            for one, other in zip(steps, wanted, strict=True):
                buffer.append(one)
                expected.append(other)
                kept = expected[-capacity:]
                assert len(buffer) == len(kept)
                assert same(buffer[0], kept[0])
                assert same(buffer[-1], kept[-1])
        assert all(same(buffer[i], one) for i, one in enumerate(kept))
        found, _ = buffer.sample(len(kept))
        assert all(same(one, next(k for k in kept if k[2] == one[2])) for one in found)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_pixel_value_comes_back_as_it_was(dtype):
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    screen = (pixels / 255).astype(dtype)
    with nnabla_rl.MemoryEfficientAtariBuffer(3) as buffer:
        buffer.append((screen, 0, 0.0, 1.0, screen, {}))
        assert same(buffer[0][0][-1], pixels.astype(np.float32) / np.float32(255))


def test_screens_that_cannot_be_rebuilt_are_refused():
    steps, _ = game(0, 6, TERMINATED)
    other, _ = game(1, 6, TERMINATED)
    with nnabla_rl.MemoryEfficientAtariBuffer(10) as buffer:
        buffer.append_all(steps[:3])
        with pytest.raises(ValueError, match="begins an episode"):
            buffer.append(other[4])
        with pytest.raises(ValueError, match="found other screens"):
            buffer.append((*steps[3][:4], other[3][4], {}))
        with pytest.raises(ValueError, match=r"in \[0, 1\]"):
            bright = np.concatenate((steps[3][4][:3], steps[3][4][3:] + 1))
            buffer.append((steps[3][0], 0, 0.0, 1.0, bright, {}))
        with pytest.raises(ValueError, match="one shape and dtype"):
            buffer.append((steps[3][0], 0, 0.0, 1.0, steps[3][4][-1], {}))
        with pytest.raises(ValueError, match="found int64"):
            buffer.append((np.zeros((84, 84), int), 0, 0.0, 1.0, np.zeros((84, 84), int), {}))
        with pytest.raises(ValueError, match="one screen"):
            buffer.append((np.zeros(84), 0, 0.0, 1.0, np.zeros(84), {}))
        assert len(buffer) == 3
        buffer.append_all(steps[3:])  # and nothing of it was stored
        assert len(buffer) == 6
        assert same(buffer[5][4], steps[5][4])


# ---------------------------------------------------------------- trajectories


@pytest.fixture
def small_reclaim(monkeypatch):
    """Disk is freed after few experiences."""
    monkeypatch.setattr(trajectories, "_FEWEST_TO_RECLAIM", 10)


@pytest.mark.usefixtures("small_reclaim")
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(ENDS)), min_size=1, max_size=9),
    st.one_of(st.none(), st.integers(1, 4)),
)
@settings(deadline=None, max_examples=10)  # each makes a store
def test_trajectories_against_a_list_of_lists(episodes, most):
    every = []
    with nnabla_rl.TrajectoryReplayBuffer(most) as buffer:
        assert (len(buffer), buffer.trajectory_num, buffer.capacity) == (0, 0, most)
        for number, (length, end) in enumerate(episodes):
            steps = [known(one) for one in episode_of(number, length, end)]
            buffer.append_trajectory(steps)
            every.append(steps)
            kept = every if most is None else every[-most:]
            flat = [one for steps in kept for one in steps]
            assert len(buffer) == len(flat)
            assert buffer.trajectory_num == len(kept)
        for i, steps in enumerate(kept):
            assert same(buffer.get_trajectory(i), steps)
        for i, one in enumerate(flat):
            assert same(buffer[i], one)
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
                        assert same(part, steps[begin : begin + length])
                    index += 1
        with pytest.raises(IndexError):
            buffer.get_trajectory(len(kept))
        with pytest.raises(IndexError):
            buffer.sample_indices_portion([len(flat)])


def test_portions_are_drawn_by_length_among_those_long_enough():
    lengths = (2, 5, 3, 8, 1)
    with nnabla_rl.TrajectoryReplayBuffer(4) as buffer:
        buffer.seed(3)
        for number, length in enumerate(lengths):
            buffer.append_trajectory(episode_of(number, length, TERMINATED))
        counts = {}
        for _ in range(1500):
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
        assert goodness(found, np.array([*shares.values()])) < 4
        with pytest.raises(RuntimeError, match="8 steps is shorter than 9"):
            buffer.sample_trajectories_portion(1, 9)


@pytest.mark.usefixtures("small_reclaim")
def test_of_removed_trajectories_the_disk_is_freed(tmp_path):
    path = tmp_path / "few.zarr"
    with nnabla_rl.TrajectoryReplayBuffer(2, path=path) as buffer:
        for number in range(30):
            buffer.append_trajectory(episode_of(number, 20, TRUNCATED))
        assert len(buffer) == 40
        assert len(buffer._recorder.buffer.store) <= 90
    with nnabla_rl.TrajectoryReplayBuffer(2, path=path) as buffer:
        assert [one[2] for one in buffer.get_trajectory(0)] == [2800.0 + t for t in range(20)]


def test_a_trajectory_is_one_episode_or_refused():
    with nnabla_rl.TrajectoryReplayBuffer() as buffer:
        for call in (buffer.append, buffer.append_all):
            with pytest.raises(NotImplementedError):
                call(step(0, 0))
        with pytest.raises(ValueError, match="one experience or more"):
            buffer.append_trajectory([])
        with pytest.raises(ValueError, match="the s of step 2"):
            buffer.append_trajectory([step(0, 0), step(0, 1), step(1, 2)])
        assert len(buffer) == 0
        # A lost life: terminal, and the game goes on.
        steps = [step(0, 0), step(0, 1, TERMINATED), step(0, 2)]
        buffer.append_trajectory(steps)
        assert same(buffer.get_trajectory(-1), steps)
        assert buffer.trajectory_num == 1


def test_an_atari_trajectory_slices_as_a_list_does():
    with nnabla_rl.MemoryEfficientAtariTrajectoryBuffer(2) as buffer:
        games = [game(number, length, INTERRUPTED) for number, length in enumerate((3, 6, 5))]
        for steps, _ in games:
            buffer.append_trajectory(steps)
        assert len(buffer) == 11
        for number in range(2):
            wanted = games[number + 1][1]
            found = buffer.get_trajectory(number)
            assert len(found) == len(wanted)
            assert same(list(found), wanted)
            for key in (
                slice(None),
                slice(1, 3),
                slice(-2, None),
                slice(None, None, -2),
                slice(9, 4),
            ):
                assert same(found[key], wanted[key])
            assert same(found[-1], wanted[-1])
            with pytest.raises(IndexError):
                found[len(wanted)]
        assert same(buffer[6], games[2][1][0])
        (part,), _ = buffer.sample_indices_portion([4], 3)
        assert same(part, games[1][1][3:6])
        one, _ = buffer.sample_trajectories()
        assert len(one) in {5, 6}
        with pytest.raises(SchemaError):
            buffer.append_trajectory(games[0][0][1:])
