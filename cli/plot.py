"""``mmreplay plot``: draw returns, lengths, rewards and actions."""

from __future__ import annotations

from pathlib import Path

import click

from .progress import progress
from .wording import count, echo, size


@click.command("plot")
@click.argument("paths", metavar="PATH...", type=click.Path(), nargs=-1, required=True)
@click.option("--out", type=click.Path(), required=True, help="File to create: .svg or .png.")
def plot(paths: tuple[str, ...], out: str) -> None:
    """Draw returns and lengths over time, and the distributions of rewards and actions.

    Several stores share the same axes. Time is counted in steps.
    """
    import mmreplay

    with progress("plot", "stores") as show:
        mmreplay.plot(paths, out, progress=show)
    echo(
        f"{out}: returns, lengths, rewards and actions of {count(len(paths), 'store')}, "
        f"{size(Path(out).stat().st_size)}"
    )
