"""What a dataset draws: the numbers it takes, and errors that name the store."""

import numpy as np
import pytest

import mmreplay
from mmreplay.batches.settings import Settings
from mmreplay.datasets.samplers import Samplers
from mmreplay.reading.store import open_store
from mmreplay.sampling.windows import Windows


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("samplers") / "x.zarr"
    with mmreplay.create(path, mmreplay.Field((2,)), mmreplay.Field((), "int64")) as writer:
        for length in (3, 5):
            writer.reset(np.zeros(2, "uint8"))
            for t in range(length):
                writer.step(t, 1.0, np.zeros(2, "uint8"), terminated=t == length - 1)
    with open_store(path) as opened:
        yield opened


@pytest.fixture
def samplers(store):
    return Samplers(store, Settings(stack=None), None)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("kind", ["transitions", "windows", "portions"])
def test_a_draw_chooses_the_same_ids_however_often_it_is_asked(store, samplers, kind, replace):
    generator = np.random.default_rng(0)
    draw = {
        "transitions": lambda: samplers.transitions(generator, 6, replace, None),
        "windows": lambda: samplers.sequences(generator, Windows(2), 6),
        "portions": lambda: samplers.portions(generator, Windows(2), 6),
    }[kind]()
    state = generator.bit_generator.state
    first = store.live.look(draw.choose)
    assert first.tolist() == store.live.look(draw.choose).tolist()
    assert np.isin(first, store.ids).all()
    assert generator.bit_generator.state == state


def test_what_is_listed_is_every_transition_and_every_window_once(store, samplers):
    assert store.live.look(samplers.every_transition()).tolist() == store.ids.tolist()
    assert store.live.look(samplers.every_window(Windows(3))).tolist() == [0, 4, 5, 6]


def test_errors_name_the_store(store, samplers):
    for call in (
        lambda: samplers.every_window(Windows(9)),
        lambda: samplers.trajectories(np.random.default_rng(0), 3, replace=False),
    ):
        with pytest.raises(mmreplay.MmreplayError, match=r"x\.zarr: "):
            call()
