"""``mmreplay import``: convert another library's dataset to a store."""

from __future__ import annotations

from typing import Any

import click

from .exchange_formats import FormatCommand, lines_of_losses, options_of, with_options
from .progress import progress
from .wording import count, echo, echo_json, size

__all__ = ["import_dataset"]


@click.command("import", cls=FormatCommand)
@click.argument("format_name", metavar="FORMAT")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="Compression of frames: raw, lz4, zstd, or with a level, such as zstd:9.",
)
@click.option(
    "--columns",
    metavar="NAME",
    multiple=True,
    help="Convert only this column, or those below it, besides actions, rewards and ends; "
    "repeatable.",
)
@click.option(
    "--leave-out",
    metavar="NAME",
    multiple=True,
    help="Leave out this column, or those below it; repeatable.",
)
@with_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def import_dataset(
    format_name: str,
    source: str,
    target: str,
    codec: str | None,
    columns: tuple[str, ...],
    leave_out: tuple[str, ...],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Convert the dataset at SRC to a closed store at DST.

    Anything that could not be converted is listed at the end. Nothing is unpickled.
    """
    import mmreplay

    given = options_of(options, "format", "src", "dst", "codec", "columns", "leave_out", "progress")
    if columns:
        given["columns"] = columns
    if leave_out:
        given["leave_out"] = leave_out
    with progress("import") as show:
        made = mmreplay.import_dataset(
            format_name, source, target, codec=codec, progress=show, **given
        )
    if as_json:
        echo_json(made.to_json())
        return
    echo(
        f"{made.path}: {count(made.transitions, 'transition')}, {count(made.episodes, 'episode')}, "
        f"of which {made.terminated:,} terminated and {made.truncated:,} truncated; "
        f"{size(made.bytes_on_disk)}"
    )
    for line in lines_of_losses(made.losses):
        echo(line)
