"""Buffers that draw by priority, against their definitions.

Invariant: an error goes to the experience that was drawn, by id, whatever was appended since.
"""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl


def steps(count, begin=0, episode=0, end=1.0):
    """Steps whose reward is their number."""
    return [
        (
            np.array([episode, t]),
            0,
            float(t),
            1.0 if t < begin + count - 1 else end,
            np.array([episode, t + 1]),
            {},
        )
        for t in range(begin, begin + count)
    ]


def numbers(experiences):
    return [int(one[2]) for one in experiences]


VARIANTS = ("proportional", "rank_based")
ALPHA, EPSILON = 0.6, 1e-8


def masses(variant, errors, clip=(-1, 1)):
    sizes = np.abs(errors if clip is None else np.clip(errors, *clip)) + EPSILON
    if variant == "proportional":
        return sizes**ALPHA
    ranks = np.empty(len(sizes))
    ranks[np.argsort(-sizes)] = np.arange(1, len(sizes) + 1)
    return ranks**-ALPHA


def with_errors(variant, errors, **settings):
    """A buffer with these errors, each told to its own experience."""
    buffer = nnabla_rl.PrioritizedReplayBuffer(len(errors), variant=variant, **settings)
    buffer.append_all(steps(len(errors)))
    found, _ = buffer.sample_indices(range(len(errors)))
    assert numbers(found) == [*range(len(errors))]
    buffer.update_priorities(errors[:, None])
    buffer.seed(5)
    return buffer


@pytest.mark.parametrize(
    ("variant", "count"), [("proportional", 3), ("proportional", 40), ("rank_based", 7)]
)
def test_experiences_are_drawn_by_priority_with_the_weights_of_the_paper(
    experiences, variant, count
):
    errors = np.random.default_rng(count).permutation(np.linspace(-0.9, 1.5, count))
    clip = (-2, 2)
    shares = masses(variant, errors, clip)
    shares /= shares.sum()
    counts = np.zeros(count)
    with with_errors(variant, errors, beta=0.4, betasteps=100, error_clip=clip) as buffer:
        for batch in range(150):
            found, info = buffer.sample(3)
            chosen = numbers(found)
            np.add.at(counts, chosen, 1)
            beta = 0.4 + 0.6 * min(batch / 100, 1)
            wanted = (shares[chosen] / shares.min()) ** -beta
            assert info["weights"].shape == (3, 1)
            np.testing.assert_allclose(info["weights"][:, 0], wanted, rtol=1e-5)
            buffer.update_priorities(errors[chosen])
        _, info = buffer.sample_indices([-1, 0])
        np.testing.assert_allclose(info["weights"][:, 0], shares.min() / shares[[-1, 0]], rtol=1e-6)
    assert experiences.goodness(counts, shares) < 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_begin_by_priority_where_one_can_begin(experiences, variant):
    errors = np.random.default_rng(3).permutation(np.linspace(-0.9, 0.8, 12))
    buffer = nnabla_rl.PrioritizedReplayBuffer(12, variant=variant)
    with buffer:
        for episode in range(4):  # cut off by resets
            buffer.append_all(steps(3, 3 * episode, episode))
        buffer.sample_indices(range(12))
        buffer.update_priorities(errors)
        buffer.seed(2)
        every = masses(variant, errors)
        begins = [t for t in range(12) if t % 3 != 2]
        counts = np.zeros(12)
        for _ in range(100):
            found, info = buffer.sample(4, 2)
            chosen = numbers(found[0])
            assert numbers(found[1]) == [t + 1 for t in chosen]
            np.add.at(counts, chosen, 1)
            ratio = info["weights"][:, 0] / info["weights"][0, 0]
            logs = np.log(every[chosen] / every[chosen[0]])
            wrong = np.abs(np.log(ratio)) > np.abs(logs) + 1e-6
            assert not wrong.any()
            buffer.update_priorities(errors[chosen])
        assert counts.nonzero()[0].tolist() == begins
        assert experiences.goodness(counts[begins], every[begins] / every[begins].sum()) < 4
        with pytest.raises(RuntimeError, match="no run of 4"):
            buffer.sample(1, 4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_as_many_runs_as_there_are_experiences_come_back(variant):
    with nnabla_rl.PrioritizedReplayBuffer(10, variant=variant) as buffer:
        buffer.append_all(steps(10))
        found, _ = buffer.sample(10, 4)
        assert max(numbers(found[0])) <= 6
        buffer.update_priorities(np.ones(10))
        with pytest.raises(ValueError, match="at most 10"):
            buffer.sample(11)


def test_an_error_reaches_the_sampled_experience_whatever_was_appended_since():
    with nnabla_rl.PrioritizedReplayBuffer(5, epsilon=1e-3) as buffer:
        buffer.append_all(steps(5))
        buffer.sample_indices([0, 1, 2])
        buffer.append_all(steps(2, 5))  # 0 and 1 are gone
        buffer.update_priorities(np.array([0.1, 0.2, 0.3]))
        _, info = buffer.sample_indices(range(5))
        weights = info["weights"][:, 0]
        assert weights[0] == 1.0  # of experience 2, the smallest
        assert np.allclose(weights[1:], (1 / 0.301) ** (-ALPHA * 0.4))


def test_samples_and_updates_take_turns():
    with nnabla_rl.PrioritizedReplayBuffer(5) as buffer:
        with pytest.raises(ValueError, match="at most 0"):
            buffer.sample()
        buffer.append_all(steps(4))
        with pytest.raises(RuntimeError, match="a sample before"):
            buffer.update_priorities(np.ones(1))
        buffer.sample(2)
        for again in (lambda: buffer.sample(2), lambda: buffer.sample_indices([0])):
            with pytest.raises(RuntimeError, match="before the next sample"):
                again()
        with pytest.raises(ValueError, match="one per id"):
            buffer.update_priorities(np.ones(3))
        buffer.update_priorities(np.ones((2, 1)))
        buffer.sample(2)
        assert (buffer.capacity, len(buffer)) == (5, 4)
        assert buffer[1][2] == 1.0


def test_settings_out_of_range_are_value_errors():
    for settings in ({"variant": "rank"}, {"alpha": -1}, {"beta": 2}):
        with pytest.raises(ValueError, match="expected"):
            nnabla_rl.PrioritizedReplayBuffer(5, **settings).append(steps(1)[0])
    for wrong in (0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="init_max_error: expected a finite number above 0"):
            nnabla_rl.ProportionalPrioritizedReplayBuffer(5, init_max_error=wrong)
    with pytest.raises(ValueError, match="capacity"):
        nnabla_rl.PrioritizedReplayBuffer(0)
    with pytest.raises(ValueError, match="normalization_method"):
        nnabla_rl.ProportionalPrioritizedAtariBuffer(5, normalization_method="max")


@pytest.mark.parametrize(
    ("make", "variant", "by_batch"),
    [
        (nnabla_rl.ProportionalPrioritizedAtariBuffer, "proportional", False),
        (nnabla_rl.ProportionalPrioritizedAtariBuffer, "proportional", True),
        (nnabla_rl.RankBasedPrioritizedAtariBuffer, "rank_based", False),
    ],
)
def test_screens_are_drawn_by_priority(make, variant, by_batch):
    settings = {"normalization_method": "batch_max"} if by_batch else {}
    screens = np.random.default_rng(0).integers(0, 256, (12, 6, 5), np.uint8)
    with make(8, alpha=ALPHA, beta=0.4, stacked_frames=2, **settings) as buffer:
        for t in range(11):
            buffer.append((screens[t], 0, float(t), 1.0, screens[t + 1], {}))
        assert len(buffer) == 8
        found, _ = buffer.sample_indices(range(8))
        errors = np.linspace(0.9, 0.1, 8)
        buffer.update_priorities(errors)
        shares = masses(variant, errors)
        found, info = buffer.sample(5)
        chosen = [t - 3 for t in numbers(found)]
        for one in found:
            t = int(one[2])
            assert np.array_equal(one[0], screens[t - 1 : t + 1].astype(np.float32) / 255)
            assert np.array_equal(one[4], screens[t : t + 2].astype(np.float32) / 255)
        least = shares[chosen].min() if by_batch else shares.min()
        wanted = (shares[chosen] / least) ** -0.4
        np.testing.assert_allclose(info["weights"][:, 0], wanted, rtol=1e-5)


@pytest.mark.parametrize("by_batch", [False, True])
def test_init_max_error_applies_to_experiences_without_an_error(tmp_path, by_batch):
    normalization_method = "batch_max" if by_batch else "buffer_max"
    settings = {"init_max_error": 0.25, "normalization_method": normalization_method}
    path = tmp_path / "kept.zarr"
    with nnabla_rl.ProportionalPrioritizedReplayBuffer(
        9, 0.5, 1.0, 10, (-4, 4), 1e-8, path=path, **settings
    ) as buffer:
        buffer.append_all(steps(4))
        buffer.sample_indices([0, 1])
        buffer.update_priorities(np.array([0.01, 0.04]))  # shares of 0.1 and 0.2
    with nnabla_rl.ProportionalPrioritizedReplayBuffer(
        9, 0.5, 1.0, 10, (-4, 4), 1e-8, path=path, **settings
    ) as buffer:
        buffer.append_all(steps(1, 4))
        _, info = buffer.sample_indices([1, 2, 4])
        least = 0.2 if by_batch else 0.1
        expected = [least / 0.2, least / 0.25, least / 0.25]
        np.testing.assert_allclose(info["weights"][:, 0], expected, rtol=1e-6)
        buffer.update_priorities(np.array([2.25, 1.0, 0.16]))
        buffer.append_all(steps(1, 5))  # the largest share by now is 1.5
        _, info = buffer.sample_indices([0, 5])
        np.testing.assert_allclose(info["weights"][:, 0], [1.0, 0.1 / 1.5], rtol=1e-6)


def test_each_class_draws_by_its_own_settings():
    errors = np.linspace(0.9, 0.1, 8)
    for make, alpha, beta, shares in (
        (nnabla_rl.ProportionalPrioritizedReplayBuffer, 0.6, 0.4, errors + 1e-8),
        (nnabla_rl.RankBasedPrioritizedReplayBuffer, 0.7, 0.5, 1 / np.arange(1, 9)),
    ):
        with make(8) as buffer:
            buffer.append_all(steps(8))
            buffer.sample_indices(range(8))
            buffer.update_priorities(errors)
            found, info = buffer.sample(5)
            weights = (shares[numbers(found)] / shares.min()) ** (-alpha * beta)
            np.testing.assert_allclose(info["weights"][:, 0], weights, rtol=1e-3)


def test_fewer_errors_go_to_the_first_that_were_drawn():
    with nnabla_rl.ProportionalPrioritizedReplayBuffer(5, 1.0, 1.0) as buffer:
        buffer.append_all(steps(4))
        buffer.sample_indices([3, 1, 0])
        buffer.update_priorities(np.array([[0.25], [0.5]]))
        _, info = buffer.sample_indices(range(4))
        assert np.allclose(info["weights"][:, 0], [0.25, 0.5, 0.25, 1.0])
        buffer.update_priorities(np.empty(0))
        assert np.array_equal(buffer.sample_indices(range(4))[1]["weights"], info["weights"])
