"""Shards and tails: compressed rows found, checked, and never taken from a tail that went."""

import struct
import threading
import warnings

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field
from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, layout
from mmreplay.format.layout import CODECS, ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage import shard_column, shard_file, tail_file
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.storage.shard_file import Shard

ABSENT = (1 << 64) - 1
LZ4, ZSTD = CODECS["lz4"], CODECS["zstd"]


def spec_of(shard=12, inner=4, shape=(3,), dtype="uint8", codec=LZ4):
    return ArraySpec("frames", shape, np.dtype(dtype), shard, inner, codec)


def inner_chunk(data, codec):
    """An inner chunk, by numcodecs alone."""
    encoder = numcodecs.Zstd(1) if codec is ZSTD else numcodecs.Blosc("lz4", shuffle=0)
    payload = bytes(encoder.encode(np.ascontiguousarray(data).reshape(-1).view(np.uint8)))
    return payload + struct.pack("<I", google_crc32c.value(payload))


def shard_bytes(chunks, index):
    table = struct.pack(f"<{2 * len(index)}Q", *(n for entry in index for n in entry))
    return b"".join(chunks) + table + struct.pack("<I", google_crc32c.value(table))


def sealed(rows, spec):
    """A shard file of up to spec.chunk_rows rows, put together by hand."""
    chunks, index, place = [], [], 0
    for start in range(0, spec.chunk_rows, spec.inner_rows):
        part = rows[start : start + spec.inner_rows]
        if not len(part):
            index.append((ABSENT, ABSENT))
            continue
        whole = np.zeros((spec.inner_rows, *spec.row_shape), spec.dtype)
        whole[: len(part)] = part
        chunks.append(inner_chunk(whole, spec.codec))
        index.append((place, len(chunks[-1])))
        place += len(chunks[-1])
    return shard_bytes(chunks, index)


class Lane:
    """A lane of one compressed column: rows below `tail` in shards, the rest in a tail."""

    def __init__(self, path, spec, head, tail=None, base=0):
        self.path, self.spec, self.specs = path, spec, {"frames": spec}
        self.head, self.base, self.is_live, self.gone = head, base, True, 0
        shape = (head, *spec.row_shape)
        values = np.random.default_rng(head).integers(0, 100, shape)
        self.rows = values.astype(spec.dtype)
        (path / "frames").mkdir(parents=True)
        self.tails = {}
        self.start = head if tail is None else tail
        for chunk in range(base // spec.chunk_rows, -(-self.start // spec.chunk_rows)):
            self.seal(chunk)
        if tail is not None:
            buffer = np.zeros((2 * spec.chunk_rows, *spec.row_shape), spec.dtype)
            for row in range(tail, head):
                buffer[row % len(buffer)] = self.rows[row]
            self.tails = {"frames": buffer}

    def seal(self, chunk):
        n = self.spec.chunk_rows
        self.file(chunk).write_bytes(sealed(self.rows[chunk * n : (chunk + 1) * n], self.spec))

    def file(self, chunk):
        return self.path / "frames" / self.spec.key(chunk)

    def tail_start(self):
        return self.start

    def missing(self, path, stop):
        return EvictedError(str(path)) if stop <= self.gone else CorruptStoreError(f"{path} {stop}")

    def check_in_place(self):
        pass


def ids_of(lanes, count, seed=0):
    random = np.random.default_rng(seed)
    numbers = random.integers(0, len(lanes), count)
    rows = np.array([random.integers(lanes[n].base, lanes[n].head) for n in numbers])
    values = np.stack([lanes[n].rows[row] for n, row in zip(numbers, rows, strict=True)])
    return (numbers << LANE_SHIFT) + rows, values


def opened(path, spec):
    return Shard(path, spec, compression.make_codec(spec.codec))


# ---------------------------------------------------------------- one shard


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("n_rows", [1, 4, 5, 12])
def test_a_shard_is_read_by_zarr_and_by_ourselves(tmp_path, codec, n_rows):
    spec = spec_of(codec=codec, shape=(2, 2), dtype="uint16")
    rows = np.arange(n_rows * 4, dtype=np.uint16).reshape(n_rows, 2, 2) + 1
    one = compression.make_codec(codec)
    chunks = []
    for start in range(0, n_rows, 4):
        whole = np.zeros((4, 2, 2), np.uint16)
        whole[: n_rows - start] = rows[start : start + 4]
        chunks.append(compression.encode(one, whole.reshape(-1).view(np.uint8)))
    folder = tmp_path / "frames"
    folder.mkdir()
    (folder / "zarr.json").write_bytes(layout.array_json(spec, n_rows))
    (folder / spec.key(0)).write_bytes(shard_file.assemble(spec, chunks))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(zarr.open_array(folder, mode="r")[:], rows)
    shard = opened(folder / spec.key(0), spec)
    out = np.empty((4, 2, 2), np.uint16)
    for inner, start in enumerate(range(0, n_rows, 4)):
        shard.decode(inner, out.reshape(-1).view(np.uint8))
        expected = rows[start : start + 4]
        assert np.array_equal(out[: len(expected)], expected)
    assert [place is None for place in shard.slices] == [start >= n_rows for start in (0, 4, 8)]


def test_a_shard_is_its_chunks_a_digest_of_their_sums_and_the_index():
    chunks = [b"abc" + b"1234", b"d" * 10 + b"5678"]
    digest = struct.pack("<I", google_crc32c.value(b"12345678"))
    expected = shard_bytes([*chunks, digest], [(0, 7), (7, 14), (ABSENT, ABSENT)])
    assert shard_file.assemble(spec_of(), chunks) == expected


def test_shards_of_equal_lengths_and_other_contents_have_other_checksums():
    # Each chunk and the index end with a crc of their own, which alone would cancel.
    random = np.random.default_rng(0)
    sums = set()
    for _ in range(20):
        parts = [random.integers(0, 256, 50, dtype=np.uint8).tobytes() for _ in range(3)]
        chunks = [part + struct.pack("<I", google_crc32c.value(part)) for part in parts]
        sums.add(google_crc32c.value(shard_file.assemble(spec_of(), chunks)))
        sums.add(google_crc32c.value(shard_file.assemble(spec_of(), chunks[::-1])))
    assert len(sums) == 40


@pytest.mark.parametrize("codec", ["lz4", "zstd", {"name": "gzip", "configuration": {"level": 9}}])
def test_a_shard_of_small_chunks_that_cannot_be_compressed_is_none_too_large(tmp_path, codec):
    path, field = tmp_path / "s.zarr", Field((28,), "uint8", codec, chunk=1, shard=65_536)
    frames = np.random.default_rng(0).integers(0, 256, (65_537, 28), "uint8")
    with mmreplay.create(path, field, Field((), "uint8"), flush_s=0) as writer:
        writer.reset(frames[0])
        for frame in frames[1:]:
            writer.step(0, 0.0, frame)
    assert mmreplay.verify(path).sound
    with mmreplay.open(path) as store:
        assert np.array_equal(store.lanes[0].frames[:], frames)


def test_a_chunk_that_is_absent_is_damage_when_it_is_needed(tmp_path):
    spec = spec_of()
    path = tmp_path / "c.0.0"
    path.write_bytes(sealed(np.ones((5, 3), np.uint8), spec))
    with pytest.raises(
        CorruptStoreError, match=r"c\.0\.0: inner chunk 2: expected a chunk, found none"
    ):
        opened(path, spec).decode(2, np.empty(12, np.uint8))


def wrong_index(change):
    """A sound shard but for its index, whose checksum is right."""
    chunks = [inner_chunk(np.full((4, 3), n, np.uint8), LZ4) for n in range(3)]
    sizes = [len(one) for one in chunks]
    index = [[sum(sizes[:n]), sizes[n]] for n in range(3)]
    change(index, sum(sizes))
    return shard_bytes(chunks, index)


@pytest.mark.parametrize(
    "change",
    {
        "past the end": lambda index, end: index[2].__setitem__(1, index[2][1] + 1),
        "offset past the end": lambda index, end: index[2].__setitem__(0, end + 1),
        "a sum that overflows": lambda index, end: index[2].__setitem__(
            1, ABSENT - index[2][0] + 2
        ),
        "an offset that overflows": lambda index, end: index[0].__setitem__(0, ABSENT - 1),
        "the same bytes twice": lambda index, end: index[1].__setitem__(0, index[0][0]),
        "overlapping by one": lambda index, end: index[1].__setitem__(0, index[1][0] - 1),
        "no bytes": lambda index, end: index[1].__setitem__(1, 0),
        "half absent": lambda index, end: index[1].__setitem__(1, ABSENT),
        "half absent, the other way": lambda index, end: index.__setitem__(0, [end + 5, ABSENT]),
    }.items(),
    ids=lambda item: item[0],
)
def test_an_index_that_points_outside_the_file_or_twice_is_refused(tmp_path, change):
    path = tmp_path / "c.0.0"
    path.write_bytes(wrong_index(change[1]))
    with pytest.raises(CorruptStoreError, match="points outside the file, or twice"):
        opened(path, spec_of())


def test_chunks_in_another_order_with_gaps_are_read(tmp_path):
    # Whoever repacks a shard may do so.
    chunks = [inner_chunk(np.full((4, 3), n, np.uint8), LZ4) for n in range(3)]
    body, index = b"", [(0, 0)] * 3
    for n in (2, 0, 1):
        body += b"gap"
        index[n] = (len(body), len(chunks[n]))
        body += chunks[n]
    path = tmp_path / "c.0.0"
    path.write_bytes(shard_bytes([body], index))
    shard, out = opened(path, spec_of()), np.empty(12, np.uint8)
    for n in range(3):
        shard.decode(n, out)
        assert out.tolist() == [n] * 12


@pytest.mark.parametrize("size", [0, 1, 4, 51])
def test_a_file_too_short_for_an_index_is_refused(tmp_path, size):
    path = tmp_path / "c.0.0"
    path.write_bytes(bytes(size))
    with pytest.raises(CorruptStoreError, match="found"):
        opened(path, spec_of())


def test_a_shard_that_was_cut_or_whose_index_changed_does_not_match_its_crc32c(tmp_path):
    path = tmp_path / "c.0.0"
    data = sealed(np.ones((12, 3), np.uint8), spec_of())
    for wrong in (
        data[:-1],
        data[1:] + b"x",
        data[:-20] + b"\x01" + data[-19:],
        data[:-4] + b"abcd",
    ):
        path.write_bytes(wrong)
        with pytest.raises(CorruptStoreError, match=r"c\.0\.0: the shard's index does not match"):
            opened(path, spec_of())


def test_a_damaged_inner_chunk_names_file_and_chunk(tmp_path):
    path = tmp_path / "c.0.0"
    data = bytearray(sealed(np.ones((12, 3), np.uint8), spec_of()))
    data[3] ^= 1
    path.write_bytes(data)
    shard, out = opened(path, spec_of()), np.empty(12, np.uint8)
    shard.decode(1, out)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"c\.0\.0: inner chunk 0: expected crc32c"):
            shard.decode(0, out)


def test_a_chunk_is_checked_the_first_time_only(tmp_path, monkeypatch):
    path = tmp_path / "c.0.0"
    path.write_bytes(sealed(np.ones((12, 3), np.uint8), spec_of()))
    shard, out, checked = opened(path, spec_of()), np.empty(12, np.uint8), []
    real = compression.check
    monkeypatch.setattr(compression, "check", lambda *args: (checked.append(1), real(*args)))
    for inner in (0, 1, 0, 0, 1):
        shard.decode(inner, out)
    assert len(checked) == 2


# ---------------------------------------------------------------- a column


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32"])
@pytest.mark.parametrize("n_lanes", [1, 3])
def test_rows_come_from_shards_and_tails_of_all_lanes(tmp_path, codec, dtype, n_lanes):
    spec = spec_of(codec=codec, dtype=dtype)
    lanes = [Lane(tmp_path / "0", spec, 50, 36)]
    lanes += [Lane(tmp_path / "1", spec, 29), Lane(tmp_path / "2", spec, 60, 48, base=13)][
        : n_lanes - 1
    ]
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
        every = column.read(number, lane.base, lane.head)
        assert every.tobytes() == lane.rows[lane.base :].tobytes()


def test_lanes_of_different_chunk_and_shard_lengths_are_read_as_one(tmp_path):
    specs = [spec_of(12, 4), spec_of(10, 1), spec_of(6, 6, codec=ZSTD)]
    lanes = [Lane(tmp_path / str(n), one, 40 + n) for n, one in enumerate(specs)]
    ids, expected = ids_of(lanes, 300)
    assert ShardColumn(lanes, "frames").take(ids).tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4)])
def test_rows_of_any_shape_come_back(tmp_path, shape):
    lane = Lane(tmp_path, spec_of(shape=shape, dtype="int32"), 40, 36)
    ids, expected = ids_of([lane], 60)
    found = ShardColumn([lane], "frames").take(ids)
    assert found.shape == (60, *shape)
    assert found.tobytes() == expected.tobytes()


def test_rows_are_copied_into_out(tmp_path):
    lane = Lane(tmp_path, spec_of(), 50, 36)
    column = ShardColumn([lane], "frames")
    ids = np.array([[3, 49], [35, 36]])
    out = np.full((2, 2, 3), 255, np.uint8)
    assert column.take(ids, out) is out
    assert out.tobytes() == lane.rows[ids].tobytes()


def test_no_rows_are_an_empty_array(tmp_path):
    column = ShardColumn([Lane(tmp_path, spec_of(), 50)], "frames")
    assert column.take(np.empty(0, np.int64)).shape == (0, 3)
    assert column.take(np.empty((0, 4), np.int64)).shape == (0, 4, 3)
    assert column.read(0, 7, 7).shape == (0, 3)


def test_each_inner_chunk_is_decoded_once_a_batch(tmp_path, monkeypatch):
    lane = Lane(tmp_path, spec_of(), 120)
    column = ShardColumn([lane], "frames")
    decoded = []
    real = Shard.decode
    monkeypatch.setattr(
        Shard,
        "decode",
        lambda self, inner, out: (decoded.append((id(self), inner)), real(self, inner, out)),
    )
    ids, _ = ids_of([lane], 500)
    column.take(ids.reshape(100, 5))
    assert len(decoded) == len(set(decoded)) == 120 // 4


@pytest.mark.parametrize("room", [1, 2, 7])
@pytest.mark.parametrize("tail", [None, 36])
def test_a_batch_larger_than_the_scratch_is_decoded_in_parts(tmp_path, monkeypatch, room, tail):
    spec = spec_of(dtype="int16")
    monkeypatch.setattr(shard_column, "_SCRATCH_BYTES", room * spec.inner_rows * spec.row_bytes)
    lanes = [Lane(tmp_path / str(n), spec, 50, tail) for n in (0, 1)]
    column = ShardColumn(lanes, "frames")
    for count in (1, 30, 400):
        ids, expected = ids_of(lanes, count)
        out = np.zeros((count, 3), np.int16)
        assert column.take(ids, out).tobytes() == expected.tobytes()
        assert len(column._local.scratch) <= room


def test_a_chunk_larger_than_the_scratch_is_decoded_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_column, "_SCRATCH_BYTES", 1)
    lane = Lane(tmp_path, spec_of(), 50)
    ids, expected = ids_of([lane], 30)
    assert ShardColumn([lane], "frames").take(ids).tobytes() == expected.tobytes()


def test_the_scratch_is_kept_between_batches_and_never_passes_16_mib(tmp_path):
    assert shard_column._SCRATCH_BYTES == 16 << 20
    lane = Lane(tmp_path, spec_of(), 50)
    column = ShardColumn([lane], "frames")
    column.take(np.arange(50).reshape(10, 5))
    first = column._local.scratch
    column.read(0, 5, 9)
    assert column._local.scratch is first
    assert first.nbytes == 13 * 4 * 3


# ---------------------------------------------------------------- long windows


def windows_of(lanes, count, length, seed=0):
    """(count, length) rows one after the other, some repeated at either end as padding is."""
    random = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        lane = int(random.integers(len(lanes)))
        first = int(random.integers(-5, lanes[lane].head - length + 5))
        rows = np.clip(np.arange(first, first + length), 0, lanes[lane].head - 1)
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
    lanes = [Lane(tmp_path / str(n), spec_of(dtype="int16"), 50, tail) for n in range(n_lanes)]
    column = ShardColumn(lanes, "frames")
    for seed in range(10):
        ids, expected = windows_of(lanes, 1 + seed, length, seed)
        out = np.full((*ids.shape, 3), 77, np.int16)
        assert column.take(ids, out).tobytes() == expected.tobytes()


def test_long_windows_decode_each_chunk_once_and_whole_ones_in_place(tmp_path, monkeypatch):
    lane = Lane(tmp_path, spec_of(), 48)
    column = ShardColumn([lane], "frames")
    decode, seen = shard_file.Shard.decode, []

    def counting(shard, chunk, out):
        seen.append((id(shard), chunk, out.__array_interface__["data"][0]))
        decode(shard, chunk, out)

    monkeypatch.setattr(shard_file.Shard, "decode", counting)
    ids = np.stack([np.arange(3, 23), np.arange(6, 26), np.arange(28, 48)])
    out = np.empty((*ids.shape, 3), np.uint8)
    column.take(ids, out)
    assert out.tobytes() == lane.rows[ids].tobytes()
    assert len({one[:2] for one in seen}) == len(seen) == 12
    start = out.__array_interface__["data"][0]
    in_place = [one for one in seen if start <= one[2] < start + out.nbytes]
    assert len(in_place) == 10  # all but the chunks that hold rows 3 and 25
    assert column._local.scratch.nbytes == 4 * 3


def test_rows_in_any_order_are_not_copied_one_by_one(tmp_path, monkeypatch):
    lane = Lane(tmp_path, spec_of(), 50)
    column = ShardColumn([lane], "frames")
    monkeypatch.setattr(column, "_decode_chunk", None)  # the loop over runs
    seen = []
    monkeypatch.setattr(column, "_decode_chunks", seen.append)
    column.take(np.random.default_rng(0).permutation(50))
    assert len(seen) == 1


# ---------------------------------------------------------------- tails that go while they are read


class Leaving(Lane):
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
def test_a_row_is_read_from_the_tail_only_if_it_was_still_there_after_it_had_been_copied(
    tmp_path, n_lanes
):
    lanes = [Leaving(tmp_path / "0", spec_of(), 60, 36), Lane(tmp_path / "1", spec_of(), 60, 48)][
        :n_lanes
    ]
    column = ShardColumn(lanes, "frames")
    # The half was already taken back when its rows were copied.
    lanes[0].tails["frames"][36 % 24 : 36 % 24 + 12] = 255
    ids, expected = ids_of(lanes, 400)
    assert column.take(ids).tobytes() == expected.tobytes()
    assert lanes[0].start == 48
    assert column.take(ids).tobytes() == expected.tobytes()


def test_a_row_below_the_tail_is_never_taken_from_it(tmp_path):
    lane = Lane(tmp_path, spec_of(), 60, 48)
    lane.tails["frames"][36 % 24 : 36 % 24 + 12] = 200  # rows 36 to 47 stood there once
    found = ShardColumn([lane], "frames").take(np.array([47, 48, 36, 59]))
    assert found.tobytes() == lane.rows[[47, 48, 36, 59]].tobytes()


# ---------------------------------------------------------------- shards that are missing, many, shared


def test_a_missing_shard_is_the_lanes_error(tmp_path):
    lane = Lane(tmp_path, spec_of(), 60)
    lane.file(1).unlink()
    column = ShardColumn([lane], "frames")
    assert column.take(np.array([0, 59])).shape == (2, 3)
    with pytest.raises(CorruptStoreError, match=r"c\.1\.0 24"):
        column.take(np.array([12]))
    lane.gone = 24
    with pytest.raises(EvictedError):
        column.take(np.array([12]))


def test_a_short_shard_is_corrupt(tmp_path):
    lane = Lane(tmp_path, spec_of(), 60)
    lane.file(1).write_bytes(lane.file(1).read_bytes()[:40])
    with pytest.raises(CorruptStoreError, match=r"c\.1\.0"):
        ShardColumn([lane], "frames").take(np.array([12]))


def test_evicted_shards_are_let_go_and_kept_ones_stay_open(tmp_path):
    lanes = [Lane(tmp_path / str(n), spec_of(), 60) for n in (0, 1)]
    column = ShardColumn(lanes, "frames")
    for number in (0, 1):
        column.read(number, 0, 60)
    lanes[1].base = 25
    column.refresh()
    assert sorted(column._shards) == [(0, n) for n in range(5)] + [(1, n) for n in (2, 3, 4)]
    lanes[1].base = 24 + 12
    column.refresh()
    assert (1, 2) not in column._shards


def test_no_more_shards_are_kept_open_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_column, "_MAX_SHARDS", 2)
    lane = Lane(tmp_path, spec_of(), 120)
    column = ShardColumn([lane], "frames")
    for seed in range(3):
        ids, expected = ids_of([lane], 100, seed)
        assert column.take(ids).tobytes() == expected.tobytes()
        assert len(column._shards) == 2


def test_two_threads_decode_at_once(tmp_path):
    lanes = [Lane(tmp_path / str(n), spec_of(shape=(50,)), 200, 180) for n in (0, 1)]
    column = ShardColumn(lanes, "frames")
    start, wrong = threading.Barrier(4), []

    def work(seed):
        start.wait()
        for round_ in range(20):
            ids, expected = ids_of(lanes, 64, 100 * seed + round_)
            if column.take(ids).tobytes() != expected.tobytes():
                wrong.append((seed, round_))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---------------------------------------------------------------- tails as files


def test_a_tail_has_a_file_name_of_its_own_whatever_its_key(tmp_path):
    spec = ArraySpec("frames/a.b", (3,), np.dtype("uint8"), 12, 4, LZ4)
    assert tail_file.tail_path(tmp_path, spec) == tmp_path / ".live" / "frames~a.b.tail"


def test_a_tail_is_two_shards_long_and_mapped_for_writing_on_demand(tmp_path):
    spec = spec_of(shape=(2,), dtype="int16")
    with pytest.raises(FileNotFoundError):
        tail_file.map_tail(tmp_path, spec)
    path = tail_file.tail_path(tmp_path, spec)
    path.parent.mkdir()
    path.write_bytes(bytes(2 * 12 * 4))
    writing, reading = (
        tail_file.map_tail(tmp_path, spec, writable=True),
        tail_file.map_tail(tmp_path, spec),
    )
    assert writing.shape == (24, 2)
    writing[23] = [5, 6]
    assert reading[23].tolist() == [5, 6]
    assert not reading.flags.writeable
    path.write_bytes(bytes(2 * 12 * 4 - 1))
    with pytest.raises(CorruptStoreError, match="expected 96 bytes, found 95"):
        tail_file.map_tail(tmp_path, spec)
