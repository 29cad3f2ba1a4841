"""The server of the page: routes to answers, which two threads read.

Invariant: a route names stores and columns by number; nothing of a request becomes a path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmreplay.batches.settings import Settings
from mmreplay.errors import InvalidIdError, MissingExtraError, MmreplayError, SchemaError
from mmreplay.viewer.answers import Answer, Answers
from mmreplay.viewer.guard import App, Guard
from mmreplay.viewer.page import PageFile, page_files
from mmreplay.viewer.viewed_store import GoneError, sentence

try:
    from starlette.applications import Starlette
    from starlette.convertors import Convertor, register_url_convertor
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError(
        'the page needs Starlette and uvicorn: pip install "mmreplay[view]"'
    ) from error

_LOG = logging.getLogger("mmreplay")
_THREADS = 2  # each keeps room to decode in, for each column of frames
_YEAR = "private, max-age=31536000, immutable"
_STATUS = ((GoneError, 410), (InvalidIdError, 404), (SchemaError, 400))
_FAILED = 422


class _Number(Convertor[int]):
    """A whole number of as many digits as an id has."""

    regex = "[0-9]{1,19}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class Connection(H11Protocol):
    """A connection, which is closed if no whole request comes: only so many are served at once."""

    patience_s = 10.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take some of a request, and wait for the rest of it if there is more."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        cycle: Any = self.cycle  # None before the first
        if cycle is not None and not cycle.response_complete:  # it is answered
            self._stop()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.patience_s, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


register_url_convertor("number", _Number())
_STORE = "/data/{store:number}"
_EPISODE = f"{_STORE}/{{version}}/episode/{{first:number}}"
_SPAN = "{start:number}-{stop:number}"


def make_app(answers: Answers, *, token: str, port: int, host: str = "127.0.0.1") -> App:
    """The ASGI application that shows some stores to who has the token.

    Args:
        answers: about the stores.
        token: that the address needs.
        port: that the server listens on: the cookie is named after it.
        host: that the server listens on, for the check of names.
    """
    readers = ThreadPoolExecutor(_THREADS, "mmreplay-view")

    def route(path: str, answer: Callable[..., Answer]) -> Route:
        async def respond(request: Request) -> Response:
            loop = asyncio.get_running_loop()
            given = request.path_params
            return await loop.run_in_executor(readers, _respond, request, answer, given)

        return Route(path, respond, methods=["GET"])

    def transitions(stack: int, n_step: int, gamma: str, padding: str, **given: Any) -> Answer:
        settings = Settings(stack, n_step, _number("gamma", gamma), padding)
        return answers.transitions(**_renamed(given), settings=settings)

    routes = [
        Route("/", _file, methods=["GET"]),
        Route("/static/{name}", _file, methods=["GET"]),
        route("/data/stores.json", answers.about),
        route("/data/heads.json", answers.heads),
        route("/data/distributions.json", answers.distributions),
        route(f"{_STORE}/episodes.bin", lambda store: answers.episodes(number=store)),
        route(f"{_EPISODE}.json", lambda **given: answers.episode(**_renamed(given))),
        route(
            f"{_EPISODE}/rows/{{column:number}}/{_SPAN}.bin",
            lambda **given: answers.rows(**_renamed(given)),
        ),
        route(
            f"{_EPISODE}/transitions/{{stack:number}}/{{n_step:number}}/{{gamma}}/"
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


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """The parts of a path as arguments of `Answers`."""
    return {"number": given.pop("store"), **given}


def _respond(request: Request, answer: Callable[..., Answer], given: dict[str, Any]) -> Response:
    """An answer as a response, or the sentence of what kept it from being one."""
    try:
        found = answer(**given)
    except (MmreplayError, OSError) as error:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), _FAILED)
        return _sorry(status, sentence(error))
    except Exception:  # noqa: BLE001 (the page goes on, whatever one answer ran into)
        _LOG.exception("viewer: %s", request.url.path)
        return _sorry(500, "This is a fault of mmreplay itself; the terminal has the details.")
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


def _sorry(status: int, why: str) -> Response:
    body = json.dumps({"error": why})
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


async def _file(request: Request) -> Response:
    """A file of the page."""
    file: PageFile | None = page_files().get(request.path_params.get("name", "index.html"))
    if file is None:
        return _sorry(404, "There is no such file.")
    headers = {"cache-control": "no-cache", "etag": f'"{file.etag}"'}
    return _unless_known(request, file.body, file.media_type, headers)
