"""Minari's HDF5 layout, written and read without Minari; what Minari reads is in tests/exchange."""

from contextlib import ExitStack

import h5py
import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.minari_files import Hdf5Writer, OutColumn, open_episodes

FLOAT, BOOL = np.dtype("float64"), np.dtype("bool")
COLUMNS = {
    "part": OutColumn(("observations", "parts", 1), "Box", (2,), FLOAT, 1),
    "rewards": OutColumn(("rewards",), "Discrete", (), FLOAT, 0),
    "terminations": OutColumn(("terminations",), "Discrete", (), BOOL, 0),
    "truncations": OutColumn(("truncations",), "Discrete", (), BOOL, 0),
}


def test_an_episode_is_written_in_pieces_and_read_flat(tmp_path):
    with ExitStack() as stack:
        writer = Hdf5Writer(tmp_path, COLUMNS, stack)
        writer.begin(0, 3)
        for rows in (np.ones((1, 2)), np.zeros((3, 2))):
            writer.append("part", rows)
        writer.append("rewards", np.arange(3.0))
        for name in ("terminations", "truncations"):
            writer.append(name, np.array([False, False, name == "truncations"]))
        writer.end({"seed": 5, "options/level": 2})
    with h5py.File(tmp_path / "main_data.hdf5") as file:
        assert file["episode_0/observations/parts/_index_1"].shape == (4, 2)
    with ExitStack() as stack:
        episodes = open_episodes(tmp_path, "hdf5", {}, {}, stack)
        columns = episodes.columns(0)
        assert sorted(columns) == ["observations/parts/1", "rewards", "terminations", "truncations"]
        assert columns["observations/parts/1"][:, 0].tolist() == [1, 0, 0, 0]
        assert columns["rewards"][:].tolist() == [0, 1, 2]
        assert episodes.last_flags(0) == (False, True)
        assert episodes.attributes(0) == {"seed": 5, "options/level": 2}


def test_another_kind_of_files_is_refused(tmp_path):
    with pytest.raises(FormatError, match="data_format 'x': expected hdf5, arrow or parquet"):
        open_episodes(tmp_path, "x", {}, {}, ExitStack())
