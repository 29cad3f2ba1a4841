"""Experiences as rows of a store: their parts, and which are refused."""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ((1, 2, 3), "expected \\(s, a, r"),
        ("text", "expected \\(s, a, r"),
        ((np.array([None]), 0, 0.0, 1.0, np.zeros(2), {}), "found object"),
        ((np.zeros(2), (1, 2), 0.0, 1.0, np.zeros(2), {}), "action: .* found a tuple"),
    ],
)
def test_invalid_experiences_are_refused(wrong, text):
    with nnabla_rl.ReplayBuffer() as buffer, pytest.raises(ValueError, match=text):
        buffer.append(wrong)


def test_arrays_as_rewards_and_numbers_as_states_keep_their_shape(experiences):
    with nnabla_rl.ReplayBuffer(3) as buffer:
        for t in range(5):
            buffer.append(
                (t, np.int32(t), np.array([t, -t], np.float32), np.array([1.0]), t + 1, {})
            )
        for i, t in enumerate((2, 3, 4)):
            s, a, r, non_terminal, s_next, info = buffer[i]
            assert (int(s), a, non_terminal, int(s_next), info) == (t, t, 1.0, t + 1, {})
            assert experiences.same(r, np.array([t, -t], np.float32))


def test_entries_after_the_info_are_left_out(experiences):
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append((np.zeros(1), 0, 0.0, 1.0, np.ones(1), {"a": 1.0}, "reset"))
        assert experiences.same(buffer[0][5:], ({"a": 1.0},))
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append((np.ones(1), 0, 0.0, 1.0, np.zeros(1)))
        assert buffer[0][5:] == ({},)


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([{"a": 1.0, "b": np.arange(2)}, {"a": 2.0, "b": np.ones(2, int), "c": 3}], None),
        (
            [{"a.b": True, "s": "x", "deep": {"n": 1}}, {"a.b": False}],
            [{"a.b": True}, {"a.b": False}],
        ),
        ([{"a": 1}, {"a": 1.5}], [{"a": 1.0}, {"a": 1.5}]),
        ([{"a b": 1, 3: 1, "k" * 99: 1, "l": np.longdouble(1), "TimeLimit.truncated": True}], [{}]),
        ([np.arange(3), None, 7, {"a": 1.0}], [{}, {}, {}, {}]),
    ],
)
def test_numbers_and_arrays_of_an_info_are_stored_if_the_first_one_had_them(
    experiences, infos, expected
):
    if expected is None:
        expected = [{key: info[key] for key in infos[0]} for info in infos]
    with nnabla_rl.ReplayBuffer() as buffer:
        for t, info in enumerate(infos):
            buffer.append((np.array([t]), 0, 0.0, 1.0, np.array([t + 1]), info))
        assert experiences.same([one[5] for one in buffer], expected)


def test_an_info_that_does_not_fit_the_first_one_is_refused():
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append((0, 0, 0.0, 1.0, 1, {"a": np.ones(2)}))
        for info, text in (({}, "expected 'a', as in the first"), ({"a": np.ones(3)}, "shape")):
            with pytest.raises(ValueError, match=text):
                buffer.append((1, 0, 0.0, 1.0, 2, info))
        assert len(buffer) == 1
