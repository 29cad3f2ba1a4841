"""What a test may leave open: threads of ours, and descriptors and maps of files of the tests."""

import collections
import contextlib
import gc
import os
import re
import threading
from pathlib import Path

import pytest

from tests.support.disks.scratch import scratch_root

PASSED = pytest.StashKey[bool]()
_THREADS = "mmreplay-"
_ROUNDS = 3  # what has finalizers goes with a later collection
_OURS = tuple(f"{scratch_root()}/{name}" for name in ("pytest-of-", "mmreplay-"))
_MAPPED = re.compile(b"|".join(re.escape(os.fsencode(one)) + b".*" for one in _OURS))


def leftovers():
    """How many threads of each name, descriptors of each file and maps of each there are."""
    names = (one.name for one in threading.enumerate())
    out = collections.Counter(f"thread {name}" for name in names if name.startswith(_THREADS))
    if not os.path.isdir("/proc/self/fd"):
        return out
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this listing
            if (path := os.readlink(f"/proc/self/fd/{number}")).startswith(_OURS):
                out[f"descriptor {path}"] += 1
    maps = Path("/proc/self/maps").read_bytes()
    out.update(f"map {os.fsdecode(path)}" for path in _MAPPED.findall(maps))
    return out


def settled_leftovers(before):
    """What is there and was not `before`, once the threads that are ending have ended."""
    left = leftovers() - before
    for _ in range(_ROUNDS):
        if not left:
            break
        gc.collect()
        for one in threading.enumerate():
            if one.name.startswith(_THREADS) and not before[f"thread {one.name}"]:
                one.join(5)
        left = leftovers() - before
    return sorted(left)
