"""``mmreplay view``: the page that shows every frame of some stores."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import click

from .wording import Whole, count, echo, size

_MOST_PORT = 65_535


@click.command("view")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--port",
    type=Whole(min=0, max=_MOST_PORT),
    default=0,
    show_default="a free one",
    help="Port to listen on.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--episode", type=int, help="Start with this episode of the first store.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(),
    help="Write the page and its data into a new folder for any web server, and exit.",
)
@click.option(
    "--frames",
    type=Whole(min=1),
    default=20_000,
    show_default=True,
    help="With --export: at most N frames per store, in whole episodes.",
)
def view(
    paths: tuple[str, ...],
    host: str,
    no_browser: bool,
    folder: str | None,
    frames: int,
    **settings: Any,
) -> None:
    """Show the stores at PATH... in a web page, also while they are written.

    Prints the URL of the page and opens it in a browser if there is one; Ctrl-C ends it. Several
    stores are compared. Needs `pip install "mmreplay[view]"`, except with --export.
    """
    import mmreplay

    if folder is None:
        if not host.startswith("127.") and host.lower() not in ("", "localhost", "::1"):
            click.echo(
                f"Listening on {host}: anyone who can reach this machine and has the token in the "
                f"URL sees the stores, and the connection is not encrypted. An ssh tunnel to "
                f"127.0.0.1 is safer.",
                err=True,
            )
        ready = partial(_ready, browser=not no_browser)
        mmreplay.view(paths, host=host, ready=ready, **settings)
        return
    made = mmreplay.export_view(paths, folder, frames=frames, episode=settings["episode"])
    echo(
        f"{made.path}: {count(made.files, 'file')}, {size(made.n_bytes)}, with the frames of "
        f"{made.exported_episodes:,} of {count(made.episodes, 'episode')}; put it on a web "
        f"server, or try it: python -m http.server --bind 127.0.0.1 --directory {made.path}"
    )


def _ready(url: str, *, browser: bool) -> None:
    click.echo(url)
    # Without a screen, a browser of a terminal would take over the terminal.
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if browser and (has_screen or sys.platform != "linux"):
        click.launch(url)
