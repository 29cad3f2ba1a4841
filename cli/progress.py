"""A progress bar for long work: on a terminal only, and always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_S = 0.1


@contextmanager
def progress(what: str, unit: str = "bytes") -> Iterator[Callable[..., None] | None]:
    """A function that shows (done, total) in bytes or other units, and a text; None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as columns
    from rich.console import Console
    from rich.table import Column

    whole = Column(no_wrap=True)  # where a line is too long, the bar becomes shorter
    text = columns.TextColumn("{task.fields[text]}", table_column=whole)
    done_of_total = columns.MofNCompleteColumn(table_column=whole)
    amount = (columns.DownloadColumn(),) if unit == "bytes" else (done_of_total, text)
    # Without a thread that refreshes it: that would slow down a recording, and a pack forks.
    bar = columns.Progress(
        columns.BarColumn(),
        *amount,
        columns.TimeRemainingColumn(table_column=whole),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    due = 0.0

    def show(done: int, total: int, text: str = unit) -> None:
        nonlocal due
        if time.monotonic() >= due or done == total:
            bar.update(task, completed=done, total=total, text=text, refresh=True)
            due = time.monotonic() + _EVERY_S

    with bar:
        task = bar.add_task(what, total=None, text=unit)
        yield show
