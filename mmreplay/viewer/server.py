"""The server of the page: routes to answers, which are read in two threads.

Invariant: a route names stores and columns by number; no part of a request becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmreplay.batches.settings import Settings
from mmreplay.errors import InvalidIdError, MissingExtraError, MmreplayError, SchemaError
from mmreplay.viewer.answers import Answer, Answers
from mmreplay.viewer.page import PageFile, page_files
from mmreplay.viewer.viewed_store import GoneError, sentence

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from mmreplay.viewer.guard import Guard, sorry
except ImportError as error:
    raise MissingExtraError(
        'the page needs Starlette and uvicorn: pip install "mmreplay[view]"'
    ) from error

_LOG = logging.getLogger("mmreplay")
_THREADS = 2  # each has buffers to decode into, for each column of frames
_YEAR = "private, max-age=31536000, immutable"
_STATUS = ((GoneError, 410), (InvalidIdError, 404), (SchemaError, 400))
_FAILED = 422
_MOST_CONNECTIONS = 256


_STORE = "/data/{number:int}"
_EPISODE = f"{_STORE}/{{version}}/episode/{{first:int}}"
_SPAN = "{start:int}-{stop:int}"


def serve(
    answers: Answers, listener: socket.socket, host: str, token: str, ready: Callable[[], None]
) -> None:
    """Serve the page on an open socket until Ctrl-C; calls `ready` when it can be opened."""
    config = uvicorn.Config(
        make_app(answers, token=token, port=listener.getsockname()[1], host=host),
        access_log=False,
        log_config=None,
        lifespan="off",
        log_level="critical",  # requests that are not HTTP are not worth a message
        http="h11",
        ws="none",
        loop="asyncio",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready()  # only now does Ctrl-C end it cleanly

    with contextlib.suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


def make_app(answers: Answers, *, token: str, port: int, host: str = "127.0.0.1") -> ASGIApp:
    """The ASGI application that shows some stores to anyone with the token; see `Guard`."""
    readers = ThreadPoolExecutor(_THREADS, "mmreplay-view")

    def route(path: str, answer: Callable[..., Answer]) -> Route:
        async def respond(request: Request) -> Response:
            loop = asyncio.get_running_loop()
            given = request.path_params
            return await loop.run_in_executor(readers, _respond, request, answer, given)

        return Route(path, respond, methods=["GET"])

    def transitions(stack: int, n_step: int, gamma: str, padding: str, **given: Any) -> Answer:
        settings = Settings(stack, n_step, _number("gamma", gamma), padding)
        return answers.transitions(**given, settings=settings)

    routes = [
        Route("/", _file, methods=["GET"]),
        Route("/static/{name}", _file, methods=["GET"]),
        route("/data/stores.json", answers.about),
        route("/data/heads.json", answers.heads),
        route("/data/distributions.json", answers.distributions),
        route(f"{_STORE}/episodes.bin", answers.episodes),
        route(f"{_EPISODE}.json", answers.episode),
        route(f"{_EPISODE}/rows/{{column:int}}/{_SPAN}.bin", answers.rows),
        route(
            f"{_EPISODE}/transitions/{{stack:int}}/{{n_step:int}}/{{gamma}}/"
            f"{{padding}}/{_SPAN}.bin",
            transitions,
        ),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port, host=host)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SchemaError(f"{name}: expected a number, found {text[:40]!r}") from error


def _respond(request: Request, answer: Callable[..., Answer], given: dict[str, Any]) -> Response:
    try:
        found = answer(**given)
    except (MmreplayError, OSError) as error:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), _FAILED)
        return sorry(status, sentence(error))
    except Exception:  # noqa: BLE001 (one failed answer does not end the server)
        _LOG.exception("viewer: %s", request.url.path)
        return sorry(500, "This is a bug in mmreplay; the terminal has the details.")
    media_type = "application/json" if found.is_json else "application/octet-stream"
    if found.is_final:
        headers = {"cache-control": _YEAR}
    elif found.etag is not None:
        headers = {"cache-control": "no-cache", "etag": f'"{found.etag}"'}
    else:
        headers = {"cache-control": "no-store"}
    return _unless_known(request, found.body, media_type, headers)


def _unless_known(
    request: Request, body: bytes, media_type: str, headers: dict[str, str]
) -> Response:
    if "etag" in headers and request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


async def _file(request: Request) -> Response:
    """A file of the page."""
    file: PageFile | None = page_files().get(request.path_params.get("name", "index.html"))
    if file is None:
        return sorry(404, "There is no such file.")
    headers = {"cache-control": "no-cache", "etag": f'"{file.etag}"'}
    return _unless_known(request, file.body, file.media_type, headers)
