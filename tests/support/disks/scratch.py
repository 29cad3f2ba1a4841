"""Where tests write: in memory if there is such a place, for most of what they do is fsync.

Invariant: what was made is gone afterwards.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 2 << 30  # a container gets 64 MiB as a rule, which a few tests fill


def scratch_root():
    """``$MMREPLAY_SCRATCH``, shared memory if it has room, or where others go."""
    if root := os.environ.get("MMREPLAY_SCRATCH"):
        return Path(root)
    if os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free >= _LEAST_BYTES:
        return _IN_MEMORY
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def scratch_directory():
    """A new directory in `scratch_root`."""
    path = Path(tempfile.mkdtemp(prefix="mmreplay-", dir=scratch_root()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
