"""baselines' prioritized buffer, against every transition in a list."""

import numpy as np
import pytest

from mmreplay.compat.baselines import (
    PrioritizedReplayBuffer,
)
from mmreplay.errors import InvalidIdError, SchemaError
from tests.support.oracle.baselines_steps import Steps, check_all

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


@pytest.mark.parametrize("kind", ["plain", "lazy"])
def test_a_store_at_a_path_is_continued(tmp_path, kind):
    path, steps = tmp_path / "store.zarr", Steps(kind, 3)
    for session, size in enumerate((12, 12, 9, 15)):
        with PrioritizedReplayBuffer(size, 0.5, path=path) as buffer:
            if session:
                check_all(buffer, steps, size, 0.4)
            for _ in range(20):
                buffer.add(*steps.next())
            _, actions, *_, places = check_all(buffer, steps, size, 0.4)
            assert [n % size for n in actions.tolist()] == places
        steps.frames = None


def filled(size, n, alpha=1.0, path=None):
    buffer = PrioritizedReplayBuffer(size, alpha, path=path)
    for i in range(n):
        buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), i % 6 == 4)
    return buffer


@pytest.mark.parametrize(("kind", "size"), [("plain", 1), ("plain", 30), ("lazy", 7)])
def test_prioritized_transitions_are_as_they_were_added(kind, size):
    steps = Steps(kind, size)
    with PrioritizedReplayBuffer(size, 0.6) as buffer:
        for i in range(max(5 * size, 60)):
            buffer.add(*steps.next())
            if i % 11 == 0 or i < 5:
                _, action, *_, weights, places = check_all(buffer, steps, size, 0.4)
                assert (weights.shape, weights.dtype) == (action.shape, np.float64)
                assert type(places) is list
                assert isinstance(places[0], int)
                assert places == [n % size for n in action.tolist()]
                assert (weights == 1).all()  # no priority was given yet


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (2.0, 0.5)])
def test_probabilities_and_weights_are_those_of_the_formulas(alpha, beta):
    size, n = 10, 37
    with filled(size, n, alpha) as buffer:
        priorities = np.linspace(0.5, 4, size)  # by position
        buffer.update_priorities(list(range(size)), priorities)
        _, actions, *_, weights, places = buffer.sample(20_000, beta)
    mass = priorities**alpha
    probability = mass / mass.sum()
    expected = (size * probability) ** -beta
    expected /= expected.max()
    assert np.allclose(weights, expected[places], rtol=1e-5)
    assert [number % size for number in actions.tolist()] == places
    counts = np.bincount(places, minlength=size)
    wanted = 20_000 * probability
    # One draw a stratum: closer to the expectation than free draws would be.
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 27.9  # 9 degrees of freedom
    assert (np.abs(counts - wanted) <= 2).all()


def test_the_newest_transition_is_sampled_and_comes_with_the_largest_priority():
    with filled(8, 21) as buffer:
        newest = 20 % 8
        buffer.update_priorities(range(8), [1e-9] * 8)
        buffer.update_priorities([newest], [5.0])
        assert set(buffer.sample(50, 0.4)[-1]) == {newest}
        buffer.add(np.array([99]), 21, 0.0, np.array([100]), False)
        assert set(buffer.sample(50, 0.4)[-1]) == {newest, newest + 1}


def test_a_position_means_its_present_transition():
    with filled(8, 8) as buffer:
        *_, places = buffer.sample(64, 0.4)
        buffer.update_priorities(places, [1.0] * 64)
        for i in range(8, 11):  # take the places 0, 1 and 2, as an actor that knows their errors
            buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), False)
        buffer.update_priorities([0, 1, 2], [3.0] * 3)
        assert buffer.core.n_late_updates == 0
        counts = np.bincount(buffer.sample(14_000, 0.4)[-1], minlength=8)
        assert np.allclose(counts, 1000 * np.array([3, 3, 3, 1, 1, 1, 1, 1]), atol=3)


def test_wrong_positions_priorities_and_settings_are_refused():
    with filled(8, 5) as buffer:
        for wrong in ([5], [-1], [8]):
            with pytest.raises(InvalidIdError, match="no transition at"):
                buffer.update_priorities(wrong, [1.0])
        for bad in ([0.0], [-1.0], [np.nan], [np.inf], [1.0, 2.0]):
            with pytest.raises(SchemaError):
                buffer.update_priorities([0], bad)
        for beta in (0, -1, np.nan):
            with pytest.raises(SchemaError, match="beta"):
                buffer.sample(2, beta)
        buffer.update_priorities([], [])
    with pytest.raises(SchemaError, match="alpha"):
        PrioritizedReplayBuffer(8, -1)
