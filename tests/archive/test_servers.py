"""The same over HTTP: a server of S3 on this machine, and one that only serves files."""

import functools
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

import mmreplay
from tests.support.archives import assert_same, begin, write
from tests.support.numbered_steps import ACTION, play


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    one = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    one.start()
    host, port = one.get_host_and_port()
    yield f"http://{host}:{port}"
    one.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """The URL of an empty bucket; the rest is in the environment, as users have it."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(
        urllib.request.Request(f"{server}/moto-api/reset", method="POST")
    ).close()
    urllib.request.urlopen(urllib.request.Request(f"{server}/pong", method="PUT")).close()
    return "s3://pong/runs/first"


@pytest.mark.parametrize("kind", ["lz4, one", "raw, vector", "zstd, named"])
def test_a_store_goes_to_s3_and_back(kind, bucket):
    writer, width = begin("a.zarr", kind, 60, capacity=None)
    mmreplay.push("a.zarr", bucket)
    assert mmreplay.push("a.zarr", bucket).sent_objects == 0
    mmreplay.pull(bucket, "b.zarr")
    play(writer, 60, width, reset=False)
    writer.close()
    mmreplay.push("a.zarr", bucket, grace_s=0)
    assert mmreplay.push("a.zarr", bucket, grace_s=0).removed_objects > 0
    pulled = mmreplay.pull(bucket, "b.zarr")
    assert pulled.received_bytes < pulled.bytes
    assert_same("a.zarr", "b.zarr")


def test_s3_refuses_the_later_of_two_pushes(bucket, monkeypatch):
    from mmreplay.archive.objects import Objects

    exchange = Objects.exchange
    for first in (True, False):
        path = "first.zarr" if first else "other.zarr"
        if first:
            write(path, n_steps=8)
            write("other.zarr", n_steps=20)
        else:
            with mmreplay.create(path, append=True) as writer:
                play(writer, 30)

        def overtaken(self, *arguments):
            monkeypatch.setattr(Objects, "exchange", exchange)
            mmreplay.push("other.zarr", bucket)
            exchange(self, *arguments)

        monkeypatch.setattr(Objects, "exchange", overtaken)
        with pytest.raises(mmreplay.LockedError, match="another push"):
            mmreplay.push(path, bucket)
    mmreplay.pull(bucket, "b.zarr")
    assert_same("other.zarr", "b.zarr")


def test_a_bucket_that_is_not_there_or_may_not_be_read_is_said(bucket, server):
    write("a.zarr", n_steps=20)
    with pytest.raises(mmreplay.MmreplayError, match="s3://nowhere/x"):
        mmreplay.push("a.zarr", "s3://nowhere/x")
    with pytest.raises(mmreplay.MmreplayError, match="s3://nowhere/x"):
        mmreplay.pull("s3://nowhere/x", "b.zarr")
    assert sorted(os.listdir()) == ["a.zarr"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    slow_s = 0.0

    def log_message(self, *_):
        pass

    def do_GET(self):
        time.sleep(self.slow_s)
        super().do_GET()


@pytest.fixture
def files(tmp_path):
    """The URL of a server of the files in the folder."""
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()
        thread.join()


def test_an_archive_can_be_pulled_from_a_server_of_files(files, tmp_path, monkeypatch):
    from mmreplay.archive import objects

    monkeypatch.setitem(objects._CLIENT, "allow_http", "true")
    write("a.zarr", "lz4, named")
    mmreplay.push("a.zarr", f"file://{tmp_path}/archive")
    mmreplay.pull(f"{files}/archive", "b.zarr")
    assert_same("a.zarr", "b.zarr")
    with pytest.raises(mmreplay.StoreNotFoundError, match="no archive"):
        mmreplay.pull(f"{files}/nowhere", "c.zarr")
    with pytest.raises(mmreplay.FailedStoreError):
        mmreplay.push("a.zarr", f"{files}/other")


PULL = """
import sys, mmreplay
from mmreplay.archive import objects
objects._CLIENT["allow_http"] = "true"
mmreplay.pull(sys.argv[1], "b.zarr", progress=lambda done, total: print(done, flush=True))
"""


def test_a_pull_that_is_killed_at_any_time_goes_on(files, tmp_path, monkeypatch):
    monkeypatch.setattr(_Quiet, "slow_s", 0.01)
    write("a.zarr", "lz4, vector", 300)
    pushed = mmreplay.push("a.zarr", f"file://{tmp_path}/archive")
    url = f"{files}/archive"
    for n_lines in (1, 10, 40, 90):
        child = subprocess.Popen(
            [sys.executable, "-c", PULL, url], stdout=subprocess.PIPE, text=True
        )
        for _ in range(n_lines):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if os.path.exists("b.zarr"):
            break
    assert not os.path.exists("b.zarr")
    pulled = mmreplay.pull(f"file://{tmp_path}/archive", "b.zarr")
    assert 0 < pulled.received_bytes < pushed.bytes
    assert_same("a.zarr", "b.zarr")


def test_a_push_that_is_killed_leaves_the_last_archive(bucket, tmp_path):
    write("a.zarr", "lz4, vector", 100)
    mmreplay.push("a.zarr", bucket)
    mmreplay.snapshot("a.zarr", "old.zarr")
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 200, 3)
    code = PULL.replace("pull(sys.argv[1], 'b.zarr'", "").replace(
        'pull(sys.argv[1], "b.zarr"', 'push("a.zarr", sys.argv[1]'
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, bucket], stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    mmreplay.pull(bucket, "b.zarr")
    assert_same("old.zarr", "b.zarr")
    pushed = mmreplay.push("a.zarr", bucket)
    assert pushed.sent_objects < pushed.objects
    mmreplay.pull(bucket, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_large_objects_are_sent_in_parts(bucket, monkeypatch):
    from mmreplay.archive import objects

    monkeypatch.setattr(objects, "_ONE_REQUEST_BYTES", 1 << 20)
    frame = mmreplay.Field((1 << 20,), "uint8", "raw", chunk=12)
    with mmreplay.create("a.zarr", frame, ACTION, flush_s=0) as writer:
        writer.reset(noise(0))
        for t in range(30):
            writer.step(0, 0.0, noise(t + 1))
    mmreplay.push("a.zarr", bucket)
    mmreplay.pull(bucket, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def noise(number):
    return np.random.default_rng(number).integers(0, 256, 1 << 20, "uint8")
