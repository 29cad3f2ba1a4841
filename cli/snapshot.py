"""``mmreplay snapshot``: a closed copy of a store as it is now."""

from __future__ import annotations

import click

from .progress import progress
from .wording import count, echo, echo_json, size


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
    if as_json:
        echo_json(made.to_json())
        return
    echo(
        f"{made.path}: {count(made.rows, 'row')}, {count(made.transitions, 'transition')} in "
        f"{count(made.lanes, 'lane')}; {size(made.shared_bytes)} shared with {path}, "
        f"{size(made.own_bytes)} its own"
    )
