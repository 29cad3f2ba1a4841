"""Stores to go through in epochs, of every kind of lane, and how often their chunks are decoded."""

import numpy as np

import mmreplay
from mmreplay import Field

_LZ4 = Field((4, 4), "uint8", "lz4", 16, 256)
KINDS = {
    "one lane": {"frame": _LZ4},
    "zstd": {"frame": Field((4, 4), "uint8", "zstd", 16, 256)},
    "two lanes": {"frame": _LZ4, "n_stores": 2},
    "many environments": {"frame": _LZ4, "lanes": 3},
    "many environments, and one": {"frame": _LZ4, "lanes": 3, "n_stores": 2},
    "dict": {
        "frame": {
            "image": Field((4, 4), "uint8", "lz4", 16, 240),
            "small": Field((3,), "uint8", "lz4", 5, 240),
            "place": Field((2,), "float32", "raw"),
        }
    },
    "raw": {"frame": Field((32, 32), "uint8", "raw", chunk=64)},
    "raw, many environments": {"frame": Field((64, 64), "uint8", "raw", chunk=64), "lanes": 3},
    "vectors": {"frame": Field((3,), "float32")},
}


def record(folder, kind, n_steps=1500):
    """The stores of a kind, of so many steps of each environment, with episodes of some hundred."""
    settings = dict(KINDS[kind])
    paths = []
    for number in range(settings.pop("n_stores", 1)):
        paths.append(folder / f"{number}.zarr")
        _write(paths[-1], n_steps, number, **settings)
        settings.pop("lanes", None)
    return paths


def _write(path, n_steps, seed, frame, lanes=None):
    random = np.random.default_rng(seed)
    width = lanes or 1

    def frames():
        shown = {
            key: random.integers(0, 200, (width, *field.shape)).astype(field.dtype)
            for key, field in (frame if isinstance(frame, dict) else {"": frame}).items()
        }
        if lanes is None:
            shown = {key: value[0] for key, value in shown.items()}
        return shown if isinstance(frame, dict) else shown[""]

    ends = random.integers(50, 200, (width, n_steps)).cumsum(1)
    with mmreplay.create(path, frame, Field((), "int64"), lanes=lanes, flush_s=0) as writer:
        writer.reset(frames())
        for step in range(n_steps):
            over = (ends == step + 1).any(1)
            if lanes is None:
                writer.step(step, float(step), frames(), bool(over[0]))
                if over[0]:
                    writer.reset(frames())
                continue
            none, number = np.zeros(width, np.bool_), np.full(width, step)
            writer.step(number, number, frames(), over, none)
            if over.any():
                writer.reset(frames(), over)


def n_chunks(data):
    """Inner chunks of all compressed columns."""
    logs = [log for reader in data.store.live.readers for log in (reader.rows, reader.finals)]
    return sum(
        -(-log.head // spec.inner_rows) * spec.width
        for log in logs
        for spec in log.specs.values()
        if not spec.is_raw
    )
