"""The directory of a repair: what somebody else has put in its place is left alone."""

import pytest

import mmreplay
from mmreplay import CorruptStoreError, SchemaError
from tests.support.disks.trees import flip


@pytest.fixture
def path(make, story):
    writer = make()
    story.play(writer, 9)
    writer.close()
    return writer.path


def test_a_link_at_the_repair_site_is_not_followed(path, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    (tmp_path / ".store.zarr.repair.tmp").symlink_to(tmp_path / "home")
    with pytest.raises(CorruptStoreError, match=r"\.store\.zarr\.repair\.tmp: .* found a link"):
        mmreplay.repair(path)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years"


def test_foreign_files_at_the_repair_site_are_not_removed(path, tmp_path):
    place = tmp_path / ".store.zarr.repair.tmp"
    place.mkdir()
    (place / "thesis.tex").write_text("years")
    with pytest.raises(CorruptStoreError, match=r"found 'thesis\.tex'; move this directory away"):
        mmreplay.repair(path)
    assert (place / "thesis.tex").read_text() == "years"


def test_a_name_too_long_for_a_repair_site_is_refused(path, tmp_path):
    where = path.rename(tmp_path / ("n" * 250))
    assert not mmreplay.repair(where).changed
    flip(where / "rewards" / "c.0")
    with pytest.raises(SchemaError, match=r"longer than the file system takes; give the store"):
        mmreplay.repair(where)
    assert len(mmreplay.verify(where).findings) == 1
