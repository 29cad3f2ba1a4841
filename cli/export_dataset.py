"""``mmreplay export``: convert a store to another library's dataset."""

from __future__ import annotations

from typing import Any

import click

from .exchange_formats import FormatCommand, lines_of_losses, options_of, with_options
from .progress import progress
from .wording import count, echo, echo_json, size

__all__ = ["export_dataset"]


@click.command("export", cls=FormatCommand)
@click.argument("format_name", metavar="FORMAT")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@with_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def export_dataset(
    format_name: str, source: str, target: str, options: dict[str, Any], as_json: bool
) -> None:
    """Convert all episodes of the store at SRC to another library's dataset at DST.

    Anything that could not be converted is listed at the end. The store is not changed.
    """
    import mmreplay

    given = options_of(options, "format", "src", "dst", "progress")
    with progress("export") as show:
        made = mmreplay.export_dataset(source, format_name, target, progress=show, **given)
    if as_json:
        echo_json(made.to_json())
        return
    echo(
        f"{made.path}: {count(made.transitions, 'transition')}, {count(made.episodes, 'episode')}; "
        f"{size(made.bytes_on_disk)}"
    )
    for line in lines_of_losses(made.losses):
        echo(line)
