"""A file gets its name when it is complete, and an incomplete one is removed."""

import pytest

from mmreplay import SchemaError, StoreExistsError
from mmreplay.rendering.new_file import checked_path, new_file

SUFFIXES = (".gif", ".png")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, quick_disk):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_nothing_is_left_after_an_error(tmp_path, error):
    with pytest.raises(error), new_file(tmp_path / "x.gif") as staged:
        staged.write_bytes(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_else_makes_meanwhile_is_kept(tmp_path):
    path = tmp_path / "x.gif"
    with pytest.raises(StoreExistsError, match="already exists"):
        with new_file(path) as staged:
            staged.write_bytes(b"mine")
            path.write_bytes(b"theirs")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("x.gif", b"theirs")]


@pytest.mark.parametrize("out", ["x.avi", "x", ".gif", "x.gif.tar", 3, None, b"x.gif"])
def test_a_name_that_says_no_format(out):
    with pytest.raises(SchemaError, match="out: "):
        checked_path(out, SUFFIXES)
