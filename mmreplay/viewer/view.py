"""`view`: serve the page on some stores until somebody ends it."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

from mmreplay.arguments import any_whole_number, whole_number
from mmreplay.errors import MissingExtraError, MmreplayError, SchemaError
from mmreplay.viewer.answers import Answers

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MOST_PORT = 65_535
_MOST_CONNECTIONS = 256
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
        paths: one store, or several, which are compared.
        host: the address to listen on. On another one than a loopback address, whoever reaches
            this machine and has the token sees the stores, and so does who listens on the way.
        port: 0 for one that is free.
        episode: the number of an episode of the first store, which the page shows first; a
            negative one counts from the end.
        ready: called with the URL when the page can be opened; None prints it.

    Raises:
        MissingExtraError: Starlette or uvicorn is not installed.
        MmreplayError: a store cannot be opened, the port is taken, or no such host is here. Of
            several stores a damaged one says so in the page instead.
        SchemaError: there is no such episode; no host.
    """
    port = whole_number("port", port, 0, _MOST_PORT)
    if not host:
        raise SchemaError("host: expected an address of this machine or its name, found ''")
    answers = Answers(listed(paths))
    try:
        if episode is not None:
            answers.start = {"store": 0, "episode": first_id(answers, episode)}
        _serve(answers, host, port, ready or _print_url)
    finally:
        answers.close()


def listed(paths: Paths) -> list[str | os.PathLike[str]]:
    """The stores to show; raises SchemaError for none, or for more than a page can show."""
    out = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not 1 <= len(out) <= _MOST_STORES:
        raise SchemaError(f"paths: expected 1 to {_MOST_STORES} stores, found {len(out)}")
    return out


def first_id(answers: Answers, episode: int) -> str:
    """The id of an episode's first transition, as text: JSON's numbers are too short for some."""
    number = any_whole_number("episode", episode)
    found = answers.stores[0].store.episodes
    if not -len(found) <= number < len(found):
        raise SchemaError(
            f"{answers.stores[0].path}: episode {number}: there are {len(found)} whole episodes"
        )
    return str(int(found[number]["id"]))


def _serve(answers: Answers, host: str, port: int, ready: Callable[[str], None]) -> None:
    from mmreplay.viewer.server import Connection, make_app  # noqa: PLC0415 (an extra)

    try:
        import uvicorn  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError(
            'the page needs Starlette and uvicorn: pip install "mmreplay[view]"'
        ) from error

    with _listen(host, port) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        options: dict[str, Any] = {"access_log": False, "log_config": None, "lifespan": "off"}
        config = uvicorn.Config(
            make_app(answers, token=token, port=port, host=host),
            **options,
            log_level="critical",  # what is no HTTP is nothing to tell the user
            http=Connection,
            ws="none",
            loop="asyncio",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        try:
            ready(f"http://{_shown(host)}:{port}/?token={token}")
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # how it is ended
            return


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "choose another --port, 0 for one that is free"
        no_host = isinstance(error, (socket.gaierror, UnicodeError))
        if no_host or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            advice = "choose another --host: an address of this machine or its name"
        raise MmreplayError(f"cannot listen on {host}, port {port}: {reason}; {advice}") from error


def _shown(host: str) -> str:
    """A host as it stands in a URL on this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not listened on)
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _print_url(url: str) -> None:
    print(url, flush=True)  # noqa: T201 (what it was called for)
