"""Compressed columns: rows from shards and tails, none from a tail that was taken back."""

import os

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage import shard_column
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.shard_column import KeptColumn, ShardColumn
from mmreplay.storage.shard_file import OpenShard, Shard
from mmreplay.system import platform
from tests.support.hostile_chunks import sealed
from tests.support.oracle.handmade_lanes import LZ4, ZSTD, CompressedLane, compressed_spec, ids_of


@pytest.fixture(params=["few shards", "many shards"])
def how_many(request, monkeypatch):
    """Few shards are mapped, of very many none is."""
    if request.param == "many shards":
        monkeypatch.setattr(shard_column, "_MAX_SHARDS", 0)


@pytest.mark.usefixtures("how_many")
@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("n_lanes", [1, 3])
def test_rows_come_from_shards_and_tails_of_all_lanes(tmp_path, codec, dtype, n_lanes):
    spec = compressed_spec(codec=codec, dtype=dtype)
    lanes = [CompressedLane(tmp_path / "0", spec, 50, 36)]
    lanes += [
        CompressedLane(tmp_path / "1", spec, 29),
        CompressedLane(tmp_path / "2", spec, 60, 48, base=13),
    ][: n_lanes - 1]
    column = ShardColumn(lanes, "frames")
    for count in (1, 7, 200):
        ids, expected = ids_of(lanes, count, count)
        found = column.take(ids)
        assert (found.dtype, found.shape) == (spec.dtype, (count, 3))
        assert found.tobytes() == expected.tobytes()
    windows = column.take(ids.reshape(50, 4))
    assert windows.shape == (50, 4, 3)
    assert windows.tobytes() == expected.tobytes()
    for number, lane in enumerate(lanes):
        every = column.take((number << LANE_SHIFT) + np.arange(lane.base, lane.head))
        assert every.tobytes() == lane.rows[lane.base :].tobytes()


@pytest.mark.parametrize("room", [1, 2, 7])
@pytest.mark.parametrize("tail", [None, 36])
def test_a_batch_larger_than_the_scratch_is_decoded_in_parts(tmp_path, monkeypatch, room, tail):
    spec = compressed_spec(dtype="int16")
    monkeypatch.setattr(shard_column, "_SCRATCH_BYTES", room * spec.inner_rows * spec.row_bytes)
    lanes = [CompressedLane(tmp_path / str(n), spec, 50, tail) for n in (0, 1)]
    column = ShardColumn(lanes, "frames")
    for count in (1, 30, 400):
        ids, expected = ids_of(lanes, count)
        out = np.zeros((count, 3), np.int16)
        assert column.take(ids, out).tobytes() == expected.tobytes()
        assert len(column._local.scratch) <= room


def windows_of(lanes, count, length, seed=0, stride=1):
    """(count, length) rows one after the other, some repeated at either end as padding is."""
    random = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        lane = int(random.integers(len(lanes)))
        first = int(random.integers(-5, lanes[lane].head - length * stride + 5))
        rows = np.clip(first + np.arange(length) * stride, 0, lanes[lane].head - 1)
        out.append(rows + (lane << LANE_SHIFT))
    ids = np.array(out)
    rows = ids & ((1 << LANE_SHIFT) - 1)
    which = ids >> LANE_SHIFT
    return ids, np.stack(
        [
            [lanes[n].rows[row] for n, row in zip(*pair, strict=True)]
            for pair in zip(which.tolist(), rows.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("tail", [None, 36])
@pytest.mark.parametrize("n_lanes", [1, 2])
@pytest.mark.parametrize("length", [8, 9, 13, 31])
def test_long_windows_are_their_rows(tmp_path, n_lanes, tail, length):
    lanes = [
        CompressedLane(tmp_path / str(n), compressed_spec(dtype="int16"), 50, tail)
        for n in range(n_lanes)
    ]
    column = ShardColumn(lanes, "frames")
    for seed in range(10):
        ids, expected = windows_of(lanes, 1 + seed, length, seed)
        out = np.full((*ids.shape, 3), 77, np.int16)
        assert column.take(ids, out).tobytes() == expected.tobytes()


@pytest.fixture
def decoded(monkeypatch):
    """The inner chunks that were decoded, in order."""
    out, real = [], Shard.decode

    def decode(shard, chunk, rows):
        out.append(chunk)
        return real(shard, chunk, rows)

    monkeypatch.setattr(Shard, "decode", decode)
    return out


@pytest.fixture
def started(monkeypatch):
    """Of each chunk of which the start was asked for: whether it was decoded, and how far."""
    out, real = [], Shard.decode_start

    def decode_start(shard, chunk, address, n_bytes):
        out.append((real(shard, chunk, address, n_bytes), n_bytes))
        return out[-1][0]

    monkeypatch.setattr(Shard, "decode_start", decode_start)
    return out


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("tail", [None, 96])
@pytest.mark.parametrize(("n_lanes", "width"), [(1, 1), (2, 1), (2, 3)])
def test_windows_decoded_in_place_are_their_rows(
    tmp_path, started, decoded, codec, tail, n_lanes, width
):
    # Small numbers of eight bytes: enough for LZ4 to find matches in a chunk.
    spec = compressed_spec(24 * width, 8, (20,), "int64", codec, width)
    paths = [tmp_path / str(n) for n in range(n_lanes)]
    lanes = [CompressedLane(path, spec, 120 * width, tail and tail * width) for path in paths]
    column = ShardColumn(lanes, "frames")
    whole, seen = spec.inner_rows * spec.row_bytes, set()
    for seed in range(20):
        for count, length in ((1, 5), (4, 5), (12, 3), (6, 21)):
            ids, expected = windows_of(lanes, count, length, seed, width)
            out = np.full((*ids.shape, 20), 77, np.int64)
            del started[:], decoded[:]
            assert column.take(ids, out).tobytes() == expected.tobytes()
            n_starts = sum(is_there for is_there, _ in started)
            if tail is None:
                assert n_starts + len(decoded) == np.unique(column._locate(ids.ravel())[0]).size
            seen |= {n_bytes < whole for is_there, n_bytes in started if is_there}
    assert seen == ({True, False} if codec is LZ4 else {False})


def test_damage_behind_the_rows_of_a_window_spares_it(tmp_path, started):
    """If the checksum fits: else the chunk is refused, whatever is asked of it."""
    lane = CompressedLane(tmp_path, compressed_spec(12, 4, (20,), "int64"), 24)
    shard = bytearray(lane.file(0).read_bytes())
    begin, size = np.frombuffer(shard[-52:-4], "<u8")[:2].tolist()
    stream = bytes(shard[begin : begin + size - 4])
    shard[begin + size - 44 : begin + size - 4] = bytes(40)  # matches at distance 0, no literals
    lane.file(0).write_bytes(shard)
    with pytest.raises(CorruptStoreError, match="inner chunk 0: expected crc32c"):
        ShardColumn([lane], "frames").take(np.arange(2))
    damaged = bytes(shard[begin : begin + size - 4])
    assert len(damaged) == len(stream)
    shard[begin + size - 4 : begin + size] = sealed(damaged)[-4:].tobytes()
    lane.file(0).write_bytes(shard)
    column = ShardColumn([lane], "frames")
    for _ in range(2):
        assert column.take(np.arange(2)).tobytes() == lane.rows[:2].tobytes()
    assert started
    assert all(is_there for is_there, _ in started)
    with pytest.raises(CorruptStoreError, match="inner chunk 0: cannot be decompressed"):
        column.take(np.arange(4))


@pytest.mark.parametrize("tail", [None, 36])
@pytest.mark.parametrize(("width", "inner"), [(2, 4), (3, 1), (5, 6)])
def test_entries_come_from_the_chunks_of_their_environments(tmp_path, width, inner, tail):
    """Beside the lane of one environment, and one whose steps are of other lengths."""
    tail = tail if tail is None else tail * width
    lanes = [
        CompressedLane(tmp_path / "0", compressed_spec(12, inner, width=width), 50 * width, tail),
        CompressedLane(tmp_path / "1", compressed_spec(12, 4), 50, 36),
        CompressedLane(tmp_path / "2", compressed_spec(8, 2, codec=ZSTD, width=4), 120, base=40),
    ]
    for some in (lanes[:1], lanes):
        column = ShardColumn(some, "frames")
        for count in (1, 7, 300):
            ids, expected = ids_of(some, count, count)
            assert column.take(ids).tobytes() == expected.tobytes()
        for number, lane in enumerate(some):
            every = column.take((number << LANE_SHIFT) + np.arange(lane.base, lane.head))
            assert every.tobytes() == lane.rows[lane.base :].tobytes()


class Leaving(CompressedLane):
    """A lane whose writer seals a half of the tail at the moment in which it has been copied."""

    looks = 0

    def tail_start(self):
        self.looks += 1
        if self.looks == 2:
            half = self.spec.chunk_rows
            self.seal(self.start // half)
            # From here on the half is the writer's again.
            first = self.start % (2 * half)
            self.start += half
            self.tails["frames"][first : first + half] = 255
        return self.start


@pytest.mark.parametrize("n_lanes", [1, 2])
def test_a_row_that_left_the_tail_while_it_was_copied_is_read_from_its_shard(tmp_path, n_lanes):
    lanes = [
        Leaving(tmp_path / "0", compressed_spec(), 60, 36),
        CompressedLane(tmp_path / "1", compressed_spec(), 60, 48),
    ][:n_lanes]
    column = ShardColumn(lanes, "frames")
    # The half was already taken back when its rows were copied.
    lanes[0].tails["frames"][36 % 24 : 36 % 24 + 12] = 255
    ids, expected = ids_of(lanes, 400)
    assert column.take(ids).tobytes() == expected.tobytes()
    assert lanes[0].start == 48
    assert column.take(ids).tobytes() == expected.tobytes()


@pytest.mark.parametrize("n_lanes", [1, 2])
def test_a_barrier_lies_between_copying_the_tail_and_looking_where_it_begins(
    tmp_path, monkeypatch, n_lanes
):
    spec = compressed_spec()
    lanes = [CompressedLane(tmp_path / str(n), spec, 60, 36) for n in range(n_lanes)]
    column = ShardColumn(lanes, "frames")
    ids = np.arange(60)
    out = np.zeros((60, 3), np.uint8)
    # The writer has sealed rows 36 to 47 and written over them, but nobody has seen it yet.
    lanes[0].tails["frames"][36 % 24 : 36 % 24 + 12] = 255
    lanes[0].seal(36 // 12)
    copied = []

    def barrier():
        copied.append(out[36:].copy())
        lanes[0].start = 48  # from here on it is seen

    monkeypatch.setattr(platform, "barrier", barrier)
    column.take(ids, out)
    assert out.tobytes() == lanes[0].rows[ids].tobytes()
    assert [(found[:12] == 255).all() for found in copied] == [True]
    assert copied[0][12:].tobytes() == lanes[0].rows[48:].tobytes()


@pytest.mark.usefixtures("how_many")
def test_a_missing_shard_is_the_lanes_error(tmp_path):
    lane = CompressedLane(tmp_path, compressed_spec(), 60)
    lane.file(1).unlink()
    column = ShardColumn([lane], "frames")
    assert column.take(np.array([0, 59])).shape == (2, 3)
    with pytest.raises(CorruptStoreError, match=r"c\.1\.0 24"):
        column.take(np.array([12]))
    lane.gone = 24
    with pytest.raises(EvictedError):
        column.take(np.array([12]))


@pytest.mark.parametrize("step", [-1, 1])
def test_a_file_of_very_many_is_opened_once_a_batch_and_closed(tmp_path, monkeypatch, step):
    monkeypatch.setattr(shard_column, "_MAX_SHARDS", 0)
    lane = CompressedLane(tmp_path, compressed_spec(), 60)
    column = ShardColumn([lane], "frames")
    column.take(np.arange(60))
    opened, n_before = [], len(os.listdir("/dev/fd"))

    def count(path, *how):
        opened.append(path.name)
        return OpenShard(path, *how)

    monkeypatch.setattr(shard_column, "OpenShard", count)
    assert column.take(np.arange(60)[::step]).tobytes() == lane.rows[::step].tobytes()
    assert len(opened) == len(set(opened)) == 5
    lane.file(3).write_bytes(b"damage")
    with pytest.raises(CorruptStoreError):
        column.take(np.arange(60)[::step])
    assert len(os.listdir("/dev/fd")) == n_before


def test_chunks_that_were_read_from_another_store_are_not_given(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_column, "_MAX_SHARDS", 0)
    lane = CompressedLane(tmp_path, compressed_spec(), 60)
    column = ShardColumn([lane], "frames")
    column.take(np.arange(60))

    def exchanged():
        raise EvictedError("another store")

    monkeypatch.setattr(lane, "check_in_place", exchanged)
    for row in (0, 59):
        with pytest.raises(EvictedError, match="another store"):
            column.take(np.array([row]))
        lane.file(row // 12).write_bytes(b"of the other store")


@pytest.mark.parametrize("width", [1, 2])
def test_a_column_that_keeps_its_chunks_decodes_each_once(tmp_path, decoded, width):
    spec = compressed_spec(24, 4, width=width)
    lanes = [CompressedLane(tmp_path / str(n), spec, head, 48) for n, head in enumerate((70, 60))]
    column = ShardColumn(lanes, "frames")
    kept = KeptColumn(column, 130)
    assert (kept.row_shape, kept.dtype) == (column.row_shape, column.dtype)
    for seed in range(20):
        ids, expected = ids_of(lanes, 60, seed)
        assert kept.take(ids.reshape(20, 3)).tobytes() == expected.tobytes()
        assert kept.take(ids).tobytes() == expected.tobytes()
    assert len(decoded) <= 2 * 48 // 4
    every = np.arange(48)
    out = np.zeros((48, 3), np.uint8)
    assert kept.take(every, out) is out
    assert out.tobytes() == lanes[0].rows[:48].tobytes()
