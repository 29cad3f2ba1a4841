"""Parquet and Arrow files that ask for memory they do not fill, or point past their end."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmreplay import Field, FormatError, create, export_dataset, import_dataset
from mmreplay.exchange.arrow_files import batches_of, open_parquet

CODE = """
import sys, mmreplay
try:
    mmreplay.import_dataset(sys.argv[1], sys.argv[2], sys.argv[3])
except mmreplay.MmreplayError as error:
    print(type(error).__name__, error)
"""


def outcome(format, source, target):
    """In a process of its own, as it may end."""
    command = [sys.executable, "-c", CODE, format, source, target]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def table(n, **more):
    columns = {"observations": np.zeros(n, "f4"), "actions": np.zeros(n, "i8")}
    columns |= {"rewards": np.zeros(n, "f4"), "terminals": np.arange(n) == n - 1} | more
    return pa.table(columns)


ZEROS = pa.array(np.zeros(75_000_000, "f4"))


@pytest.mark.parametrize("rows", ["one row of all", "all rows"])
def test_a_page_that_is_far_larger_than_the_file(tmp_path, rows):
    n = len(ZEROS)
    if rows == "all rows":
        given, use_dictionary = table(n, observations=ZEROS), False
    else:
        lists = pa.ListArray.from_arrays([0, n], ZEROS)
        given, use_dictionary = table(1, observations=lists), True  # a few bytes for all of them
    settings = {"compression": "zstd", "use_dictionary": use_dictionary, "data_page_size": 1 << 30}
    pq.write_table(given, tmp_path / "in.parquet", row_group_size=n, **settings)
    done = outcome("parquet", tmp_path / "in.parquet", tmp_path / "a.zarr")
    assert done.returncode == 0
    assert done.stdout.startswith("FormatError ")
    assert "in one piece" in done.stdout or "numbers of rows are wrong" in done.stdout


def test_headers_of_pages_that_are_none(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(table(1000), path)
    whole = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(0)
    random = np.random.default_rng(0)
    for _ in range(100):
        data = bytearray(whole)
        data[column.dictionary_page_offset + random.integers(20)] = random.integers(256)
        path.write_bytes(data)
        try:
            import_dataset("parquet", path, tmp_path / "a.zarr")
        except FormatError:
            assert not (tmp_path / "a.zarr").exists()
            continue
        subprocess.run(["rm", "-r", tmp_path / "a.zarr"], check=True)


OFFSETS = np.arange(5, dtype="i4") * 2
LISTS = pa.ListArray.from_arrays(OFFSETS, pa.array(np.zeros(8)))


def lead_out(path):
    """`LISTS` in a file lie far behind their values, and have the same lengths."""
    data, far = path.read_bytes(), OFFSETS + np.int32(2**30)
    assert data.count(OFFSETS.tobytes()) == 1
    path.write_bytes(data.replace(OFFSETS.tobytes(), far.tobytes()))


@pytest.mark.parametrize("harm", ["offsets", "compression", "dictionary"])
def test_arrow_files_of_minari_that_could_do_harm(tmp_path, harm):
    folder = tmp_path / "in" / "data"
    (folder / "0").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float64", "shape": [2], "low": [0, 0], "high": [1, 1]}
    about = {
        "total_episodes": 1,
        "total_steps": 3,
        "data_format": "arrow",
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 9}),
    }
    (folder / "metadata.json").write_text(json.dumps(about))
    (folder / "0" / "metadata.json").write_text("{}")
    columns = {
        "observations": LISTS,
        "actions": pa.array(range(4)),
        "rewards": pa.array(np.zeros(4)),
        "terminations": pa.array([False] * 4),
        "truncations": pa.array([False, False, True, False]),
    }
    if harm == "dictionary":
        columns["infos"] = pa.array(["x"] * 4).dictionary_encode()
    batch = pa.RecordBatch.from_pydict(columns)
    path = folder / "0" / "part-0.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd" if harm == "compression" else None)
    with pa.ipc.new_file(path, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    if harm == "offsets":
        lead_out(path)
    done = outcome("minari", tmp_path / "in", tmp_path / "a.zarr")
    assert (done.returncode, done.stdout[:12]) == (0, "FormatError ")
    assert harm == "offsets" or "compressed, or with dictionaries" in done.stdout


def test_an_image_that_a_dictionary_repeats(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (1200, 1200, 3), "u1")
    with create(tmp_path / "a.zarr", Field((1200, 1200, 3)), Field((), "int64")) as writer:
        writer.reset(image)
        writer.step(0, 0.0, image, terminated=True)
    export_dataset(tmp_path / "a.zarr", "lerobot", tmp_path / "in")
    (path,) = (tmp_path / "in" / "data").rglob("*.parquet")
    one = pq.read_table(path)
    pq.write_table(pa.concat_tables([one] * 70), path, dictionary_pagesize_limit=1 << 30)
    with open_parquet(path) as file:
        assert max(len(batch) for batch in batches_of(file, 1000, None)) < 64
