"""Sources of imports that somebody has tampered with, and what may come of importing them.

Invariant: whatever is in a source, an import makes a store or raises an error of mmreplay, and
leaves nothing behind then; it touches nothing outside, and takes bounded memory.
"""

import contextlib
import functools
import gzip
import io
import json
import os
import random
import shutil
import zipfile
import zlib

import h5py
import numpy as np

import mmreplay
from tests.support.minari_dataset import write_minari
from tests.support.tampering.limits import Limits, run_limited, timed

N = 12
ENDS = np.arange(N) % 6 == 5
_LIMITS = Limits(memory_bytes=512 << 20, patience_s=60.0)
_NUMBERS = (0, 1, -1, 255, 2**15, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1, -(2**63))
_WORDS = ("null", "[]", "{}", "1e999", "-1", "10000000000000", '"x"', '"../../x"', "true", "NaN")


def _table():
    return {
        "observations": np.arange(N * 3, dtype="f4").reshape(N, 3),
        "actions": np.arange(N),
        "rewards": np.ones(N, "f4"),
        "terminals": ENDS,
        "infos/x": np.ones((N, 2), "i2"),
    }


def _folder(path):
    for name, rows in _table().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(path / f"{name}.npy", rows)


def _npz(path):
    np.savez_compressed(path, **_table())
    path.with_name(f"{path.name}.npz").rename(path)


def _hdf5(path, columns, **settings):
    with h5py.File(path, "w") as file:
        for name, rows in columns.items():
            file.create_dataset(name, data=rows, **(settings if np.ndim(rows) else {}))


def _d4rl(path):
    _hdf5(path, _table() | {"metadata/x": 1}, chunks=True, compression="gzip")


def _d3rlpy(path):
    columns: dict[str, object] = {"num_episodes": 2}
    for number in range(2):
        columns[f"observations_{number}"] = np.ones((6, 3), "f4")
        columns[f"actions_{number}"], columns[f"rewards_{number}"] = (
            np.ones((6, 1)),
            np.ones((6, 1)),
        )
        columns[f"terminated_{number}"] = True
    _hdf5(path, columns)


def _robomimic(path):
    columns: dict[str, object] = {}
    for number in range(2):
        above = f"data/demo_{number}/"
        columns[above + "obs/x"] = columns[above + "next_obs/x"] = np.ones((6, 3))
        columns[above + "actions"] = np.ones((6, 2))
        columns[above + "rewards"], columns[above + "dones"] = np.ones(6), np.arange(6) == 5
    _hdf5(path, columns | {"mask/train": np.array([b"demo_0"])})
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "x"})


def _diffusion_policy(path):
    import zarr

    root = zarr.open_group(path, mode="w", zarr_format=2)
    root.create_array("data/state", data=np.ones((N, 3)), chunks=(5, 3))
    root.create_array("data/action", data=np.ones((N, 2)), chunks=(5, 2))
    root.create_array("meta/episode_ends", data=np.array([6, 12]))


def _dqn_replay(path):
    path.mkdir()
    columns = {
        "$store$_observation": np.ones((N, 4, 4), "u1"),
        "$store$_action": np.ones(N, "i4"),
        "$store$_reward": np.ones(N, "f4"),
        "$store$_terminal": ENDS.astype("u1"),
        "add_count": np.array(N),
    }
    for name, rows in columns.items():
        data = io.BytesIO()
        np.save(data, rows)
        (path / f"{name}_ckpt.0.gz").write_bytes(gzip.compress(data.getvalue()))


def _rlds(path):
    from tests.unit.exchange.test_rlds import episode, make

    make(path, [episode(4, True), episode(3, False)])


def _store(path):
    with mmreplay.create(
        path,
        {"image": mmreplay.Field((8, 8, 3)), "pose": mmreplay.Field((2,), "float32")},
        mmreplay.Field((2,), "float32"),
    ) as writer:
        frame = {"image": np.zeros((8, 8, 3), "u1"), "pose": np.zeros(2, "f4")}
        for _ in range(2):
            writer.reset(frame)
            for t in range(6):
                writer.step(np.ones(2, "f4"), 1.0, frame, terminated=t == 5)


def _exported(format, path, **options):
    store = path.with_name("store.zarr")
    _store(store)
    mmreplay.export_dataset(store, format, path, **options)
    shutil.rmtree(store)


SOURCES = {
    "arrays": _npz,
    "arrays of a folder": _folder,
    "ogbench": _npz,
    "d4rl": _d4rl,
    "d3rlpy": _d3rlpy,
    "robomimic": _robomimic,
    "minari": write_minari,
    "diffusion_policy": _diffusion_policy,
    "dqn_replay": _dqn_replay,
    "rlds": _rlds,
}
WITH_PYARROW = {
    "parquet": functools.partial(_exported, "parquet"),
    "lerobot": functools.partial(_exported, "lerobot"),
    "minari in arrow": functools.partial(_exported, "minari", data_format="arrow"),
    "minari in parquet": functools.partial(_exported, "minari", data_format="parquet"),
}


def tamper_with_imports(folder, name, n, seed):
    """What came of `n` imports of the source of this name, each tampered with in another way."""
    make = (SOURCES | WITH_PYARROW)[name]
    pristine, given, target = folder / "pristine", folder / "in", folder / "out.zarr"
    make(pristine)
    names = [""]
    if pristine.is_dir():
        names = sorted(str(p.relative_to(pristine)) for p in pristine.rglob("*") if p.is_file())
    format = name.partition(" ")[0]
    mmreplay.import_dataset(format, pristine, target)  # imports everything
    shutil.rmtree(target)

    def trial(number, guard):
        draw = random.Random(f"{seed} {number}")
        _tampered(pristine, given, names, draw)
        with guard.limited():
            seconds, _, error = timed(lambda: mmreplay.import_dataset(format, given, target))
        found = [("outside", one) for one in guard.seen]
        guard.seen.clear()
        if error is None:
            shutil.rmtree(target)
        elif not isinstance(error, mmreplay.MmreplayError):
            found.append(("foreign", f"{type(error).__name__}: {error}"))
        left = {one.name for one in folder.iterdir()} - {"in", "pristine"}
        if left:
            found.append(("left", str(left)))
        return seconds, found

    return run_limited(trial, range(n), [folder], _LIMITS)


def _tampered(pristine, given, names, draw):
    """A copy of a source with a few changes."""
    if given.is_dir():
        shutil.rmtree(given)
    else:
        given.unlink(missing_ok=True)
    (shutil.copytree if pristine.is_dir() else shutil.copy)(pristine, given)
    for _ in range(draw.choice((1, 1, 2, 4))):
        path = given / draw.choice(names)
        if not path.is_file() or path.is_symlink():
            continue
        if pristine.is_dir() and draw.random() < 0.05:
            path.unlink()
            kind = draw.choice(("gone", "pipe", "link", "folder"))
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                path.symlink_to("/etc/passwd")
            elif kind == "folder":
                path.mkdir()
            continue
        data = path.read_bytes()
        harmless = (ValueError, zipfile.BadZipFile, zlib.error, OSError, EOFError)
        with contextlib.suppress(*harmless, NotImplementedError):
            data = _unpacked(data, draw) or data
        path.write_bytes(_changed(data, draw))


def _unpacked(data, draw):
    """Of a zip or gzip most changes are to what is in it; None otherwise."""
    if draw.random() < 0.2:
        return None
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(_changed(gzip.decompress(data), draw), 1)
    if data[:2] == b"PK":
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            chosen = draw.choice([*old.namelist(), ""])
            for name in old.namelist():
                inside = old.read(name)
                new.writestr(name, _changed(inside, draw) if name == chosen else inside)
        return out.getvalue()
    return None


def _changed(data, draw):
    """Some bytes changed, in one of many ways."""
    if not data:
        return b"\0" * draw.choice((1, 9, 4096))
    at = draw.randrange(len(data))
    if data[:1] in b"{[" and draw.random() < 0.8:
        return _changed_text(data, draw)
    other = draw.randrange(len(data))
    piece = data[other : other + draw.choice((2, 8, 64, 512))]
    size = draw.choice((1, 2, 4, 8))
    number = (draw.choice(_NUMBERS) % (1 << (8 * size))).to_bytes(size, "little")
    kind = draw.randrange(6)
    if kind < 4:
        return (
            data[:at]
            + (
                (
                    b"",
                    piece + data[at:],
                    piece + data[at + len(piece) :],
                    number + data[at + size :],
                )[kind]
            )
        )
    changed = bytearray(data)
    for _ in range(draw.choice((1, 3, 20))):
        changed[draw.randrange(len(changed))] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
    return bytes(changed)


def _changed_text(data, draw):
    """JSON with another value somewhere."""
    text = data.decode(errors="replace")
    places = [at for at, one in enumerate(text) if one in ":,["]
    at = draw.choice(places or [0]) + 1
    stop = at
    while stop < len(text) and text[stop] not in ",]}":
        stop += 1
    return (text[:at] + draw.choice(_WORDS) + text[stop:]).encode()
