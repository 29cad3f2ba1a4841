"""Where tests write: in memory if there is such a place, for most of what they do is fsync.

Invariant: what was made is gone afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_directory"]


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A new directory: below ``$MMREPLAY_SCRATCH``, in shared memory, or where others go."""
    root = os.environ.get("MMREPLAY_SCRATCH")
    if root is None and os.access("/dev/shm", os.W_OK):  # noqa: S108 (mkdtemp makes it private)
        root = "/dev/shm"  # noqa: S108
    path = Path(tempfile.mkdtemp(prefix="mmreplay-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
