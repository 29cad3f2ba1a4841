"""The state page: what readers see of it, and when it is trusted."""

import os
import shutil
import struct

import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.storage.state_page import (
    BASE,
    COMMITTED,
    EPISODES_BEFORE,
    SESSION,
    TAIL_START,
    Checkpoint,
    State,
)
from mmreplay.system import platform

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
    return Checkpoint(head=head, tail_start=0, base=0, before=0, generation=1, boot=boot)


@pytest.fixture
def page(tmp_path, boot):
    one = State.create(tmp_path / "state")
    one.start(base=3, tail_start=8, committed=11, before=2)
    return one


def test_a_page_is_as_it_was_made_until_its_first_session_and_no_copy_of_it_is(tmp_path, boot):
    path = tmp_path / "lane" / ".live" / "state"
    path.parent.mkdir(parents=True)
    one = State.create(path)
    assert not one.is_as_made()  # of no log that was built: it says nothing of its own files
    one.name_files()
    assert State(path, writable=False).is_as_made()
    assert not one.trusted(best(0, one.boot))
    shutil.copytree(tmp_path / "lane", tmp_path / "copy")
    assert not State(tmp_path / "copy" / ".live" / "state", writable=False).is_as_made()
    shutil.copytree(tmp_path / "lane", tmp_path / "linked", copy_function=os.link)
    assert not State(tmp_path / "linked" / ".live" / "state", writable=False).is_as_made()
    (tmp_path / "lane").rename(tmp_path / "moved")
    moved = State(tmp_path / "moved" / ".live" / "state", writable=True)
    assert moved.is_as_made()
    moved.start(base=0, tail_start=0, committed=0, before=0)
    assert not moved.is_as_made()
    moved.distrust()
    assert not moved.is_as_made()


def test_what_the_writer_stores_every_reader_sees_and_none_can_change(page, tmp_path):
    reader = State(tmp_path / "state", writable=False)
    assert [reader.words[n] for n in (BASE, TAIL_START, COMMITTED, EPISODES_BEFORE)] == [
        3,
        8,
        11,
        2,
    ]
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
    assert not page.trusted(best(12))  # of which more is known to be durable


def test_a_state_page_is_no_session_before_it_is_whole(page):
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
    page.start(base=10, tail_start=16, committed=20, before=0)
    page.words = words
    assert [usable for usable, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1][1] == [10, 16, 20]


def test_every_session_has_another_number_and_none_is_0(page):
    seen = {page.words[SESSION]}
    for _ in range(5):
        page.resume(base=4, tail_start=9, before=0)
        assert page.trusted(best(11))
        seen.add(page.words[SESSION])
    page.start(base=0, tail_start=0, committed=0, before=0)
    seen.add(page.words[SESSION])
    assert len(seen) == 7
    assert 0 not in seen
    page.resume(base=4, tail_start=9, before=0)
    assert [page.words[n] for n in (BASE, TAIL_START, COMMITTED)] == [4, 9, 0]
    page.end()
    assert page.words[SESSION] == 0


@pytest.mark.parametrize("size", [0, 4095, 4097])
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
    assert not State(tmp_path / "state", writable=False).rows_beyond(0)


@pytest.fixture
def live(tmp_path, boot):
    """A page where a lane has it, with its session begun."""
    (tmp_path / "lane" / ".live").mkdir(parents=True)
    State.create(tmp_path / "lane" / ".live" / "state").start(
        base=0, tail_start=0, committed=11, before=0
    )
    return tmp_path / "lane" / ".live" / "state"


def is_trusted(path):
    return State(path, writable=False).trusted(best(11))


def test_a_page_is_trusted_where_its_lane_is_and_wherever_that_is_moved(live, tmp_path):
    assert is_trusted(live)
    (tmp_path / "lane").rename(tmp_path / "moved")
    assert is_trusted(tmp_path / "moved" / ".live" / "state")


def test_a_page_that_another_lane_shares_by_a_link_is_trusted_in_its_own_only(live, tmp_path):
    other = tmp_path / "other" / ".live" / "state"
    other.parent.mkdir(parents=True)
    os.link(live, other)
    assert (is_trusted(live), is_trusted(other)) == (True, False)
    for path in (other, live):  # the first is copied, the second has no other name then
        State.make_own(path)
        assert path.stat().st_nlink == 1
    assert (is_trusted(live), is_trusted(other)) == (True, False)
    State(other, writable=True).words[COMMITTED] = 12
    assert State(live, writable=False).words[COMMITTED] == 11
    assert os.listdir(other.parent) == os.listdir(live.parent) == ["state"]


def copy(source, target):
    shutil.copyfile(source, target)


def write_and_cut(source, target):
    with target.open("r+b") as file:
        file.write(source.read_bytes())
        file.truncate()


@pytest.mark.parametrize("restore", [copy, write_and_cut])
def test_a_page_that_a_copy_was_restored_over_is_not_trusted(live, tmp_path, restore):
    shutil.copyfile(live, tmp_path / "copy")
    assert is_trusted(live)
    number = live.stat().st_ino
    restore(tmp_path / "copy", live)
    assert live.stat().st_ino == number
    assert not is_trusted(live)
