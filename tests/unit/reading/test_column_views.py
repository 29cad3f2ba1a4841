"""Columns and lanes by row id: what numpy would give for an array of all rows."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field

pytestmark = pytest.mark.usefixtures("quick_disk")


def opened(writer):
    return mmreplay.open(writer.path)


@pytest.fixture(scope="module", params=["raw", "lz4"])
def columns(request, tmp_path_factory, story_of_module):
    """Views of a closed store, and what numpy has instead."""
    story = story_of_module
    writer = mmreplay.create(
        tmp_path_factory.mktemp("columns") / "store.zarr",
        frame=Field((4, 3), "uint8", request.param, chunk=2, shard=4),
        action=Field((), "int64"),
        extras={"x": Field((2,), "float16")},
    )
    story.play(writer, 4, "terminated")
    story.play(writer, 6)
    writer.close()
    expected = story.columns(writer.path, writer.schema)
    with opened(writer) as store:
        views = {
            "frames": store.frames,
            "rewards": store.rewards,
            "actions": store.actions,
            "extras/x": store.extras["x"],
        }
        for view in views.values():
            view[:]  # maps its files, which a test would seem to leave behind
        yield [(view, expected[name]) for name, view in views.items()]


ROWS = [
    0,
    9,
    -1,
    -10,
    np.int64(3),
    np.uint8(3),
    np.array(3),
    slice(None),
    slice(2, 5),
    slice(5, 2),
    slice(-3, None),
    slice(None, None, 3),
    slice(None, None, -1),
    slice(9, 1, -2),
    slice(5, 100),
    [0],
    [3, 3, -1, 0],
    [],
    np.array([[1, 2], [3, -1]]),
    np.array([], np.int64),
    np.array([7, 0], np.uint8),
    [True, False] * 5,
    np.arange(10) % 5 == 0,
    np.zeros(10, bool),
    Ellipsis,
    (),
    None,
    True,
    (0,),
    (slice(1, 4),),
    (Ellipsis, slice(2, 4)),
    (None, 3),
    (3, None),
    (slice(None), None),
]
PARTS = [
    (0, 1),
    (slice(2, 5), 1),
    (slice(2, 5), slice(None), -1),
    (3, slice(1, 3), 0),
    (Ellipsis, 0),
    (Ellipsis, 0, 1),
    (2, Ellipsis, 1),
    ([0, 1], [2, 3]),
    ([0, 1], 2),
    ([0, 1], slice(None), [0, 2]),
    (np.arange(10) % 2 == 0, 1),
    (slice(None), [1, 0]),
    (5, [True, False, True, False]),
    (slice(None), np.array([[0, 1], [1, 0]])),
]
WRONG = [10, -11, [0, 10], [-11], 1.0, [0.5], "a", [True], np.ones(11, bool), (0, 9), (0, 0, 0, 0)]


def test_a_column_is_indexed_as_a_numpy_array_is(columns):
    for view, array in columns:
        for key in ROWS + PARTS * (array.ndim > 2):
            found, expected = view[key], array[key]
            assert type(found) is type(expected), key
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), key
            assert found.tobytes() == expected.tobytes(), key
        for key in WRONG:
            with pytest.raises(IndexError):
                array[key]
            with pytest.raises(IndexError):
                view[key]


def test_a_column_is_an_array_like(columns):
    for view, array in columns:
        assert (view.shape, view.dtype, len(view)) == (array.shape, array.dtype, len(array))
        assert np.array_equal(np.asarray(view), array)
        assert np.asarray(view, np.float64).dtype == np.float64
        assert [one.tolist() for one in view] == array.tolist()
        assert np.array_equal(np.array(view, copy=True), array)
        with pytest.raises(ValueError, match="only be copied"):
            np.array(view, copy=False)
    assert repr(columns[1][0]) == "<rewards (10,) float32>"


def test_every_read_is_a_copy(columns):
    for view, array in columns:
        for key in (slice(None), 3, [1, 2], slice(2, 3), Ellipsis):
            found = np.asarray(view[key])
            if found.ndim:
                found[...] = 0
        assert np.array_equal(view[:], array)


def test_an_empty_store_has_empty_columns(make, lz4):
    writer = make(**lz4)
    for _ in range(2):
        with opened(writer) as store:
            assert store.frames.shape == (0, 3)
            assert store.frames[:].shape == (0, 3)
            assert store.rewards[:].tolist() == []
            assert len(store) == 0
            assert store.ids.tolist() == []
            assert len(store.episodes) == 0
            assert len(store.transitions([])) == 0
            with pytest.raises(IndexError):
                store.rewards[0]
        writer.close()


def test_rows_that_were_evicted_read_as_zeros(make, story):
    writer = make(capacity=5)
    story.play(writer, 150)
    writer.flush()
    with opened(writer) as store:
        view = store.lanes[0]
        base = view.base
        assert (base, view.first, view.rows) == (145 - 64, 145, 150)
        assert (store.frames[:base] == 0).all()
        assert (store.rewards[:base] == 0).all()
        story.check(store, start=base)


def test_a_dict_observation_is_a_dict_of_columns(make, story):
    writer = make(frame={"a": Field((3,), codec="raw"), "b": Field((), "float32", "raw")})
    story.play(writer, 3)
    with opened(writer) as store:
        frames = store.frames
        assert isinstance(frames, dict)
        assert {name: view.shape for name, view in frames.items()} == {"a": (3, 3), "b": (3,)}
        batch = store.transitions([0, 2], stack=2)
        assert isinstance(batch.observation, dict)
        assert batch.observation["b"].shape == (2, 2)
