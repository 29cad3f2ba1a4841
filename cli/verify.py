"""``mmreplay verify``: check a store for damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .progress import progress
from .wording import count, echo_json, echo_table, quoted, size, table

if TYPE_CHECKING:
    from mmreplay import Finding, Report

_SHOWN = 50


@click.command("verify")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(path: str, as_json: bool) -> None:
    """Check the store at PATH for damage: read all of it, and check every checksum.

    Exit status 0 if it is sound, 1 if it is damaged: the findings are on stdout. Warnings affect no
    data. A store that is being written is checked up to its last flush.
    """
    import mmreplay

    with progress("verify") as show:
        report = mmreplay.verify(path, show)
    if as_json:
        echo_json(report.to_json())
    else:
        _print(report)
    if not report.sound:
        found = count(len(report.findings), "finding")
        raise click.ClickException(f"{report.path}: {found}: not sound; {_advice(report)}")


def _advice(report: Report) -> str:
    """What the user can do about the findings."""
    store = quoted(report.path)
    first = "end its writer; then " if report.state == "live" else ""
    if all(one.is_stray for one in report.findings):
        return (
            f"all rows are sound: {first}move the stray files away (copying over another store "
            f"leaves some), or `mmreplay repair {store}` makes a store without them"
        )
    if report.from_start:
        return (
            f"no row before the damage can be sampled: {first}"
            f"`mmreplay repair --skip-damaged {store}` keeps what is sound after it, if anything "
            f"is; restore the rest from a snapshot or another copy"
        )
    return f"{first}`mmreplay repair {store}` keeps the rows before the damage"


def _print(report: Report) -> None:
    parts = findings_tables(report.findings)
    if report.warnings:
        parts += [_table(report.warnings, "warning"), ""]
    word = "sound" if report.sound else "NOT SOUND"
    parts.append(
        f"{report.path}: {word}, {report.state}; {_read_rows(report)}; "
        f"{count(report.files, 'file')}, {size(report.bytes)} read"
    )
    echo_table(*parts)


def _read_rows(report: Report) -> str:
    """The numbers of rows, environments and lanes, and of rows that were not read."""
    rows = count(report.rows, "row")
    if report.environments > report.lanes:
        rows += f" of {count(report.environments, 'environment')}"
    text = f"{rows} in {count(report.lanes, 'lane')}"
    return f"{text}, {report.unflushed:,} not flushed yet" if report.unflushed else text


def findings_tables(findings: Sequence[Finding]) -> list[Any]:
    """Tables of what is damaged, and of files that do not belong to the store."""
    parts: list[Any] = []
    damaged = [one for one in findings if not one.is_stray]
    strays = [one for one in findings if one.is_stray]
    for some, heading in ((damaged, "damaged"), (strays, "stray")):
        if some:
            parts += [_table(some, heading), ""]
    return parts


def _table(findings: Sequence[Finding], heading: str) -> Any:
    """File, rows and message of each; the first of many."""
    rows = [
        (one.file or ".", "" if one.rows is None else span(*one.rows), one.message)
        for one in findings[:_SHOWN]
    ]
    left = len(findings) - _SHOWN
    if left > 0:
        rows.append(("...", "", f"and {left:,} more; --json lists all of them"))
    return table((heading, "rows", "what"), rows, right=())


def span(start: int, stop: int) -> str:
    """The rows [start, stop)."""
    return f"{start:,}" if stop - start <= 1 else f"{start:,} to {stop - 1:,}"
