"""Stores of pictures for the tests of the page, and requests to its server without a browser."""

import asyncio
import json
from dataclasses import dataclass

import numpy as np

import mmreplay
from mmreplay import Field

TOKEN = "the-token"
FRAME = Field((6, 5), "uint8", "lz4", chunk=4, shard=16)


def frame_of(field, seed):
    """A frame that no other seed has."""
    rng = np.random.default_rng(seed)
    if field.dtype.kind == "f":
        return rng.random(field.shape).astype(field.dtype)
    if field.dtype.kind == "b":
        return rng.random(field.shape) < 0.5
    high = int(np.iinfo(field.dtype).max)
    return rng.integers(0, min(high, 1 << 40), field.shape, endpoint=True).astype(field.dtype)


def frames_of(frame, seed):
    """The same for dict observations."""
    if isinstance(frame, Field):
        return frame_of(frame, seed)
    return {key: frame_of(one, seed * 31 + n) for n, (key, one) in enumerate(frame.items())}


def play(writer, frame, length, end="", *, seed=0, **extras):
    """One episode of `length` steps, with an action and a reward that follow from the step."""
    writer.reset(frames_of(frame, seed))
    for step in range(length):
        last = end if step == length - 1 else ""
        writer.step(
            step % 4,
            float(step % 3),
            frames_of(frame, seed + step + 1),
            last == "terminated",
            last == "truncated",
            **extras,
        )


def record_pictures(
    path,
    *,
    frame=FRAME,
    episodes=((9, "terminated"), (21, "truncated"), (7, "")),
    close=True,
    **options,
):
    """A store with these (length, end) of episodes; its writer, closed or not."""
    action = Field((), "int64", chunk=64)
    writer = mmreplay.create(path, frame, action, flush_s=0, **options)
    for number, (length, end) in enumerate(episodes):
        play(writer, frame, length, end, seed=1000 * number)
    if close:
        writer.close()
    return writer


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def ask(
    app, path, *, method="GET", host="127.0.0.1:8000", cookie=f"mmreplay-8000={TOKEN}", **headers
):
    """One request to an ASGI application, by who has the cookie unless told otherwise."""
    path, _, query = path.partition("?")
    given = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if cookie is not None:
        given["cookie"] = cookie
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 40000),
        "root_path": "",
        "http_version": "1.1",
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    async def run():
        await app(scope, receive, send)

    asyncio.run(run())
    start = sent[0]
    names = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return Reply(start["status"], names, body)
