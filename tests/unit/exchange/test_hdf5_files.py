"""HDF5 files that are imported, and what they must not open: other files."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from mmreplay import Field, FormatError, import_dataset
from mmreplay.exchange.hdf5_files import open_hdf5
from tests.support.minari_dataset import write_minari
from tests.support.played_episodes import play, write

OBSERVATIONS = {
    "d4rl": "observations",
    "d3rlpy": "observations_0",
    "robomimic": "data/demo_0/obs/obs",
    "minari": "episode_0/observations",
}
SECRET = 7


@pytest.fixture(params=OBSERVATIONS)
def given(request, tmp_path, quick_disk):
    """Of each importer of HDF5: its name, the source, and the file in it."""
    kind, source = request.param, tmp_path / "source"
    if kind == "minari":
        return kind, write_minari(source), source / "data" / "main_data.hdf5"
    name = OBSERVATIONS[kind]
    with h5py.File(source, "w") as file:
        file[name] = np.arange(21, dtype="f4").reshape(7, 3)
        file[name.replace("observations", "actions").replace("obs/obs", "actions")] = np.ones(
            (7, 2)
        )
        if kind == "d4rl":
            file["rewards"], file["terminals"] = np.zeros(7, "f4"), np.arange(7) == 6
        if kind == "d3rlpy":
            file["rewards_0"], file["terminated_0"] = np.zeros((7, 1), "f4"), True
            file["num_episodes"] = 1
    return kind, source, source


def link(file, name, shape, dtype, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.full(shape, SECRET, dtype)
    file[name] = h5py.ExternalLink(folder / "other.h5", "/x")
    return "a link to another file"


def external_storage(file, name, shape, dtype, folder):
    np.full(shape, SECRET, dtype).tofile(folder / "other.bin")
    outside = [(str(folder / "other.bin"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset(name, shape, dtype, external=outside)
    return "numbers in another file"


def virtual(file, name, shape, dtype, folder):
    link(file, "gone", shape, dtype, folder)
    del file["gone"]
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(folder / "other.h5", "x", shape)
    file.create_virtual_dataset(name, layout)
    return "a virtual dataset"


@pytest.mark.parametrize("lead_out", [link, external_storage, virtual])
def test_no_importer_reads_another_file(given, tmp_path, lead_out):
    kind, source, path = given
    name = OBSERVATIONS[kind]
    with h5py.File(path, "a") as file:
        shape, dtype = file[name].shape, file[name].dtype
        del file[name]
        found = lead_out(file, name, shape, dtype, tmp_path)
        assert (file[name][:] == SECRET).all()  # so HDF5 does read it
    with pytest.raises(FormatError, match=f"{found}, and an import reads only plain .* copy the"):
        import_dataset(kind, source, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_links_that_are_not_needed_are_losses(given, tmp_path):
    kind, source, path = given
    with h5py.File(path, "a") as file:
        file["by the way"] = h5py.SoftLink("/out/x")
        file["out"] = h5py.ExternalLink("other.h5", "/")
        file["itself"] = file["/"]
        file.attrs["of the file"] = 1
    made = import_dataset(kind, source, tmp_path / "a.zarr")
    found = "; ".join(loss.what for loss in made.losses)
    for what in ("by the way", "out", "itself", "of the file"):
        assert what in found


def test_a_dataset_that_cannot_be_read_does_not_block_the_others(given, tmp_path):
    kind, source, path = given
    with h5py.File(path, "a") as file:
        above = OBSERVATIONS[kind].rpartition("obs")[0].removesuffix("obs/")
        file.create_dataset(f"{above}large", (7, 1 << 25), "f4", chunks=(1, 1 << 25))
        file[f"{above}none"] = h5py.Empty("f4")
    made = import_dataset(kind, source, tmp_path / "a.zarr")
    found = "; ".join(loss.what for loss in made.losses)
    assert "large" in found
    assert "none" in found
    if kind == "d4rl":
        options = {"leave_out": ["large"], "columns": ["observations"]}
        made = import_dataset(kind, source, tmp_path / "b.zarr", **options)
        assert "column large: left out, as leave_out says" in [one.what for one in made.losses]


def test_a_group_in_itself_is_looked_at_once(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["in/x"] = np.arange(3)
        file["in/again"] = file["/"]
        file["in/same"] = file["in"]
    with open_hdf5(tmp_path / "a.h5") as file:
        assert list(file.columns) == ["in/again", "in/same", "in/x"]
        assert file.column("in/x").read(0, 3).tolist() == [0, 1, 2]
        with pytest.raises(FormatError, match="another name of a group"):
            file.column("in/same")


def test_groups_without_an_end_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file
        for _ in range(102):
            group = group.create_group("a")
    with pytest.raises(FormatError, match="expected at most 100 nested groups, found more"):
        import_dataset("d4rl", tmp_path / "a.h5", tmp_path / "a.zarr")


CODE = """
import resource, signal, sys
import mmreplay
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    mmreplay.export_dataset(sys.argv[1], sys.argv[2], sys.argv[1] + ".out")
except mmreplay.MmreplayError as error:
    print(type(error).__name__, error)
"""


def test_a_file_that_cannot_be_written_is_an_error_and_the_process_goes_on(tmp_path, quick_disk):
    kind, size = "robomimic", 20_000
    frames = {"frame": Field((500,), "float64")}
    store = write(tmp_path / "a.zarr", play(frames=frames, action=Field((2,), "float32")))
    command = [sys.executable, "-c", CODE, store, kind, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"FailedStoreError {store}.out: exporting to {kind} failed: File")
    assert "nothing is left behind" in done.stdout
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]
