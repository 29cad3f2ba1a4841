"""Directories that are held open: what is below them is found wherever they are moved."""

import os

import pytest

from mmreplay.errors import FailedStoreError
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import HeldDirectory, shown


@pytest.fixture
def held(tmp_path):
    (tmp_path / "a" / "below").mkdir(parents=True)
    (tmp_path / "a" / "f").write_bytes(b"of a")
    return HeldDirectory(tmp_path / "a")


def exchange(tmp_path):
    """Another directory gets the name of the one that is held."""
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a" / "below").mkdir(parents=True)
    (tmp_path / "a" / "f").write_bytes(b"of another")


CHANGES = {
    "write_file": lambda root: durable_writes.write_file(root / "g", b"x"),
    "write_at": lambda root: durable_writes.write_at(root / "f", 0, b"x"),
    "allocate": lambda root: durable_writes.allocate(root / "below" / "g", 10),
    "zero_ranges": lambda root: durable_writes.zero_ranges(root / "f", [(1, 1)]),
    "unlink": lambda root: durable_writes.unlink(root / "f"),
    "share_file": lambda root: durable_writes.share_file(root / "f", root / "g"),
    "copy_file": lambda root: durable_writes.copy_file(root / "f", root / "g"),
    "rename": lambda root: durable_writes.rename(root / "f", root / "g"),
    "make_directory": lambda root: durable_writes.make_directory(root / "c" / "d"),
    "remove_tree": lambda root: durable_writes.remove_tree(root / "below"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_made_in_the_directory_that_is_held(held, tmp_path, change):
    exchange(tmp_path)
    before = {str(path): path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    old = sorted(tmp_path.joinpath("moved").rglob("*")), (tmp_path / "moved" / "f").read_bytes()
    change(held.root)
    assert before == {str(path): path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    moved = tmp_path / "moved"
    content = (moved / "f").read_bytes() if (moved / "f").exists() else None
    assert (sorted(moved.rglob("*")), content) != old


def test_reads_are_of_the_directory_that_is_held(held, tmp_path):
    exchange(tmp_path)
    (tmp_path / "moved" / "more").write_bytes(b"")
    assert checked_reads.read_bytes(held.root / "f", 100) == b"of a"
    assert checked_reads.names(held.root) == ["below", "f", "more"]
    walked = checked_reads.walk(held.root)
    assert [(str(folder), sorted(names)) for folder, _, names in walked] == [
        (str(tmp_path / "a" / "below"), []),
        (str(tmp_path / "a"), ["f", "more"]),
    ]
    checked_reads.check_directories(held.root, "below")


def test_links_are_followed_once_when_it_is_opened(held, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("a")
    through = HeldDirectory(tmp_path / "link")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    durable_writes.write_file(through.root / "g", b"x")
    assert (tmp_path / "a" / "g").exists()
    assert not (tmp_path / "other" / "g").exists()


def test_a_message_says_where_it_is_now(held, tmp_path):
    assert shown(held.root / "f") == str(tmp_path / "a" / "f")
    exchange(tmp_path)
    assert shown(held.root / "f") == f"{tmp_path}/moved/f (opened as {tmp_path}/a)"


def test_one_that_was_removed_says_so(held, tmp_path):
    (tmp_path / "a").rename(tmp_path / "gone")
    durable_writes.remove_tree(tmp_path / "gone")
    (tmp_path / "a").mkdir()
    for call in (
        lambda: durable_writes.write_file(held.root / "g", b""),
        lambda: durable_writes.sync_file(held.root / "f"),
        lambda: durable_writes.make_directory(held.root / "c"),
    ):
        with pytest.raises(FailedStoreError, match="was removed while it was open"):
            call()
    assert os.listdir(tmp_path / "a") == []
