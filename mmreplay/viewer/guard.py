"""Who may ask the server, and how: in front of everything that it answers.

Invariant: nothing behind the guard is reached without the token, with another host's name, or by
another method than GET and HEAD; and every answer carries the rules for the browser.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from mmreplay.viewer.page import POLICY

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_REQUESTS = 64
"""That are answered or wait at the same time; more are told to come again."""

_HEADERS = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """An ASGI application in front of another one.

    Args:
        app: what is behind it.
        token: what the address must have, and then the cookie.
        port: of the server; the cookie is named after it, as cookies know no ports.
        host: that the server listens on. On all addresses, names of this machine are allowed too.
    """

    def __init__(self, app: App, *, token: str, port: int, host: str) -> None:
        self._app, self._token = app, token
        self._cookie = f"mmreplay-{port}"
        self._names = {"localhost", host.lower()}
        self._is_open = not is_loopback(host)
        if self._is_open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._n_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            await _refuse(send, *refused)
            return
        self._n_requests += 1
        try:
            await self._app(scope, receive, self._with_headers(scope, send))
        finally:
            self._n_requests -= 1

    def _refused(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """(status, sentence) for a request that goes no further."""
        if not self._is_own_name(headers.get(b"host", "")):
            return 400, (
                "This server answers under its own name only: open the address that "
                "`mmreplay view` printed."
            )
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only shows: GET and HEAD."
        if not (self._has_cookie(headers) or self._has_token(scope)):
            return 403, (
                "This page needs its token: open the address that `mmreplay view` printed, with "
                "all that follows the question mark."
            )
        if self._n_requests >= MOST_REQUESTS:
            return 503, "Too many pages ask at once; this one asks again in a moment."
        return None

    def _is_own_name(self, host: str) -> bool:
        """Whether a Host header names this server: by a number, or a name that nobody else has.

        A page of a stranger whose name was made to lead here would have that name.
        """
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._is_open

    def _has_cookie(self, headers: dict[bytes, str]) -> bool:
        for part in headers.get(b"cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return hmac.compare_digest(value.encode("latin-1", "replace"), self._token.encode())
        return False

    def _has_token(self, scope: Scope) -> bool:
        if scope["path"] != "/":
            return False
        query = scope["query_string"].decode("latin-1")
        try:
            given = parse_qs(query, max_num_fields=8).get("token", [""])[0] if query else ""
        except ValueError:  # more of them
            return False
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        own = dict(_HEADERS)
        if self._has_token(scope):
            own["set-cookie"] = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            own["cache-control"] = "no-store"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode().lower() not in own]
                message["headers"] = [*kept, *((k.encode(), v.encode()) for k, v in own.items())]
            await send(message)

        return with_headers


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    about = {
        **_HEADERS,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **({"allow": "GET, HEAD"} if status == 405 else {}),  # noqa: PLR2004 (HTTP)
        **({"retry-after": "1"} if status == 503 else {}),  # noqa: PLR2004 (HTTP)
    }
    headers = [(key.encode(), value.encode()) for key, value in about.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
