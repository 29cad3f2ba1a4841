"""Packing: one closed store from others, whole or not at all, and its sources as they were.

What each row holds is compared with the oracle in tests/property/test_pack.py.
"""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    DiskFullError,
    EmptyBufferError,
    Field,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    pack,
    verify,
)
from mmreplay.maintenance import episode_runs
from mmreplay.system import platform
from tests.support.disks.faults import ALLOCATING, faulty_disk
from tests.support.disks.trees import contents, flip, names

ACTION = Field((), "int64", chunk=8)
LZ4 = Field((3,), "uint8", "lz4", chunk=4, shard=8)


def episodes(*paths):
    """Every whole episode of some stores: all that it holds, but for ids."""
    for path in paths:
        with mmreplay.open(path) as store:
            for number in range(len(store.episodes)):
                one = store.trajectory(number)
                yield {
                    "ends": (one.terminated, one.truncated),
                    **{name: getattr(one, name).tolist() for name in ("action", "reward")},
                    "observation": one.observation.tolist(),
                    "non_terminal": one.non_terminal.tolist(),
                }


@pytest.fixture
def store(make, story):
    """Makes a closed store of 37 rows a lane: `store(name, **of_create)`."""

    def create(name="store.zarr", **changes):
        writer = make(name, **({"frame": LZ4, "action": ACTION} | changes))
        story.play_every_end(writer)
        writer.close()
        return writer.path

    return create


def test_episodes_of_all_sources_follow_one_another(store, vector, make, story, tmp_path):
    """Of lanes of one environment and of many, raw and compressed, evicted, live and crashed."""
    raw = Field((3,), "uint8", "raw", chunk=8)
    paths = [store("a.zarr"), store("b.zarr", frame=raw, n_lanes=2)]
    live = make("c.zarr", frame=LZ4, action=ACTION, capacity=40)
    story.play(live, 30, "terminated")
    story.play(live, 30, "truncated")
    story.play(live, 7)
    live.flush()
    evicted = make("d.zarr", frame=LZ4, action=ACTION, capacity=40)
    for _ in range(9):
        story.play(evicted, 21, "terminated")
    evicted.close()
    paths += [live.path, evicted.path]
    expected = list(episodes(*paths))
    target = tmp_path / "packed.zarr"
    made = pack(paths, target)
    expected[-2]["ends"] = (False, True)  # it was running
    assert list(episodes(target)) == expected
    with mmreplay.open(target) as packed:
        assert packed.ids[0] == 0
        assert len(packed.lanes) == 1
        assert packed.info()["fields"]["frames"]["codec"] == "lz4"
        assert made.transitions == len(packed) == sum(len(one["reward"]) for one in expected)
    assert (made.episodes, made.left_out, made.bytes_on_disk > 0) == (len(expected), 0, True)
    assert made.source_bytes > made.bytes_on_disk
    assert verify(target).findings == []


def test_a_lane_of_many_environments_becomes_one_of_one(vector, tmp_path):
    model = vector(frame=LZ4)
    model.play(60)
    model.writer.close()
    pack(model.writer.path, tmp_path / "packed.zarr", "zstd")
    assert verify(tmp_path / "packed.zarr").findings == []
    assert list(episodes(tmp_path / "packed.zarr")) == list(episodes(model.writer.path))
    with mmreplay.open(tmp_path / "packed.zarr") as packed:
        assert packed.lanes[0].environments == 1


def test_episodes_by_return_number_and_environment(make, vector, tmp_path):
    """Of a lane of one environment, which is 0, and one of three: 1 to 3."""
    one, three = vector(None, "a.zarr", frame=LZ4), vector(3, "b.zarr", frame=LZ4)
    for pair in (one, three):
        pair.play(12, 0.3)
        pair.writer.close()
    paths = [one.writer.path, three.writer.path]
    before, tables = list(episodes(*paths)), [mmreplay.open(path).episodes for path in paths]
    table, env = np.concatenate(tables), np.append(0 * tables[0]["id"], 1 + tables[1]["id"] % 3)
    numbers, least = np.arange(len(table)), np.median(table["return"])
    for how, wanted in (
        ({"min_return": least}, table["return"] >= least),
        ({"episodes": [3, 0, -1]}, np.isin(numbers, [0, 3, len(table) - 1])),
        ({"episodes": lambda found: found["return"] < least}, table["return"] < least),
        ({"envs": range(1, 3), "min_return": least}, (env % 3 > 0) & (table["return"] >= least)),
    ):
        made = pack(paths, tmp_path / "packed.zarr", **how)
        chosen = numbers[wanted].tolist()
        assert (made.episodes, made.left_out) == (len(chosen), len(table) - len(chosen))
        assert list(episodes(tmp_path / "packed.zarr")) == [before[n] for n in chosen]
        shutil.rmtree(tmp_path / "packed.zarr")


def test_the_capacity_is_of_the_newest(store, tmp_path):
    path = store()
    pack([path] * 5, tmp_path / "packed.zarr", capacity=40)
    with mmreplay.open(tmp_path / "packed.zarr") as packed:
        assert len(packed) == 40
        assert packed.info()["capacity"] == 40
    assert verify(tmp_path / "packed.zarr").findings == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"codec": "zstd:3", "shard_frames": 16}, ("zstd", 16)),
        ({"codec": "raw", "chunk_frames": 8}, ("raw", 8)),
        ({"chunk_frames": 2, "shard_frames": 4}, ("lz4", 4)),
    ],
)
def test_codecs_and_lengths(store, story, tmp_path, options, expected):
    path, target = store(), tmp_path / "packed.zarr"
    pack(path, target, **options)
    assert list(episodes(target)) == list(episodes(path))
    with mmreplay.open(target) as packed:
        spec = packed.live.readers[0].rows.specs["frames"]
        assert (packed.info()["fields"]["frames"]["codec"], spec.chunk_rows) == expected
    story.copy(path, target)
    with mmreplay.create(target, append=True, flush_s=0) as writer:
        story.play(writer, 40, "terminated")
    assert verify(target).findings == []


def test_what_sources_say_of_their_environment_is_joined(make, story, tmp_path):
    paths = [tmp_path / name for name in ("a.zarr", "b.zarr")]
    for path, env_id in zip(paths, ("Pong", "Tennis"), strict=True):
        about = {"id": env_id, "action_names": ["NOOP", env_id], "life_loss": False}
        writer = make(path.name, metadata=about, padding="zero", frame=LZ4)
        story.play(writer, 9, "terminated")
        writer.close()
    for sources, known in (
        (paths, {"id": "Pong, Tennis", "life_loss": False}),
        (paths[1:] * 2, about),
    ):
        target = tmp_path / f"{len(known)}.zarr"
        pack(sources, target)
        with mmreplay.open(target) as store:
            assert (store.info()["env"], store.padding) == (known, "zero")


def test_an_empty_store(make, tmp_path):
    make(frame=LZ4, action=ACTION).close()
    made = pack(tmp_path / "store.zarr", tmp_path / "packed.zarr")
    assert (made.transitions, made.episodes) == (0, 0)
    assert verify(tmp_path / "packed.zarr").findings == []


# ---------------------------------------------------------------- refused


def test_what_differs_is_named(store, tmp_path):
    first = store("a.zarr")
    others = {
        "found frames": {"frame": Field((4,), "uint8")},
        "found actions": {"action": Field((2,), "int64")},
        "found rewards": {"reward_dtype": "float64"},
        "found extras/x": {"extras": {"x": Field(())}},
    }
    for number, (text, changes) in enumerate(others.items()):
        other = store(f"{number}.zarr", **changes)
        what = rf"{number}\.zarr: expected rows as in .*a\.zarr, {text} .*pack them separately"
        with pytest.raises(SchemaError, match=what):
            pack([first, other], tmp_path / "packed.zarr")
    assert not (tmp_path / "packed.zarr").exists()


def test_sources_by_a_pattern_come_in_the_order_of_their_names(store, tmp_path):
    path = store()
    for name in ("y.part", "x.part"):
        mmreplay.snapshot(path, tmp_path / name)
    made = pack(f"{tmp_path}/*.part", tmp_path / "packed.zarr")
    assert made.transitions == 2 * len(mmreplay.open(path))
    with pytest.raises(StoreNotFoundError, match=r"\*\.none: nothing matches this pattern"):
        pack(f"{tmp_path}/*.none", tmp_path / "other.zarr")


def test_targets_and_sources_that_cannot_be(store, tmp_path):
    path = store()
    before = names(tmp_path)
    with pytest.raises(StoreExistsError, match="already exists; choose another path"):
        pack(path, path)
    with pytest.raises(StoreNotFoundError, match="there is no store here"):
        pack([path, tmp_path / "nothing.zarr"], tmp_path / "packed.zarr")
    with pytest.raises(StoreNotFoundError, match="sources: expected one path or more"):
        pack([], tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="sources: expected a path"):
        pack(None, tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="workers"):
        pack(path, tmp_path / "packed.zarr", workers=0)
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"episodes": [5]}, "episodes: expected episodes 0 to 2, found number 5"),
        ({"episodes": [0.5]}, "episodes: expected whole numbers, or a bool for each of 3 episodes"),
        ({"envs": [4]}, "envs: expected environments 0 to 0, found number 4"),
        ({"envs": 0}, "envs: expected whole numbers, or a bool for each of 1 environments"),
        ({"min_return": "much"}, "min_return: expected a number, found 'much'"),
        ({"min_return": float("nan")}, "min_return: expected a number, found nan"),
        ({"min_return": 1e9}, r"none of 3 whole .*; the greatest return is .*: choose others"),
    ],
)
def test_episodes_that_do_not_exist(store, tmp_path, how, text):
    path = store()
    with pytest.raises((SchemaError, EmptyBufferError), match=text):
        pack(path, tmp_path / "packed.zarr", **how)
    assert names(tmp_path) == ["store.zarr"]


@pytest.mark.parametrize("array", ["frames", "rewards", "checksums/rewards"])
def test_damaged_rows_are_not_packed(store, tmp_path, array):
    path = store()
    flip(path / array / ("c.0.0" if array == "frames" else "c.0"), 3)
    with pytest.raises(CorruptStoreError, match="mmreplay verify"):
        pack(path, tmp_path / "packed.zarr")
    assert names(tmp_path) == ["store.zarr"]


# ---------------------------------------------------------------- cut off, or changed meanwhile


def test_a_full_disk_leaves_nothing(store, tmp_path):
    path = store()
    before, n_failed = contents(path), 0
    for at in range(1, 1000, 19):
        with faulty_disk() as disk:
            disk.fail(ALLOCATING, errno.ENOSPC, at=at, forever=True)
            try:
                pack(path, tmp_path / "packed.zarr")
            except DiskFullError:
                n_failed += 1
            else:
                break
        assert names(tmp_path) == ["store.zarr"]
    assert n_failed > 2
    assert contents(path) == before
    assert verify(tmp_path / "packed.zarr").findings == []


def test_a_source_that_is_opened_meanwhile(store, story, tmp_path):
    """What is written there then is not packed; only what is evicted is missed."""
    path, writers = store(), []

    def write(*_):
        if not writers:
            writers.append(mmreplay.create(path, append=True, flush_s=0))
            story.play(writers[0], 11, "terminated")

    before = list(episodes(path))
    pack(path, tmp_path / "packed.zarr", progress=write)
    writers[0].close()
    assert list(episodes(tmp_path / "packed.zarr")) == before


def test_a_source_that_is_removed_meanwhile_is_missed(store, tmp_path):
    """It is the last of so many that nothing of it is read ahead before it is removed."""
    kept, gone = store("kept.zarr"), store("gone.zarr")
    words = "was removed while it was open|was reopened or exchanged"
    with pytest.raises(MmreplayError, match=words):
        pack(
            [kept] * 6 + [gone],
            tmp_path / "packed.zarr",
            progress=lambda *_: shutil.rmtree(gone, True),
        )
    assert names(tmp_path) == ["kept.zarr"]


@pytest.mark.skipif(not platform.LINUX, reason="reads /proc")
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_frames_that_were_read_leave_the_memory_of_the_process(tmp_path, monkeypatch, codec):
    source, frames = tmp_path / "store.zarr", Field((4096,), "uint8", codec, chunk=32, shard=32)
    noise = np.random.default_rng(0).integers(0, 256, (512, 4096), "uint8")
    with mmreplay.create(source, frames, ACTION) as writer:
        for number, frame in enumerate(noise):
            if number % 16 == 0:
                writer.reset(frame)
            else:
                writer.step(0, 0.0, frame, truncated=number % 16 == 15)
    monkeypatch.setattr(episode_runs, "_MAPPED_BYTES", 256 << 10)
    taken = []
    read = source / "frames"
    pack(source, tmp_path / "packed.zarr", progress=lambda *_: taken.append(mapped(read)))
    assert 0 < max(taken) < noise.nbytes / 3


def mapped(path):
    """Bytes of memory that the process has of files below a path."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split()[0]:
            here = str(path) in line
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found
