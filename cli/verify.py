"""``mmreplay verify``: is a store what it was when it was written?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .wording import count, echo_json, echo_table, size, table

if TYPE_CHECKING:
    from mmreplay.integrity import Finding, Report

_SHOWN = 50


@click.command("verify")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(path: str, as_json: bool) -> None:
    """Read the whole store at PATH and check every checksum and rule.

    Exit status 0 if it is sound, 1 with the findings on stdout. Warnings are oddities that harm no
    row. A store that is being written is checked as far as it was written when the check began; its
    writer is not disturbed.
    """
    import mmreplay

    with _progress() as show:
        report = mmreplay.verify(path, show)
    if as_json:
        echo_json(report.to_json())
    else:
        _print(report)
    if not report.sound:
        raise click.ClickException(f"{path}: {count(len(report.findings), 'finding')}: not sound")


def _print(report: Report) -> None:
    parts: list[Any] = []
    for one, heading in ((report.findings, "damaged"), (report.warnings, "odd, and harmless")):
        if one:
            parts += [_findings(one, heading), ""]
    word = "sound" if report.sound else "NOT SOUND"
    parts.append(
        f"{report.path}: {word}, {report.state}; {count(report.rows, 'row')} in "
        f"{count(report.lanes, 'lane')}; {count(report.files, 'file')}, {size(report.bytes)} read"
    )
    echo_table(*parts)


def _findings(findings: Sequence[Finding], heading: str) -> Any:
    rows = [
        (
            one.file or ".",
            "" if one.rows is None else _span(*one.rows),
            one.message,
        )
        for one in findings[:_SHOWN]
    ]
    left = len(findings) - _SHOWN
    if left > 0:
        rows.append(("...", "", f"and {left:,} more; --json lists all of them"))
    return table((heading, "rows", "what"), rows, right=())


def _span(start: int, stop: int) -> str:
    return f"{start:,}" if stop - start <= 1 else f"{start:,} to {stop - 1:,}"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, None in a pipe; always on stderr."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("verify", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show
