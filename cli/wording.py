"""What commands print: numbers and tables as text, and a progress bar."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND, _HUNDRED, _TEN = 1000, 100, 10
_LARGE = 1e15
_EVERY_S = 0.1


class Whole(click.IntRange):
    """A whole number within limits, in digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; for `1e6` the message says what to write."""
        try:
            return int(super().convert(int(value), param, ctx))
        except ValueError:
            self.fail(f"{value!r}: expected a whole number in digits, as 1000000", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As the help shows it."""
        return "N"


def echo_json(document: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def echo_result(result: Any, text: str, *, as_json: bool) -> None:
    """What a function of `mmreplay` returned: as one JSON object, or this text about it."""
    if as_json:
        echo_json(result.to_json())
    else:
        echo(text)


def plain(text: str) -> str:
    """The text with control characters escaped: a store may hold any characters."""
    if text.isprintable():
        return text
    from mmreplay import MmreplayError

    return str(MmreplayError(text))  # which escapes them


def echo(text: str) -> None:
    """A line or more on stdout, with control characters escaped."""
    click.echo(plain(text))


def quoted(path: str) -> str:
    """A path quoted for a shell, and not mistaken for an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def typed(text: str) -> Any:
    """A bool, a whole number or a number that a text is; else the text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def size(n_bytes: float) -> str:
    """Bytes with three digits: 512 B, 3.12 MB."""
    value, unit = float(n_bytes), 0
    while value >= _THOUSAND - 0.5 and unit < len(_UNITS) - 1:
        value /= _THOUSAND
        unit += 1
    return f"{value:.0f} B" if not unit else f"{_three(value)} {_UNITS[unit]}"


def _three(value: float) -> str:
    """1.23, 45.2 or 1,361."""
    return f"{value:,.{2 if value < _TEN else 1 if value < _HUNDRED else 0}f}"


def number(value: float) -> str:
    """A return or a length: whole numbers in full, others with four digits."""
    if not math.isfinite(value) or abs(value) >= _LARGE:
        return f"{value:.4g}"
    whole = value == int(value)
    return f"{value + 0.0:,.0f}" if whole or abs(value) >= _THOUSAND else f"{value:.4g}"


def count(n: int, one: str) -> str:
    """1 row, 2,000 rows."""
    return f"{n:,} {one if n == 1 else one + 's'}"


def times(ratio: float) -> str:
    """How many times smaller, or larger."""
    if ratio < 1:
        return f"{_three(1 / ratio)} times larger than"
    return f"{_three(ratio)} times smaller than"


def age(seconds: float) -> str:
    """0.3 s, 45 s, 12 min, 3.4 h, 5.1 days."""
    minute, hour, day = 60, 3600, 86400
    if seconds < minute:
        return f"{seconds:.1f} s" if seconds < _TEN else f"{seconds:.0f} s"
    if seconds < hour:
        return f"{seconds / minute:.0f} min"
    return f"{seconds / hour:.1f} h" if seconds < 2 * day else f"{seconds / day:.1f} days"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()
) -> Table:
    """A table without lines; columns whose numbers are in `right` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    to_right = set(right)
    out = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    out.show_header = any(heads)
    for place, head in enumerate(heads):
        align: Any = "right" if place in to_right else "left"
        out.add_column(Text(head), justify=align, overflow="fold")
    for row in rows:
        out.add_row(*(Text(plain(cell)) for cell in row))
    return out


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Lines of columns, all of them right-aligned but this one; rich is slow for many rows."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        cells = [one.ljust(w) if place == left else one.rjust(w) for place, (one, w) in pairs]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def grid(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    out = table(("", ""), rows)
    out.columns[0].style, out.columns[0].no_wrap = "bold", True
    return out


def echo_table(*parts: Table | str) -> None:
    """Tables and lines to stdout: as wide as the terminal, 80 columns and no colours in a pipe."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, str):
                console.print(Text(plain(part)), soft_wrap=True)  # do not wrap lines
            else:
                console.print(part)
    lines = captured.get().splitlines()
    click.echo("\n".join(line.rstrip() for line in lines))


def import_from_here() -> None:
    """As with `python -m`: the working directory may have the module of a policy or function."""
    with suppress(FileNotFoundError):  # it may have been removed
        if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 (sys.path holds strings)
            sys.path.insert(0, here)


@contextmanager
def progress(what: str, unit: str = "bytes") -> Iterator[Callable[..., None] | None]:
    """A function that shows (done, total) and a text on stderr; None if that is not a terminal."""
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
