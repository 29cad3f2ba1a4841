"""Limits of a process: open files, memory, threads; an error of ours says which was reached.

Invariant: nothing has changed by a call that reached a limit, so it may be tried again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from mmreplay.errors import FailedStoreError

with contextlib.suppress(ImportError):
    import resource


class ReachedLimitError(FailedStoreError):
    """A limit was reached: nothing was changed, and the same call may work later."""


def check_limit(error: OSError, path: object) -> None:
    """Raise ReachedLimitError if it was a limit that was reached."""
    match error.errno:
        case errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            what = f"this process may not open more than {most:,} files (`ulimit -n`)"
        case errno.ENFILE:
            what = "the system may not open more files (fs.file-max)"
        case errno.ENOMEM:
            what = (
                "this process gets no more memory, or may map no more of it (`ulimit -v`, "
                "vm.max_map_count, the limit of its container)"
            )
        case _:
            return
    raise ReachedLimitError(
        f"{path}: {what}; nothing was changed: raise that limit, or close stores that are not "
        f"needed, and call again"
    ) from error


@contextlib.contextmanager
def starting_threads() -> Iterator[None]:
    """Turn the RuntimeError of a thread that cannot be started into ReachedLimitError."""
    try:
        yield
    except RuntimeError as error:
        raise ReachedLimitError(
            f"no thread can be started ({error}): the user or the container is at its limit "
            f"(`ulimit -u`, pids.max); nothing was changed: raise it, or end other programs, "
            f"and call again"
        ) from error
