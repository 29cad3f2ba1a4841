"""The state page and the checkpoint: what is trusted when, and what is never overwritten."""

import errno
import os
import struct
import uuid

import pytest

from mmreplay.errors import CorruptStoreError, DiskFullError, FailedStoreError
from mmreplay.format.compression import crc32c
from mmreplay.storage import checkpoint
from mmreplay.storage.checkpoint import Checkpoint, CheckpointFile
from mmreplay.storage.state_page import BASE, COMMITTED, SESSION, TAIL_START, State
from mmreplay.system import durable_writes, platform

STORE = "0123456789abcdef" * 2
HERE, ELSEWHERE = b"this boot of it!", b"another boot ..."

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def boot(monkeypatch):
    """Set the boot id that the system has from now on."""

    def now(value):
        monkeypatch.setattr(platform, "boot_id", lambda: value)

    now(HERE)
    return now


def best(head=0, boot=HERE):
    return Checkpoint(head=head, tail_start=0, base=0, generation=1, boot=boot)


# ---------------------------------------------------------------- the state page


@pytest.fixture
def page(tmp_path, boot):
    one = State.create(tmp_path / "state")
    one.start(base=3, tail_start=8, committed=11)
    return one


def test_a_fresh_page_is_of_one_page_and_not_trusted(tmp_path, boot):
    one = State.create(tmp_path / "state")
    assert (tmp_path / "state").stat().st_size == 4096
    assert not one.trusted(best(0, one.boot))
    assert not one.trusted(best())


def test_what_the_writer_stores_every_reader_sees_and_none_can_change(page, tmp_path):
    reader = State(tmp_path / "state", writable=False)
    assert [reader.words[n] for n in (BASE, TAIL_START, COMMITTED)] == [3, 8, 11]
    page.words[COMMITTED] = 12
    assert reader.words[COMMITTED] == 12
    with pytest.raises(TypeError):
        reader.words[COMMITTED] = 13
    stored = struct.unpack("<9Q", (tmp_path / "state").read_bytes()[:72])
    assert stored[0] == int.from_bytes(b"MMRSTATE", "little")
    assert stored[2:5] == (3, 8, 12)


def test_the_page_is_trusted_only_while_the_system_that_wrote_it_still_runs(page, boot):
    assert page.trusted(best(11))
    boot(ELSEWHERE)
    assert not page.trusted(best(11))
    assert not page.trusted(best(11, ELSEWHERE))
    boot(HERE)
    assert not page.trusted(best(11, ELSEWHERE))
    assert page.trusted(best(0))


def test_the_page_is_not_trusted_below_what_is_known_to_be_durable(page):
    assert page.trusted(best(11))
    assert not page.trusted(best(12))


def test_a_copy_of_the_page_is_not_trusted(page, tmp_path):
    (tmp_path / "copy").write_bytes((tmp_path / "state").read_bytes())
    assert not State(tmp_path / "copy", writable=False).trusted(best(11))
    assert State(tmp_path / "state", writable=False).trusted(best(11))


def test_a_page_without_its_magic_is_not_trusted(page):
    page.words[0] += 1
    assert not page.trusted(best(11))


def test_nobody_takes_a_page_for_a_session_before_it_is_whole(page):
    seen = []

    class Words:
        """The page; after each store, whether a reader would follow it."""

        def __init__(self, words):
            self.words = words

        def __getitem__(self, place):
            return self.words[place]

        def __setitem__(self, place, value):
            self.words[place] = value
            usable = page.trusted(best(20)) and self.words[SESSION] != 0
            seen.append((usable, [self.words[n] for n in (BASE, TAIL_START, COMMITTED)]))

    words = page.words
    page.words = Words(words)  # type: ignore[assignment]
    page.start(base=10, tail_start=16, committed=20)
    page.words = words
    assert [usable for usable, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1][1] == [10, 16, 20]


def test_a_session_shows_itself_after_a_barrier_behind_what_it_vouches_for(page, monkeypatch):
    page.start(base=0, tail_start=0, committed=9)
    seen = []
    words = (SESSION, BASE, TAIL_START, COMMITTED)
    monkeypatch.setattr(platform, "barrier", lambda: seen.append([page.words[at] for at in words]))
    page.start(base=10, tail_start=16, committed=20)
    assert seen == [[0, 0, 0, 9], [0, 10, 16, 20]]


def test_every_session_has_another_number_and_none_is_0(page):
    seen = {page.words[SESSION]}
    for _ in range(5):
        page.resume(base=4, tail_start=9)
        assert page.trusted(best(11))
        seen.add(page.words[SESSION])
    page.start(base=0, tail_start=0, committed=0)
    seen.add(page.words[SESSION])
    assert len(seen) == 7
    assert 0 not in seen
    page.resume(base=4, tail_start=9)
    assert [page.words[n] for n in (BASE, TAIL_START, COMMITTED)] == [4, 9, 0]
    page.end()
    assert page.words[SESSION] == 0


@pytest.mark.parametrize("size", [0, 4095, 4097, 8192])
def test_a_page_of_another_size_is_refused(tmp_path, size):
    (tmp_path / "state").write_bytes(bytes(size))
    with pytest.raises(CorruptStoreError, match=f"expected 4,096 bytes, found {size:,}"):
        State(tmp_path / "state", writable=False)


def test_a_page_that_no_session_began_is_refused(page, tmp_path):
    """Or a flipped bit would make a page of rows one of none."""
    page.words[0] ^= 1
    for writable in (False, True):
        with pytest.raises(CorruptStoreError, match="state: expected a page that begins with MMR"):
            State(tmp_path / "state", writable=writable)
    page.words[0] = 0
    assert not State(tmp_path / "state", writable=False).is_written()


def test_a_page_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        State(tmp_path / "state", writable=True)


# ---------------------------------------------------------------- the checkpoint


@pytest.fixture
def path(tmp_path, boot):
    CheckpointFile.create(tmp_path / "checkpoint", STORE, head=110, tail_start=8, base=2)
    return tmp_path / "checkpoint"


def record(
    generation, *, store=STORE, head=110, tail_start=8, base=2, boot=HERE, magic=b"MMRCKPT1"
):
    """A slot, packed by hand from docs/format.md."""
    data = magic + uuid.UUID(store).bytes + boot
    data += struct.pack("<QQQQ", generation, head, tail_start, base)
    return (data + struct.pack("<I", crc32c(data))).ljust(4096, b"\0")


def test_a_checkpoint_is_created_whole_with_one_slot(path):
    assert path.read_bytes() == record(1) + bytes(4096)
    assert CheckpointFile(path, STORE).best == Checkpoint(110, 8, 2, 1, HERE)


def test_a_write_changes_what_it_names_and_copies_the_rest(path):
    one = CheckpointFile(path, STORE)
    for number, (changes, expected) in enumerate(
        [
            ({"head": 120}, (120, 8, 2)),
            ({"tail_start": 16}, (120, 16, 2)),
            ({"base": 5, "head": 130}, (130, 16, 5)),
            ({}, (130, 16, 5)),
        ],
        start=2,
    ):
        one.write(**changes)
        wanted = Checkpoint(*expected, number, HERE)
        assert one.best == wanted
        assert CheckpointFile(path, STORE).best == wanted


def test_a_write_never_touches_the_best_slot(path):
    one = CheckpointFile(path, STORE)
    for generation in range(1, 8):
        before = path.read_bytes()
        one.write(head=110 + generation)
        after = path.read_bytes()
        best_slot = slice(0, 4096) if generation % 2 else slice(4096, 8192)
        other_slot = slice(4096, 8192) if generation % 2 else slice(0, 4096)
        assert after[best_slot] == before[best_slot]
        assert after[other_slot] == record(generation + 1, head=110 + generation)


def test_whether_the_best_slot_is_the_newest(path):
    one = CheckpointFile(path, STORE)
    assert one.is_newest
    for damaged in (0, 4096):  # the first write goes to the slot at 4,096
        one.write(head=111)
        assert one.is_newest
        data = path.read_bytes()
        assert CheckpointFile(path, STORE).is_newest
        path.write_bytes(data[:damaged] + b"?" + data[damaged + 1 :])
        assert not CheckpointFile(path, STORE).is_newest
        path.write_bytes(data)
    path.write_bytes(record(1) + b"\0" * 4095 + b"?")
    assert not CheckpointFile(path, STORE).is_newest


def test_a_checkpoint_that_was_opened_again_goes_on_in_the_right_slot(path):
    CheckpointFile(path, STORE).write(head=111)
    CheckpointFile(path, STORE).write(head=112)
    assert path.read_bytes() == record(3, head=112) + record(2, head=111)


def test_the_slot_of_the_later_generation_is_the_best_wherever_it_stands(tmp_path, boot):
    for first, second in ((5, 6), (6, 5), (2**63 - 1, 3)):
        (tmp_path / "c").write_bytes(record(first) + record(second))
        assert CheckpointFile(tmp_path / "c", STORE).best.generation == max(first, second)


@pytest.mark.parametrize("cut", range(0, 80, 5))
def test_a_torn_slot_leaves_the_other_one_standing(path, cut):
    CheckpointFile(path, STORE).write(head=111)
    data = path.read_bytes()
    torn = record(3, head=99, tail_start=96)[:cut] + data[cut:]
    path.write_bytes(torn)
    found = CheckpointFile(path, STORE).best
    # Only a slot that is whole, the old one or the new one, is ever believed.
    assert found == Checkpoint(111, 8, 2, 2, HERE)
    if cut == 0:
        assert torn == data


def test_every_flipped_bit_of_a_slot_is_noticed(path):
    CheckpointFile(path, STORE).write(head=111)
    data = path.read_bytes()
    for place in range(76):
        wrong = bytearray(data)
        wrong[4096 + place] ^= 1 << place % 8
        path.write_bytes(wrong)
        assert CheckpointFile(path, STORE).best.generation == 1


@pytest.mark.parametrize(
    "slot",
    [
        bytes(4096),
        record(9, store="f" * 32),
        record(9, magic=b"MMRCKPT2"),
        record(2**63),  # it would have no next one, one day
        record(9, base=47),
        record(9)[:70],
        b"",
    ],
    ids=[
        "zeros",
        "of another store",
        "another magic",
        "no next one",
        "base within the context of the head",
        "cut",
        "nothing",
    ],
)
def test_a_slot_that_is_none_is_not_believed(path, slot):
    path.write_bytes(record(1) + slot)
    assert CheckpointFile(path, STORE).best.generation == 1
    path.write_bytes(slot + record(1) if len(slot) == 4096 else slot)
    if len(slot) == 4096:
        assert CheckpointFile(path, STORE).best.generation == 1
    elif len(slot) < 76:
        with pytest.raises(
            CorruptStoreError, match="expected a valid checkpoint in one of two slots"
        ):
            CheckpointFile(path, STORE)
    path.write_bytes(bytes(8192))
    with pytest.raises(CorruptStoreError, match="expected a valid checkpoint in one of two slots"):
        CheckpointFile(path, STORE)


def test_a_checkpoint_that_is_too_long_or_missing_is_refused(path, tmp_path):
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptStoreError, match="at most 8,192 bytes"):
        CheckpointFile(path, STORE)
    with pytest.raises(FileNotFoundError):
        CheckpointFile(tmp_path / "none", STORE)


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [("write", errno.ENOSPC, DiskFullError), ("write", errno.EIO, FailedStoreError),
     ("fdatasync", errno.ENOSPC, FailedStoreError)],
)  # fmt: skip
def test_a_write_that_failed_leaves_the_best_slot_the_best(path, monkeypatch, call, number, error):
    monkeypatch.undo()  # the real fsync
    monkeypatch.setattr(platform, "boot_id", lambda: HERE)
    one = CheckpointFile(path, STORE)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(error):
            one.write(head=77)
    assert one.best == Checkpoint(110, 8, 2, 1, HERE)
    one.write(head=112)
    assert path.read_bytes() == record(1) + record(2, head=112)


def test_a_slot_is_synced_before_it_is_called_the_best(path, monkeypatch):
    one = CheckpointFile(path, STORE)
    seen = []
    monkeypatch.setattr(
        durable_writes,
        "_fdatasync",
        lambda _: seen.append((one.best.generation, path.read_bytes())),
    )
    one.write(head=112)
    assert seen == [(1, record(1) + record(2, head=112))]


def test_the_boot_id_of_a_write_is_that_of_its_moment(path, boot):
    one = CheckpointFile(path, STORE)
    boot(ELSEWHERE)
    one.write(head=112)
    assert CheckpointFile(path, STORE).best.boot == ELSEWHERE


def test_the_names_of_the_words_are_those_of_the_format():
    assert (SESSION, BASE, TAIL_START, COMMITTED) == (1, 2, 3, 4)
    assert checkpoint.PAGE_BYTES == 4096
