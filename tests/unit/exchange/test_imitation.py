"""Pickles are refused; what imitation saves today is read in tests/exchange."""

import pickle
import sys

import pytest

from mmreplay import FormatError, MissingExtraError, import_dataset


def test_pickles_are_refused_with_what_to_do(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([]))
    with pytest.raises(FormatError, match=r"as pickles.*imitation.data.serialize of version 1.0"):
        import_dataset("imitation", tmp_path / "a.pkl", tmp_path / "a.zarr")


def test_without_its_library_a_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow: pip install"):
        import_dataset("imitation", tmp_path, tmp_path / "a.zarr")
