"""``python -m benchmarks.archive``: push and pull beside obstore alone, and sampling from a mirror.

Of the environment of `make test-archive`. A server of S3 runs on this machine, in a process of its
own; both sides of a ratio take turns. With ``--url`` another storage is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks.results import Result
from benchmarks.timing import spread

_PULL, _SAMPLED = 0.8, 0.97
_AT_ONCE = 16
_ENVS = 16
_BATCHES = 200


def _write(path: Path, n_rows: int) -> None:
    """A vector lane whose frames compress about as Breakout's do."""
    random = np.random.default_rng(0)
    frames = np.zeros((64, _ENVS, 84, 84), np.uint8)
    frames[:, :, 10:74, 8:76] = 142
    frames[:, :, ::7, ::5] = random.integers(0, 256, frames[:, :, ::7, ::5].shape)
    frame, action = mmreplay.Field((84, 84), "uint8"), mmreplay.Field((), "int64")
    with mmreplay.create(path, frame, action, lanes=_ENVS, append=path.exists()) as writer:
        writer.reset(frames[0])
        for t in range(n_rows // _ENVS):
            ends = np.arange(_ENVS) == t % 64
            writer.step([t % 4] * _ENVS, [1.0] * _ENVS, frames[t % 64], ends, ends & False)
            if ends.any():
                writer.reset(frames[t % 64], mask=ends)


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    out = call(*arguments)
    return time.perf_counter() - began, out


def _each(call: Callable[[Any], Any], items: list[Any]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(call, items):
            pass


def _get_file(obstore: Any, store: Any, folder: Path, key: str) -> None:
    """To the disk, as durable as a pull."""
    with (folder / key.replace("/", "~")).open("wb") as file:
        for piece in obstore.get(store, key).stream():
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _put(obstore: Any, store: Any, objects: dict[str, bytes], key: str) -> None:
    obstore.put(store, key, objects[key])


def run(result: Result, url: str, folder: Path, n_rows: int, runs: int) -> None:
    """Measure all of it below `url`."""
    import obstore
    from obstore.store import from_url

    path = folder / "a.zarr"
    _write(path, n_rows)
    seconds, pushed = _timed(mmreplay.push, path, f"{url}/0")
    result.details["bytes"], result.details["objects"] = pushed.bytes, pushed.objects
    result.add("the first push", pushed.bytes / seconds / 1e6, "MB/s")
    again = [_timed(mmreplay.push, path, f"{url}/0") for _ in range(runs)]
    assert all(done.sent_objects == 0 for _, done in again)
    result.add("a push of what is there", spread([s * 1e3 for s, _ in again]), "ms")
    store = from_url(f"{url}/0")
    keys = [one["path"] for some in obstore.list(store) for one in some if "@" in one["path"]]
    assert len(keys) == pushed.objects
    objects = {key: bytes(obstore.get(store, key).bytes()) for key in keys}

    got, to_files, pulled, put, sent = [], [], [], [], []
    files = folder / "files"
    for number in range(runs):
        got.append(_timed(_each, lambda key: obstore.get(store, key).bytes(), keys)[0])
        files.mkdir()
        to_files.append(_timed(_each, functools.partial(_get_file, obstore, store, files), keys)[0])
        shutil.rmtree(files)
        seconds, done = _timed(mmreplay.pull, f"{url}/0", folder / f"mirror-{number}.zarr")
        assert done.received_bytes == pushed.bytes
        pulled.append(seconds)
        other = from_url(f"{url}/put-{number}")
        one = functools.partial(_put, obstore, other, objects)
        put.append(_timed(_each, one, keys)[0])
        sent.append(_timed(mmreplay.push, path, f"{url}/push-{number}")[0])
    megabytes = pushed.bytes / 1e6
    for what, times in (("get", got), ("get to files", to_files), ("put", put)):
        result.add(f"obstore alone, {what}", spread([megabytes / s for s in times]), "MB/s")
    result.add("pull", spread([megabytes / s for s in pulled]), "MB/s")
    ratios = [one / other for one, other in zip(got, pulled, strict=True)]
    result.add("pull beside obstore alone", spread(ratios), "", at_least=_PULL)
    ratios = [one / other for one, other in zip(to_files, pulled, strict=True)]
    result.add("pull beside obstore to files", spread(ratios), "")
    ratios = [one / other for one, other in zip(put, sent, strict=True)]
    result.add("push beside obstore alone", spread(ratios), "")

    with (
        mmreplay.load(path, stack=4) as local,
        mmreplay.load(folder / "mirror-0.zarr", stack=4) as mirror_data,
    ):
        assert np.array_equal(local.sample(64).observation, mirror_data.sample(64).observation)
        taken: dict[str, list[float]] = {"local": [], "mirror": []}
        for _ in range(2 * runs):
            for name, data in (("local", local), ("mirror", mirror_data)):
                began = time.process_time()
                for _ in range(_BATCHES):
                    data.sample(32)
                taken[name].append((time.process_time() - began) / _BATCHES * 1e6)
    result.add("a batch, local", spread(taken["local"]), "us")
    result.add("a batch, mirror", spread(taken["mirror"]), "us")
    ratios = [one / two for one, two in zip(taken["local"], taken["mirror"], strict=True)]
    result.add("sampling from a mirror beside local", spread(ratios), "", at_least=_SAMPLED)

    _write(path, n_rows // 10)
    seconds, done = _timed(mmreplay.push, path, f"{url}/0")
    result.add("a push of a tenth more", seconds * 1e3, "ms")
    result.add("bytes of it that were sent", done.sent_bytes / 1e6, "MB")


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The URL of a bucket of a server in a process of its own."""
    code = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '5555'])"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = "http://127.0.0.1:5555"
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"{endpoint}/pong", method="PUT")  # noqa: S310
                urllib.request.urlopen(request).close()  # noqa: S310
                break
            time.sleep(0.2)
        yield "s3://pong/bench"
    finally:
        child.terminate()
        child.wait()


def main() -> None:
    """Measure, print, and write a result if a folder is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--url", help="default: a server of S3 on this machine")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mmreplay-archive-"))
    result = Result("archive", {"rows": options.rows, "runs": options.runs})
    try:
        given = contextlib.nullcontext(options.url) if options.url else _server()
        with given as url:
            run(result, url, folder, options.rows, options.runs)
        if options.results:
            print(result.write(options.results, folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
