"""Stacks and n-step returns, worked out by hand."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.format.layout import MAX_STACK
from mmreplay.ids import LANE_SHIFT

# Three episodes in twelve rows: one of 3 steps that terminated, one of 4 that was truncated, with a
# life lost at its second step, and one of 2 that is still running.
STARTS = [0, 4, 9]
FRAMES = [10, 11, 12, 13, 20, 21, 22, 23, 24, 30, 31, 32]
REWARDS = [1, 2, 3, 0, 4, 5, 6, 7, 0, 8, 9, 0]
FLAGS = [1, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1]
ACTIONS = [101, 102, 103, 0, 104, 105, 106, 107, 0, 108, 109, 0]
IDS = [0, 1, 2, 4, 5, 6, 7, 9, 10]
HEAD = 12


class Column:
    """Rows of one lane in memory; those of lane n are the same plus 100 n."""

    def __init__(self, rows, dtype):
        self.rows = np.asarray(rows, dtype)
        self.row_shape, self.dtype = self.rows.shape[1:], self.rows.dtype

    def take(self, ids, out=None):
        rows, lanes = ids & ((1 << LANE_SHIFT) - 1), ids >> LANE_SHIFT
        found = self.rows[rows]
        if lanes.any():
            shift = (100 * lanes).astype(self.dtype)
            found = found + shift.reshape(*ids.shape, *(1,) * len(self.row_shape))
        if out is None:
            return found
        out[...] = found
        return out


class Rows:
    """A store of columns in memory, and what a `TransitionGatherer` asks of its schema."""

    def __init__(self, frames, rewards="float32", extras=None):
        self.is_dict = isinstance(frames, dict)
        given = frames if isinstance(frames, dict) else {"frame": frames}
        self.frame_paths = {name: f"frames/{name}" for name in given}
        self.extra_paths = {name: f"extras/{name}" for name in extras or {}}
        self.columns = {
            "rewards": Column(REWARDS, rewards),
            "non_terminals": Column(FLAGS, "uint8"),
            "actions": Column(ACTIONS, "int64"),
            **{f"frames/{name}": one for name, one in given.items()},
            **{f"extras/{name}": one for name, one in (extras or {}).items()},
        }


def index_of(n_lanes=1):
    index = Index(n_lanes)
    for lane in range(n_lanes):
        index.load(lane, 0, HEAD, np.array(STARTS), None)
    return index


SCALARS = Column(FRAMES, "uint8")


def gathered(ids, frames=SCALARS, rows=None, out=None, index=None, **settings):
    rows = rows or Rows(frames)
    return fetched(rows, TransitionGatherer(rows, Settings(**settings)), ids, out, index)


def fetched(rows, gatherer, ids, out=None, index=None):
    places = gatherer.locate(index or index_of(), np.array(ids, np.int64))
    return gatherer.fetch(rows.columns, places, out)


# ---------------------------------------------------------------- stacks

PADDED = {
    "reset": {
        0: ([10, 10, 10], [10, 10, 11]),
        1: ([10, 10, 11], [10, 11, 12]),
        2: ([10, 11, 12], [11, 12, 13]),
        4: ([20, 20, 20], [20, 20, 21]),
        5: ([20, 20, 21], [20, 21, 22]),
        6: ([20, 21, 22], [21, 22, 23]),
        7: ([21, 22, 23], [22, 23, 24]),
        9: ([30, 30, 30], [30, 30, 31]),
        10: ([30, 30, 31], [30, 31, 32]),
    },
    "zero": {
        0: ([0, 0, 10], [0, 10, 11]),
        1: ([0, 10, 11], [10, 11, 12]),
        2: ([10, 11, 12], [11, 12, 13]),
        4: ([0, 0, 20], [0, 20, 21]),
        5: ([0, 20, 21], [20, 21, 22]),
        6: ([20, 21, 22], [21, 22, 23]),
        7: ([21, 22, 23], [22, 23, 24]),
        9: ([0, 0, 30], [0, 30, 31]),
        10: ([0, 30, 31], [30, 31, 32]),
    },
}


@pytest.mark.parametrize("padding", PADDED)
@pytest.mark.parametrize("stack_axis", [0, -1])
def test_a_stack_is_padded_in_front_of_its_episode_and_life_losses_do_not_end_it(
    padding, stack_axis
):
    # Of scalars both axes are the same.
    batch = gathered(IDS, stack=3, padding=padding, stack_axis=stack_axis)
    for row, seen, following in zip(IDS, batch.observation, batch.next_observation, strict=True):
        assert (seen.tolist(), following.tolist()) == PADDED[padding][row]


@pytest.mark.parametrize("padding", PADDED)
def test_one_transition_alone_is_the_same_as_among_others(padding):
    for row in IDS:
        batch = gathered([row], stack=3, padding=padding)
        assert (batch.observation[0].tolist(), batch.next_observation[0].tolist()) == PADDED[
            padding
        ][row]


def test_the_new_axis_stands_in_front_or_last():
    planes = Column(np.arange(12 * 6).reshape(12, 2, 3), "int16")
    front = gathered([6], planes, stack=2)
    last = gathered([6], planes, stack=2, stack_axis=-1)
    assert front.observation.shape == (1, 2, 2, 3)
    assert last.observation.shape == last.next_observation.shape == (1, 2, 3, 2)
    expected = np.stack([planes.rows[5], planes.rows[6]])
    assert np.array_equal(front.observation[0], expected)
    assert np.array_equal(last.observation[0], np.moveaxis(expected, 0, -1))
    assert np.array_equal(last.next_observation[0, ..., 1], planes.rows[7])


def test_channels_of_images_are_joined_oldest_frame_first():
    images = Column(np.arange(12 * 2 * 2 * 3).reshape(12, 2, 2, 3), "int16")
    batch = gathered([6, 4], images, stack=2, stack_axis=-1)
    assert batch.observation.shape == (2, 2, 2, 6)
    assert np.array_equal(
        batch.observation[0], np.concatenate([images.rows[5], images.rows[6]], -1)
    )
    assert np.array_equal(
        batch.next_observation[0], np.concatenate([images.rows[6], images.rows[7]], -1)
    )
    assert np.array_equal(
        batch.observation[1], np.concatenate([images.rows[4], images.rows[4]], -1)
    )
    front = gathered([6], images, stack=2)
    assert front.observation.shape == (1, 2, 2, 2, 3)


@pytest.mark.parametrize("stack_axis", [0, -1])
def test_a_stack_of_1_keeps_its_axis_and_none_drops_it(stack_axis):
    planes = Column(np.arange(12 * 6).reshape(12, 2, 3), "int16")
    one = gathered(IDS, planes, stack=1, stack_axis=stack_axis)
    none = gathered(IDS, planes, stack=None, stack_axis=stack_axis)
    shape = (9, 1, 2, 3) if stack_axis == 0 else (9, 2, 3, 1)
    assert one.observation.shape == one.next_observation.shape == shape
    assert none.observation.shape == none.next_observation.shape == (9, 2, 3)
    assert np.array_equal(none.observation, planes.rows[IDS])
    assert np.array_equal(none.next_observation, planes.rows[np.array(IDS) + 1])
    assert np.array_equal(one.observation.reshape(9, 2, 3), none.observation)
    assert np.array_equal(one.next_observation.reshape(9, 2, 3), none.next_observation)


@pytest.mark.parametrize("n_step", [1, 3])
def test_none_and_1_are_the_same_frames_for_any_number_of_steps(n_step):
    none = gathered(IDS, stack=None, n_step=n_step)
    one = gathered(IDS, stack=1, n_step=n_step)
    assert none.observation.tolist() == one.observation[:, 0].tolist()
    assert none.next_observation.tolist() == one.next_observation[:, 0].tolist()


def test_a_long_stack_is_mostly_padding():
    batch = gathered([2], stack=MAX_STACK)
    assert batch.observation[0].tolist() == [10] * 63 + [11, 12]
    batch = gathered([2], stack=100, padding="zero")
    assert batch.next_observation[0].tolist() == [0] * 96 + [10, 11, 12, 13]


def test_a_dict_of_frames_is_a_dict_of_stacks():
    rows = Rows({"a": SCALARS, "b": Column(np.arange(24).reshape(12, 2), "float32")})
    batch = gathered([1, 9], rows=rows, stack=2)
    assert isinstance(batch.observation, dict)
    assert isinstance(batch.next_observation, dict)
    assert batch.observation["a"].tolist() == [[10, 11], [30, 30]]
    assert batch.next_observation["a"].tolist() == [[11, 12], [30, 31]]
    assert batch.observation["b"].tolist() == [[[0, 1], [2, 3]], [[18, 19], [18, 19]]]
    assert batch.observation["b"].dtype == np.float32


def test_an_episode_whose_start_is_gone_is_never_taken_for_one():
    index = Index(2)
    index.load(0, 0, 5, np.array([0]), None)
    index.load(1, 100, 400, np.array([300]), None)
    long = Column(np.arange(500), "int64")
    rows = Rows(long)
    for name in ("rewards", "non_terminals", "actions"):
        rows.columns[name] = Column(np.ones(500), rows.columns[name].dtype)
    first = (1 << LANE_SHIFT) + 164
    for padding in ("reset", "zero"):
        batch = gathered([first], rows=rows, index=index, stack=65, padding=padding, n_step=2)
        assert batch.observation[0].tolist() == [100 + row for row in range(100, 165)]
        assert batch.next_observation[0].tolist() == [100 + row for row in range(102, 167)]


# ---------------------------------------------------------------- n-step returns

RETURNS = {  # gamma = 0.5, n_step = 3: return, discount, row of the next observation
    0: (1 + 1 + 0.75, 0.0, 3),  # terminated with the third step
    1: (2 + 1.5, 0.0, 3),
    2: (3, 0.0, 3),
    4: (4 + 2.5, 0.0, 6),  # a life is lost with the second step
    5: (5, 0.0, 6),
    6: (6 + 3.5, 0.25, 8),  # truncated: bootstraps from the final observation
    7: (7, 0.5, 8),
    9: (8 + 4.5, 0.25, 11),  # the head of a running episode
    10: (9, 0.5, 11),
}


@pytest.mark.parametrize("rewards", ["float32", "float64"])
def test_an_n_step_return_ends_where_its_episode_does_and_says_how_to_bootstrap(rewards):
    batch = gathered(IDS, rows=Rows(SCALARS, rewards), stack=None, n_step=3, gamma=0.5)
    assert batch.reward.dtype == batch.discount.dtype == np.dtype(rewards)
    assert batch.reward.tolist() == [RETURNS[row][0] for row in IDS]
    assert batch.discount.tolist() == [RETURNS[row][1] for row in IDS]
    assert batch.next_observation.tolist() == [FRAMES[RETURNS[row][2]] for row in IDS]
    assert batch.non_terminal.tolist() == [RETURNS[row][1] > 0 for row in IDS]
    assert batch.observation.tolist() == [FRAMES[row] for row in IDS]
    assert batch.action.tolist() == [ACTIONS[row] for row in IDS]


@pytest.mark.parametrize("rewards", ["float32", "float64"])
def test_each_reward_is_clipped_before_it_goes_into_a_return(rewards):
    rows = Rows(SCALARS, rewards)
    clipped = Rows(SCALARS, rewards)
    clipped.columns["rewards"] = Column(np.clip(REWARDS, 2, 4.5), rewards)
    for n_step in (1, 3):
        settings = {"stack": None, "n_step": n_step, "gamma": 0.5}
        batch = gathered(IDS, rows=rows, clip_reward=(2, 4.5), **settings)
        assert batch.reward.tolist() == gathered(IDS, rows=clipped, **settings).reward.tolist()
        wide = gathered(IDS, rows=rows, clip_reward=[-np.inf, 1e300], **settings)
        assert wide.reward.tolist() == gathered(IDS, rows=rows, **settings).reward.tolist()
    assert rows.columns["rewards"].rows.tolist() == REWARDS  # as they were stored


def test_a_return_of_one_step_is_the_reward():
    for n_step in (1, 2):
        batch = gathered([2, 5, 7, 10], stack=None, n_step=n_step, gamma=0.5)
        assert batch.reward.tolist() == [3, 5, 7, 9]
        assert batch.discount.tolist() == [0, 0, 0.5, 0.5]
        assert batch.non_terminal.tolist() == [False, False, True, True]
        assert batch.next_observation.tolist() == [13, 22, 24, 32]


def test_a_window_longer_than_the_episode_is_as_long_as_the_episode():
    batch = gathered([6, 9], stack=2, n_step=1000, gamma=0.5)
    assert batch.reward.tolist() == [9.5, 12.5]
    assert batch.discount.tolist() == [0.25, 0.25]
    assert batch.observation.tolist() == [[21, 22], [30, 30]]
    assert batch.next_observation.tolist() == [[23, 24], [31, 32]]


def test_the_window_is_full_where_nothing_ends():
    batch = gathered([6, 0], stack=None, n_step=2, gamma=0.9)
    assert batch.reward.tolist() == np.float32([6 + 0.9 * 7, 1 + 0.9 * 2]).tolist()
    assert batch.discount.tolist() == np.float32([0.81, 0.81]).tolist()
    assert batch.next_observation.tolist() == [24, 12]


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_borders_of_gamma_mean_no_future_and_all_of_it(gamma):
    batch = gathered([0, 6], stack=None, n_step=3, gamma=gamma)
    assert batch.reward.tolist() == ([1, 6] if not gamma else [6, 13])
    assert batch.discount.tolist() == [0, gamma]


def test_returns_are_summed_in_float64_and_rounded_once():
    rows = Rows(SCALARS)
    rows.columns["rewards"] = Column([1e8, 1, -1e8, *[0] * 9], "float32")
    batch = gathered([0], rows=rows, stack=None, n_step=3, gamma=1.0)
    assert batch.reward.tolist() == [1.0]


def test_what_lies_past_the_end_of_a_return_is_not_in_it_whatever_it_is():
    rows = Rows(SCALARS)
    rewards = np.array(REWARDS, np.float32)
    rewards[[3, 6, 8]] = np.nan  # behind a terminal step, a lost life and a truncation
    rows.columns["rewards"] = Column(rewards, "float32")
    batch = gathered([0, 4, 7], rows=rows, stack=None, n_step=3, gamma=0.5)
    assert batch.reward.tolist() == [2.75, 6.5, 7]


def test_lanes_do_not_run_into_each_other():
    ids = [(lane << LANE_SHIFT) + row for lane in (2, 0, 1) for row in IDS]
    batch = gathered(ids, index=index_of(3), stack=3, n_step=3, gamma=0.5)
    # The fakes of lane n add 100 n to everything, flags included: compare with each lane alone.
    for number, lane in enumerate((2, 0, 1)):
        part = slice(9 * number, 9 * number + 9)
        alone = gathered(
            [(lane << LANE_SHIFT) + row for row in IDS],
            index=index_of(3),
            stack=3,
            n_step=3,
            gamma=0.5,
        )
        assert np.array_equal(batch.observation[part], alone.observation)
        assert np.array_equal(batch.next_observation[part], alone.next_observation)
        assert np.array_equal(batch.reward[part], alone.reward)
    for row, seen in zip(IDS, batch.observation[:9], strict=True):
        assert seen.tolist() == [200 + value for value in PADDED["reset"][row][0]]


# ---------------------------------------------------------------- the batch


def test_a_batch_has_the_fields_of_the_interface():
    rows = Rows(SCALARS, extras={"x": Column(np.arange(24).reshape(12, 2), "float16")})
    batch = gathered(IDS, rows=rows, stack=3)
    assert [one.name for one in dataclasses.fields(Batch)] == [
        "observation", "next_observation", "action", "reward", "discount", "non_terminal", "id",
        "weight", "extras",
    ]  # fmt: skip
    assert len(batch) == 9
    assert batch.id.tolist() == IDS
    assert batch.id.dtype == np.int64
    assert batch.weight.tolist() == [1] * 9
    assert batch.weight.dtype == np.float32
    assert batch.non_terminal.dtype == np.bool_
    assert batch.observation.dtype == np.uint8
    assert batch.extras["x"].tolist() == [[2 * row, 2 * row + 1] for row in IDS]
    assert batch.extras["x"].dtype == np.float16
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.reward = batch.discount  # type: ignore[misc]


def test_a_batch_holds_copies():
    rows = Rows(Column(np.arange(12), "int64"))
    batch = gathered(IDS, rows=rows, stack=2, n_step=2)
    before = pickle.dumps(batch)
    for column in rows.columns.values():
        column.rows[:] = 0
    assert pickle.dumps(batch) == before


def test_no_transitions_are_a_batch_of_none():
    for settings in ({"stack": 3}, {"stack": None}, {"stack": 3, "n_step": 3, "stack_axis": -1}):
        batch = gathered([], **settings)
        assert len(batch) == 0
        assert batch.reward.shape == (0,)
    assert gathered([], stack=3).observation.shape == (0, 3)


def test_the_same_transition_may_be_asked_for_twice():
    batch = gathered([5, 5, 0, 5], stack=2, n_step=2)
    assert batch.id.tolist() == [5, 5, 0, 5]
    assert batch.observation[0].tolist() == batch.observation[3].tolist() == [20, 21]


# ---------------------------------------------------------------- out

KINDS = {
    "stacked": {"stack": 3},
    "zero": {"stack": 3, "padding": "zero"},
    "last": {"stack": 3, "stack_axis": -1},
    "none": {"stack": None},
    "one": {"stack": 1},
    "n-step": {"stack": 3, "n_step": 3},
    "n-step, none": {"stack": None, "n_step": 3},
    "n-step, last": {"stack": 3, "n_step": 3, "stack_axis": -1},
}


def arrays(batch):
    found = [getattr(batch, one.name) for one in dataclasses.fields(batch)]
    out = []
    for one in found:
        out += list(one.values()) if isinstance(one, dict) else [one]
    return out


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("is_dict", [False, True])
def test_out_is_overwritten_whole_and_returned(settings, is_dict):
    frames = (
        {"a": SCALARS, "b": Column(np.arange(36).reshape(12, 3), "int16")} if is_dict else SCALARS
    )
    rows = Rows(frames, extras={"x": Column(np.arange(12), "float32")})
    gatherer = TransitionGatherer(rows, Settings(**settings))
    first = fetched(rows, gatherer, [0, 1, 2])
    known = arrays(first)
    for ids in ([10, 9, 4], [5, 5, 5], [7, 6, 0]):
        for one in known:
            one[...] = 77
        again = fetched(rows, gatherer, ids, first)
        assert again is first
        assert all(one is other for one, other in zip(arrays(again), known, strict=True))
        fresh = fetched(rows, TransitionGatherer(rows, Settings(**settings)), ids)
        for one, other in zip(arrays(again), arrays(fresh), strict=True):
            assert one.tobytes() == other.tobytes()
            assert one.dtype == other.dtype


def test_out_may_come_from_another_gatherer_of_the_same_settings():
    rows = Rows(SCALARS)
    batch = gathered([0, 1], rows=rows, stack=3)
    assert gathered([5, 6], rows=rows, out=batch, stack=3) is batch
    assert batch.id.tolist() == [5, 6]


def three(frames=SCALARS, stack=3, **settings):
    return gathered([0, 1, 2], frames, stack=stack, **settings)


UNFIT = {
    "a number": lambda: 3,
    "a name": lambda: "batch",
    "a tuple": tuple,
    "two": lambda: gathered([0, 1], stack=3),
    "four": lambda: gathered([0, 1, 2, 4], stack=3),
    "another stack": lambda: three(stack=2),
    "no stack": lambda: three(stack=None),
    "another axis": lambda: three(stack_axis=-1),
    "another n-step": lambda: three(n_step=3),
    "another dtype": lambda: three(Column(FRAMES, "int16")),
    "another shape": lambda: three(Column(np.zeros((12, 2)), "uint8")),
    "other rewards": lambda: three(rows=Rows(SCALARS, "float64")),
    "a dict": lambda: three(rows=Rows({"frame": SCALARS})),
    "an extra": lambda: three(rows=Rows(SCALARS, extras={"x": SCALARS})),
    "pickled": lambda: pickle.loads(pickle.dumps(three())),
    "copied": lambda: copy.deepcopy(three()),
    "too few rewards": lambda: dataclasses.replace(three(), reward=np.zeros(2, np.float32)),
    "a list": lambda: dataclasses.replace(three(), discount=[0.0] * 3),
    "of two batches": lambda: dataclasses.replace(three(), next_observation=three().observation),
    "the wrong way round": lambda: dataclasses.replace(
        batch := three(), observation=batch.next_observation, next_observation=batch.observation
    ),
    "frames alone": lambda: dataclasses.replace(three(), observation=np.zeros((3, 3), np.uint8)),
}


@pytest.mark.parametrize("make_wrong", UNFIT.values(), ids=UNFIT)
def test_an_out_that_does_not_fit_is_refused_and_not_touched(make_wrong):
    wrong = make_wrong()
    before = pickle.dumps(wrong)
    rows = Rows(SCALARS)
    gatherer = TransitionGatherer(rows, Settings(stack=3))
    for _ in range(2):
        with pytest.raises(
            SchemaError, match="out: expected a batch of 3 that this object returned"
        ):
            fetched(rows, gatherer, [0, 1, 2], wrong)
    assert pickle.dumps(wrong) == before


def test_an_out_that_cannot_be_written_is_refused():
    rows = Rows(SCALARS)
    gatherer = TransitionGatherer(rows, Settings(stack=3))
    batch = fetched(rows, gatherer, [0, 1, 2])
    batch.reward.flags.writeable = False
    with pytest.raises(SchemaError, match="out: expected a batch of 3"):
        fetched(rows, gatherer, [0, 1, 2], batch)


def test_an_out_of_one_size_is_not_taken_for_another():
    rows = Rows(SCALARS)
    gatherer = TransitionGatherer(rows, Settings(stack=3))
    batch = fetched(rows, gatherer, [0, 1, 2])
    fetched(rows, gatherer, [4, 5, 6], batch)
    with pytest.raises(SchemaError, match="out: expected a batch of 2"):
        fetched(rows, gatherer, [4, 5], batch)


def test_a_dict_out_with_other_keys_is_refused():
    rows = Rows({"a": SCALARS, "b": SCALARS})
    gatherer = TransitionGatherer(rows, Settings(stack=3))
    for other in (Rows({"a": SCALARS}), Rows({"a": SCALARS, "c": SCALARS}), Rows(SCALARS)):
        batch = fetched(other, TransitionGatherer(other, Settings(stack=3)), [0, 1])
        with pytest.raises(SchemaError, match="out: expected a batch of 2"):
            fetched(rows, gatherer, [0, 1], batch)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"stack": 0}, "stack: expected a whole number"),
        ({"stack": -1}, "stack"),
        ({"stack": 2.0}, "stack"),
        ({"stack": True}, "stack"),
        ({"stack": "4"}, "stack"),
        ({"n_step": 0}, "n_step: expected a whole number"),
        ({"n_step": None}, "n_step"),
        ({"n_step": True}, "n_step"),
        ({"gamma": -0.1}, "gamma: expected a number in"),
        ({"gamma": 1.1}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"padding": "edge"}, "padding: expected 'reset' or 'zero'"),
        ({"padding": None}, "padding"),
        ({"stack_axis": 1}, "stack_axis: expected 0 or -1"),
        ({"stack_axis": None}, "stack_axis"),
        ({"clip_reward": 1}, r"clip_reward: expected \(low, high\)"),
        ({"clip_reward": (1, 1)}, "clip_reward"),
        ({"clip_reward": (0, float("nan"))}, "clip_reward"),
        ({"clip_reward": ("0", "1")}, "clip_reward"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(wrong, match):
    with pytest.raises(SchemaError, match=match):
        Settings(**wrong)
    with pytest.raises(SchemaError, match=match):
        dataclasses.replace(Settings(), **wrong)


def test_settings_take_numpy_integers_and_the_borders():
    assert Settings(stack=np.int64(3), n_step=np.int32(2)).stack == 3  # type: ignore[arg-type]
    for value in ({"stack": None}, {"stack": 1}, {"gamma": 0}, {"gamma": 1}, {"stack_axis": -1}):
        assert dataclasses.replace(Settings(), **value) == Settings(**value)


def test_a_stack_longer_than_the_context_is_refused_where_rows_go():
    assert MAX_STACK == 65
    Settings(stack=65).check_evicting(evicts=True)
    Settings(stack=66).check_evicting(evicts=False)
    Settings(stack=None).check_evicting(evicts=True)
    with pytest.raises(SchemaError, match="at most 65 where a capacity evicts rows, found 66"):
        Settings(stack=66).check_evicting(evicts=True)
