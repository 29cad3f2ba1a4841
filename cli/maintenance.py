"""``mmreplay verify``, ``repair`` and ``snapshot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .wording import count, echo_json, echo_result, echo_table, progress, quoted, size, table

if TYPE_CHECKING:
    from mmreplay import Finding, LaneRepair, Repair, Report

_SHOWN = 50


@click.command("verify")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(path: str, as_json: bool) -> None:
    """Check the store at PATH for damage: read all of it, and check every checksum.

    Findings go to stdout. Exit status: 0 if it is sound, 1 if it is damaged. Warnings are not about
    damaged data. A store being written is checked up to its last flush.
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
    rows = count(report.rows, "row")
    if report.environments > report.lanes:
        rows += f" of {count(report.environments, 'environment')}"
    rows += f" in {count(report.lanes, 'lane')}"
    if report.unflushed:
        rows += f", {report.unflushed:,} not flushed yet"
    last = (
        f"{report.path}: {'sound' if report.sound else 'NOT SOUND'}, {report.state}; {rows}; "
        f"{count(report.files, 'file')}, {size(report.bytes)} read"
    )
    echo_table(*_findings(report.findings), *_listed(report.warnings, "warning"), last)


def _findings(findings: Sequence[Finding]) -> list[Any]:
    """Tables of what is damaged, and of files that do not belong to the store."""
    damaged = [one for one in findings if not one.is_stray]
    return _listed(damaged, "damaged") + _listed([one for one in findings if one.is_stray], "stray")


def _listed(findings: Sequence[Finding], heading: str) -> list[Any]:
    """A table of file, rows and message of each, the first of many, and an empty line."""
    if not findings:
        return []
    rows = [
        (one.file or ".", "" if one.rows is None else _span(*one.rows), one.message)
        for one in findings[:_SHOWN]
    ]
    left = len(findings) - _SHOWN
    if left > 0:
        rows.append(("...", "", f"and {left:,} more; --json lists all of them"))
    return [table((heading, "rows", "what"), rows), ""]


def _span(start: int, stop: int) -> str:
    """The rows [start, stop)."""
    return f"{start:,}" if stop - start <= 1 else f"{start:,} to {stop - 1:,}"


@click.command("repair")
@click.argument("path", type=click.Path())
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Also keep sound steps after the damage, with new ids; episodes are cut at the damage.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
def repair(path: str, skip_damaged: bool, as_json: bool) -> None:
    """Make the store at PATH sound again.

    Each lane (the part of one writer) keeps its steps up to the first damaged one, with their ids.
    The damaged store stays unchanged beside the repaired one as PATH.damaged, and sound files are
    shared. A sound store is not changed; one that a crash left open is closed. If this command is
    interrupted, run it again.

    Exit status 1 if the store had, or may have had, steps and none could be kept.
    """
    import mmreplay

    with progress("repair") as show:
        done = mmreplay.repair(path, skip_damaged=skip_damaged, progress=show)
    if as_json:
        echo_json(done.to_json())
    else:
        echo_table(*_repaired(done))
    missing = any(lane.missing for lane in done.lanes)
    if not done.kept and (done.lost or missing or done.untrusted):
        where = "" if done.before is None else f"; the store as it was is {done.before}"
        raise click.ClickException(f"{path}: no transition could be kept{where}")


def _repaired(done: Repair) -> list[Any]:
    if not done.changed:
        return [f"{done.path}: sound; nothing to do"]
    lost = count(done.untrusted, "step")
    untrusted = f"without {lost} after the last flush, which could not be trusted here"
    if done.before is None:
        end = untrusted if done.untrusted else "nothing lost"
        return [f"{done.path}: sound, but left open by a crash; closed, {end}"]
    parts = _findings(done.findings)
    if len(done.lanes) > 1:
        rows = [(one.lane, f"{one.kept:,}", f"{one.lost:,}", _about(one)) for one in done.lanes]
        parts += [table(("lane", "kept", "lost", ""), rows, right=(1, 2)), ""]
    before = count(done.kept + done.lost, "transition")
    end = f"kept {done.kept:,} of {before}, {done.lost:,} lost"
    if done.untrusted:
        end += f"; {untrusted}"
    if n_missing := sum(one.missing for one in done.lanes):
        end += f", and all that was in {count(n_missing, 'lane')}"
    parts += [f"{done.path}: repaired; {end}"]
    parts.append(f"{done.before}: the damaged store, unchanged; the two share their sound files")
    if done.beyond:
        store, before = quoted(done.path), quoted(done.before)
        parts.append(
            f"{done.beyond:,} of the lost transitions are sound, after the damage; to keep them "
            f"with new ids: `rm -r {store} && mv {before} {store} && "
            f"mmreplay repair --skip-damaged {store}`"
        )
    return parts


def _about(one: LaneRepair) -> str:
    if one.missing:
        return "was lost; replaced by an empty one"
    texts = [f"rows {_span(*one.damaged[0])} damaged"] if one.damaged else []
    if len(one.damaged) > 1:
        texts.append(f"and {count(len(one.damaged) - 1, 'more range')}")
    if one.renumbered:
        texts.append("the rows after them have new ids")
    return "; ".join(texts)


@click.command("snapshot")
@click.argument("path", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as one JSON object.")
def snapshot(path: str, target: str, as_json: bool) -> None:
    """Copy the store at PATH to DST as it is now; its writers continue.

    The copy is closed and keeps all ids. If DST is on the same file system, files that no writer
    will change again are shared by hard links and use no space.
    """
    import mmreplay

    with progress("snapshot") as show:
        made = mmreplay.snapshot(path, target, show)
    text = (
        f"{made.path}: {count(made.rows, 'row')}, {count(made.transitions, 'transition')} in "
        f"{count(made.lanes, 'lane')}; {size(made.shared_bytes)} shared with {path}, "
        f"{size(made.own_bytes)} its own"
    )
    echo_result(made, text, as_json=as_json)
