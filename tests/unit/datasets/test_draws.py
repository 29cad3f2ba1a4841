"""Draws: what they take from the generator and when, and errors that name the store."""

import gc
import weakref

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.batches.sequences import SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.datasets.draws import Samplers, draw_seed, errors_with_path, own_generator
from mmreplay.errors import EmptyBufferError
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.store import open_store
from mmreplay.sampling.windows import Windows
from mmreplay.storage.chunk_files import EvictedError

CALLS = {
    "sequences": lambda data: data.sample_sequences(5, 2, 1, "pad").id,
    "portions": lambda data: data.sample_portions(5, 3).id,
    "trajectories": lambda data: [one.ids[0] for one in data.sample_trajectories(5)],
    "distinct trajectories": lambda data: [
        one.ids[0] for one in data.sample_trajectories(5, replace=False)
    ],
    "distinct transitions": lambda data: data.sample(5, replace=False).id,
}


@pytest.fixture
def path(make, story):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8))
    for length in (3, 9, 4, 12, 1, 7):
        story.play(writer, length, "truncated")
    writer.close()
    return writer.path


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_read_that_is_retried_does_not_draw_again(path, call, monkeypatch):
    with mmreplay.load(path, seed=3) as data, mmreplay.load(path, seed=3) as twin:
        expected = [np.array(call(twin)).tolist() for _ in range(3)]
        retrying, failed = LiveLanes.retrying, []

        def failing(lanes, read):
            def once_more():
                out = read()
                if not failed:
                    failed.append(True)
                    raise EvictedError("in the middle")
                return out

            return retrying(lanes, once_more)

        monkeypatch.setattr(LiveLanes, "retrying", failing)
        found = []
        for _ in range(3):
            failed.clear()
            found.append(np.array(call(data)).tolist())
            assert failed
    assert found == expected
    assert found[0] != found[1]


def test_draws_with_replacement_depend_on_the_seed_as_they_always_did(path):
    with mmreplay.load(path, seed=3) as data:
        draws = np.random.default_rng(3).random(20)
        ids = data.ids
        assert data.sample(20).id.tolist() == ids[(draws * len(ids)).astype(int)].tolist()
        assert data.sample(4, replace=True).id.size == 4


def test_a_seed_for_a_draw_comes_from_the_generator():
    one, two = np.random.default_rng(1), np.random.default_rng(1)
    assert [draw_seed(one) for _ in range(3)] == [draw_seed(two) for _ in range(3)]
    assert len({draw_seed(one) for _ in range(9)}) == 9


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_an_own_generator_follows_from_the_data_and_takes_no_number_from_it(path, kind):
    with mmreplay.load(path) as data:
        numbers = []
        for _ in range(3):
            data.generator = np.random.Generator(kind(7))
            for _ in range(4):
                numbers.append(own_generator(data).random())
                data.generator.random()
            numbers.append(own_generator(mmreplay.Decorated(data)).random())
        assert numbers[:5] == numbers[5:10] == numbers[10:]
        assert len(set(numbers)) == 5
        twin = np.random.Generator(kind(7))
        assert twin.random(5)[4] == data.generator.random()


def test_an_error_of_a_draw_names_the_store(path):
    def nothing(index):
        raise EmptyBufferError("there is nothing")

    with pytest.raises(EmptyBufferError, match=f"^{path}: there is nothing$"):
        errors_with_path(path, nothing)(None)


def test_windows_of_many_kinds_are_drawn_side_by_side(path, monkeypatch):
    made = []
    make = SequenceGatherer.__init__
    monkeypatch.setattr(
        SequenceGatherer,
        "__init__",
        lambda self, *given: (made.append(given), make(self, *given))[0],
    )
    with mmreplay.load(path) as data:
        for _ in range(3):
            for length in (1, 2, 3):
                assert data.sample_sequences(4, length).id.shape == (4, length)
        assert len(made) == 3
        for length in range(1, 13):
            data.sample_sequences(4, length)
    assert len(made) < 3 + 12


def test_a_dropped_dataset_is_gone_at_once_after_all_kinds_of_draws(path):
    data = mmreplay.load(path)
    for call in CALLS.values():
        call(data)
    there = weakref.ref(data)
    gc.disable()
    try:
        data.close()
        del data
        assert there() is None
    finally:
        gc.enable()


def test_a_forked_childs_sums_are_its_own(path):
    with mmreplay.load(path) as data:
        data.sample_sequences(4, 2)
        before = data.samplers
        data.after_fork_in_child()
        assert data.samplers is not before
        assert data.sample_sequences(4, 2).mask.all()


# ---------------------------------------------------------------- by itself


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
    assert store.live.look(samplers.every_window(Windows(3))).tolist() == [0, 3, 4, 5]


def test_errors_name_the_store(store, samplers):
    for call in (
        lambda: samplers.every_window(Windows(9)),
        lambda: samplers.trajectories(np.random.default_rng(0), 3, replace=False),
    ):
        with pytest.raises(mmreplay.MmreplayError, match=r"x\.zarr: "):
            call()
