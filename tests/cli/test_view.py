"""``mmreplay view``: what it prints, and how it ends."""

import re
from pathlib import Path

import pytest

import mmreplay


def test_the_url_is_printed_and_listening_for_others_is_warned_of(command, store, monkeypatch):
    def view(paths, *, host, port, episode, ready):
        assert (paths, host, port, episode) == ((store, store), "0.0.0.0", 0, -1)
        ready("http://x")

    monkeypatch.setattr(mmreplay, "view", view)
    arguments = ["--no-browser", "--episode", "-1", "--host", "0.0.0.0"]
    result = command("view", store, store, *arguments)
    assert (result.status, result.out) == (0, "http://x\n")
    assert re.match(r"Listening on 0\.0\.0\.0: .*token.*is not encrypted", result.err)


def test_hosts_that_are_none(command, store):
    result = command("view", store, "--host", "")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: host: expected an address")
    result = command("view", store, "--host", "192.0.2.1")
    assert (result.status, "--host" in result.err, "--port" in result.err) == (1, True, False)


def test_a_store_that_is_not_there(command, store):
    result = command("view", store, "none.zarr")
    assert (result.status, result.out) == (1, "")
    assert re.match(r"Error: none\.zarr: .*", result.err)


def test_an_episode_that_there_is_not(command, store):
    result = command("view", store, "--episode", "5")
    assert (result.status, result.out) == (1, "")
    assert "episode 5: there are 5 whole episodes" in result.err


@pytest.mark.parametrize("wrong", [[], ["--port", "x"], ["--port", "70000"], ["--episode", "one"]])
def test_wrong_usage(command, store, wrong):
    result = command("view", *([store] if wrong else []), *wrong)
    assert (result.status, result.out) == (2, "")
    assert "Usage: mmreplay view" in result.err


def test_an_export_says_what_it_wrote(command, store):
    result = command("view", store, "--export", "page", "--frames", "20")
    assert (result.status, result.err) == (0, "")
    assert re.match(
        r"page: \d+ files, \d+ kB, with the frames of \d of 5 episodes; put it on a web server, "
        r"or try it: python -m http\.server --bind 127\.0\.0\.1 --directory page\n",
        result.out,
    )
    assert Path("page/index.html").is_file()
    again = command("view", store, "--export", "page")
    assert (again.status, again.out) == (1, "")
    assert "choose another path" in again.err
