"""`load`: one store, a list of them or a pattern, and with which settings."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    CorruptStoreError,
    FormatError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading import live_lanes
from mmreplay.reading.store import listed as listed_paths
from mmreplay.writing import build_lane

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_one_store_is_loaded_with_its_settings(loaded):
    with loaded(stack=2, n_step=3, gamma=0.5, padding="zero", stack_axis=-1) as data:
        assert len(data) == 30
        assert data.sample(4).observation.shape == (4, 3, 2)
        assert dataclasses.astuple(data.settings) == (2, 3, 0.5, "zero", -1, None, None, ())
        assert repr(data) == (
            f"<mmreplay.Dataset {data.store.path} transitions=30 stack=2 n_step=3 gamma=0.5 "
            f"padding='zero' stack_axis=-1>"
        )
        assert data.ids.tolist() == data.store.ids.tolist()
        assert len(data.episodes) == 5
        assert data.trajectory(1).ids.tolist() == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("frame", "shape"),
    [
        (Field((4, 6)), (4, 4, 6)),
        (Field((4, 6), "float32"), (4, 6)),
        (Field((4, 6), "bool"), (4, 6)),
        ({"image": Field((4, 6)), "speed": Field((2,), "float32")}, (4, 4, 6)),
        ({"image": Field((4, 6, 3)), "speed": Field((2,), "float32")}, (4, 6, 3)),
    ],
)
def test_gray_images_are_stacked_by_default_and_all_else_is_not(frame, shape, tmp_path):
    path, action = tmp_path / "store.zarr", Field((), "int64")

    def of(batch):
        seen = batch.observation
        return (seen["image"] if isinstance(seen, dict) else seen).shape[1:]

    with mmreplay.ReplayBuffer(path, frame=frame, action=action, flush_s=0) as buffer:
        fields = frame if isinstance(frame, dict) else {"": frame}
        rows = {key: np.zeros(one.shape, one.dtype) for key, one in fields.items()}
        row = rows if isinstance(frame, dict) else rows[""]
        buffer.reset(row)
        buffer.step(1, 1.0, row)
        assert of(buffer.sample(2)) == of(buffer.transitions([0])) == shape
    with mmreplay.load(path) as data, mmreplay.open(path) as store:
        assert of(data.sample(2)) == of(store.transitions([0])) == shape
        assert store.info()["stack"] == (4 if shape == (4, 4, 6) else 1)


def test_padding_is_the_first_stores(make, story):
    for name, padding in (("a.zarr", "zero"), ("b.zarr", "reset")):
        writer = make(name, padding=padding)
        story.play(writer, 3)
        writer.close()
    folder = writer.path.parent
    assert mmreplay.load([folder / "a.zarr", folder / "b.zarr"]).settings.padding == "zero"
    assert mmreplay.load([folder / "b.zarr", folder / "a.zarr"]).settings.padding == "reset"
    assert mmreplay.load(folder / "a.zarr", padding="reset").settings.padding == "reset"


@pytest.fixture
def three(make, story):
    """Three stores of 3, 4 and 2 times 5 transitions."""
    for name, length, n_lanes in (("a.zarr", 3, None), ("b.zarr", 4, None), ("c.zarr", 5, 2)):
        writer = make(name, **({} if n_lanes is None else {"n_lanes": n_lanes}))
        story.play(writer, length)
        writer.close()
    return writer.path.parent


def test_a_list_or_a_pattern_numbers_lanes_on_through_all_stores(three):
    by_list = mmreplay.load([three / "a.zarr", str(three / "b.zarr"), three / "c.zarr"])
    for path in (
        str(three / "*.zarr"),
        three / "[abc].zarr",
        [three / "a.zarr", three / "[bc].zarr"],
    ):
        data = mmreplay.load(path)
        assert len(data) == 17
        assert data.ids.tolist() == by_list.ids.tolist()
        assert data.store.path == three / "a.zarr"
    lanes = by_list.ids >> LANE_SHIFT
    assert [int((lanes == n).sum()) for n in range(4)] == [3, 4, 5, 5]
    reverse = mmreplay.load([three / "c.zarr", three / "a.zarr"])
    assert (reverse.ids >> LANE_SHIFT).tolist() == [0] * 5 + [1] * 5 + [2] * 3


def test_a_dataset_of_several_stores_shows_which(three):
    with mmreplay.load(f"{three}/*.zarr", stack=None) as data:
        listed = ", ".join(str(three / name) for name in ("a.zarr", "b.zarr", "c.zarr"))
        assert repr(data) == f"<mmreplay.Dataset {listed} transitions=17>"
        assert repr(data.store) == f"<mmreplay.Store {listed} lanes=4 transitions=17>"
        some = data.select(ids=data.ids[:2])
        assert repr(some) == f"<mmreplay.Dataset {listed} transitions=2 selected>"
    paths = [three / f"{number}.zarr" for number in range(5)]
    assert listed_paths(paths) == ", ".join(map(str, paths[:3])) + " and 2 more"


def test_stores_loaded_as_one_are_named_and_are_no_zarr_group(three):
    paths = (three / "b.zarr", three / "c.zarr")
    with mmreplay.load(paths) as data:
        assert data.paths == data.store.paths == paths
        with pytest.raises(SchemaError, match=r"found 2 loaded as one, .*open each: .*\.paths\]"):
            data.store.zarr()
    with mmreplay.open(three / "c.zarr") as store:
        assert store.paths == (three / "c.zarr",)


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("none.zarr", StoreNotFoundError, "there is no store here"),
        ("*.none", StoreNotFoundError, "nothing matches this pattern"),
        ([], StoreNotFoundError, "found an empty list"),
        (["a.zarr", "none.zarr"], StoreNotFoundError, "none.zarr: there is no store here"),
        (["a.zarr", []], StoreNotFoundError, "empty list"),
        ("file", FormatError, "not a store"),
        ("*", FormatError, "file"),
    ],
)
def test_what_cannot_be_loaded_is_named(three, monkeypatch, path, error, match):
    monkeypatch.chdir(three)
    Path("file").write_bytes(b"x")
    with pytest.raises(error, match=match):
        mmreplay.load(path)


def test_a_store_is_loaded_once_however_it_is_named(three, monkeypatch):
    monkeypatch.chdir(three)
    (three / "again.zarr").symlink_to("a.zarr")
    for path in (
        ["a.zarr", "a.zarr"],
        ["a.zarr", three / "a.zarr"],
        ["a.zarr", "?.zarr"],
        ["a.zarr", "again.zarr"],
        ["c.zarr", "c.zarr/lane-00001"],
    ):
        with pytest.raises(SchemaError, match=r"loaded already as .*; name each store once"):
            mmreplay.load(path)
    assert len(mmreplay.load(["c.zarr/lane-00001", "c.zarr/lane-00000"])) == 10


def test_a_store_of_lanes_with_no_lane_yet_says_what_to_do(make, story, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the store and its first lane
        patch.setattr(build_lane, "build_lane", killed)
        with pytest.raises(KeyboardInterrupt):
            make("run.zarr", lane="actor-0")
    path = make("other.zarr").path.with_name("run.zarr")
    for call in (mmreplay.load, mmreplay.open):
        with pytest.raises(
            FormatError,
            match=r"run\.zarr: no process has written to this store yet.*"
            r"create with lane=",
        ):
            call(path)
    story.play(make("run.zarr", lane="actor-0", append=True), 3)
    assert len(mmreplay.load(path)) == 3


@pytest.mark.parametrize("path", [5, None, 1.5])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(SchemaError, match="expected a path, a list of them or a pattern"):
        mmreplay.load(path)


@pytest.mark.parametrize("how", ["refresh", "a second later"])
@pytest.mark.parametrize(
    "kind",
    [
        mmreplay.load,
        lambda path: mmreplay.load([path]),
        lambda path: mmreplay.load(path, prefetch=1),
        lambda path: mmreplay.Decorated(mmreplay.load(path)),
        lambda path: mmreplay.Mixture([mmreplay.load(path)] * 2),
    ],
    ids=["load", "list", "prefetch", "decorated", "mixture"],
)
def test_the_tutorials_four_actors_started_after_the_learner_are_all_sampled(
    make, story, monkeypatch, kind, how
):
    def drawn():
        learner.sample(400)  # the one that was read ahead
        return {*(learner.sample(400).id >> LANE_SHIFT).tolist()}

    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    actor = make("a.zarr", lane="actor-0")
    story.play(actor, 4)
    learner = kind(actor.path.parent)
    assert drawn() == {0}
    for n in range(1, 4):
        story.play(make("a.zarr", lane=f"actor-{n}", append=True), 4)
    if how == "refresh":
        data = getattr(learner, "data", learner)
        (data[0] if isinstance(data, tuple) else data).refresh()
    else:
        now[0] += 1
    assert drawn() == {0, 1, 2, 3}


def test_a_new_lane_that_cannot_be_opened_at_first_is_tried_again(make, story, monkeypatch):
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    actor = make("a.zarr", lane="actor-0")
    story.play(actor, 4)
    with mmreplay.load(actor.path.parent) as learner:
        story.play(make("a.zarr", lane="actor-1", append=True), 4)
        for _ in range(2):
            now[0] += 1
            with monkeypatch.context() as full:
                full.setattr(live_lanes, "JoinedLanes", lambda *_: no_descriptor_left())
                with pytest.raises(CorruptStoreError, match="too many open files"):
                    len(learner)
        now[0] += 1
        assert len(learner) == 8


def no_descriptor_left():
    raise CorruptStoreError("too many open files")
