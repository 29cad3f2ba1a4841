"""``mmreplay view``: the page that shows every frame of some stores."""

from __future__ import annotations

import os
import sys

import click

from .whole_number import WholeNumber
from .wording import count, echo, size

_MOST_PORT = 65_535


@click.command("view")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--port",
    type=WholeNumber(min=0, max=_MOST_PORT),
    default=0,
    help="Port to listen on; 0, the default, picks a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--episode", type=int, help="Show this episode of the first store first.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(),
    help="Write the page and its data into a folder for any static host, and exit.",
)
@click.option(
    "--frames",
    type=WholeNumber(min=1),
    metavar="N",
    help="With --export: at most N frames per store, in whole episodes; 20,000 by default.",
)
def view(
    paths: tuple[str, ...],
    port: int,
    host: str,
    no_browser: bool,
    episode: int | None,
    folder: str | None,
    frames: int | None,
) -> None:
    """Show the stores at PATH... in a web page, also while they are written.

    Prints the URL of the page and opens it in a browser if there is one; Ctrl-C ends it. Several
    stores are compared. Needs the extra `view`, except with --export.
    """
    import mmreplay

    if folder is None:
        if frames is not None:
            raise click.UsageError("--frames is for --export only")
        _warn(host)
        mmreplay.view(
            paths,
            host=host,
            port=port,
            episode=episode,
            ready=lambda url: _ready(url, browser=not no_browser),
        )
        return
    made = mmreplay.export_view(
        paths, folder, **({} if frames is None else {"frames": frames}), episode=episode
    )
    echo(
        f"{made.path}: {count(made.files, 'file')}, {size(made.n_bytes)}, with the frames of "
        f"{made.exported_episodes:,} of {count(made.episodes, 'episode')}; put it on a static "
        f"host, or try it: python -m http.server --bind 127.0.0.1 --directory {made.path}"
    )


def _warn(host: str) -> None:
    """Warn about an address that other machines can reach."""
    if not host or _is_loopback(host):
        return
    click.echo(
        f"Listening on {host}: anyone who can reach this machine and has the token in the URL "
        f"sees the stores, and the connection is not encrypted. An ssh tunnel to 127.0.0.1 is "
        f"safer.",
        err=True,
    )


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ready(url: str, *, browser: bool) -> None:
    click.echo(url)
    sys.stdout.flush()
    if browser and _has_browser():
        import threading
        import webbrowser

        # Some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _has_browser() -> bool:
    """Whether there is a screen; else a browser of a terminal would take the terminal."""
    if sys.platform == "linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
