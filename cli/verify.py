"""``mmreplay verify``: checks that a store is as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .findings import findings_table, findings_tables
from .progress import progress
from .wording import count, echo_json, echo_table, quoted, size

if TYPE_CHECKING:
    from mmreplay import Report


@click.command("verify")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(path: str, as_json: bool) -> None:
    """Read the whole store at PATH and check every checksum and rule.

    Exit status 0 if it is sound, 1 with the findings on stdout. Warnings do not concern any row. A
    store that is being written is checked up to its last flush; its writer is not disturbed.
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
    # Without these the meaning or the length of the other files may be unknown.
    names = {one.file.rpartition("/")[2] for one in report.findings}
    unknown = bool({"zarr.json", ".live"} & names)
    if report.from_start:
        advice = (
            f"no row before the damage can be sampled: {first}"
            f"`mmreplay repair --skip-damaged {store}` keeps what is sound after it; restore the "
            f"rest from a snapshot or another copy"
        )
    else:
        some = ", if there are any" if unknown else ""
        advice = f"{first}`mmreplay repair {store}` keeps the rows before the damage{some}"
    if unknown:
        advice += ", or says which file or version it needs"
    return advice


def _print(report: Report) -> None:
    parts = findings_tables(report.findings)
    if report.warnings:
        parts += [findings_table(report.warnings, "warning"), ""]
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
