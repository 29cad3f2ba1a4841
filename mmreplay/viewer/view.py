"""`view`: serve the page on some stores until Ctrl-C."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from mmreplay.arguments import whole_number
from mmreplay.errors import MmreplayError, SchemaError
from mmreplay.system import user_paths
from mmreplay.viewer.answers import Answers

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_print = functools.partial(print, flush=True)
_MOST_PORT = 65_535
_MOST_STORES = 64


def view(
    paths: Paths,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    episode: int | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Show stores in a web page, also while they are written, until Ctrl-C.

    Args:
        paths: one store, or several or a glob pattern, which are compared.
        host: the address to listen on. On any but a loopback address, everyone who can reach this
            machine and has the token sees the stores, and the connection is not encrypted.
        port: 0 for a free one.
        episode: the number of an episode of the first store, which the page shows first; a
            negative one counts from the end.
        ready: called with the URL when the page can be opened; None prints it.

    Raises:
        MissingExtraError: Starlette or uvicorn is not installed.
        SchemaError: there is no such episode, or no host.
        MmreplayError: a store cannot be opened, or the address is not free.
    """
    port = whole_number("port", port, 0, _MOST_PORT)
    if not host:
        raise SchemaError("host: expected an address of this machine or its name, found ''")
    answers = Answers(listed(paths))
    try:
        if episode is not None:
            answers.start = {"store": 0, "episode": first_id(answers, episode)}
        from mmreplay.viewer.server import serve  # noqa: PLC0415 (an extra)

        with _listen(host, port) as listener:
            token = secrets.token_urlsafe(24)
            url = f"http://{_shown(host)}:{listener.getsockname()[1]}/?token={token}"
            serve(answers, listener, host, token, lambda: (ready or _print)(url))
    finally:
        answers.close()


def listed(paths: Paths) -> list[Path]:
    """The stores to show; raises SchemaError for too many."""
    out = user_paths.matching(paths, "paths")
    if len(out) > _MOST_STORES:
        raise SchemaError(f"paths: expected 1 to {_MOST_STORES} stores, found {len(out)}")
    return out


def first_id(answers: Answers, episode: int) -> str:
    """The id of an episode's first transition, as text: JavaScript rounds large numbers."""
    number = whole_number("episode", episode, None)
    found = answers.stores[0].store.episodes
    if not -len(found) <= number < len(found):
        raise SchemaError(
            f"{answers.stores[0].path}: episode {number}: there are {len(found)} whole episodes"
        )
    return str(int(found[number]["id"]))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "choose another --port, or 0 for a free one"
        no_host = isinstance(error, (socket.gaierror, UnicodeError))
        if no_host or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            advice = "choose another --host: an address of this machine or its name"
        raise MmreplayError(f"cannot listen on {host}, port {port}: {reason}; {advice}") from error


def _shown(host: str) -> str:
    """A host as part of a URL on this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not listened on)
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host
