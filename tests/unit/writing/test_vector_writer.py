"""A lane of many environments: what each call leaves on disk, read by zarr after the close."""

import contextlib
import errno
import sys
import uuid
import warnings

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, VectorWriter
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    FormatError,
    LockedError,
    SchemaError,
)
from mmreplay.format import compression
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.shard_file import Shard
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import durable_writes, platform
from mmreplay.writing.log import Log
from tests.support.disks.faults import faulty_disk
from tests.support.disks.trees import files
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.oracle.vectors import assert_closed_lane_matches
from tests.support.writers import attributes

pytestmark = pytest.mark.usefixtures("quick_disk")

RAW = FIELDS["frame"]
LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


@pytest.fixture
def vector(make):
    """Make or open a vector lane: a writer of 5 environments and its model."""

    def create(n=5, **changes):
        return of_writer(make(**(FIELDS | {"lanes": n} | changes)))

    return create


@pytest.fixture(params=[RAW, LZ4], ids=["raw", "lz4"])
def codec(request):
    """Frames that are stored as they are, and compressed ones."""
    return request.param


def best(writer, log):
    return CheckpointFile(writer.path / log / ".live" / "checkpoint", writer.metadata["uuid"]).best


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_array_holds_what_was_given(vector, codec, n):
    model = vector(n, frame=codec)
    model.play(70)
    steps = sum(map(len, model.ticks))
    assert (model.writer.n_steps, len(model.writer), model.writer.rows) == (steps, n, 70)
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)
    assert model.writer.n_steps == steps


def test_absent_cells_name_the_present_ones_beyond_their_number(vector):
    model = vector(6)
    model.reset([1, 4, 5])
    model.step()
    model.writer.close()
    group = zarr.open_group(str(model.writer.path), mode="r")
    assert group["ticks/episode"][0].tolist() == [-5, 0, -6, -1, 1, 2]
    assert group["ticks/count"][:].tolist() == [3]


def test_the_bytes_of_a_tiny_store(vector):
    """Every chunk file, as docs/format.md has it: what stands here never changes."""
    model = vector(2)
    writer, none = model.writer, [False, False]
    writer.reset(np.array([[1, 2, 3], [4, 5, 6]], "f4"))
    frames = np.array([[7, 8, 9], [10, 11, 12]], "f4")
    writer.step([1, 2], [0.5, 1], frames, [True, False], none, x=[3, 4])
    writer.step([5, 6], [2, 3], frames, none, [False, True], mask=[False, True], x=[7, 8])
    writer.close()
    for name, dtype, values in (
        ("ticks/frames/c.0.0.0", "<f4", [7, 8, 9, 10, 11, 12, 0, 0, 0, 10, 11, 12]),
        ("ticks/actions/c.0.0", "<i8", [1, 2, 0, 6]),
        ("ticks/rewards/c.0.0", "<f4", [0.5, 1, 0, 3]),
        ("ticks/extras/x/c.0.0", "i1", [3, 4, 0, 8]),
        ("ticks/non_terminals/c.0.0", "u1", [0, 1, 0, 1]),
        ("ticks/ends/c.0.0", "u1", [1, 0, 0, 1]),
        ("ticks/episode/c.0.0", "<i8", [0, 1, -2, 1]),
        ("ticks/count/c.0", "<i8", [2, 3]),
        ("starts/frames/c.0.0", "<f4", [1, 2, 3, 4, 5, 6]),
        ("starts/env/c.0", "<i8", [0, 1]),
        ("starts/tick/c.0", "<i8", [0, 0]),
    ):
        found = np.fromfile(writer.path / name, dtype)
        assert found[: len(values)].tolist() == values, name
        assert not found[len(values) :].any(), name
    own = [attributes(writer.path / name) for name in ("", "ticks", "starts")]
    assert [one["kind"] for one in own] == ["vector", "log", "log"]
    assert len({one["uuid"] for one in own}) == 1
    assert own[0]["width"] == 2
    assert [(x["rows"], x["first"], x["closed"]) for x in own[1:]] == [(2, 0, True)] * 2


def test_an_inner_chunk_of_compressed_ticks_is_of_one_environment(make):
    writer = make(lanes=3, frame=Field((4,), "uint8", "zstd", 2, 4), action=Field())
    frames = np.arange(12, dtype=np.uint8).reshape(3, 4)
    writer.reset(frames)
    for t in range(6):
        writer.step([0] * 3, [0] * 3, frames + 16 * t, [False] * 3, [False] * 3)
    spec = writer.files.log.specs["frames"]
    assert (spec.inner_rows, spec.n_inner, spec.inner_bytes) == (2, 6, 8)
    writer.close()
    codec = compression.make_codec(spec.codec)
    for chunk, n_inner in ((0, 6), (1, 3)):
        shard = Shard(writer.path / "ticks" / "frames" / f"c.{chunk}.0.0", spec, codec)
        for inner in range(6):
            if inner >= n_inner:
                assert shard.slices[inner] is None
                continue
            out = np.empty(8, np.uint8)
            shard.decode(inner, out)
            first, e = 4 * chunk + 2 * (inner // 3), inner % 3
            assert out.tolist() == [*(frames[e] + 16 * first), *(frames[e] + 16 * (first + 1))]


def test_frames_in_a_dict_have_a_column_each_in_both_logs(make):
    frame = {"a": Field((2,), "uint8", "lz4", 2, 4), "b": Field((), "float32", "raw", chunk=8)}
    writer = make(lanes=2, frame=frame, action=Field((2,), "float32", chunk=8))
    a, b = np.array([[1, 2], [3, 4]], "u1"), np.array([0.5, 1.5], "f4")
    writer.reset({"a": a, "b": b})
    for t in range(9):
        writer.step(np.ones((2, 2)), [t, t], {"a": a + t, "b": b + t}, [0, 0], [t == 8, 0])
    writer.close()
    group = zarr.open_group(str(writer.path), mode="r")
    assert np.array_equal(group["starts/frames/a"][:], a)
    assert group["starts/frames/b"][:].tolist() == [0.5, 1.5]
    assert np.array_equal(group["ticks/frames/a"][:], a + np.arange(9)[:, None, None])
    assert np.array_equal(group["ticks/frames/b"][:], b + np.arange(9)[:, None])
    assert group["ticks/ends"][:].tolist() == [[0, 0]] * 8 + [[1, 0]]


def test_bytes_of_a_flag_that_are_neither_0_nor_1_count_as_1(vector):
    model = vector(2)
    model.reset()
    odd = np.array([0, 7], np.uint8).view(bool)
    model.writer.step([1, 1], [0, 0], model.frames(), odd, odd, life_lost=odd, x=[0, 0])
    model.writer.close()
    group = zarr.open_group(str(model.writer.path), mode="r")
    assert group["ticks/ends"][0].tolist() == [0, 1]
    assert group["ticks/non_terminals"][0].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rewards_are_stored_as_a_writer_of_one_environment_stores_them(make, dtype):
    odd = [0.1, -1e300, 1e39, np.inf, np.nan, (1 << 60) + (1 << 36) + 1, 3, True]
    of_one = [[reward] for reward in odd]
    arrays = [np.array([-1e300]), np.array([(1 << 60) + (1 << 36) + 1]), np.array([7], "float16")]
    stored = []
    for name, lanes in (("many", 1), ("one", None)):
        writer = make(name, **(FIELDS | {"lanes": lanes, "reward_dtype": dtype}))
        frame, no = np.zeros((lanes or 1, 3), "f4"), [False]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if lanes:
                writer.reset(frame)
                for reward in of_one + arrays:
                    writer.step([1], reward, frame, no, no, x=[0])
            else:
                writer.reset(frame[0])
                for reward in of_one + arrays:
                    writer.step(1, reward[0], frame[0], x=0)
        n_steps = writer.n_steps
        writer.close()
        with mmreplay.open(writer.path) as store:
            stored.append(store.rewards[:n_steps].tobytes())
    assert stored[0] == stored[1]
    assert len(stored[0]) == (len(odd) + 3) * np.dtype(dtype).itemsize


# ---------------------------------------------------------------- episodes


def test_a_reset_in_a_running_episode_ends_it_with_the_newest_tick(vector):
    model = vector(3)
    model.reset()
    model.step()
    model.reset([1])
    assert model.columns("ticks")["ends"][-1].tolist() == [0, 1, 0]
    model.step()
    model.reset([1])  # twice: the start between them is of no step
    model.reset([1])
    model.step()
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_only_an_environment_without_an_episode_may_be_left_out(vector):
    model = vector(3)
    values = ([1] * 3, [0] * 3, model.frames(), [False] * 3, [False] * 3)
    with pytest.raises(SchemaError, match="no episode is running in environment 0; call reset"):
        model.writer.step(*values, x=[0] * 3)
    model.reset([0, 1])
    with pytest.raises(SchemaError, match="no episode is running in environment 2"):
        model.writer.step(*values, x=[0] * 3)
    with pytest.raises(SchemaError, match="environment 1 is left out, but its episode is running"):
        model.writer.step(*values, mask=[True, False, False], x=[0] * 3)
    model.step()
    assert model.writer.running.tolist() == [True, True, False]
    model.writer._end_episodes([False, True, False])
    model.end([1])
    model.step(truncated=[0])
    model.writer.step(*values, mask=[False] * 3, x=[0] * 3)  # of nobody: nothing
    assert model.writer.rows == 2
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_all_episodes_are_over_after_an_opening(vector, make, kill, codec):
    model = vector(3, frame=codec)
    model.reset()
    model.step(terminated=[2])
    kill(model.writer)
    model.reopened(make(append=True))
    assert model.columns("ticks")["ends"][-1].tolist() == [1, 1, 1]
    model.reset([0])
    model.step()
    model.writer.close()
    model.reopened(make(append=True))
    model.play(30)
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


class _Interrupt:
    """A trace function that raises KeyboardInterrupt at the n-th line of some modules."""

    def __init__(self, n_lines, modules="/mmreplay/writing/"):
        self._left = n_lines
        self._modules = modules

    def __call__(self, frame, event, _):
        if event == "line" and self._modules in frame.f_code.co_filename:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("call", ["step", "reset"])
def test_an_interrupted_call_leaves_episodes_that_fit_the_ticks(vector, call):
    """Ctrl-C at each line of a step that ends an episode, and of a reset in a running one.

    But where a lock is released: there no signal comes, only an exception of a trace function.
    """
    long = [Field(shape, dtype, "raw", chunk=512) for shape, dtype in (((3,), "f4"), ((), "i8"))]
    model = vector(3, frame=long[0], action=long[1], extras={"x": Field((), "int8", chunk=512)})
    writer = model.writer
    for n_lines in range(1, 200):
        model.reset([e for e in range(3) if writer._current[e] < 0] or [0])
        model.step()
        before, interrupted = writer.rows, True
        sys.settrace(_Interrupt(n_lines))
        try:
            model.step(terminated=[1]) if call == "step" else model.reset([0, 1])
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if not interrupted:
            break
        if writer.rows >= writer._border:
            writer._prepare()  # as the next step does
        assert writer.rows - before in ((0, 1) if call == "step" else (0,))
        rows = (writer._ticks.chunks.stored_row(x, writer.rows - 1) for x in ("episode", "ends"))
        episode, ends = rows
        goes_on = (episode == writer._current) & (episode >= 0)
        assert np.array_equal(goes_on, (ends == 0) & (episode >= 0))
        model.end([e for e in range(3) if writer._current[e] < 0])
    assert 10 < n_lines < 199


def test_step_that_is_interrupted_at_a_chunk_border_can_be_repeated(vector):
    """Ctrl-C at each line of a step that needs new chunk files; every row is where it belongs."""
    frame, action = Field((1,), "uint8", "raw", chunk=4), Field((), "int64", chunk=4)
    writer = vector(3, frame=frame, action=action, extras={}).writer
    none = np.zeros(3, bool)

    def step():
        row = writer.rows
        writer.step([row] * 3, none, np.full((3, 1), row % 251, np.uint8), none, none)

    writer.reset(np.zeros((3, 1), np.uint8))
    for n_lines in range(1, 300):
        while writer.rows % 4 or writer.rows == 0:
            step()
        interrupted = True
        sys.settrace(_Interrupt(n_lines, "/mmreplay/writing/vector_writer"))
        try:
            step()
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        step()
        if not interrupted:
            break
    assert 40 < n_lines < 299
    writer.close()
    with mmreplay.open(writer.path) as store:
        rows = np.arange(writer.rows)[:, None]
        assert (store.actions[:] == rows).all()
        assert (store.frames[:][..., 0] == rows % 251).all()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"actions": [1, 2]}, "actions: expected one for each of 3 environments"),
        ({"actions": [1, 2, 1.5]}, "actions"),
        ({"actions": [[1], [1, 2], [3]]}, "actions"),
        ({"rewards": [1.0]}, "rewards: expected one for each of 3 environments"),
        ({"rewards": ["a", "b", "c"]}, "rewards"),
        ({"frames": np.zeros((2, 3), "f4")}, "frames: expected shape"),
        ({"frames": np.zeros((3, 3), "i2")}, "frames: expected dtype"),
        ({"frames": {"a": 1}}, "frames"),
        ({"frames": None}, "frames"),
        ({"terminated": [False] * 2}, "terminated: expected one for each"),
        ({"terminated": np.zeros(2, bool)}, "terminated: expected one for each"),
        ({"terminated": False}, "terminated: expected one for each"),
        ({"truncated": [None] * 3}, "truncated"),
        ({"truncated": [0, np.nan, 0]}, "truncated: expected bools, found NaN"),
        ({"life_lost": [True]}, "life_lost: expected one for each"),
        ({"mask": [True]}, "mask: expected one for each"),
        ({"x": [1, 2, 300]}, "x: expected dtype int8"),
        ({"x": [1, 2]}, "x: expected one for each"),
        ({"y": [1, 2, 3]}, "extras: expected"),
    ],
    ids=str,
)
def test_a_step_with_a_value_that_does_not_fit_changes_nothing(vector, wrong, match):
    model = vector(3)
    model.reset()
    given = {
        "actions": [1, 2, 3],
        "rewards": [0, 0, 0],
        "frames": model.frames(),
        "terminated": [False] * 3,
        "truncated": [False] * 3,
        "x": [0, 0, 0],
    }
    with pytest.raises(SchemaError, match=match):
        model.writer.step(**{**given, **wrong})
    assert model.writer.rows == 0
    with pytest.raises(SchemaError, match="mask"):
        model.writer.reset(model.frames(), mask=[True])
    with pytest.raises(SchemaError, match="frames"):
        model.writer.reset(model.frames()[:2])
    model.step()
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_what_is_given_for_a_lane_that_is_left_out_may_be_anything(vector):
    model = vector(2)
    model.reset([0])
    nan = [0, np.nan]
    model.writer.step([1, 1], nan, model.frames(), nan, nan, mask=[1, 0], x=[1, 300])
    model.writer.close()
    group = zarr.open_group(str(model.writer.path), mode="r")
    assert group["ticks/rewards"][0].tolist() == [0, 0]
    assert group["ticks/ends"][0].tolist() == [0, 0]


# ---------------------------------------------------------------- opening again


def test_a_killed_lane_keeps_every_committed_step(vector, make, kill, codec):
    model = vector(frame=codec)
    for _ in range(4):
        model.play(13)
        kill(model.writer)
        model.reopened(make(append=True))
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_a_power_cut_leaves_what_was_flushed(vector, make, kill, codec, monkeypatch):
    model = vector(frame=codec)
    for life in range(4):
        model.play(13)
        model.writer.flush()
        n_ticks, n_starts = len(model.ticks), len(model.episodes)
        model.play(3 + life)
        kill(model.writer)
        now = uuid.uuid4().bytes
        monkeypatch.setattr(platform, "boot_id", lambda now=now: now)
        model.cut(n_ticks, n_starts)
        model.reopened(make(append=True))
        assert (model.writer.rows, model.writer.files.logs[0].head) == (n_ticks, n_starts)
    model.play(5)
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_a_lane_of_many_is_opened_as_what_it_is(vector, make, impatient):
    path = vector(3).writer.path
    with pytest.raises(LockedError, match="in this process"):
        make(append=True)
    writers = [mmreplay.create(path.parent / "other.zarr", RAW, FIELDS["action"], lanes=2)]
    writers[0].close()
    with pytest.raises(SchemaError, match=r"a lane of 2 environments, expected 3 .*, or choose"):
        make("other.zarr", append=True, lanes=3)
    with pytest.raises(SchemaError, match="expected codec 'raw'"):
        make("other.zarr", append=True, codec="lz4")
    with pytest.raises(SchemaError, match="for each of 2 environments, found 1"):
        make("other.zarr", append=True, capacity=1)
    again = make("other.zarr", append=True, capacity=77, metadata={"seed": 4}, padding="zero")
    assert isinstance(again, VectorWriter)
    own = attributes(again.path)
    assert (own["capacity"], own["env"], own["padding"]) == (77, {"seed": 4}, "zero")
    assert again.metadata == {k: v for k, v in own.items() if k != "crc32c"}
    assert not {"rows", "first", "closed"} & own.keys()


def test_lanes_of_many_and_of_one_share_a_store(make):
    frame = Field((3,), "float32", "zstd", 2, 4)
    many = make(lane="many", lanes=3, frame=frame)
    one = make(lane="one", frame=None, action=None)
    other = make(lane="other", lanes=2, frame=None, action=None)
    assert [type(x).__name__ for x in (many, one, other)] == [
        "VectorWriter",
        "Writer",
        "VectorWriter",
    ]
    assert other.files.log.specs["frames"].codec_name == "zstd"
    many.close()
    with pytest.raises(SchemaError, match="of 3 environments, expected 2"):
        make(lane="many", lanes=2)
    assert len(make(lane="many", frame=None, action=None)) == 3
    one.close()
    other.close()
    with pytest.raises(SchemaError, match="name the one to write"):
        make(append=True)


def test_a_changed_width_or_uuid_is_refused(vector, make):
    model = vector(3)
    model.play(3)
    model.writer.close()
    path = model.writer.path / "starts" / "zarr.json"
    good = path.read_text()
    path.write_text(good.replace(model.writer.metadata["uuid"], "0" * 32))
    with pytest.raises(FormatError, match="expected a log of the lane"):
        make(append=True)
    path.write_text(good)
    make(append=True)


def test_starts_that_lost_rows_take_the_ticks_with_them(vector, make, kill):
    """An fsync of the starts failed, or only their state was lost: no tick names one of others."""
    model = vector(3)
    model.play(5)
    model.writer.flush()
    n_ticks, n_starts = len(model.ticks), len(model.episodes)
    model.reset()
    model.step()
    kill(model.writer)
    state = model.writer.path / "starts" / ".live" / "state"
    state.write_bytes(bytes(4096))
    model.cut(n_ticks, n_starts)
    model.reopened(make(append=True))
    assert model.writer.rows == n_ticks
    model.play(5)
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_ticks_that_name_starts_that_are_gone_are_refused(vector, make, kill):
    model = vector(3)
    model.play(5)
    kill(model.writer)
    state = model.writer.path / "starts" / ".live" / "state"
    words = np.fromfile(state, "<u8")
    words[COMMITTED] = 1
    with state.open("r+b") as file:
        file.write(words.tobytes())
    with pytest.raises(CorruptStoreError, match=r"but .* has 1 starts"):
        make(append=True)


@pytest.mark.parametrize("count", [-1, 16, (1 << 63) - 1])
def test_a_count_that_no_ticks_can_have_is_refused(vector, make, kill, count):
    model = vector(3)
    model.reset()
    for _ in range(5):
        model.step()
    kill(model.writer)
    np.memmap(model.writer.path / "ticks" / "count" / "c.0", "<i8", "r+")[4] = count
    with pytest.raises(CorruptStoreError, match=f"at most 15 transitions, found {count:,}"):
        make(append=True)


# ---------------------------------------------------------------- flushing and evicting


def test_a_flush_makes_starts_durable_before_ticks(vector, log):
    model = vector()
    model.play(5)
    log.clear()
    model.writer.flush()
    written = [path for what, path in log if what == "write_at"]
    assert written == ["starts/.live/checkpoint", "ticks/.live/checkpoint"]
    checkpoint = log.index(("write_at", "starts/.live/checkpoint"))
    assert log.index(("sync_file", "starts/tick/c.0")) < checkpoint
    assert not any(path.startswith("ticks") for _, path in log[:checkpoint])
    assert (best(model.writer, "ticks").head, best(model.writer, "starts").head) == (
        5,
        len(model.episodes),
    )


def test_no_durable_tick_names_a_start_that_is_not(vector, monkeypatch):
    """A step with a reset comes between the flushes of the two logs: it waits for the next one."""
    model = vector()
    model.play(5)
    real, done = durable_writes.sync_file, []

    def sync(path, **options):
        if "starts" in str(path) and not done:
            done.append(path)
            model.reset()
            model.step()
        real(path, **options)

    monkeypatch.setattr(durable_writes, "sync_file", sync)
    model.writer.flush()
    assert best(model.writer, "ticks").head == 5
    model.writer.flush()
    assert (best(model.writer, "ticks").head, best(model.writer, "starts").head) == (
        6,
        len(model.episodes),
    )


def test_the_head_of_the_ticks_is_read_before_that_of_the_starts(vector, monkeypatch):
    """A reset and a step come between the two: their starts are flushed, their tick is not yet."""
    model = vector()
    model.play(5)
    real, read = Log.head.fget, []

    def head(self):
        out = real(self)
        read.append(self.path)
        if len(read) == 1:
            model.reset()
            model.step()
        return out

    with monkeypatch.context() as patch:
        patch.setattr(Log, "head", property(head))
        model.writer.flush()
    found = best(model.writer, "ticks").head, best(model.writer, "starts").head
    assert found == (5, len(model.episodes))


def test_an_end_that_is_set_after_a_flush_is_made_durable_by_the_next(vector, log):
    model = vector(2)
    model.play(8)
    model.writer.flush()
    model.reset()  # sets ends of tick 7, in the first chunk file
    model.step()
    log.clear()
    model.writer.flush()
    assert ("sync_file", "ticks/ends/c.0.0") in log


# ---------------------------------------------------------------- closing


def test_starts_are_closed_before_ticks_and_any_mixture_opens(vector, make, codec):
    model = vector(frame=codec)
    model.play(20)
    real = durable_writes.write_file

    def fail(path, data, **options):
        if str(path).endswith("ticks/zarr.json"):
            raise DiskFullError("no room")
        real(path, data, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_writes, "write_file", fail)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                model.writer.close()
    assert [attributes(model.writer.path / x)["closed"] for x in ("starts", "ticks")] == [
        True,
        False,
    ]
    with pytest.raises(ClosedError, match="close"):
        model.writer.reset(model.frames())
    model.writer._release_unclosed()
    model.reopened(make(append=True))
    model.play(20)
    model.writer.close()
    model.writer.close()
    assert_closed_lane_matches(model, model.writer.path)


def test_a_closed_lane_has_nothing_private(vector, codec):
    model = vector(frame=codec)
    model.play(3)
    model.writer.close()
    names = {path.split("/")[0] for path in files(model.writer.path)}
    assert names == {"zarr.json", "ticks", "starts"}
    assert not [path for path in files(model.writer.path) if ".live" in path]
    with pytest.raises(ClosedError):
        model.step()
    assert repr(model.writer) == f"<mmreplay.VectorWriter {model.writer.path} lanes=5>"


# ---------------------------------------------------------------- full disks and failures


def test_a_full_disk_changes_nothing_and_the_same_call_works_later(vector, codec):
    model = vector(4, frame=codec)
    n_failed = 0
    for _ in range(60):
        with faulty_disk() as disk:
            disk.fail({"posix_fallocate"}, errno.ENOSPC, forever=True)
            before = len(model.ticks)
            try:
                model.reset([1, 2])
                model.step(terminated=[3])
                model.reset([3])
            except DiskFullError:
                n_failed += 1
                disk.heal()
                if len(model.ticks) == before:
                    model.reset(set(range(4)) - model.running.keys())
                    model.step()
        model.reset(set(range(4)) - model.running.keys())
    assert n_failed > 3
    model.writer.close()
    group = zarr.open_group(str(model.writer.path), mode="r")
    # Starts of resets that found no room for all of them count for nothing.
    episodes = group["ticks/episode"][:]
    for number in np.unique(episodes[episodes >= 0]):
        t, e = group["starts/tick"][int(number)], group["starts/env"][int(number)]
        assert episodes[t, e] == number
    assert np.array_equal(group["ticks/frames"][:], model.columns("ticks")["frames"])
    assert group["ticks/count"][-1] == model.writer.n_steps


def test_a_failed_fsync_of_starts_gives_up_ticks_as_well(vector, make, monkeypatch):
    model = vector(3)
    model.play(5)
    model.writer.flush()
    model.reset()
    model.play(5)

    def fail(_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fdatasync", fail)  # the first one is of the starts
        with pytest.raises(mmreplay.FailedStoreError, match="starts"):
            model.writer.flush()
    for log in model.writer.files.logs:
        assert not log.state.is_of_this_boot()
    with pytest.raises(mmreplay.FailedStoreError):
        model.step()
    with contextlib.suppress(mmreplay.FailedStoreError):
        model.writer.close()
    assert make(append=True).rows == 5
