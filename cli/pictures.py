"""``mmreplay render`` and ``mmreplay plot``: pictures of episodes, and curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .wording import Whole, count, echo, number, progress, size


@click.command("render")
@click.argument("path", type=click.Path())
@click.option(
    "--out",
    type=click.Path(),
    required=True,
    help="File to create: a film (.gif, .mp4) or a contact sheet (.png).",
)
@click.option(
    "--episode",
    type=int,
    default=-1,
    show_default="the last",
    help="Number of the episode in `mmreplay episodes`; negative numbers count from the end.",
)
@click.option("--key", help="Which image to draw, if an observation has several.")
@click.option("--fps", type=Whole(min=1), default=30, show_default=True, help="Frames per second.")
@click.option(
    "--scale",
    type=Whole(min=1),
    help="Enlarge the frames by this factor.  [default: what fits a screen]",
)
def render(path: str, out: str, **settings: Any) -> None:
    """Draw an episode of the store at PATH.

    A film shows every frame, with step, action and reward below. A contact sheet shows up to 48
    frames, including those with the largest rewards.
    """
    import mmreplay

    with progress("render", "frames") as show:
        made = mmreplay.render(path, out, progress=show, **settings)
    width, height = made.size
    ended = "running" if made.end == "open" else made.end
    echo(
        f"{made.path}: {count(made.frames, 'frame')} of episode {made.episode:,} "
        f"({count(made.steps, 'step')}, return {number(made.total)}, {ended}), "
        f"{width}x{height} pixels, {size(made.path.stat().st_size)}"
    )


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
    echo(f"{out}: returns, lengths, rewards and actions, {size(Path(out).stat().st_size)}")
