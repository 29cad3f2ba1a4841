"""What the page asks of a whole store."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.viewer.documents import describe, distributions, episode_table, spread_samples
from tests.support.packed import unpack
from tests.support.viewed import record_pictures


@pytest.fixture
def opened(tmp_path, quick_disk):
    """Records a store and opens it: `opened(**of_record_pictures)`."""
    stores = []

    def make(**options):
        path = tmp_path / f"s{len(stores)}.zarr"
        record_pictures(path, **options)
        stores.append(mmreplay.open(path))
        return stores[-1]

    yield make
    for one in stores:
        one.close()


def test_description_of_a_store(opened):
    about = describe(opened(metadata={"id": "Test-v0", "action_names": ["NOOP", "FIRE"]}))
    assert (about["name"], about["env"]["id"]) == ("s0.zarr", "Test-v0")
    assert (about["action_names"], about["padding"]) == (["NOOP", "FIRE"], "reset")
    assert (about["stack"], about["has_priorities"]) == (4, False)
    assert about["lanes"] == [{"name": None, "environments": 1}]
    assert about["ranges"] == {0: (0, 255)}
    json.dumps(about, allow_nan=False)


def test_vectors_have_no_range_and_are_not_stacked(opened):
    about = describe(opened(frame=Field((5,), "float32")))
    assert (about["ranges"], about["stack"]) == ({}, 1)


@pytest.mark.parametrize(
    ("frame", "expected"), [(Field((4, 4), "bool"), (0, 1)), (Field((4, 4), "float32"), (0, 1))]
)
def test_the_range_of_a_picture_is_a_usual_one_that_holds_its_frames(opened, frame, expected):
    assert describe(opened(frame=frame))["ranges"] == {0: expected}


def test_the_range_of_other_pictures_is_theirs(tmp_path, quick_disk):
    with mmreplay.create(
        tmp_path / "s.zarr", Field((2, 2), "float64"), Field((), "int64"), flush_s=0
    ) as writer:
        writer.reset(np.full((2, 2), -700.0))
        for step in range(30):
            writer.step(0, 0.0, np.full((2, 2), step * 100.0 if step < 29 else np.nan))
    with mmreplay.open(tmp_path / "s.zarr") as store:
        low, high = describe(store)["ranges"][0]
    assert (low, high) == (-700, 2800)


def test_the_table_has_all_episodes(opened):
    store = opened()
    columns, _ = unpack(episode_table(store))
    assert columns["row"].tolist() == [0, 9, 30]
    assert columns["lane"].tolist() == [0, 0, 0]
    assert columns["length"].tolist() == [9, 21, 7]
    assert columns["end"].tolist() == [1, 2, 2]
    assert columns["return"].tolist() == store.episodes["return"].tolist()
    assert columns["evicted"].tolist() == [0, 0, 0]


def test_samples_are_all_transitions_of_a_small_store(opened):
    store = opened()
    sample = spread_samples(store)
    assert (sample["n"], sample["of"]) == (37, 37)
    batch = store.transitions(store.ids, stack=None)
    assert np.array_equal(sample["reward"], batch.reward)
    assert np.array_equal(sample["action"], batch.action)


def test_histograms_of_several_stores_share_their_axes(opened):
    stores = [opened(), opened(episodes=[(3, "")])]
    found = distributions([*map(spread_samples, stores), None])
    assert [one["title"] for one in found["charts"]] == ["Rewards", "Actions"]
    rewards, actions = found["charts"]
    assert rewards["values"] == [0, 1, 2]
    assert [sum(counts) for counts in rewards["counts"]] == [37, 3, 0]
    assert actions["values"] == [0, 1, 2, 3]
    assert actions["counts"][1] == [1, 1, 1, 0]
    assert [one["n"] for one in found["stores"]] == [37, 3, 0]


def test_many_values_are_counted_in_bins_and_what_is_no_number_is_left_out():
    sample = {
        "n": 1000,
        "of": 1000,
        "reward": np.append(np.linspace(-1, 1, 999), np.nan),
        "action": np.random.default_rng(0).normal(size=(1000, 2)),
        "priority": np.empty(0),
    }
    found = distributions([sample])
    assert [one["title"] for one in found["charts"]] == ["Rewards", "Actions [0]", "Actions [1]"]
    rewards = found["charts"][0]
    assert (len(rewards["edges"]), len(rewards["counts"][0])) == (41, 40)
    assert sum(rewards["counts"][0]) == 999
    json.dumps(found, allow_nan=False)


def test_an_empty_store_has_no_charts(opened):
    assert distributions([spread_samples(opened(episodes=[]))])["charts"] == []


def test_actions_have_names_that_all_stores_give_them(opened):
    def names(*stores):
        charts = distributions([None if one is None else spread_samples(one) for one in stores])
        return charts["charts"][1]["names"]

    one, same, other = (
        opened(metadata={"action_names": given}) for given in (["A", "B"], ["A", "B"], ["B", "A"])
    )
    assert names(one, same, None) == ["A", "B"]
    assert names(one, other) is None
    assert names(one, opened()) is None
