"""What the page can ask, and which answers never change."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, MmreplayError, SchemaError, StoreNotFoundError, Text
from mmreplay.batches.settings import Settings
from mmreplay.viewer.answers import Answers
from tests.support.packed import unpack
from tests.support.viewed import FRAME, play, record_pictures


@pytest.fixture
def answers(tmp_path, quick_disk):
    """About some stores: `answers(*names)`."""
    opened = []

    def about(*names, **options):
        opened.append(Answers([tmp_path / name for name in names], **options))
        return opened[-1]

    yield about
    for one in opened:
        one.close()


def version(one, number=0):
    return json.loads(one.heads().body)[number]["version"]


def test_about_has_all_stores_and_what_is_shown_first(tmp_path, answers):
    record_pictures(tmp_path / "a.zarr", metadata={"<b>": "</script>"})
    record_pictures(tmp_path / "b.zarr", episodes=[(3, "")])
    one = answers("a.zarr", "b.zarr", start={"store": 0, "episode": "10"})
    about = json.loads(one.about().body)
    assert [store["name"] for store in about["stores"]] == ["a.zarr", "b.zarr"]
    assert [store["head"]["transitions"] for store in about["stores"]] == [37, 3]
    assert (about["start"], about["is_static"]) == ({"store": 0, "episode": "10"}, False)


def test_a_store_that_cannot_be_read_does_not_keep_others_from_being_shown(tmp_path, answers):
    record_pictures(tmp_path / "a.zarr")
    record_pictures(tmp_path / "b.zarr")
    one = answers("a.zarr", "b.zarr")
    (tmp_path / "a.zarr").rename(tmp_path / "c.zarr")
    broken, sound = json.loads(one.about().body)["stores"]
    assert (bool(broken["head"]["error"]), sound["head"]["error"]) == (True, None)
    with pytest.raises(MmreplayError, match=r"a\.zarr"):
        one.episodes(0)
    assert unpack(one.episodes(1).body)[0]["length"].tolist() == [9, 21, 7]
    assert [len(c["counts"]) for c in json.loads(one.distributions().body)["charts"]] == [2, 2]


def test_a_damaged_or_missing_store_is_refused_beside_others_too(tmp_path, answers):
    record_pictures(tmp_path / "a.zarr")
    record_pictures(tmp_path / "b.zarr")
    with pytest.raises(StoreNotFoundError):
        answers("b.zarr", "none.zarr")
    (tmp_path / "a.zarr" / "zarr.json").write_bytes(b"{")
    with pytest.raises(MmreplayError, match=r"a\.zarr"):
        answers("a.zarr", "b.zarr")


def test_what_a_store_holds_is_looked_at_again_as_it_grows(tmp_path, answers):
    writer = mmreplay.create(
        tmp_path / "s.zarr", Field((2, 2), "float32"), Field((), "int64"), flush_s=0
    )
    one = answers("s.zarr")
    (before,) = json.loads(one.about().body)["stores"]
    assert before["ranges"] == {"0": [0, 1]}
    writer.reset(np.zeros((2, 2), np.float32))
    for step in range(20):
        writer.step(0, 0.0, np.full((2, 2), step * 10, np.float32))
    (after,) = json.loads(one.about().body)["stores"]
    assert after["ranges"] == {"0": [0, 255]}
    looks = {json.loads(one.heads().body)[0]["look"], after["head"]["look"]}
    assert before["head"]["look"] not in looks
    for _ in range(5):
        writer.step(0, 0.0, np.full((2, 2), 5000, np.float32))
    assert {json.loads(one.heads().body)[0]["look"]} == looks  # seldom
    writer.close()


def test_etags_change_with_the_rows(tmp_path, answers):
    writer = record_pictures(tmp_path / "s.zarr", episodes=[(3, "")], close=False)
    one = answers("s.zarr")
    before = [one.heads().etag, one.episodes(0).etag]
    assert [one.heads().etag, one.episodes(0).etag] == before
    play(writer, FRAME, 1)
    after = [one.heads().etag, one.episodes(0).etag]
    assert all(a != b for a, b in zip(after, before, strict=True))
    assert unpack(one.episodes(0).body)[0]["length"].tolist() == [3, 1]


def test_rows_of_an_ended_episode_are_final_and_the_tail_of_a_running_one_is_not(tmp_path, answers):
    episodes = [(9, "terminated"), (70, "")]
    writer = record_pictures(tmp_path / "s.zarr", episodes=episodes, close=False)
    one = answers("s.zarr")
    known = version(one)
    assert one.rows(0, known, 0, 0, 0, 10).is_final
    assert one.rows(0, known, 9, 0, 0, 64).is_final  # a whole block
    assert not one.rows(0, known, 9, 0, 64, 71).is_final
    assert not one.rows(0, known, 0, 4, 0, 9).is_final  # priorities change
    settings = Settings(4, 3)
    assert one.transitions(0, known, 0, 0, 9, settings).is_final
    assert one.transitions(0, known, 9, 0, 64, settings).is_final
    assert not one.transitions(0, known, 9, 64, 70, settings).is_final
    expected = {"length": 70, "end": "open", "evicted": 0}
    assert json.loads(one.episode(0, known, 9).body) == expected
    writer.close()
    assert one.rows(0, known, 9, 0, 64, 71).is_final


def test_fields_of_episodes_and_derived_columns_are_answered_as_they_are_now(tmp_path, answers):
    path = tmp_path / "s.zarr"
    record_pictures(
        path,
        derived={"latent": Field((2,), "float32")},
        episode={"task": Text(8), "success": Field((), "int8"), "goal": Field((2,), "int8")},
    )
    mmreplay.tag(path, task=["push", "lift", "push"], success=[1, 0, -1])
    one = answers("s.zarr")

    def pushed():
        """The episodes with this task, as the page finds them."""
        arrays, about = unpack(one.episodes(0).body)
        assert about["fields"] == ["task", "success"]  # those of a value each
        is_wanted = np.array([text == "push" for text in about["texts"]["task"]])
        return np.flatnonzero(is_wanted[arrays["field.task"].astype(int)]).tolist()

    assert pushed() == [0, 2]
    assert unpack(one.episodes(0).body)[0]["field.success"].tolist() == [1, 0, -1]
    etag = one.episodes(0).etag
    mmreplay.tag(path, [1], task="push")
    assert pushed() == [0, 1, 2]
    assert one.episodes(0).etag != etag

    columns = json.loads(one.about().body)["stores"][0]["columns"]
    (latent,) = [column for column in columns if column["name"] == "latent"]
    assert (latent["kind"], latent["dtype"], latent["shape"]) == ("derived", "float32", [2])
    with mmreplay.load(path, update=["latent"]) as data:
        for value in (1, 2):
            data.update(data.ids, latent=np.arange(74).reshape(37, 2) * value)
            answer = one.rows(0, version(one), 9, latent["number"], 0, 21)
            expected = np.arange(18, 60).reshape(21, 2) * value
            assert np.array_equal(unpack(answer.body)[0]["rows"], expected)
            assert not answer.is_final  # a browser would show the old ones


@pytest.mark.parametrize(
    ("span", "settings"),
    [((0, 10), (4, 1)), ((0, 9), (1 << 16, 1)), ((3, 3), (4, 1)), ((0, 257), (4, 1))],
)
def test_too_many_transitions_are_refused(tmp_path, answers, span, settings):
    record_pictures(tmp_path / "s.zarr")
    one = answers("s.zarr")
    with pytest.raises(SchemaError):
        one.transitions(0, version(one), 0, *span, Settings(*settings))
