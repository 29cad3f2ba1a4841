"""Sources that somebody made to read other files, to hang an import, or to take its memory."""

import json
import os
import re
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from mmreplay import FormatError, import_dataset
from mmreplay.exchange import source_files
from mmreplay.exchange.source_files import inside


def folder(path):
    path.mkdir()
    np.save(path / "observations.npy", np.zeros((10, 3), "f4"))
    np.save(path / "actions.npy", np.zeros(10, "i8"))
    np.save(path / "rewards.npy", np.zeros(10))
    np.save(path / "terminals.npy", np.arange(10) == 9)
    return path


def link_to_a_file(path, outside):
    np.save(outside / "secret.npy", np.ones((10, 3), "f4"))
    path.symlink_to(outside / "secret.npy")


def link_to_a_folder(path, outside):
    (outside / "more").mkdir()
    path.symlink_to(outside / "more")


@pytest.mark.parametrize("name", ["observations.npy", "unused", "data/meta/deep"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (link_to_a_file, "a link"),
        (link_to_a_folder, "a link"),
        (lambda path, outside: path.symlink_to(outside / "nothing"), "a link"),
        (lambda path, outside: os.mkfifo(path), "a pipe"),
    ],
    ids=["file", "folder", "nothing", "pipe"],
)
def test_a_folder_has_files_and_directories_only(tmp_path, name, make, found):
    path = folder(tmp_path / "in") / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path, tmp_path)
    for format in ("arrays", "minari", "diffusion_policy", "dqn_replay", "rlds"):
        with pytest.raises(FormatError, match=f"{path.name}: expected files .*, found {found}"):
            import_dataset(format, tmp_path / "in", tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize("format", ["arrays", "d4rl", "ogbench", "robomimic"])
def test_the_source_itself_is_no_pipe_and_may_be_a_link(tmp_path, quick_disk, format):
    os.mkfifo(tmp_path / "in")
    with pytest.raises(FormatError, match="expected a file or a directory, found a pipe or a devi"):
        import_dataset(format, tmp_path / "in", tmp_path / "a.zarr")
    folder(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert import_dataset("arrays", tmp_path / "link", tmp_path / "a.zarr").transitions == 10


def test_a_file_that_becomes_a_pipe_after_the_look_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a")
    (tmp_path / "b").symlink_to("a")
    for name in "ab":
        with pytest.raises(FormatError, match="expected a regular file"):
            source_files.open_file(tmp_path / name)


# Claims and bombs. Each source has less than 3 MB.


def hdf5(path, **columns):
    with h5py.File(path, "w") as file:
        file["actions"] = np.zeros((10, 2), "f4")
        file["terminals"] = np.arange(10) == 9
        for name, one in ({"rewards": {"shape": (10,)}} | columns).items():
            made = file.create_dataset(name, **{"dtype": "f4"} | one)
            if "chunks" in one and "compression" in one:
                # A chunk that decodes to 200 MB, whatever its shape says.
                bomb = zeros_of_200_megabytes(zlib.compressobj(1))
                made.id.write_direct_chunk((0,) * made.ndim, bomb)
    return "d4rl"


def zeros_of_200_megabytes(pack):
    first, again = (pack.compress(bytes(1 << 24)) + pack.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 11 * again + pack.flush()


def many_rows(path):
    with h5py.File(path, "w") as file:
        for name, shape in {"observations": (10**12, 3), "actions": (10**12, 2)}.items():
            file.create_dataset(name, shape, "f4", chunks=(1000, shape[1]))
        for name in ("rewards", "terminals", "timeouts"):
            file.create_dataset(name, (10**12,), "u1", chunks=(1000,))
    return "d4rl"


def large_rows(path):
    return hdf5(path, observations={"shape": (10, 1 << 26)})


def large_chunk(path):
    return hdf5(
        path, observations={"shape": (10, 3), "maxshape": (None, 3), "chunks": (1 << 28, 3)}
    )


def bomb_in_a_chunk(path):
    return hdf5(path, observations={"shape": (10, 3), "chunks": (10, 3), "compression": "gzip"})


def many_demonstrations(path):
    with h5py.File(path, "w") as file:
        file["num_episodes"] = 10**12
        file["observations_0"], file["actions_0"] = np.zeros((10, 3), "f4"), np.zeros((10, 1))
        file["rewards_0"], file["terminated_0"] = np.zeros((10, 1)), True
    return "d3rlpy"


def npy(path, **columns):
    folder(path)
    for name, (shape, dtype) in columns.items():
        with (path / f"{name}.npy").open("wb") as file:
            about = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, about)
            file.write(bytes(100))
    return "arrays"


def many_rows_of_arrays(path):
    shapes = {"observations": (10**12, 3), "actions": (10**12,), "rewards": (10**12,)}
    return npy(path, **{n: (s, "<f4") for n, s in shapes.items()}, terminals=((10**12,), "|b1"))


def large_rows_of_arrays(path):
    return npy(path, observations=((10, 1 << 26), "<f4"))


def lzma_member(path):
    folder(path.with_name("columns"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for one in path.with_name("columns").iterdir():
            archive.write(one, one.name)
    return "arrays"


def zarr2(path, **changes):
    shapes = {"data/state": [10, 3], "data/action": [10, 2], "meta/episode_ends": [1]}
    for name, shape in shapes.items():
        (path / name).mkdir(parents=True)
        dtype = "<f4" if name[0] == "d" else "<i8"
        about = {"shape": shape, "chunks": shape, "dtype": dtype, "compressor": None}
        about |= {"fill_value": 10, "order": "C", "filters": None} | changes.get(name[5:], {})
        (path / name / ".zarray").write_text(json.dumps(about))
    return "diffusion_policy"


def many_ends(path):
    return zarr2(path, episode_ends={"shape": [10**12], "chunks": [1000]})


def bomb_in_zarr(path):
    out = zarr2(path, state={"compressor": {"id": "gzip", "level": 9}})
    bomb = zeros_of_200_megabytes(zlib.compressobj(1, wbits=31))
    (path / "data" / "state" / "0.0").write_bytes(bomb)
    return out


def large_metadata(path):
    out = zarr2(path)
    about = path / "data" / "state" / ".zarray"
    about.write_text(about.read_text() + " " * (2 << 20))
    return out


def deep_json(path):
    path.mkdir()
    (path / "metadata.json").write_text("[" * 100_000)
    return "minari"


def infinite_episodes(path):
    path.mkdir()
    (path / "metadata.json").write_text('{"total_episodes": 1e999}')
    return "minari"


CODE = """
import json, resource, sys
import mmreplay
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for format, source in json.load(sys.stdin):
    try:
        mmreplay.import_dataset(format, source, source + ".zarr")
    except mmreplay.MmreplayError as error:
        print(json.dumps(f"{type(error).__name__} {error}"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
REFUSED = {
    many_rows: "its numbers of rows are wrong",
    large_rows: "(its numbers of rows are wrong|expected rows of at most 67,108,864 bytes)",
    large_chunk: "a chunk: expected at most 268,435,456 bytes in one piece",
    bomb_in_a_chunk: r"the chunk at \(0, 0\) decompresses to more than its 120 bytes",
    many_demonstrations: "'rewards_1': the file does not have it",
    many_rows_of_arrays: "its numbers of rows are wrong",
    large_rows_of_arrays: "expected rows of at most 67,108,864 bytes, found 268,435,456",
    lzma_member: "expected a member that is stored or deflated, found compression 14",
    many_ends: "meta/episode_ends: expected at most 268,435,456 bytes in one piece",
    bomb_in_zarr: "state: chunk 0: expected 120 bytes, found 121",
    large_metadata: "state/.zarray: expected at most 1,048,576 bytes in one piece",
    deep_json: "cannot be read as minari: RecursionError",
    infinite_episodes: "cannot be read as minari: OverflowError",
}


def test_claims_and_bombs_take_neither_memory_nor_time(tmp_path):
    sources = []
    for make in REFUSED:
        source = tmp_path / make.__name__ / "in"
        source.parent.mkdir()
        sources.append((make(source), str(source)))
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(
        command, input=json.dumps(sources), capture_output=True, text=True, check=True, timeout=300
    )
    *errors, kilobytes = done.stdout.splitlines()
    for make, error in zip(REFUSED, errors, strict=True):
        assert re.match(f"FormatError .*{REFUSED[make]}", json.loads(error)), make
    assert int(kilobytes) < 150_000
    for make in REFUSED:
        assert not (tmp_path / make.__name__ / "in.zarr").exists()


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x"])
def test_names_do_not_lead_out(tmp_path, name):
    assert inside(tmp_path, "a", "b") == tmp_path / "a" / "b"
    with pytest.raises(FormatError, match="expected names of files in this folder"):
        inside(tmp_path, "videos", name)
