"""Trajectories are sequences of steps; lazy ones read a column when it is first asked for."""

import io

import numpy as np
import pytest
from PIL import Image

import mmreplay
from mmreplay import Field, InvalidIdError, SchemaError
from mmreplay.reading.live_lanes import LiveLanes


@pytest.fixture(scope="module")
def store(tmp_path_factory, story_of_module):
    """Episodes of 4, 1 and 6 steps: rows 0 to 4, 5 and 6, 7 to 13."""
    story = story_of_module
    writer = mmreplay.create(
        tmp_path_factory.mktemp("trajectories") / "store.zarr",
        frame=Field((3,), "uint8"),
        action=Field((), "int64"),
        extras={"x": Field((2,), "float32")},
    )
    for length, end in ((4, "terminated"), (1, "truncated"), (6, "truncated")):
        story.play(writer, length, end)
    writer.close()
    with mmreplay.load(writer.path, stack=None) as data:
        data.transitions(data.ids)
        data.trajectory(0)  # what these map stays mapped through the tests of the module
        yield data


def lazy(data, number):
    """The lazy trajectory with the id of the number-th episode."""
    first = data.episodes["id"][number]
    return next(one for one in data.sample_trajectories(200) if one.ids[0] == first)


KINDS = {
    "read": lambda data, number: data.trajectory(number),
    "lazy": lazy,
}
INDICES = [
    slice(None),
    slice(2),
    slice(1, 4),
    slice(-3, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(5, 1, -2),
    slice(4, 2),
    slice(-100, 100, 3),
    slice(100, None),
]


@pytest.fixture(params=KINDS)
def take(request):
    return KINDS[request.param]


def test_a_step_is_what_the_transition_of_its_id_is(store, take):
    trajectory = take(store, 2)
    assert len(trajectory) == 6
    steps = list(trajectory)
    assert [one.id for one in steps] == list(range(5, 11))
    for one in steps:
        batch = store.transitions([one.id])
        assert one.observation.tolist() == batch.observation[0].tolist()
        assert one.next_observation.tolist() == batch.next_observation[0].tolist()
        assert one.action == batch.action[0]
        assert one.reward == batch.reward[0]
        assert one.non_terminal is bool(batch.non_terminal[0])
        assert one.extras["x"].tolist() == batch.extras["x"][0].tolist()
    assert [one.non_terminal for one in take(store, 0)] == [True, True, True, False]


def test_an_index_is_what_it_is_of_a_list(store, take):
    trajectory = take(store, 2)
    for index in INDICES:
        found = trajectory[index]
        assert isinstance(found, list)
        assert [one.id for one in found] == [one.id for one in list(trajectory)[index]]
    for number in (0, 5, -1, -6, np.int64(3)):
        assert trajectory[number].id == list(trajectory)[number].id
    for number in (6, -7, 1000):
        with pytest.raises(IndexError, match=f"step {number}: the trajectory has 6 steps"):
            trajectory[number]
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            trajectory[wrong]


def test_steps_of_dict_observations_are_dicts(make, story, take):
    frame = {"a": Field((2,), "uint8", "lz4", chunk=2, shard=4), "b": Field((), "float32")}
    writer = make(frame=frame)
    story.play(writer, 3, "truncated")
    with mmreplay.load(writer.path, stack=None) as data:
        step = take(data, 0)[1]
        batch = data.transitions([1])
        for name in frame:
            assert step.observation[name].tolist() == batch.observation[name][0].tolist()
            assert step.next_observation[name].tolist() == batch.next_observation[name][0].tolist()


def test_a_lazy_trajectory_reads_what_is_asked_for_and_that_once(store, monkeypatch):
    trajectory = lazy(store, 2)
    reads = []
    read = LiveLanes.episode_rows

    def counting(self, paths, first, start, stop, uuids):
        reads.extend((path, stop - start) for path in paths)
        return read(self, paths, first, start, stop, uuids)

    expected = store.trajectory(2)
    monkeypatch.setattr(LiveLanes, "episode_rows", counting)
    assert (len(trajectory), trajectory.terminated, trajectory.truncated) == (6, False, True)
    assert trajectory.ids.tolist() == list(range(5, 11))
    assert "steps=6 read=[]" in repr(trajectory)
    assert not reads
    assert trajectory.reward is trajectory.reward
    assert reads == [("rewards", 6)]
    assert len(trajectory.observation) == 7
    assert reads[1:] == [("frames", 7)]
    whole = trajectory.read()
    assert len(reads) == 6  # actions, flags, the extra column and when it began are new
    for name in ("observation", "action", "reward", "non_terminal", "ids"):
        one, other = getattr(whole, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    assert whole.extras["x"].tolist() == expected.extras["x"].tolist()
    assert (whole.terminated, whole.truncated) == (expected.terminated, expected.truncated)
    list(trajectory)
    assert len(reads) == 6


def test_a_running_episode_is_as_long_as_it_was_when_it_was_drawn(make, story):
    writer = make()
    story.play(writer, 3)
    with mmreplay.load(writer.path, stack=None) as data:
        [one] = data.sample_trajectories(1)
        story.play(writer, 2, reset=False)
        assert (len(one), one.terminated, one.truncated) == (3, False, False)
        assert len(one.observation) == 4
        assert one.action.all()
        story.step(writer, truncated=True)
        [one] = data.sample_trajectories(1)
        assert len(one) == 6
        story.reset(writer)
        [one] = data.sample_trajectories(1)
        assert one.truncated


def test_a_trajectory_that_was_evicted_before_it_was_read_says_so(make, story):
    writer = make(capacity=10)
    story.play(writer, 4, "terminated")
    story.play(writer, 4, "terminated")
    with mmreplay.load(writer.path, stack=None) as data:
        one = lazy(data, 0)
        kept = one.reward
        story.play(writer, 4, "terminated")
        assert one.reward is kept  # what was read stays
        with pytest.raises(
            InvalidIdError, match=r"id 0 .*was evicted before it was read.*row is 2"
        ):
            _ = one.observation
        with pytest.raises(InvalidIdError):
            one[0]
        with pytest.raises(InvalidIdError):
            list(one)
        assert len(one) == 4


def test_what_holds_arrays_is_shown_in_a_line(store):
    shown = repr(store.trajectory(0))
    assert shown.startswith(
        "Trajectory(observation=uint8[5, 3], action=int64[4], reward=float32[4]"
    )
    assert "terminated=True, truncated=False, ids=int64[4], extras['x']=float32[4, 2], " in shown
    assert shown.endswith("episode['started']=int64[])")
    windows = repr(store.sample_sequences(2, 1))
    assert windows.startswith("SequenceBatch(observation=uint8[2, 1, 3], ")
    assert windows.endswith("burn_in=0, terminated=bool[2, 1], truncated=bool[2, 1])")
    lane = store.store.lanes[0]
    assert repr(lane) == f"<mmreplay.LaneView {lane.path} environments=1>"


def test_a_notebook_shows_frames_of_a_trajectory_and_of_a_store(make, story):
    writer = make(frame=Field((9, 9), "uint8", "lz4", chunk=4, shard=8))
    story.play(writer, 20, "terminated")
    store = mmreplay.open(writer.path)
    trajectory = store.trajectory(0)
    shown = trajectory.observation[np.array([0, 3, 6, 9, 11, 14, 17, 20])]
    with Image.open(io.BytesIO(trajectory._repr_png_())) as found:
        tiles = np.asarray(found)[::10, ::10]
    assert found.size == (8 * 92 - 2, 90)
    assert np.array_equal(tiles[:, :9], shown[0])
    assert store._repr_png_().startswith(b"\x89PNG")
    store.close()
    assert store._repr_png_() is None


# ---------------------------------------------------------------- another store at the path


def replace(path, how):
    """Put another store where one is; each row of it holds other values."""
    path.rename(path.with_name("aside.zarr"))
    if how == "pack":
        mmreplay.pack(path.with_name("aside.zarr"), path, episodes=[1, 2])
        return
    with mmreplay.create(path, Field((1,), "int64"), Field((), "int64")) as writer:
        for _ in range(3):
            record(writer, 1000)


def record(writer, base):
    writer.reset(np.array([base]))
    for step in range(3):
        writer.step(base, float(base), np.array([base]), terminated=step == 2)


@pytest.fixture
def replaceable(tmp_path):
    """The path of a store of three episodes alike in length, each of values of its own."""
    path = tmp_path / "store.zarr"
    with mmreplay.create(path, Field((1,), "int64"), Field((), "int64")) as writer:
        for base in range(3):
            record(writer, base)
    return path


@pytest.mark.parametrize("how", ["pack", "create"])
def test_a_trajectory_never_has_rows_of_another_store(replaceable, how):
    with mmreplay.load(replaceable, stack=None, seed=0) as data:
        drawn = data.sample_trajectories(3, replace=False)
        kept = [one.action for one in drawn]
        replace(replaceable, how)
        data.refresh()
        for one, actions in zip(drawn, kept, strict=True):
            for read in (lambda one=one: one.reward, one.read, lambda one=one: one[0]):
                with pytest.raises(SchemaError, match=r"store\.zarr: .*another .*draw traj"):
                    read()
            assert one.action is actions  # what was read stays
        assert {*data.sample_trajectories(1)[0].reward.tolist()} < {0.0, 1.0, 2.0, 1000.0}
