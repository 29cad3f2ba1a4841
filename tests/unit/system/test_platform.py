"""What another system lacks, and what is done without it."""

import platform as standard
import sys

import numpy as np

import mmreplay
from mmreplay import Field
from mmreplay.system import platform


def test_where_there_is_no_boot_id_it_is_of_this_process_alone(monkeypatch):
    monkeypatch.setattr(platform, "LINUX", False)
    monkeypatch.setattr(sys, "platform", "plan9")
    assert platform.boot_id() == platform.boot_id() == platform._PROCESS_ID
    monkeypatch.undo()
    assert platform.boot_id() != platform._PROCESS_ID


# ---------------------------------------------------------------- barrier


def test_x86_needs_no_barrier_and_others_get_one(monkeypatch):
    for machine, expected in (
        ("x86_64", True),
        ("AMD64", True),
        ("aarch64", False),
        ("arm64", False),
    ):
        monkeypatch.setattr(standard, "machine", lambda machine=machine: machine)
        barrier = platform._make_barrier()
        assert (barrier is None) is expected
        if barrier is not None:
            barrier()


def test_a_reader_uses_a_new_row_only_after_a_barrier(make, story, monkeypatch):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8))
    story.play(writer, 2)
    heads = []
    with mmreplay.open(writer.path) as store:
        reader = store.live.readers[0]
        monkeypatch.setattr(
            platform, "barrier", lambda: heads.append((reader.head, store.index.n_transitions))
        )
        story.step(writer)
        story.step(writer)
        assert len(store) == 4
        assert heads[0] == (4, 2)  # the head is taken, and no row of it is looked at yet
        story.check(store)
    heads.clear()
    mmreplay.open(writer.path).close()
    assert len(heads) == 2  # of the steps, and of the final observations


# ---------------------------------------------------------------- systems that have nothing


def test_another_system_imports_the_package_and_reads_a_closed_store(make, story, child):
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
from mmreplay.system import platform as system
assert system.fcntl is None and system.LIBC is None and system.barrier is not None
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
