"""Access control in front of everything that the server answers.

Invariant: nothing behind the guard is reached without the token, under another host name, or by
another method than GET and HEAD; and every answer has the security headers.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmreplay.viewer.page import POLICY

_HEADERS = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """An ASGI application in front of another one, which is reached with the token only.

    The token is in the address, then in a cookie, whose name has the port: cookies ignore ports. If
    `host` means all addresses, names of this machine are allowed too.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, host: str) -> None:
        self._app, self._token = app, token
        self._cookie = f"mmreplay-{port}"
        self._names = {"localhost", host.lower()}
        self._is_open = not is_loopback(host)
        if self._is_open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        request, own = Request(scope), dict(_HEADERS)
        refused = self._refused(request)
        if refused is not None:
            own["allow"] = "GET, HEAD"
        elif self._has_token(request):
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            own |= {"cache-control": "no-store", "set-cookie": cookie}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(own)
            await send(message)

        await (refused or self._app)(scope, receive, with_headers)

    def _refused(self, request: Request) -> JSONResponse | None:
        if not self._is_own_name(request.headers.get("host", "")):
            return sorry(
                400,
                "This server answers under its own name only: open the address that "
                "`mmreplay view` printed.",
            )
        if request.method not in ("GET", "HEAD"):
            return sorry(405, "This server answers GET and HEAD only.")
        if not (self._is_token(request.cookies.get(self._cookie, "")) or self._has_token(request)):
            return sorry(
                403,
                "This page needs its token: open the address that `mmreplay view` printed, with "
                "all that follows the question mark.",
            )
        return None

    def _is_own_name(self, host: str) -> bool:
        """Whether a Host header names this machine: the page of a stranger sends its own name."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._is_open

    def _has_token(self, request: Request) -> bool:
        if request.scope["path"] != "/":
            return False
        return self._is_token(request.query_params.get("token", ""))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def sorry(status: int, sentence: str) -> JSONResponse:
    """An error, which the page shows as it is."""
    return JSONResponse({"error": sentence}, status, {"cache-control": "no-store"})
