"""Small real file systems that can be filled and cut off, for tests that run as root on Linux.

Invariant: whatever was mounted here is unmounted again, and its loop device free, also when the
process that mounted it is killed; nothing else of the machine is filled, cut off or unmounted.
"""

import contextlib
import ctypes
import fcntl
import gc
import itertools
import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from mmreplay.system import platform

IMAGE_BYTES = {"ext4": 128 << 20, "xfs": 400 << 20, "btrfs": 160 << 20}
"""Least sizes at which the usual settings still hold; the images are sparse."""
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-b", "4096"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
_PATIENCE_S = 60.0
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN: _IOR('X', 125, __u32), of linux/fs.h since 6.13
_FLUSH_LOG, _DROP_LOG = 1, 2
_WRITE_NOW = 7  # SYNC_FILE_RANGE_: wait before, write, wait after
_PAGE = mmap.PAGESIZE
_SMALL_FILES = 64
# Whoever mounted is gone when the pipe is: then nobody else unmounts.
_GUARD = 'cat > /dev/null; umount -l "$1" 2> /dev/null; rm -f "$2"; rmdir "$1"'


def unavailable(fs):
    """Why a file system of this kind cannot be mounted here; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return f"{fs}: only root on Linux may mount one"
    if fs == "tmpfs":
        return ""
    if not Path("/dev/loop-control").exists():
        return f"{fs}: there are no loop devices (/dev/loop-control)"
    if shutil.which(_MAKE[fs][0]) is None:
        return f"{fs}: {_MAKE[fs][0]} is missing; on Debian it is in {_PACKAGES[fs]}"
    return ""


class Mount:
    """A file system of its own."""

    def __init__(self, fs, path, image, options):
        self.fs, self.path, self._image = fs, path, image
        self._options = options
        self.attach()

    def attach(self):
        """Mount it once more, which replays its log."""
        how = ["-t", self.fs, "-o", self._options, self._image or "none", self.path]
        _run(["mount", *how])

    def detach(self):
        """Unmount it, as soon as nobody uses it any more."""
        _patiently(["umount", self.path], _PATIENCE_S)

    def remount(self):
        """Forget the page cache, and read from the disk what is there."""
        self.detach()
        self.attach()

    def set_read_only(self, on, patience_s=_PATIENCE_S):
        """Let nobody write to it, or all who have the right to."""
        _patiently(["mount", "-o", f"remount,{'ro' if on else 'rw'}", self.path], patience_s)

    def make_error(self):
        """Let an ext4 find itself damaged: what follows is what its option ``errors`` says."""
        source = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        device = next(one.split()[0] for one in source if one.split()[1] == str(self.path))
        trigger = Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error")
        trigger.write_text("by a test", encoding="ascii")


@contextlib.contextmanager
def mounted(fs, folder, n_bytes=0, options=""):
    """A new, empty file system, mounted at ``folder/fs``."""
    path, image = folder / fs, folder / f"{fs}.image"
    path.mkdir()
    with contextlib.ExitStack() as stack:
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", str(path), str(image)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the keyboard is for the tests only
        )
        stack.callback(guard.communicate)
        wanted = ["loop", options]
        if fs == "tmpfs":
            wanted = [f"size={n_bytes}", options]
        else:
            with image.open("wb") as file:
                file.truncate(n_bytes or IMAGE_BYTES[fs])
            _run([*_MAKE[fs], image])
        mount = Mount(
            fs, path, None if fs == "tmpfs" else image, ",".join(one for one in wanted if one)
        )
        yield mount
        mount.detach()


def _patiently(command, patience_s):
    """Run a command that fails as long as somebody uses what it is about."""
    until = time.monotonic() + patience_s
    while True:
        gc.collect()  # what was mapped by somebody who let go of it
        try:
            _run(command)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def cut_off(path, luck):
    """Let nothing more reach the disk of the file system mounted here, whoever may be writing.

    What its log holds in memory is lost, as with the power; now and then it gets out just before.
    """
    if not os.path.ismount(path):
        raise OSError(f"{path}: no mount point; only a whole file system can be cut off")
    flag = _FLUSH_LOG if luck.random() < 0.2 else _DROP_LOG
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", flag))
    finally:
        os.close(descriptor)


def write_back(root, luck):
    """Write some pages of some files to the disk now, in no order, as the kernel may at any time.

    The file system's log is committed before, between, after, or not at all.
    """
    with contextlib.suppress(OSError):  # cut off, or renamed and removed meanwhile
        names = [Path(folder, name) for folder, _, some in os.walk(root) for name in some]
        luck.shuffle(names)
        for number, path in enumerate(names[: luck.randint(0, len(names))]):
            if number % 8 == luck.randrange(32):
                _commit_log(root)
            with contextlib.suppress(FileNotFoundError):
                _write_some_pages(path, luck)
        if luck.random() < 0.5:
            _commit_log(root)


def _write_some_pages(path, luck):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages = range(-(-os.fstat(descriptor).st_size // _PAGE))
        share = luck.choice([0.1, 0.5, 1.0])
        for page in luck.sample(pages, min(len(pages), 64)):
            if luck.random() < share:
                _sync_range(descriptor, page * _PAGE, _PAGE)
    finally:
        os.close(descriptor)


def _commit_log(root):
    """The fsync of a file that nobody wants commits what the log holds of all others."""
    with (root / "neighbour").open("ab", buffering=0) as file:
        file.write(b"x")
        os.fsync(file)


def _sync_range(descriptor, start, length):
    if _LIBC.sync_file_range(descriptor, start, length, _WRITE_NOW):
        raise OSError(ctypes.get_errno(), "sync_file_range")


def _libc():
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        libc.sync_file_range.argtypes = [
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_uint,
        ]
    return libc


def _sync_all(path):
    """Everything of the file system that this directory is on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _LIBC.syncfs(descriptor)
    finally:
        os.close(descriptor)


_LIBC = _libc()


@contextlib.contextmanager
def booted(boot):
    """Let this process take these 16 bytes for the boot id, as after a start of the machine."""
    real = platform.boot_id
    platform.boot_id = lambda: boot
    try:
        yield
    finally:
        platform.boot_id = real


class Ballast:
    """Files that fill a file system to its last page, small ones among them to be taken off."""

    def __init__(self, root):
        if not os.path.ismount(root):
            raise OSError(f"{root}: no mount point; only a whole file system is filled")
        self._folder = root / "ballast"
        self._numbers = itertools.count()
        self._small = []
        self._large = []
        self._folder.mkdir()

    def fill(self):
        """Leave no room for a single page more."""
        while len(self._small) < _SMALL_FILES and (path := self._grow(_PAGE)) is not None:
            self._small.append(path)
        # What was freed a moment ago may be there only when the log has been written.
        while (path := self._grow(None)) is not None:
            self._large.append(path)
            _sync_all(self._folder)

    def _grow(self, size):
        """A new file of that size, or as large as it can be; None where nothing fits."""
        path = self._folder / str(next(self._numbers))
        written = 0
        try:
            with path.open("wb", buffering=0) as file:
                for piece in (1 << 20, 1 << 16, _PAGE) if size is None else (size,):
                    with contextlib.suppress(OSError):
                        while size is None or written < size:
                            written += file.write(bytes(piece)) or 0
        except OSError:  # not even a name
            return None
        if written:
            return path
        path.unlink()
        return None

    def take_off(self, n_pages):
        """Give this many pages back; all of them if there are no small files left."""
        for _ in range(n_pages):
            if not self._small:
                self.clear()
                return
            self._small.pop().unlink()
        _sync_all(self._folder)

    def clear(self):
        for path in (*self._small, *self._large):
            path.unlink()
        self._small, self._large = [], []
        _sync_all(self._folder)
