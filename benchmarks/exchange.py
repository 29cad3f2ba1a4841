"""Import and export: steps a second, and the bytes of the same steps, in each format.

Frames are Breakout's; vectors are 17 numbers of 32 bits, and actions of 6. What a format has no
export for is written here in its layout, so that it can be imported. Each import is held against
the store that all of them come from. Memory is that of a fresh process with a million steps of
vectors, at the peak. A quick run leaves out formats whose libraries are not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import shutil
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks import fresh
from benchmarks.disk import allocated
from benchmarks.experience import ENV_IDS, SEED, made
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread

__all__ = ["run"]

_OBSERVATION, _ACTION, _EPISODE = 17, 6, 250
_CODEC = "lz4"
_MEMORY_MB = 400.0
_WATCHED = ("arrays", "parquet", "minari")
_COMPARED = 3
"""Episodes of each import."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Format:
    """What a format is called here, what it needs, and what of the two stores it can be of."""

    name: str
    file: str
    needs: tuple[str, ...] = ()
    stores: tuple[str, ...] = ("frames", "vectors")
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    written: Callable[[Path, list[Any]], None] | None = None
    """None: by an export."""
    label: str = ""

    @property
    def is_there(self) -> bool:
        return all(find_spec(one.partition(".")[0]) is not None for one in self.needs)


def run(result: Result, scale: Scale, data: Path) -> None:
    """Frames, vectors, and memory."""
    vectors = data / f"exchange-vectors-{scale.exchange_steps}.zarr"
    frames = data / f"exchange-frames-{scale.exchange_steps}.zarr"
    stores = {
        "frames": made(frames, lambda there: _record(there, scale.exchange_steps)),
        "vectors": made(vectors, lambda there: write_vectors(there, scale.exchange_steps)),
    }
    left_out = sorted(one.label or one.name for one in _FORMATS if not one.is_there)
    if left_out and scale.name == "full":  # docs/exchange.md shows all of them
        raise SystemExit(
            f"{', '.join(left_out)}: pip install --editable '.[exchange,minari,pictures]'"
        )
    for kind, path in stores.items():
        with mmreplay.open(path) as store:
            raw = sum(
                len(store) * int(np.prod(one.shape)) * one.dtype.itemsize
                for one in store.schema.columns().values()
            )
        result.add(f"{kind}: the store itself, on disk", allocated(path) / 1e6, "MB")
        result.add(f"{kind}: the rows, uncompressed", raw / 1e6, "MB")
        for one in _FORMATS:
            if kind in one.stores and one.is_there:
                _measure(result, kind, one, path, scale)
    many = made(
        data / f"exchange-vectors-{scale.exchange_rows}.zarr",
        lambda there: write_vectors(there, scale.exchange_rows),
    )
    for one in _FORMATS:
        if one.name in _WATCHED and not one.label and one.is_there:
            _remember(result, one, many, scale.exchange_rows)


def _record(path: Path, steps: int) -> None:
    mmreplay.record(ENV_IDS["breakout"], path, steps, envs=8, codec=_CODEC, seed=SEED)


def write_vectors(path: Path, steps: int) -> None:
    """Random walks, as states of robots are: neighbours are alike, and no two the same."""
    random = np.random.default_rng(0)
    fields = (
        mmreplay.Field((_OBSERVATION,), "float32"),
        mmreplay.Field((_ACTION,), "float32"),
    )
    with mmreplay.create(path, *fields) as writer:
        for number, start in enumerate(range(0, steps, _EPISODE)):
            n = min(_EPISODE, steps - start)
            walk = random.standard_normal((n + 1, _OBSERVATION), np.float32).cumsum(0)
            actions = random.standard_normal((n, _ACTION), np.float32)
            writer.reset(walk[0])
            for t in range(n):
                over = t == n - 1
                is_end = over and number % 2 == 0
                writer.step(actions[t], float(t % 10), walk[t + 1], is_end, over and not is_end)


def _measure(result: Result, kind: str, one: _Format, path: Path, scale: Scale) -> None:
    folder, clock = path.with_name("exchanged"), Clock()
    shutil.rmtree(folder, ignore_errors=True)
    name, target, back = one.label or one.name, folder / one.file, folder / "back.zarr"
    size = 0.0
    with mmreplay.open(path) as store:
        n_steps = len(store)
        episodes = [store.trajectory(number) for number in range(len(store.episodes))]
        for number in range(scale.exchange_runs):
            folder.mkdir()
            clock.new_run()
            if one.written is not None:
                one.written(target, episodes)
            else:
                options = {key: at for key, at in one.options.items() if key in _OF_EXPORTS}
                write = functools.partial(mmreplay.export_dataset, path, one.name, target)
                out = clock.time("out", functools.partial(write, **options))
                assert out.transitions == n_steps
            options = {key: at for key, at in one.options.items() if key not in _OF_EXPORTS}
            read = functools.partial(mmreplay.import_dataset, one.name, target, back, codec=_CODEC)
            found = clock.time("in", functools.partial(read, **options))
            size = (allocated(target) if target.is_dir() else target.stat().st_blocks * 512) / 1e6
            if not number:
                _check(back, found, episodes, n_steps)
            shutil.rmtree(folder)
    if one.written is None:
        result.add(f"{kind}: {name}, out", spread(n_steps / clock.by_run("out")), "steps/s")
    result.add(f"{kind}: {name}, in", spread(n_steps / clock.by_run("in")), "steps/s")
    result.add(f"{kind}: {name}, on disk", size, "MB")


_OF_EXPORTS = ("data_format", "compressed")


def _check(back: Path, found: mmreplay.Imported, episodes: list[Any], n_steps: int) -> None:
    """The first steps are those of the store, and all of them are there.

    Whether the last step of a truncated episode is one depends on the format.
    """
    cut = sum(1 for one in episodes if not one.terminated)
    assert n_steps - cut <= found.transitions <= n_steps, found
    with mmreplay.open(back) as store:
        for number in range(min(_COMPARED, len(episodes))):
            one, given = store.trajectory(number), episodes[number]
            n = len(one.reward)
            assert len(given.reward) - 1 <= n <= len(given.reward)
            seen = one.observation
            if isinstance(seen, dict):
                (seen,) = seen.values()
            assert np.array_equal(seen[:n].reshape(n, -1), given.observation[:n].reshape(n, -1))
            assert np.array_equal(one.action.reshape(n, -1), given.action[:n].reshape(n, -1))
            assert np.allclose(one.reward, given.reward[:n]) or not one.reward.any()


def _remember(result: Result, one: _Format, path: Path, rows: int) -> None:
    folder = path.with_name("exchanged")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target, back = folder / one.file, folder / "back.zarr"
    for what, arguments in (
        ("out", {"source": path, "target": target}),
        ("in", {"source": target, "target": back}),
    ):
        taken = fresh.call(f"exchange_{what}", format=one.name, **arguments)
        result.add(
            f"memory at the peak, {rows:,} steps {what}: {one.name}",
            taken["peak"],
            "MB",
            at_most=_MEMORY_MB,
        )
    shutil.rmtree(folder)


# ---------------------------------------------------------------- formats without an export


def _columns(episodes: list[Any]) -> dict[str, Any]:
    """Rows of all episodes, and which of them are last ones."""
    ends = np.concatenate([np.arange(len(one.reward)) == len(one.reward) - 1 for one in episodes])
    terminal = ends & np.repeat(
        [one.terminated for one in episodes], [len(one.reward) for one in episodes]
    )
    return {
        "observations": np.concatenate([one.observation[:-1] for one in episodes]),
        "actions": np.concatenate([one.action for one in episodes]),
        "rewards": np.concatenate([one.reward for one in episodes]),
        "terminals": terminal,
        "timeouts": ends & ~terminal,
    }


def _d4rl(target: Path, episodes: list[Any]) -> None:
    import h5py

    with h5py.File(target, "x") as file:
        for name, rows in _columns(episodes).items():
            file.create_dataset(name, data=rows, compression="gzip", compression_opts=1)


def _d3rlpy(path: Path, episodes: list[Any]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["num_episodes"] = len(episodes)
        for number, one in enumerate(episodes):
            n = len(one.reward)
            file[f"observations_{number}"] = one.observation[:-1]
            file[f"actions_{number}"] = one.action.reshape(n, -1)
            file[f"rewards_{number}"] = one.reward.reshape(n, 1)
            file[f"terminated_{number}"] = one.terminated


def _diffusion_policy(path: Path, episodes: list[Any]) -> None:
    import zarr

    columns = _columns(episodes)
    root = zarr.open_group(str(path), mode="w-", zarr_format=2)
    for name, role in {"obs": "observations", "action": "actions", "reward": "rewards"}.items():
        rows = columns[role]
        root.create_array(f"data/{name}", data=rows, chunks=(1000, *rows.shape[1:]))
    ends = np.cumsum([len(one.reward) for one in episodes])
    root.create_array("meta/episode_ends", data=ends, compressors=None)


def _dqn_replay(path: Path, episodes: list[Any]) -> None:
    """A checkpoint, with the padding of a stack of 4 before each episode."""
    path.mkdir()
    columns: dict[str, list[Any]] = {}
    for one in episodes:
        last = np.arange(len(one.reward)) == len(one.reward) - 1
        for name, rows in {
            "observation": one.observation[:-1],
            "action": one.action.astype("i4"),
            "reward": one.reward.astype("f4"),
            "terminal": (last & one.terminated).astype("u1"),
        }.items():
            padding = np.zeros((3, *rows.shape[1:]), rows.dtype)
            columns.setdefault(name, []).extend((padding, rows))
    n_rows = sum(len(rows) for rows in columns["reward"])
    files = {f"$store$_{name}": np.concatenate(rows) for name, rows in columns.items()}
    for name, rows in (files | {"add_count": np.array(n_rows)}).items():
        with gzip.open(path / f"{name}_ckpt.0.gz", "wb", 1) as file:
            np.save(file, rows)


def _ogbench(target: Path, episodes: list[Any]) -> None:
    """Observations of T + 1 rows, and a terminal flag at the last of them."""
    n_rows = [len(one.observation) for one in episodes]
    actions = [np.concatenate((one.action, one.action[-1:])) for one in episodes]
    np.savez_compressed(
        target,
        observations=np.concatenate([one.observation for one in episodes]),
        actions=np.concatenate(actions),
        terminals=np.concatenate([np.arange(n) == n - 1 for n in n_rows]).astype(np.float32),
    )


def _rlds(target: Path, episodes: list[Any]) -> None:
    import json

    from mmreplay.exchange.rlds import _masked, _message
    from mmreplay.pictures import png

    target.mkdir()
    first = episodes[0]
    is_image = first.observation.dtype == np.uint8

    def about(rows: Any) -> dict[str, Any]:
        shape = {"dimensions": [str(n) for n in rows.shape[1:]]}
        return {"tensor": {"dtype": rows.dtype.name, "encoding": "none", "shape": shape}}

    flag = {"tensor": {"dtype": "bool", "encoding": "none", "shape": {}}}
    image = {"dimensions": [*map(str, first.observation.shape[1:3]), "1"]}
    features = {
        "observation": {"image": {"dtype": "uint8", "shape": image}}
        if is_image
        else about(first.observation),
        "action": about(first.action),
        "reward": about(first.reward),
        "is_terminal": flag,
    }
    inside = {"steps": {"sequence": {"feature": {"featuresDict": {"features": features}}}}}
    (target / "features.json").write_text(json.dumps({"featuresDict": {"features": inside}}))
    split = {"name": "train", "shardLengths": [len(episodes)]}
    info = {"name": "steps", "fileFormat": "tfrecord", "splits": [split]}
    (target / "dataset_info.json").write_text(json.dumps(info))
    with (target / "steps-train.tfrecord-00000-of-00001").open("wb") as file:
        for one in episodes:
            n = len(one.reward)
            last = np.arange(n + 1) == n
            example = _message()()

            def add(name: str, rows: Any, example: Any = example) -> None:
                feature = example.features.feature[f"steps/{name}"]
                if rows.dtype.kind == "f":
                    feature.float_list.value.extend(rows.ravel().tolist())
                else:
                    feature.int64_list.value.extend(rows.ravel().astype(int).tolist())

            if is_image:
                frames = [png(frame) for frame in one.observation]
                example.features.feature["steps/observation"].bytes_list.value.extend(frames)
            else:
                add("observation", one.observation)
            add("action", np.concatenate((one.action, one.action[-1:])))
            add("reward", np.append(one.reward, np.float32(0)))
            add("is_terminal", last & one.terminated)
            data = example.SerializeToString()
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", _masked(head)))
            file.write(data + struct.pack("<I", _masked(data)))


_H5PY, _PYARROW = ("h5py",), ("pyarrow",)
_FORMATS = (
    _Format("arrays", "arrays"),
    _Format("arrays", "arrays.npz", options={"compressed": True}, label="arrays, .npz"),
    _Format("parquet", "steps.parquet", _PYARROW),
    _Format("minari", "minari", ("minari", "h5py")),
    _Format(
        "minari",
        "minari",
        ("minari", "pyarrow"),
        stores=("vectors",),  # of frames it has a list of numbers each: ten times slower
        options={"data_format": "parquet"},
        label="minari, parquet",
    ),
    _Format("d4rl", "d4rl.hdf5", _H5PY, written=_d4rl),
    _Format("ogbench", "ogbench.npz", stores=("vectors",), written=_ogbench),
    _Format("dqn_replay", "dqn", stores=("frames",), written=_dqn_replay),
    _Format("d3rlpy", "d3rlpy.h5", _H5PY, written=_d3rlpy),
    _Format("robomimic", "demo.hdf5", _H5PY),
    _Format("diffusion_policy", "buffer.zarr", written=_diffusion_policy),
    _Format("lerobot", "lerobot", _PYARROW),
    _Format("rlds", "rlds", ("google.protobuf", "PIL"), written=_rlds),
)
