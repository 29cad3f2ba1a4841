"""What is looked at on the disk: regular files of the right size, no links, no waiting."""

import contextlib
import os

import pytest

from mmreplay.errors import CorruptStoreError, FailedStoreError
from mmreplay.system import checked_reads, memory_maps


def test_a_file_is_read_whole_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 5000)
    assert checked_reads.read_bytes(path, 5000) == b"x" * 5000
    with pytest.raises(CorruptStoreError, match="expected at most 4,999 bytes, found 5,000"):
        checked_reads.read_bytes(path, 4999)
    path.write_bytes(b"")
    assert checked_reads.read_bytes(path, 0) == b""
    with pytest.raises(FileNotFoundError):
        checked_reads.read_bytes(tmp_path / "none", 10)


def test_a_part_is_read_of_a_file_of_the_right_size_only(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    assert checked_reads.read_at(path, 10, 5, 100) == bytes(range(10, 15))
    assert checked_reads.read_at(path, 0, 100, 100) == bytes(range(100))
    assert checked_reads.read_at(path, 100, 0, 100) == b""
    with pytest.raises(CorruptStoreError, match="expected 99 bytes, found 100"):
        checked_reads.read_at(path, 0, 1, 99)
    with pytest.raises(CorruptStoreError, match="ended early"):
        checked_reads.read_at(path, 98, 5, 100)
    with pytest.raises(FileNotFoundError):
        checked_reads.read_at(tmp_path / "none", 0, 1, 1)


READERS = {
    "read_bytes": lambda path: checked_reads.read_bytes(path, 100),
    "read_at": lambda path: checked_reads.read_at(path, 0, 1, 3),
    "map_file": memory_maps.map_file,
    "map_file to write": lambda path: memory_maps.map_file(path, 3, writable=True),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "socket"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path, read, kind):
    real, path = tmp_path / "real", tmp_path / "f"
    real.write_bytes(b"abc")
    if kind == "link":
        path.symlink_to(real)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "none")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        import socket

        with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
            with contextlib.chdir(tmp_path):  # the names of sockets are short
                server.bind("f")
    with pytest.raises(CorruptStoreError, match="expected a regular file, found"):
        read(path)


def test_directories_of_a_store_are_no_links(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    checked_reads.check_directories(tmp_path, "a", "a/b", "none", "none/below", "a/none")
    for path in ("link", "link/b", "f", "f/x"):
        with pytest.raises(CorruptStoreError, match="expected a directory, found a link or a file"):
            checked_reads.check_directories(tmp_path, "a", path)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_may_not_be_read_is_an_error_of_ours(tmp_path, monkeypatch, read):
    (tmp_path / "f").write_bytes(b"abc")

    def refuse(path, flags, mode=0o777, *, dir_fd=None):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        (CorruptStoreError, FailedStoreError),
        match=r"/f: may not be (read|written): Permission denied",
    ):
        read(tmp_path / "f")


@pytest.mark.parametrize("pread", [os.pread, checked_reads._seek_and_read])
def test_an_open_file_gives_what_it_has_and_is_closed_once(tmp_path, monkeypatch, pread):
    monkeypatch.setattr(checked_reads, "_pread", pread)
    (tmp_path / "file").write_bytes(b"0123456789")
    file = checked_reads.OpenFile(tmp_path / "file")
    assert file.size == 10
    assert [file.read(2, 3), file.read(8, 5)] == [b"234", b"89"]
    descriptor = file._descriptor
    for _ in range(2):
        file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(CorruptStoreError, match="file: cannot be read: Bad file descriptor"):
        file.read(0, 1)
