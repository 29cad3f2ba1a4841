"""Curves whose data are those of the stores, in files that can be read."""

import io
import resource
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

import mmreplay
from mmreplay import FailedStoreError, Field, SchemaError, StoreExistsError, StoreNotFoundError
from mmreplay.rendering.plot import plot


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, quick_disk):
    monkeypatch.chdir(tmp_path)


def lines(axes):
    return [line.get_xydata() for line in axes.get_lines()]


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def labels(axes):
    return [text.get_text() for text in axes.get_xticklabels()]


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def texts(path):
    return [
        "".join(one.itertext()) for one in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_returns_and_lengths_are_those_of_the_episodes_that_ended(make, story):
    writer = make()
    story.play_every_end(writer)
    returns, lengths, *_ = plot(writer.path).axes
    with mmreplay.open(writer.path) as store:
        ended = store.episodes[:2]
    assert np.array_equal(lines(returns)[0], np.stack([[9, 20], ended["return"]], 1))
    assert np.array_equal(lines(lengths)[0], [[9, 9], [20, 11]])
    mean = (ended["return"][0] + ended["return"][1]) / 2
    assert np.allclose(lines(returns)[1][:, 1], [ended["return"][0], mean])


def test_a_notebook_shows_the_figure(make, story):
    writer = make()
    story.play_every_end(writer)
    with Image.open(io.BytesIO(plot(writer.path)._repr_png_())) as shown:
        assert (shown.format, shown.size) == ("PNG", (900, 600))


def test_lanes_are_taken_side_by_side(make, story):
    writer = make(n_lanes=2)
    for n_steps in (5, 3):
        story.play(writer.writers[0], n_steps, "terminated")
    story.play(writer.writers[1], 7, "terminated")
    _, lengths, *_ = plot(writer.path).axes
    assert np.array_equal(lines(lengths)[0], [[5, 5], [12, 7], [15, 3]])


def test_rewards_and_actions_of_a_game(games):
    *_, rewards, actions = plot(games / "one.zarr").axes
    with mmreplay.open(games / "one.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
    _, counts = np.unique(batch.action, return_counts=True)
    assert labels(actions) == ["0", "1", "2", "3"]
    assert np.allclose(heights(actions), counts / len(batch))
    values, counts = np.unique(batch.reward, return_counts=True)
    assert labels(rewards) == [f"{value:g}" for value in values]
    assert np.allclose(heights(rewards), counts / len(batch))


def test_several_stores_are_in_the_same_axes(games, make, story):
    writer = make("other.zarr")
    story.play(writer, 30)
    figure = plot([games / "one.zarr", games / "two.zarr", writer.path])
    assert names(figure) == ["one.zarr", "two.zarr", "other.zarr"]
    *_, actions = figure.axes
    assert len(actions.patches) == 3  # stairs: the actions of the story are many


def test_names_that_mean_something_elsewhere_are_shown_as_they_are(make, story):
    paths = ["_$a$&.zarr", "<b>\x1b漢字"]
    plot([make(path).path for path in paths], "x.svg")
    assert {"_$a$&.zarr", "<b>\\x1b漢字"} < set(texts("x.svg"))


def test_odd_numbers(make):
    writer = make(action=Field((2,), "float32"), reward_dtype="float64")
    writer.reset(np.zeros(3, np.uint8))
    for t in range(200):
        reward = [np.nan, np.inf, -1e308, 1e308][t] if t < 4 else t
        writer.step([t, -t], reward, np.zeros(3, np.uint8), terminated=t % 50 == 49)
        if t % 50 == 49:
            writer.reset(np.zeros(3, np.uint8))
    plot(writer.path, "x.svg")
    assert "share of actions" in texts("x.svg")


def test_nothing_in_it(make):
    figure = plot(make().path)
    shown = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert shown == ["no whole episode has ended"] * 2 + ["no transition"] * 2
    assert not any(axes.get_xticks().size or axes.get_yticks().size for axes in figure.axes)


def test_what_is_refused(games, tmp_path):
    with pytest.raises(SchemaError, match="expected 1 to 10 stores"):
        plot([games / "one.zarr"] * 11)
    with pytest.raises(StoreNotFoundError, match="paths: expected one path or more"):
        plot([])
    with pytest.raises(SchemaError, match=r"\.svg or \.png"):
        plot(games / "one.zarr", "x.gif")
    with pytest.raises(StoreNotFoundError):
        plot([games / "one.zarr", "nothing"], "x.svg")
    (tmp_path / "x.svg").write_text("")
    with pytest.raises(StoreExistsError):
        plot(games / "one.zarr", "x.svg")
    assert [one.name for one in tmp_path.iterdir()] == ["x.svg"]


def test_a_limit_of_files_is_told_of_the_picture_and_leaves_nothing(make, tmp_path):
    make("a.zarr")
    before = [one.name for one in tmp_path.iterdir()]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(
            FailedStoreError, match=r"/x\.svg: writing a picture .* nothing is left"
        ):
            plot("a.zarr", "x.svg")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [one.name for one in tmp_path.iterdir()] == before
