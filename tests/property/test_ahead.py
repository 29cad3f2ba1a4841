"""Batches that are read ahead of any store that grows are those of their draws."""

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle.drawn_ahead import DrawnAhead
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.windows import check_windows

TURNS = st.tuples(
    st.sampled_from([0, 1, 1, 2, 5, 30, 130]),  # steps
    st.sampled_from([0.0, 0.1, 0.5]),  # how likely each ends an episode
    st.sampled_from(["", "", "flush", "refresh"]),
    st.integers(1, 4),  # batches
)


class Expected:
    """Windows around these ids, of a store as it is now."""

    def __init__(self, model, ids):
        self.model, self.id = model.copy(), ids


@settings(max_examples=by_effort(5, 25, 600))
@given(
    layout=layouts(lanes=False),
    n=st.integers(1, 4),
    turns=st.lists(TURNS, min_size=1, max_size=by_effort(6, 12, 12)),
)
def test_windows_that_are_read_ahead_are_those_of_their_draw(layout, n, turns):
    model, windows = layout.model(), {"observation": (-1, 0, 5), "action": (0, 9), "reward": 3}

    def check(found, expected):
        check_windows(found, expected.model, expected.id.tolist(), windows)

    with scratch_directory() as folder:
        path, kind = folder / "s.zarr", mmreplay.ReplayBuffer
        with layout.create_buffer(path, kind, seed=n, prefetch=n) as buffer:
            pair = Pair(buffer, model, np.random.default_rng(n))
            batch = functools.partial(Expected, model)
            sample = functools.partial(buffer.sample_windows, 3, windows)
            expected = DrawnAhead(buffer, n, 3, model.ids, batch, sample, check)
            for n_steps, end, what, n_batches in turns:
                pair.play(n_steps, end, "any")
                if what == "flush":
                    buffer.flush()
                for _ in range(n_batches):
                    expected.check_next()


@settings(max_examples=by_effort(5, 25, 600))
@given(
    layout=layouts(lanes=False),
    given=gather_settings(longest=9),
    n=st.integers(1, 4),
    turns=st.lists(TURNS, min_size=1, max_size=by_effort(6, 12, 12)),
)
def test_what_is_read_ahead_is_what_the_oracle_says_of_its_draw(layout, given, n, turns):
    model = layout.model()
    with scratch_directory() as folder:
        with layout.create_buffer(
            folder / "s.zarr", mmreplay.ReplayBuffer, **given, seed=n, prefetch=n
        ) as buffer:
            pair = Pair(buffer, model, np.random.default_rng(n))
            batch = functools.partial(model.batch, **given)
            expected = DrawnAhead(buffer, n, 3, model.ids, batch)
            for n_steps, end, what, n_batches in turns:
                pair.play(n_steps, end, "any")
                if what == "flush":
                    buffer.flush()
                elif what == "refresh":
                    buffer.refresh()
                    expected.forget()
                for _ in range(n_batches):
                    expected.check_next()
