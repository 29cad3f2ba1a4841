"""A progress bar for long work: on a terminal, and always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(what: str, unit: str = "bytes") -> Iterator[Callable[[int, int], None] | None]:
    """A function that shows (done, total) in bytes or other units; None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = (DownloadColumn(),) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))
    columns = (BarColumn(), *amount, TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.start()  # no earlier: it has a thread, and a pack forks while there is none
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()
