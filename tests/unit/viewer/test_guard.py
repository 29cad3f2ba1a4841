"""Which requests reach the server."""

import pytest

from mmreplay.viewer.guard import Guard
from mmreplay.viewer.page import POLICY
from tests.support.viewed import TOKEN, ask


async def hello(scope, receive, send):
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def guard():
    return Guard(hello, token=TOKEN, port=8000, host="127.0.0.1")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:8000", "localhost", "127.0.0.1:1234", "[::1]:8000"]
)
def test_own_names_are_answered_with_any_port(guard, host):
    assert ask(guard, "/", host=host).body == b"hello"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "10.0.0.1:8000", "[::2]"],
)
def test_another_host_is_refused_whatever_else_is_right(guard, host):
    reply = ask(guard, f"/?token={TOKEN}", host=host)
    assert (reply.status, "own name" in reply.json["error"]) == (400, True)
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "FOO"])
def test_other_methods_are_refused(guard, method):
    reply = ask(guard, "/", method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "cookie",
    [
        None,
        "",
        "mmreplay-8000=",
        "mmreplay-8000=other",
        f"mmreplay-8001={TOKEN}",
        f"x={TOKEN}",
        "ä",
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/static/app.js",
        "/data/stores.json",
        "/?token=wrong",
        "/?a&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1&j=1",
    ],
)
def test_without_the_token_nothing_is_shown(guard, cookie, path):
    reply = ask(guard, path, cookie=cookie)
    assert (reply.status, "token" in reply.json["error"]) == (403, True)


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(guard):
    reply = ask(guard, f"/?token={TOKEN}", cookie=None)
    assert (reply.status, reply.body) == (200, b"hello")
    assert reply.headers["set-cookie"] == (
        f"mmreplay-8000={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    )
    assert ask(guard, "/data/x", cookie=f"a=b; mmreplay-8000={TOKEN}").status == 200


def test_the_token_opens_the_page_only_and_nothing_else(guard):
    assert ask(guard, f"/data/stores.json?token={TOKEN}", cookie=None).status == 403


@pytest.mark.parametrize("cookie", [f"mmreplay-8000={TOKEN}", None])
def test_every_answer_has_the_rules_for_the_browser(guard, cookie):
    headers = ask(guard, "/", cookie=cookie).headers
    assert headers["content-security-policy"] == f"{POLICY}; frame-ancestors 'none'"
    assert "script-src 'self';" in POLICY
    assert POLICY.startswith("default-src 'none';")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_on_all_addresses_numbers_are_answered_and_strange_names_are_not():
    guard = Guard(hello, token=TOKEN, port=8000, host="0.0.0.0")
    assert ask(guard, "/", host="10.1.2.3:8000").status == 200
    assert ask(guard, "/", host="evil.example:8000").status == 400
    assert ask(guard, "/", host="10.1.2.3:8000", cookie=None).status == 403
