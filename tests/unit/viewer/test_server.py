"""The routes: what is answered, and what a browser may keep."""

import pytest

from mmreplay.viewer import answers
from mmreplay.viewer.answers import Answers
from mmreplay.viewer.server import make_app
from tests.support.packed import unpack
from tests.support.viewed import TOKEN, ask, record_pictures


@pytest.fixture
def app(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr", episodes=[(9, "terminated"), (70, "")])
    held = Answers([tmp_path / "s.zarr"])
    yield make_app(held, token=TOKEN, port=8000)
    held.close()


@pytest.fixture
def episode(app):
    """The path of its first episode."""
    version = ask(app, "/data/heads.json").json[0]["version"]
    return f"/data/0/{version}/episode/0"


def test_page_and_files(app):
    assert b"<title>mmreplay</title>" in ask(app, "/").body
    reply = ask(app, "/static/app.js")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    etag = reply.headers["etag"]
    assert ask(app, "/static/app.js", if_none_match=etag).status == 304
    assert ask(app, "/static/app.js", method="HEAD").headers == reply.headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/index.htm",
        "/static/",
        "/etc/passwd",
        "/data/../../etc/passwd",
        "/data/0/x/episode/0/rows/0/../../0-1.bin",
        "/data/s.zarr/episodes.bin",
        "/data/-1/episodes.bin",
        "/data/1/episodes.bin",
        "/store/0/zarr.json",
    ],
)
def test_paths_lead_nowhere_else(app, path):
    reply = ask(app, path)
    assert reply.status == 404
    assert b"root:" not in reply.body
    assert b"import" not in reply.body


def test_heads_are_not_sent_twice(app):
    reply = ask(app, "/data/heads.json")
    assert reply.headers["cache-control"] == "no-cache"
    known = ask(app, "/data/heads.json", if_none_match=reply.headers["etag"])
    assert (known.status, known.body) == (304, b"")


def test_final_blocks_may_be_kept_for_ever(app, episode):
    reply = ask(app, f"{episode}/rows/0/0-10.bin")
    assert "immutable" in reply.headers["cache-control"]
    assert unpack(reply.body)[0]["rows"].shape == (10, 6, 5)
    reply = ask(app, f"{episode}/transitions/4/3/0.9/zero/0-9.bin")
    assert "immutable" in reply.headers["cache-control"]
    assert unpack(reply.body)[0]["seen"].tolist()[0] == [-1, -1, -1, 0]
    assert ask(app, f"{episode}/transitions/4/3/1e-7/zero/0-9.bin").status == 200
    assert ask(app, f"{episode}.json").headers["cache-control"] == "no-cache"
    assert ask(app, f"{episode}/rows/4/0-9.bin").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("{episode}/rows/0/0-11.bin", 400),
        ("{episode}/rows/9/0-1.bin", 404),
        ("{episode}/transitions/0/1/0.9/reset/0-1.bin", 400),
        ("{episode}/transitions/4/1/7/reset/0-1.bin", 400),
        ("{episode}/transitions/4/1/nan/reset/0-1.bin", 400),
        ("{episode}/transitions/4/1/many/reset/0-1.bin", 400),
        ("{episode}/transitions/4/1/0.9/<b>/0-1.bin", 400),
        ("/data/0/older/episode/0/rows/0/0-1.bin", 410),
        ("/data/0/older/episode/0.json", 410),
    ],
)
def test_what_there_is_not_is_a_sentence_and_not_kept(app, episode, path, status):
    reply = ask(app, path.format(episode=episode))
    assert (reply.status, reply.headers["cache-control"]) == (status, "no-store")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["error"]


def test_a_fault_of_its_own_is_told_and_logged(app, episode, monkeypatch, caplog):
    monkeypatch.setattr(answers, "find_episode", lambda *_: 1 / 0)
    reply = ask(app, f"{episode}.json")
    assert (reply.status, "bug in mmreplay" in reply.json["error"]) == (500, True)
    assert "ZeroDivisionError" in caplog.text
