"""``mmreplay snapshot``: a closed copy of a store as it is now."""

from __future__ import annotations

import click

from .progress import progress
from .wording import count, echo_json, size


@click.command("snapshot")
@click.argument("path", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as one JSON object.")
def snapshot(path: str, target: str, as_json: bool) -> None:
    """Copy the store at PATH to DST as it is at this moment; its writers go on.

    The copy is closed and keeps all row ids. What no writer will change any more is shared with
    the store by hard links and takes no room, as long as DST is on the same file system.
    """
    import mmreplay

    with progress("snapshot") as show:
        made = mmreplay.snapshot(path, target, show)
    if as_json:
        echo_json(made.to_json())
        return
    click.echo(
        f"{made.path}: {count(made.rows, 'row')}, {count(made.transitions, 'transition')} in "
        f"{count(made.lanes, 'lane')}; {size(made.shared_bytes)} shared with {path}, "
        f"{size(made.own_bytes)} its own"
    )
