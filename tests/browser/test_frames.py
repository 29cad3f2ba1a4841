"""What is painted is what is stored: frames, and stacks as `transitions` gives them."""

import re

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from tests.support.viewed import record_pictures

SHARDS = {"chunk": 4, "shard": 16}
KINDS = {
    "raw": Field((12, 10), "uint8", "raw", chunk=64),
    "lz4": Field((84, 84), "uint8", "lz4", **SHARDS),
    "zstd": Field((12, 10), "uint8", "zstd", **SHARDS),
    "float": Field((9, 8), "float32", "lz4", **SHARDS),
    "half": Field((9, 8), "float16", "raw", chunk=64),
    "bool": Field((9, 8), "bool", "raw", chunk=64),
    "wide": Field((9, 8), "int64", "raw", chunk=64),
    "colour": Field((14, 12, 3), "uint8", "lz4", **SHARDS),
    "colour first": Field((3, 14, 12), "uint8", "zstd", **SHARDS),
    "float colour": Field((6, 5, 3), "float64", "raw", chunk=64),
    "dict": {
        "left": Field((8, 8), "uint8", "lz4", **SHARDS),
        "right": Field((8, 8, 3), "uint8", "zstd", **SHARDS),
        "depth": Field((6, 7), "float32", "raw", chunk=64),
    },
}


def painted(frame, extent):
    """The pixels of a frame: (height, width, 3)."""
    frame = np.asarray(frame)
    if frame.ndim == 3 and frame.shape[0] == 3:
        frame = np.moveaxis(frame, 0, -1)
    if frame.dtype != np.uint8:
        low, high = extent
        scaled = (frame.astype(np.float64) - low) * (255 / (high - low))
        frame = np.clip(np.floor(scaled + 0.5), 0, 255).astype(np.uint8)
    return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_the_store_s_bytes_and_stacks_those_of_transitions(tmp_path, look, kind):
    path = tmp_path / "s.zarr"
    record_pictures(path, frame=KINDS[kind])
    page = look(path, place="#/0/9/0")
    n_step = page.page.get_by_label("n_step")
    n_step.fill("3")
    n_step.press("Enter")
    with mmreplay.open(path) as store:
        names, stack = list(store.schema.frames), store.schema.stacks()[0] or 1
        whole = store.trajectory(1)
        ranges = {name: _range(page, name) for name in names}
        for padding, step in ((p, s) for p in ("reset", "zero") for s in (0, 2, 19, 20)):
            page.page.get_by_label("Padding").select_option(padding)
            _go(page, step)
            page.at(step).stack_at(step)
            batch = store.transitions([9 + step], stack=stack, n_step=3, padding=padding)
            for name in names:
                frames, seen, following = (
                    one[name] if store.schema.is_dict else one
                    for one in (whole.observation, batch.observation, batch.next_observation)
                )
                assert np.array_equal(page.frame(name), painted(frames[step], ranges[name]))
                for side, stacks in enumerate((seen, following)):
                    expected = [painted(one, ranges[name]) for one in stacks[0]]
                    assert np.array_equal(page.stack(side, name), expected), (name, step, side)
            shown = page.page.locator("section.stack .numbers dd").all_text_contents()
            assert float(shown[0]) == pytest.approx(float(batch.reward[0]), rel=1e-4)
            assert float(shown[1]) == pytest.approx(float(batch.discount[0]), rel=1e-4)
            assert shown[2] == str(bool(batch.non_terminal[0])).lower()


def _go(page, step):
    """By the keys, from wherever it is."""
    page.page.evaluate("step => { location.hash = `#/0/9/${step}` }", step)


def _range(page, name):
    """What the page was told to paint black and white, of this column of frames."""
    about = page.page.evaluate("async () => (await (await fetch('data/stores.json')).json())")
    store = about["stores"][0]
    number = next(str(one["number"]) for one in store["columns"] if one["name"] == name)
    low, high = store["ranges"][number]
    dtype = store["columns"][int(number)]["dtype"]
    expected = {"uint8": (0, 255), "int64": (low, high)}.get(dtype, (0, 1))
    assert (low, high) == expected
    return low, high


def test_many_channels_lie_side_by_side(tmp_path, look):
    record_pictures(tmp_path / "s.zarr", frame=Field((4, 6, 5), "uint8", "raw", chunk=64))
    page = look(tmp_path / "s.zarr", place="#/0/0/3").at(3)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        frame = store.frames[3]
    found = page.frame()[..., 0]
    assert found.shape == (6, 4 * 5 + 3)
    for channel in range(4):
        assert np.array_equal(found[:, channel * 6 : channel * 6 + 5], frame[channel])


STACKED = {
    "colours last": ((4, 12, 10, 3), lambda frame, n: frame[n]),
    "colours first": ((4, 3, 12, 10), lambda frame, n: np.moveaxis(frame[n], 0, -1)),
    "stack last": ((12, 10, 3, 4), lambda frame, n: frame[..., n]),
    "gray": ((2, 2, 12, 10), lambda frame, n: frame.reshape(4, 12, 10, 1)[n]),
}


@pytest.mark.parametrize("kind", STACKED)
def test_stacks_of_pictures_lie_side_by_side_in_their_colours(tmp_path, look, kind):
    shape, picture = STACKED[kind]
    record_pictures(tmp_path / "s.zarr", frame=Field(shape, "uint8", "raw", chunk=64))
    page = look(tmp_path / "s.zarr", place="#/0/0/3").at(3)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        frame = store.frames[3]
    found = page.frame()
    assert found.shape == (12, 4 * 10 + 3, 3)
    for n in range(4):
        expected = np.broadcast_to(picture(frame, n), (12, 10, 3))
        assert np.array_equal(found[:, n * 11 : n * 11 + 10], expected)


@pytest.mark.parametrize(("dtype", "low", "high"), [("float32", 0.5, 4.5), ("uint16", 500, 4500)])
def test_depths_are_painted_over_their_own_range(tmp_path, look, dtype, low, high):
    depth = np.linspace(low, high, 35).reshape(5, 7).astype(dtype)
    frame = Field(depth.shape, dtype)
    with mmreplay.create(tmp_path / "s.zarr", frame, Field((), "int64"), flush_s=0) as writer:
        writer.reset(depth)
        for _ in range(3):
            writer.step(0, 0.0, depth)
        writer.step(0, 0.0, depth + depth.dtype.type(high - low))  # seldom looked at, twice as far
    page = look(tmp_path / "s.zarr", place="#/0/0/0").at(0).stack_at(0)
    assert np.array_equal(page.frame(), painted(depth, (low, high)))
    assert np.array_equal(page.stack(0)[0], page.frame())
    page.press("End")
    page.at(4)
    assert page.frame().max() == 255
    assert page.frame().min() == 128


def test_vectors_are_lines_and_numbers_also_as_the_agent_sees_them(tmp_path, look):
    record_pictures(tmp_path / "s.zarr", frame=Field((3,), "float32"))
    page = look(tmp_path / "s.zarr", place="#/0/9/4")
    page.page.locator('.frames figure.chart[data-step="4"] canvas').wait_for()
    legend = page.page.locator(".frames .chart .value").filter(has_text=re.compile(r"\d"))
    legend.first.wait_for()
    page.page.get_by_label("Padding").select_option("zero")
    with mmreplay.open(tmp_path / "s.zarr") as store:
        values = store.trajectory(1).observation
        assert numbers_of(legend) == [pytest.approx(values[4].tolist(), rel=1e-4)]
        for step in (4, 0):
            page.page.get_by_label("stack", exact=True).fill("2")
            page.press("Enter")
            _go(page, step)
            page.stack_at(step)
            batch = store.transitions([9 + step], stack=2, padding="zero")
            for side, stacks in enumerate((batch.observation, batch.next_observation)):
                strip = page.page.locator("section.stack .strip").nth(side).locator("code")
                expected = [pytest.approx(one, rel=1e-4) for one in stacks[0].tolist()]
                assert numbers_of(strip) == expected


def numbers_of(texts):
    return [[float(one) for one in text.split()] for text in texts.all_text_contents()]


def test_environments_that_step_together(tmp_path, look):
    frame = Field((6, 5), "uint8", "lz4", chunk=4, shard=16)
    rng = np.random.default_rng(0)
    with mmreplay.create(tmp_path / "v.zarr", frame, Field((), "int64"), lanes=3, flush_s=0) as w:
        none = np.zeros(3, bool)
        w.reset(rng.integers(0, 256, (3, 6, 5), np.uint8))
        for _ in range(20):
            w.step([0, 1, 2], [0, 1, 2], rng.integers(0, 256, (3, 6, 5), np.uint8), none, none)
    with mmreplay.open(tmp_path / "v.zarr") as store:
        first = int(store.episodes["id"][1])
        whole = store.trajectory(1)
        page = look(tmp_path / "v.zarr", place=f"#/0/{first}/0").at(0)
        assert np.array_equal(page.frame()[..., 0], whole.observation[0])
        page.press(*["ArrowRight"] * 7)
        page.at(7).stack_at(7)
        assert np.array_equal(page.frame()[..., 0], whole.observation[7])
        batch = store.transitions([int(whole.ids[7])])
        assert np.array_equal(page.stack(0)[..., 0], batch.observation[0])
        assert page.numbers()["id"] == str(int(whole.ids[7]))
        assert (page.numbers()["row"], page.numbers()["environment"]) == ("7", "1")
