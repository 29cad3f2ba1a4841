"""``mmreplay repair``: keep the sound data of a damaged store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .progress import progress
from .verify import findings_tables, span
from .wording import count, echo_json, echo_table, quoted, table

if TYPE_CHECKING:
    from mmreplay import LaneRepair, Repair


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

    Exit status 1 if no step could be kept of a store that had or may have had some.
    """
    import mmreplay

    with progress("repair") as show:
        done = mmreplay.repair(path, skip_damaged=skip_damaged, progress=show)
    if as_json:
        echo_json(done.to_json())
    else:
        echo_table(*_parts(done))
    missing = any(lane.missing for lane in done.lanes)
    if not done.kept and (done.lost or missing or done.untrusted):
        where = "" if done.before is None else f"; the store as it was is {done.before}"
        raise click.ClickException(f"{path}: no transition could be kept{where}")


def _parts(done: Repair) -> list[Any]:
    if not done.changed:
        return [f"{done.path}: sound; nothing to do"]
    if done.before is None:
        end = "nothing lost"
        if done.untrusted:
            end = _untrusted(done)
        return [f"{done.path}: sound, but left open by a crash; closed, {end}"]
    parts = findings_tables(done.findings)
    if len(done.lanes) > 1:
        rows = [(one.lane, f"{one.kept:,}", f"{one.lost:,}", _about(one)) for one in done.lanes]
        parts += [table(("lane", "kept", "lost", ""), rows, right=(1, 2)), ""]
    before = count(done.kept + done.lost, "transition")
    end = f"kept {done.kept:,} of {before}, {done.lost:,} lost"
    if done.untrusted:
        end += f"; {_untrusted(done)}"
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


def _untrusted(done: Repair) -> str:
    lost = count(done.untrusted, "step")
    return f"without {lost} after the last flush, which could not be trusted here"


def _about(one: LaneRepair) -> str:
    if one.missing:
        return "was lost; replaced by an empty one"
    texts = [f"rows {span(*one.damaged[0])} damaged"] if one.damaged else []
    if len(one.damaged) > 1:
        texts.append(f"and {count(len(one.damaged) - 1, 'more range')}")
    if one.renumbered:
        texts.append("the rows after them have new ids")
    return "; ".join(texts)
