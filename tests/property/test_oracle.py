"""Everything that a store gives equals what a list of everything says, byte for byte."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay.testing import checks
from mmreplay.testing.pair import Pair
from mmreplay.testing.scratch import scratch_directory
from mmreplay.testing.strategies import episodes, gather_settings, layouts

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
pytestmark = pytest.mark.timeout(0 if THOROUGH else 240)
GATHERINGS = st.lists(gather_settings(), min_size=1, max_size=3)


@settings(max_examples=500 if THOROUGH else 30)
@given(st.data())
def test_any_store_equals_the_oracle_while_live_and_after_closing(data):
    with scratch_directory() as folder:
        check_life_of_a_store(folder / "store.zarr", data)


def check_life_of_a_store(path, data):
    layout = data.draw(layouts())
    longest = 3 * (layout.capacity or 10)
    script = data.draw(
        st.lists(
            st.tuples(st.integers(0, (layout.lanes or 1) - 1), episodes(min(longest, 120))),
            min_size=1,
            max_size=6,
        )
    )
    gatherings = data.draw(GATHERINGS)
    flush_after = data.draw(st.frozensets(st.integers(0, 5), max_size=3))
    model = layout.model()
    random = np.random.default_rng(len(script))
    with mmreplay.create(path, **layout.create_arguments(), flush_s=0) as writer:
        pair = Pair(writer, model, random)
        follower = mmreplay.open(path)
        for number, (lane, episode) in enumerate(script):
            pair.episode(episode, lane)
            checks.check_ids(follower, model)
            if number in flush_after:
                writer.flush()
                with mmreplay.open(path) as store:
                    for view, own in zip(store.lanes, model.lanes, strict=True):
                        checks.check_disk(view, own)
                        own.forget(view.base)
        with mmreplay.open(path) as store:
            for view, own in zip(store.lanes, model.lanes, strict=True):
                own.forget(view.base)
            checks.check_store(store, model, live=True, settings=gatherings, most=60)
        follower.refresh()
        checks.check_store(follower, model, live=True, settings=gatherings[:1], most=30)
    model_ends(model)
    with mmreplay.open(path) as store:
        for view, own in zip(store.lanes, model.lanes, strict=True):
            checks.check_disk(view, own)
            own.forget(view.base)
        checks.check_store(store, model, live=False, settings=gatherings, most=60)
    checks.check_verified(path)
    follower.refresh()
    checks.check_ids(follower, model)
    follower.close()


def model_ends(model):
    for lane in model.lanes:
        lane.end_session()
