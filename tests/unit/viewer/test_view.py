"""`view`: serves until it is ended, and says what keeps it from that."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import mmreplay
from mmreplay import MissingExtraError, MmreplayError, SchemaError, StoreNotFoundError
from mmreplay.viewer.view import listed
from tests.support.viewed import record_pictures

CODE = "import sys, mmreplay; mmreplay.view(sys.argv[1:])"


@pytest.fixture
def recorded(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def test_the_first_line_is_the_url_and_an_interrupt_ends_it(recorded):
    """Requests that are not HTTP are answered by an error or nothing, and end nothing."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", CODE, recorded], stdout=pipe, stderr=pipe, text=True
    ) as process:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        parts = urlsplit(url)
        for sent in (b"\0\xff\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"GET " + b"/" * 100_000):
            with socket.create_connection((parts.hostname, parts.port), timeout=30) as odd:
                odd.sendall(sent)
                odd.shutdown(socket.SHUT_WR)
                assert not odd.recv(64).startswith(b"HTTP/1.1 2")
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        connection.request("GET", f"/?{parts.query}")
        reply = connection.getresponse()
        assert (reply.status, b"mmreplay" in reply.read()) == (200, True)
        cookie = reply.headers["set-cookie"].partition(";")[0]
        connection.request("GET", "/data/stores.json", headers={"Cookie": cookie})
        reply = connection.getresponse()
        assert (reply.status, b"s.zarr" in reply.read()) == (200, True)
        # The connection stays open, as a browser's does.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        connection.close()
    assert (process.returncode, out, err) == (0, "", "")


def test_a_port_that_is_taken_is_named(recorded):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MmreplayError, match=rf"port {port}: .*--port"):
            mmreplay.view(recorded, port=port, ready=lambda url: os._exit(1))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1", "\0", "x" * 300])
def test_a_host_that_is_none_is_named(recorded, host):
    with pytest.raises(MmreplayError, match=r"cannot listen.* --host"):
        mmreplay.view(recorded, host=host, ready=lambda url: os._exit(1))


def test_wrong_arguments_are_refused_before_anything_is_served(recorded, tmp_path):
    for wrong in (
        {"port": -1},
        {"port": 65_536},
        {"host": ""},
        {"episode": 3},
        {"episode": -4},
        {"episode": 1.5},
    ):
        with pytest.raises(SchemaError):
            mmreplay.view(recorded, ready=lambda url: os._exit(1), **wrong)
    with pytest.raises(StoreNotFoundError):
        mmreplay.view([recorded, tmp_path / "none.zarr"])


def test_some_stores_are_shown_and_not_none(tmp_path):
    assert listed("a.zarr") == [Path("a.zarr")]
    assert listed((tmp_path, "b")) == [tmp_path, Path("b")]
    with pytest.raises(SchemaError, match="1 to 64 stores"):
        listed(["a"] * 65)
    with pytest.raises(StoreNotFoundError, match="paths: expected one path or more"):
        listed([])
    for name in ("y2.zarr", "y1.zarr"):
        (tmp_path / name).touch()
    assert listed(f"{tmp_path}/y*.zarr") == [tmp_path / "y1.zarr", tmp_path / "y2.zarr"]


@pytest.mark.parametrize("missing", ["starlette.applications", "uvicorn"])
def test_a_missing_extra_says_what_to_install(recorded, missing, monkeypatch):
    monkeypatch.delitem(sys.modules, "mmreplay.viewer.server", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmreplay\[view\]"'):
        mmreplay.view(recorded, ready=lambda url: os._exit(1))
