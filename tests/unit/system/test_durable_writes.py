"""The one place that reaches the disk: every call, and what happens when it fails."""

import errno
import os
import re
from pathlib import Path

import pytest

import mmreplay
from mmreplay.errors import CorruptStoreError, DiskFullError, FailedStoreError
from mmreplay.system import durable_writes, platform

PACKAGE = Path(mmreplay.__file__).parent


def failing(number):
    """A call that raises OSError(number), or KeyboardInterrupt."""

    def call(*_, **__):
        raise KeyboardInterrupt if number is None else OSError(number, os.strerror(number))

    return call


# ---------------------------------------------------------------- the invariant


CHANGES = set(
    "rename replace fsync fdatasync flock posix_fallocate ftruncate unlink remove mkdir rmdir "
    "write pwrite symlink link sync sendfile truncate".split()
)
METHODS = "write_bytes|write_text|touch|hardlink_to|symlink_to"
MODULES = "fcntl|mmap|ctypes|msvcrt|shutil|tempfile"
USE = re.compile(
    rf"\bos\.({'|'.join(CHANGES)})\b|\bplatform\.(fcntl|LIBC)\b|\.({METHODS})\b"
    rf"|^ *(?:import|from) ({MODULES}|os(?= import)|mmreplay\.system\.platform(?= import))\b",
    re.MULTILINE,
)
AT_HOME = {
    "system/platform.py": {"ctypes", "fcntl", "LIBC"},
    "system/memory_maps.py": {"ctypes", "mmap", "LIBC"},
    "system/durable_writes.py": CHANGES | {"tempfile", "fcntl"},
    "system/locks.py": {"fcntl"},
    "format/native_decoders.py": {"ctypes"},  # decodes in memory
    # What is no store: files of other libraries and of the page, below a name that they get whole.
    "exchange/lerobot_files.py": {"write_text"},
    "exchange/minari_export.py": {"write_text"},
    "exchange/arrays.py": {"shutil"},
    "archive/push.py": {"shutil"},
    "viewer/export.py": {"write_bytes", "shutil"},
}


def test_what_changes_maps_or_locks_stands_in_one_module_each():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).as_posix()
        names = (next(filter(None, one)) for one in USE.findall(path.read_text("utf-8")))
        found += [(inside, name) for name in names if name not in AT_HOME.get(inside, ())]
    assert found == []


# ---------------------------------------------------------------- errors of the disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_fsync_that_failed_is_a_failed_store_also_on_a_full_disk(tmp_path, monkeypatch, number):
    # The kernel may have dropped the pages: a second fsync would say that all is well.
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    monkeypatch.setattr(os, "fdatasync", failing(number))
    for call in (
        lambda: durable_writes.sync_file(path),
        lambda: durable_writes.write_at(path, 0, b"x"),
        lambda: durable_writes.zero_ranges(path, [(1, 2)]),
    ):
        with pytest.raises(FailedStoreError, match=str(path)):
            call()
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(FailedStoreError, match=str(tmp_path)):
        durable_writes.sync_directory(tmp_path)


# ---------------------------------------------------------------- writing whole files


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError), (None, KeyboardInterrupt)],
)
def test_a_write_that_fails_leaves_the_old_file_and_no_partial_one(
    tmp_path, monkeypatch, call, number, error
):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(error, match=str(path) if number else None):
            durable_writes.write_file(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["f"]


# ---------------------------------------------------------------- allocate, zero_ranges


def test_an_allocated_file_has_its_size_and_all_its_blocks(tmp_path):
    path = tmp_path / "f"
    durable_writes.allocate(path, 1 << 20)
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert path.read_bytes() == bytes(1 << 20)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError)]
)
def test_a_file_that_cannot_be_allocated_is_gone_again(tmp_path, monkeypatch, number, error):
    def partial(descriptor, offset, size):
        os.ftruncate(descriptor, size // 2)  # as the kernel leaves it
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", partial)
    with pytest.raises(error, match="allocating 8,192 bytes"):
        durable_writes.allocate(tmp_path / "f", 8192)
    assert list(tmp_path.iterdir()) == []


def test_without_fallocate_zeros_are_written(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    durable_writes.allocate(path, 10_000)
    assert path.read_bytes() == b"abc" + bytes(9997)
    assert path.stat().st_blocks * 512 >= 10_000
    durable_writes.allocate(path, 5000)
    assert path.stat().st_size == 10_000


@pytest.mark.parametrize("punching", [True, False])
@pytest.mark.parametrize("offset", [0, 5000, 1 << 20])
def test_the_end_of_a_file_is_zeroed_and_its_length_stays(tmp_path, monkeypatch, offset, punching):
    if not punching:
        monkeypatch.setattr(platform, "LIBC", None)
    path, size = tmp_path / "f", 1 << 20
    path.write_bytes(b"x" * size)
    durable_writes.zero_ranges(path, [(offset, size - offset)])
    assert path.read_bytes() == b"x" * offset + bytes(size - offset)


# ---------------------------------------------------------------- directories


def test_a_tree_is_removed_and_no_link_is_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "f").write_bytes(b"x")
    (tree / "to_file").symlink_to(outside / "precious")
    (tree / "a" / "to_directory").symlink_to(outside)
    (tree / "dangling").symlink_to(tmp_path / "none")
    durable_writes.remove_tree(tree)
    assert not tree.exists()
    assert (outside / "precious").read_bytes() == b"x"
    durable_writes.remove_tree(tree)  # what is gone is fine


# ---------------------------------------------------------------- second names and exchanges


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_where_there_are_no_links_a_file_is_copied(tmp_path, monkeypatch, number):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom((8 << 20) + 1))
    assert durable_writes.share_file(source, tmp_path / "shared")
    assert os.path.samefile(source, tmp_path / "shared")
    monkeypatch.setattr(durable_writes.os, "link", failing(number))
    assert not durable_writes.share_file(source, target)
    assert source.read_bytes() == target.read_bytes()
    assert not os.path.samefile(source, target)


def test_a_file_that_is_shared_has_the_size_that_it_must_have(tmp_path):
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(CorruptStoreError, match="expected 4 bytes, found 3"):
        durable_writes.share_file(tmp_path / "source", tmp_path / "target", 4)
    with pytest.raises(FileNotFoundError):
        durable_writes.share_file(tmp_path / "nothing", tmp_path / "target")
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(CorruptStoreError, match="a regular file"):
        durable_writes.share_file(tmp_path / "link", tmp_path / "target")
    assert not (tmp_path / "target").exists()


# ---------------------------------------------------------------- pieces


def test_a_file_in_pieces_is_whole_or_not_there(tmp_path):
    path = tmp_path / "f"

    def broken():
        yield b"abc"
        raise CorruptStoreError("it ends here")

    with pytest.raises(CorruptStoreError, match="it ends here"):
        durable_writes.write_pieces(path, broken())
    assert not path.exists()
    durable_writes.write_pieces(path, iter([b"abc", bytes(1 << 19), b""]))
    assert path.read_bytes() == b"abc" + bytes(1 << 19)
    with pytest.raises(FailedStoreError):  # another one is not written over
        durable_writes.write_pieces(path, [b"x"])
