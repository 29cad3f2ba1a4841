"""Runs of experiences, and draws of them, against plain lists of what was appended.

Invariant: no run joins experiences that do not follow one another.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmreplay.compat import nnabla_rl
from tests.support.effort import by_effort

ENDS = ("terminated", "truncated", "interrupted")
EPISODES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(ENDS)), min_size=1, max_size=8)


class Lists:
    """The naive model: everything in a list, and whether the next one may be read on from each."""

    def __init__(self, experiences, episodes, capacity):
        self.every, self.links = [], []
        for number, (length, end) in enumerate(episodes):
            self.every += experiences.episode_of(number, length, end)
            # In the same episode, or past a terminal state.
            self.links += [True] * (length - 1) + [end == "terminated"]
        self.capacity = capacity

    @property
    def kept(self):
        return self.every if self.capacity is None else self.every[-self.capacity :]

    def runs(self, num_steps):
        """Indices that a run may begin with."""
        links = self.links[len(self.every) - len(self.kept) :]
        last = len(links) - num_steps
        return [i for i in range(last + 1) if all(links[i : i + num_steps - 1])]


@given(EPISODES, st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 5), st.integers(0, 9))
@settings(deadline=None, max_examples=by_effort(4, 25, 100))  # each makes a store
def test_runs_cross_terminal_states_only(experiences, episodes, capacity, steps, seed):
    naive = Lists(experiences, episodes, capacity)
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
                    assert experiences.same(one[:5], kept[place[begin[2]] + j][:5])
            assert experiences.same(info["weights"], np.ones((len(runs), 1)))
            with pytest.raises(ValueError, match=f"at most {len(runs)}"):
                buffer.sample(len(runs) + 1, steps)
        for i in range(len(kept)):
            if i in runs:
                found, info = buffer.sample_indices([i], steps)
                columns = found if steps > 1 else (found,)
                assert experiences.same(
                    [c[0][:5] for c in columns], [e[:5] for e in kept[i : i + steps]]
                )
                assert info["weights"].shape == (1, 1)
            elif i + steps > len(kept):
                with pytest.raises(IndexError):
                    buffer.sample_indices([i], steps)
            else:
                with pytest.raises(ValueError, match="end of an episode"):
                    buffer.sample_indices([i], steps)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (nnabla_rl.ReplayBuffer, 1),
        (nnabla_rl.ReplayBuffer, 3),
        (nnabla_rl.ReplacementSamplingReplayBuffer, 3),
    ],
)
def test_runs_are_drawn_uniformly(experiences, kind, steps):
    lengths = zip((3, 5, 1, 6, 4), (ENDS[0], ENDS[2], ENDS[1], ENDS[1], ENDS[0]), strict=True)
    naive = Lists(experiences, lengths, 17)
    with kind(17) as buffer:
        buffer.append_all(naive.every)
        buffer.seed(4)
        runs = naive.runs(steps)
        place = {experience[2]: i for i, experience in enumerate(naive.kept)}
        counts = np.zeros(len(naive.kept))
        for _ in range(200):
            found, _ = buffer.sample(3, steps)
            for one in found if steps == 1 else found[0]:
                counts[place[one[2]]] += 1
        assert counts.nonzero()[0].tolist() == runs
        assert experiences.goodness(counts[runs]) < 4


def test_values_out_of_range_are_value_errors(experiences):
    for capacity in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="capacity"):
            nnabla_rl.ReplayBuffer(capacity)
    with nnabla_rl.ReplayBuffer(5) as buffer:
        assert buffer.update_priorities(np.ones(3)) is None
        with pytest.raises(IndexError):
            buffer[0]
        with pytest.raises(ValueError, match="empty"):
            buffer.sample()
        buffer.append_all(experiences.episode_of(0, 3, "terminated"))
        for arguments in ((0,), (-1,), (1, 0), (1, -1), (1.5,)):
            with pytest.raises(ValueError, match="1 or more"):
                buffer.sample(*arguments)
        for indices in (([],), ([0], 0), ([0.5],)):
            with pytest.raises(ValueError, match="expected"):
                buffer.sample_indices(*indices)
        assert len(buffer.sample_indices(np.array([2, 0]))[0]) == 2
