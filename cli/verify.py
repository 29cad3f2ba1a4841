"""``mmreplay verify``: is a store what it was when it was written?"""

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

    Exit status 0 if it is sound, 1 with the findings on stdout. Warnings are oddities that harm no
    row. A store that is being written is checked as far as it was written when the check began; its
    writer is not disturbed.
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
        advice = f"`mmreplay repair {quoted(path)}` keeps the sound rows"
        # Without some of these nobody knows what the other files hold, or how far they go.
        names = [one.file.rpartition("/")[2] for one in report.findings]
        if {"zarr.json", ".live"} & {*names}:
            advice += ", or says which file has to come back from a copy"
        if all(one.is_stray for one in report.findings):
            advice = (
                f"all rows are sound: move the stray files away (a copy put over another store "
                f"leaves some), or `mmreplay repair {quoted(path)}` makes a store without them"
            )
        raise click.ClickException(f"{path}: {found}: not sound; {advice}")


def _print(report: Report) -> None:
    parts = findings_tables(report.findings)
    if report.warnings:
        parts += [findings_table(report.warnings, "odd, but no damage"), ""]
    word = "sound" if report.sound else "NOT SOUND"
    rows, lanes = count(report.rows, "row"), count(report.lanes, "lane")
    if report.environments > report.lanes:
        rows = f"{count(report.rows, 'tick')} of {count(report.environments, 'environment')}"
    parts.append(
        f"{report.path}: {word}, {report.state}; {rows} in "
        f"{lanes}; {count(report.files, 'file')}, {size(report.bytes)} read"
    )
    echo_table(*parts)
