"""The one place that reaches the disk: every call, and what happens when it fails."""

import ast
import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, files
from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    LockedError,
)

PACKAGE = Path(mmreplay.__file__).parent


def failing(number, at=1):
    """A call that raises OSError(number) the `at`-th time and from then on."""
    calls = []

    def call(*_, **__):
        calls.append(1)
        if len(calls) >= at:
            raise OSError(number, os.strerror(number))

    return call


def child(code, *arguments):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


# ---------------------------------------------------------------- the invariant


def test_no_other_module_calls_rename_fsync_flock_fallocate_mmap_or_madvise():
    calls = set(
        "rename replace fsync fdatasync flock posix_fallocate ftruncate unlink remove".split()
    )
    calls |= set("mkdir makedirs rmdir write pwrite symlink link sync sendfile truncate".split())
    modules = {"fcntl", "mmap", "ctypes", "msvcrt", "shutil", "tempfile"}
    methods = {"write_bytes", "write_text", "touch", "hardlink_to", "symlink_to"}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).as_posix()
        if inside == "files.py" or inside.startswith(("testing/", "adapters/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += [(inside, one.name) for one in node.names if one.name in modules]
            elif isinstance(node, ast.ImportFrom) and node.module in modules | {"os"}:
                found.append((inside, node.module))
            elif isinstance(node, ast.Attribute):
                of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
                if (of_os and node.attr in calls) or node.attr in methods:
                    found.append((inside, node.attr))
    assert found == []


# ---------------------------------------------------------------- errors of the disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_a_full_disk_that_names_path_and_purpose(number):
    with pytest.raises(DiskFullError, match=r"/a/b: no room on the disk for a purpose"):
        with files.writing("a purpose", Path("/a/b")):
            raise OSError(number, "full")


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE])
def test_any_other_failure_of_a_write_is_a_failed_store(number):
    with pytest.raises(FailedStoreError, match=r"/a/b: a purpose failed: ") as caught:
        with files.writing("a purpose", Path("/a/b")):
            raise OSError(number, os.strerror(number))
    assert isinstance(caught.value.__cause__, OSError)


def test_errors_that_are_ours_pass_through_unchanged():
    for error in (DiskFullError("x"), LockedError("y"), KeyError("z")):
        with pytest.raises(type(error)) as caught, files.writing("w", Path("/a")):
            raise error
        assert caught.value is error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_fsync_that_failed_is_a_failed_store_also_on_a_full_disk(tmp_path, monkeypatch, number):
    # The kernel may have dropped the pages: a second fsync would say that all is well.
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    monkeypatch.setattr(os, "fdatasync", failing(number))
    for call in (
        lambda: files.sync_file(path),
        lambda: files.write_at(path, 0, b"x"),
        lambda: files.zero_from(path, 1),
    ):
        with pytest.raises(FailedStoreError, match=str(path)):
            call()
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(FailedStoreError, match=str(tmp_path)):
        files.sync_directory(tmp_path)


# ---------------------------------------------------------------- reading whole files


def test_a_file_is_read_whole_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 5000)
    assert files.read_bytes(path, 5000) == b"x" * 5000
    with pytest.raises(CorruptStoreError, match="expected at most 4,999 bytes, found 5,000"):
        files.read_bytes(path, 4999)
    path.write_bytes(b"")
    assert files.read_bytes(path, 0) == b""
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "none", 10)


def test_a_part_is_read_of_a_file_of_the_right_size_only(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    assert files.read_at(path, 10, 5, 100) == bytes(range(10, 15))
    assert files.read_at(path, 0, 100, 100) == bytes(range(100))
    assert files.read_at(path, 100, 0, 100) == b""
    with pytest.raises(CorruptStoreError, match="expected 99 bytes, found 100"):
        files.read_at(path, 0, 1, 99)
    with pytest.raises(CorruptStoreError, match="ended early"):
        files.read_at(path, 98, 5, 100)
    with pytest.raises(FileNotFoundError):
        files.read_at(tmp_path / "none", 0, 1, 1)


READERS = {
    "read_bytes": lambda path: files.read_bytes(path, 100),
    "read_at": lambda path: files.read_at(path, 0, 1, 3),
    "map_file": files.map_file,
    "map_file to write": lambda path: files.map_file(path, 3, writable=True),
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


# ---------------------------------------------------------------- writing whole files


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "f"
    for data in (b"first", b"", b"x" * 100_000):
        files.write_file(path, data)
        assert path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir()] == ["f"]


def test_a_file_is_synced_before_it_has_its_name_and_its_directory_after(tmp_path, monkeypatch):
    path, log = tmp_path / "f", []
    real = {"fsync": os.fsync, "replace": os.replace}

    def fsync(descriptor):
        about = os.fstat(descriptor)
        log.append("directory" if about.st_ino == tmp_path.stat().st_ino else about.st_size)
        real["fsync"](descriptor)

    def replace(*names):
        log.append("replace")
        real["replace"](*names)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    files.write_file(path, b"12345")
    assert log == [5, "replace", "directory"]
    log.clear()
    files.write_file(path, b"123", durable=False)
    assert log == ["replace"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError)]
)
def test_a_write_that_fails_leaves_the_old_file_and_no_partial_one(
    tmp_path, monkeypatch, call, number, error
):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(error, match=str(path)):
            files.write_file(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["f"]


def test_a_write_that_is_interrupted_leaves_no_partial_file_either(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            files.write_file(tmp_path / "f", b"new")
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        files.write_file(tmp_path / "f", bytes(range(100)))
    assert (tmp_path / "f").read_bytes() == bytes(range(100))


def test_bytes_in_the_middle_of_a_file_are_overwritten(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    files.write_at(path, 3, b"xyz")
    assert path.read_bytes() == b"012xyz6789"
    with pytest.raises(FailedStoreError, match="writing in place failed"):
        files.write_at(tmp_path / "none", 0, b"x")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FailedStoreError):
        files.write_at(tmp_path / "link", 0, b"x")
    assert path.read_bytes() == b"012xyz6789"


# ---------------------------------------------------------------- allocate, zero_from


def test_an_allocated_file_has_its_size_and_all_its_blocks(tmp_path):
    path = tmp_path / "f"
    files.allocate(path, 1 << 20)
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert path.read_bytes() == bytes(1 << 20)


def test_allocating_keeps_what_is_there(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    files.allocate(path, 10)
    assert path.read_bytes() == b"abc" + bytes(7)
    files.allocate(path, 10)
    assert path.read_bytes() == b"abc" + bytes(7)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError)]
)
def test_a_file_that_cannot_be_allocated_is_gone_again(tmp_path, monkeypatch, number, error):
    def partial(descriptor, offset, size):
        os.ftruncate(descriptor, size // 2)  # as the kernel leaves it
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", partial)
    with pytest.raises(error, match="allocating 8,192 bytes"):
        files.allocate(tmp_path / "f", 8192)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_there_stays_when_it_cannot_be_allocated(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        files.allocate(path, 8192)
    assert path.read_bytes() == b"abc"


def test_nothing_is_allocated_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    (tmp_path / "f").symlink_to(outside)
    with pytest.raises(FailedStoreError):
        files.allocate(tmp_path / "f", 100)
    assert not outside.exists()


def test_without_fallocate_zeros_are_written(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    files.allocate(path, 10_000)
    assert path.read_bytes() == b"abc" + bytes(9997)
    assert path.stat().st_blocks * 512 >= 10_000
    files.allocate(path, 5000)
    assert path.stat().st_size == 10_000


@pytest.mark.parametrize("punching", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 4096, 5000, (1 << 20) - 1, 1 << 20])
def test_the_end_of_a_file_is_zeroed_and_its_length_stays(tmp_path, monkeypatch, offset, punching):
    if not punching:
        monkeypatch.setattr(files, "_LIBC", None)
    path, size = tmp_path / "f", 1 << 20
    path.write_bytes(b"x" * size)
    files.zero_from(path, offset)
    assert path.read_bytes() == b"x" * offset + bytes(size - offset)


def test_the_end_of_a_file_gives_its_blocks_back(tmp_path):
    path, size = tmp_path / "f", 1 << 20
    path.write_bytes(b"x" * size)
    os.sync()
    files.zero_from(path, 100_000)
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= 200_000


def test_zeroing_past_the_end_changes_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    files.zero_from(path, 10)
    assert path.read_bytes() == b"abc"


def test_unlink_and_sync_of_a_missing_file(tmp_path):
    files.unlink(tmp_path / "none")
    files.sync_file(tmp_path / "none", missing_ok=True)
    with pytest.raises(FailedStoreError, match="fsync"):
        files.sync_file(tmp_path / "none")
    (tmp_path / "d").mkdir()
    with pytest.raises(FailedStoreError, match="removing a file"):
        files.unlink(tmp_path / "d")


# ---------------------------------------------------------------- directories


def test_a_directory_takes_its_name_only_if_nothing_stands_there(tmp_path):
    def build():
        built = tmp_path / "built"
        built.mkdir(exist_ok=True)
        (built / "f").write_bytes(b"new")
        return built

    place = tmp_path / "place"
    assert files.replace_directory(build(), place)
    assert (place / "f").read_bytes() == b"new"
    assert not files.replace_directory(build(), place)
    assert (tmp_path / "built" / "f").exists()
    (tmp_path / "file").write_bytes(b"old")
    assert not files.replace_directory(build(), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    with pytest.raises(FailedStoreError, match="renaming"):
        files.replace_directory(build(), tmp_path / "no" / "place")


def test_every_file_and_directory_of_a_tree_is_synced(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("f", "a/f", "a/b/f"):
        (tmp_path / name).write_bytes(b"x")
    synced = []
    monkeypatch.setattr(files, "_fsync", lambda one: synced.append(os.fstat(one).st_ino))
    monkeypatch.setattr(files, "_fdatasync", lambda one: synced.append(os.fstat(one).st_ino))
    files.sync_tree(tmp_path)
    everything = [tmp_path, *tmp_path.rglob("*")]
    assert sorted(synced) == sorted(one.stat().st_ino for one in everything)


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
    files.remove_tree(tree)
    assert not tree.exists()
    assert (outside / "precious").read_bytes() == b"x"
    files.remove_tree(tree)  # what is gone is fine


def test_directories_are_made_with_those_above_them(tmp_path):
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(FailedStoreError, match="making a directory"):
        files.make_directory(tmp_path / "f" / "a")


def test_directories_of_a_store_are_no_links(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    files.check_directories(tmp_path, "a", "a/b", "none", "none/below", "a/none")
    for path in ("link", "link/b", "f", "f/x"):
        with pytest.raises(CorruptStoreError, match="expected a directory, found a link or a file"):
            files.check_directories(tmp_path, "a", path)


# ---------------------------------------------------------------- maps


@pytest.fixture(params=["libc", "no libc"])
def either_map(request, monkeypatch):
    if request.param == "no libc":
        monkeypatch.setattr(files, "_LIBC", None)


def test_a_map_shows_the_file_and_outlives_it(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    data = files.map_file(path, 200)
    assert data.dtype == np.uint8
    assert data.shape == (200,)
    assert data.tobytes() == bytes(range(200))
    view = data[100:]
    path.unlink()
    del data
    assert view[0] == 100
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_writable_map_writes_to_the_file_and_is_seen_by_others(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    writing, reading = files.map_file(path, writable=True), files.map_file(path, 100)
    writing[10] = 7
    assert reading[10] == 7
    assert path.read_bytes()[10] == 7


def test_a_file_of_another_size_is_not_mapped(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    for size in (99, 101, 0):
        with pytest.raises(CorruptStoreError, match=f"expected {size} bytes, found 100"):
            files.map_file(path, size)
    path.write_bytes(b"")
    with pytest.raises(CorruptStoreError, match="found 0"):
        files.map_file(path)
    with pytest.raises(FileNotFoundError):
        files.map_file(tmp_path / "none")


def test_maps_keep_no_descriptor(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(4096))
    before = len(os.listdir("/dev/fd"))
    maps = [files.map_file(path) for _ in range(50)]
    assert len(os.listdir("/dev/fd")) == before
    assert len(maps) == 50


def test_a_map_that_nobody_holds_is_unmapped(tmp_path):
    path = tmp_path / "gone-soon"
    path.write_bytes(bytes(4096))

    def n_maps():
        return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))

    held = [files.map_file(path) for _ in range(3)]
    assert n_maps() >= 1
    held.clear()
    assert n_maps() == 0


def test_files_lie_side_by_side_in_a_reservation(tmp_path):
    size = files.GRANULARITY
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes([number + 1]) * size)
    reservation = files.Reservation(4 * size)
    for number in (2, 0, 1):
        reservation.put(number * size, tmp_path / str(number), size)
    expected = np.repeat(np.array([1, 2, 3, 0], np.uint8), size)
    assert np.array_equal(reservation.array, expected)
    assert not reservation.array.flags.writeable
    kept = reservation.array[size : 2 * size]
    del reservation
    (tmp_path / "1").unlink()
    assert kept[0] == 2


def test_a_reservation_takes_nothing_outside_of_itself(tmp_path):
    size = files.GRANULARITY
    path = tmp_path / "f"
    path.write_bytes(bytes(size))
    reservation = files.Reservation(2 * size)
    for offset in (2 * size, -size, 1, size + 1):
        with pytest.raises(ValueError, match="outside the reservation"):
            reservation.put(offset, path, size)
    with pytest.raises(CorruptStoreError, match="expected"):
        reservation.put(0, path, 2 * size)
    with pytest.raises(FileNotFoundError):
        reservation.put(0, tmp_path / "none", size)


def test_there_is_no_reservation_where_there_is_no_mmap_or_no_room_for_it(monkeypatch):
    with pytest.raises(OSError, match="Cannot allocate memory"):
        files.Reservation(1 << 62)
    monkeypatch.setattr(files, "_LIBC", None)
    with pytest.raises(OSError, match="no mmap"):
        files.Reservation(4096)


def test_advice_changes_nothing_that_is_read(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)) * 100)
    data = files.map_file(path)
    files.advise_random(data)
    files.advise_needed(data, [(0, 100), (5000, 3), (25_000, 600)])
    files.populate_read(data)
    files.populate(data)
    assert data.tobytes() == bytes(range(256)) * 100


def test_what_was_just_written_is_resident(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 40_000)
    data = files.map_file(path)
    assert files.resident(data) == 1
    assert files.resident(data[5000:5010]) == 1


def test_without_a_c_library_nothing_is_known_to_be_resident(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LIBC", None)
    path = tmp_path / "f"
    path.write_bytes(b"x" * 4096)
    assert files.resident(files.map_file(path)) == 0


# ---------------------------------------------------------------- second names and exchanges


def test_a_shared_file_has_two_names(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"abc")
    assert files.share_file(source, target)
    assert os.path.samefile(source, target)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_where_there_are_no_links_a_file_is_copied(tmp_path, monkeypatch, number):
    monkeypatch.setattr(files.os, "link", failing(number))
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(9 << 20))
    assert not files.share_file(source, target)
    assert source.read_bytes() == target.read_bytes()
    assert not os.path.samefile(source, target)


def test_a_file_that_is_shared_has_the_size_that_it_must_have(tmp_path):
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(CorruptStoreError, match="expected 4 bytes, found 3"):
        files.share_file(tmp_path / "source", tmp_path / "target", 4)
    with pytest.raises(FileNotFoundError):
        files.share_file(tmp_path / "nothing", tmp_path / "target")
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(CorruptStoreError, match="a regular file"):
        files.share_file(tmp_path / "link", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_link_that_finds_no_room_is_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "link", failing(errno.ENOSPC))
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(DiskFullError):
        files.share_file(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(b"abc")
    monkeypatch.setattr(files.os, "write", failing(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        files.copy_file(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_two_directories_exchange_their_names(tmp_path):
    one, other = tmp_path / "one", tmp_path / "folder" / "other"
    one.mkdir()
    other.mkdir(parents=True)
    was = files.identity(one), files.identity(other)
    if not files.exchange(one, other):
        pytest.skip("this file system exchanges no names")
    assert (files.identity(other), files.identity(one)) == was


def test_what_is_missing_is_not_exchanged(tmp_path):
    (tmp_path / "one").mkdir()
    if sys.platform == "linux":
        with pytest.raises(FailedStoreError, match="exchanging failed: No such file"):
            files.exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one").exists()


def test_without_a_c_library_nothing_is_exchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LIBC", None)
    assert not files.exchange(tmp_path / "one", tmp_path / "other")


def test_an_identity_is_of_what_has_the_name_and_of_no_link(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert files.identity(tmp_path / "one") not in (None, files.identity(tmp_path / "link"))
    assert files.identity(tmp_path / "nothing") is None
    assert files.identity(tmp_path / "nothing" / "below") is None


def test_a_lock_is_on_the_directory_that_has_the_name_when_it_is_had(tmp_path):
    """Waiting for the lock of a directory that another one replaces."""
    old, new = tmp_path / "store", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    lock = files.DirectoryLock(old, who=str)

    def replace():
        os.rename(old, tmp_path / "damaged")
        os.rename(new, old)
        lock.release()

    timer = threading.Timer(0.05, replace)
    timer.start()
    held = files.DirectoryLock(old, patience_s=30, who=str)
    timer.join()
    assert files.is_locked(old)
    assert not files.is_locked(tmp_path / "damaged")
    held.release()


# ---------------------------------------------------------------- locks


HOLD = """
import sys
from pathlib import Path
from mmreplay import files
lock = files.DirectoryLock(Path(sys.argv[1]), who=lambda: "")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other_holder(tmp_path):
    """Another process that holds the lock of the test's folder; call it to end the process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"

        def end():
            process.kill()
            process.wait()

        yield end
        end()


def test_another_process_is_kept_out_until_the_holder_dies(tmp_path, other_holder):
    assert files.is_locked(tmp_path)
    with pytest.raises(LockedError, match=r"another writer holds this lane \(pid 7\)"):
        files.DirectoryLock(tmp_path, patience_s=0, who=lambda: " (pid 7)")
    other_holder()
    assert not files.is_locked(tmp_path)
    files.DirectoryLock(tmp_path, who=str).release()


def test_a_second_writer_of_the_same_process_is_kept_out_too(tmp_path):
    lock = files.DirectoryLock(tmp_path, who=str)
    with pytest.raises(LockedError, match=str(tmp_path)):
        files.DirectoryLock(tmp_path, patience_s=0, who=str)
    assert files.is_locked(tmp_path)
    lock.release()
    lock.release()
    assert not files.is_locked(tmp_path)


def test_a_lock_that_is_given_up_soon_is_waited_for(tmp_path):
    lock = files.DirectoryLock(tmp_path, who=str)
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    files.DirectoryLock(tmp_path, patience_s=30, who=str).release()
    timer.join()


def test_a_dropped_lock_keeps_nobody_out(tmp_path):
    lock = files.DirectoryLock(tmp_path, who=str)
    del lock
    assert not files.is_locked(tmp_path)


def test_a_lock_that_was_not_had_closes_nothing_later(tmp_path):
    lock = files.DirectoryLock(tmp_path, who=str)
    with pytest.raises(LockedError) as caught:
        files.DirectoryLock(tmp_path, patience_s=0, who=str)
    number = os.open(tmp_path, os.O_RDONLY)  # the next one that is free: that of the second lock
    try:
        del caught  # and with it what is left of the second lock
        assert os.fstat(number).st_ino == tmp_path.stat().st_ino
    finally:
        os.close(number)
    lock.release()


def test_looking_whether_a_lock_is_held_does_not_keep_it(tmp_path):
    assert not files.is_locked(tmp_path)
    files.DirectoryLock(tmp_path, patience_s=0, who=str).release()


def test_a_forked_child_gives_up_the_lock_and_the_parent_keeps_it(tmp_path):
    code = """
import os, sys
from pathlib import Path
from mmreplay import files
path = Path(sys.argv[1])
lock = files.DirectoryLock(path, who=str)
here, there = os.pipe(), os.pipe()
if os.fork() == 0:
    os.write(here[1], b"x")
    os.read(there[0], 1)       # outlives the parent's lock
    os._exit(0)
os.read(here[0], 1)
held = files.is_locked(path)
lock.release()
print(held, files.is_locked(path))
os.write(there[1], b"x")
os.wait()
"""
    assert child(code, tmp_path) == "True False"


def test_without_flock_writing_is_refused_and_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    assert not files.is_locked(tmp_path)
    with pytest.raises(FailedStoreError, match="no flock"):
        files.DirectoryLock(tmp_path, who=str)


def test_a_directory_that_cannot_be_locked_at_all_is_a_failed_store(tmp_path, monkeypatch):
    assert files.fcntl is not None
    monkeypatch.setattr(files.fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(FailedStoreError, match="flock failed"):
        files.DirectoryLock(tmp_path, who=str)


def test_the_holder_says_who_and_since_when():
    about = json.loads(files.holder())
    assert about["pid"] == os.getpid()
    assert about.keys() == {"pid", "host", "since"}


# ---------------------------------------------------------------- boot id


def test_the_boot_id_is_the_same_in_another_process():
    code = "from mmreplay import files; print(files.boot_id().hex())"
    assert child(code) == files.boot_id().hex()
    assert len(files.boot_id()) == 16


def test_where_there_is_no_boot_id_it_is_of_this_process_alone(monkeypatch):
    monkeypatch.setattr(files, "_LINUX", False)
    monkeypatch.setattr(sys, "platform", "plan9")
    assert files.boot_id() == files.boot_id() == files._PROCESS_ID
    monkeypatch.undo()
    assert files.boot_id() != files._PROCESS_ID


def test_a_boot_id_that_is_none_is_not_trusted(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "no id")
    assert files.boot_id() == files._PROCESS_ID


# ---------------------------------------------------------------- barrier


def test_x86_needs_no_barrier_and_others_get_one(monkeypatch):
    import platform

    for machine, expected in (
        ("x86_64", True),
        ("AMD64", True),
        ("aarch64", False),
        ("arm64", False),
    ):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        barrier = files._make_publish()
        assert (barrier is None) is expected
        if barrier is not None:
            barrier()


# ---------------------------------------------------------------- systems that have nothing


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_closed_store_is_read_whole_without_any_of_the_platform_calls(
    make, story, monkeypatch, codec
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8))
    story.play(writer, 30, "terminated")
    story.play(writer, 7)
    writer.close()
    monkeypatch.setattr(files, "_LIBC", None)
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "_NOFOLLOW", 0)
    monkeypatch.setattr(files, "_NONBLOCK", 0)
    for name in ("posix_fallocate", "fdatasync"):
        monkeypatch.delattr(os, name)
    with mmreplay.open(writer.path) as store:
        story.check(store)
        assert len(store) == 37
        assert store.transitions(store.ids, n_step=3).observation.shape == (37, 4, 3)
    with pytest.raises(FailedStoreError, match="no flock"):
        mmreplay.create(writer.path, append=True)


def test_another_system_imports_the_package_and_reads_a_closed_store(make, story):
    writer = make(frame=Field((3,), "uint8", "zstd", chunk=4, shard=8))
    story.play(writer, 30, "terminated")
    writer.close()
    code = """
import ctypes, os, sys, numpy, google_crc32c, numcodecs.blosc, numcodecs.zstd, platform, uuid
import subprocess, concurrent.futures, importlib.metadata, glob, secrets
sys.modules["fcntl"] = None                      # import fcntl: ModuleNotFoundError
sys.platform = "win32"
platform.machine = lambda: "ARM64"
for name in ("posix_fallocate", "fdatasync", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "register_at_fork"):
    delattr(os, name)
def no_library(*_, **__):
    raise OSError("no C library")
ctypes.CDLL = no_library
import mmreplay
from mmreplay import files
assert files.fcntl is None and files._LIBC is None and files.publish is not None
with mmreplay.load(sys.argv[1], seed=3) as data:
    print(len(data), data.sample(5).reward.shape, int(data.store.frames[:].sum()))
try:
    mmreplay.create(sys.argv[1], append=True)
except mmreplay.FailedStoreError as error:
    print("no flock" in str(error))
"""
    with mmreplay.open(writer.path) as store:
        total = int(np.asarray(store.frames).sum())
    assert child(code, writer.path).splitlines() == [f"30 (5,) {total}", "True"]
