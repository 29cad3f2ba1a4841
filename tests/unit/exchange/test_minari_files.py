"""Minari's files read without Minari; what Minari writes is in tests/exchange."""

from contextlib import ExitStack

import h5py
import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.minari_files import open_episodes


def test_an_episode_is_read_flat(tmp_path):
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations/parts/_index_1"] = np.arange(8.0).reshape(4, 2)
        group["rewards"] = np.arange(3.0)
        for name in ("terminations", "truncations"):
            group[name] = np.array([False, False, name == "truncations"])
        group.attrs.update({"seed": 5, "options/level": 2})
    with ExitStack() as stack:
        episodes = open_episodes(tmp_path, "hdf5", {}, {}, stack)
        columns = episodes.columns(0)
        assert sorted(columns) == ["observations/parts/1", "rewards", "terminations", "truncations"]
        assert columns["observations/parts/1"][:, 0].tolist() == [0, 2, 4, 6]
        assert columns["rewards"][:].tolist() == [0, 1, 2]
        assert episodes.last_flags(0) == (False, True)
        assert episodes.attributes(0) == {"seed": 5, "options/level": 2}


def test_another_kind_of_files_is_refused(tmp_path):
    with pytest.raises(FormatError, match="data_format 'x': expected hdf5, arrow or parquet"):
        open_episodes(tmp_path, "x", {}, {}, ExitStack())
