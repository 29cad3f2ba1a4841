"""`repair` of damaged attributes: proved by their crc32c, or kept and reported."""

import json
import shutil

import numpy as np
import pytest

from mmreplay import FormatError, repair, verify
from tests.support.disks.trees import contents, names
from tests.support.tampering.repairs import (
    assert_refused,
    attributes,
    columns,
    repaired,
    set_attributes,
)

LOST = "zarr.json cannot be read: capacity, padding, env, name and random state"
UNSURE = "zarr.json does not match its crc32c"


@pytest.mark.parametrize("own", [[1, 2], None, {"crc32c": []}])
def test_attributes_with_a_wrong_type_are_damage(closed_half_flushed, own):
    path = closed_half_flushed("raw")
    known = columns(path)
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"mmreplay": own}}
    (path / "zarr.json").write_text(json.dumps(document))
    assert "zarr.json" in {finding.file for finding in verify(path).findings}
    assert repaired(path, known).notes[0].startswith(LOST)


def test_another_format_whose_crc32c_does_not_fit_is_damage(closed_half_flushed):
    path = closed_half_flushed()
    known = columns(path)
    set_attributes(path / "zarr.json", format=3)
    messages = [finding.message for finding in verify(path).findings]
    assert any("expected format 1, found 3" in message for message in messages)
    assert any("expected crc32c" in message for message in messages)
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert done.notes[0].startswith(LOST)


@pytest.mark.parametrize("lanes", [{}, {"n_lanes": 2}], ids=["one", "two"])
@pytest.mark.parametrize("number", [2, [3]])
def test_a_newer_format_is_not_repaired(closed_half_flushed, tmp_path, lanes, number):
    path = closed_half_flushed(**lanes)
    set_attributes(path / "zarr.json", sealed=True, format=number)
    before = contents(path)
    with pytest.raises(FormatError, match="a newer mmreplay may read it"):
        repair(path)
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_attributes_that_cannot_be_read_are_reported(closed_half_flushed):
    path = closed_half_flushed()
    known = columns(path)
    (path / "zarr.json").write_text("{")
    done = repaired(path, known)
    assert (done.lost, done.at_least, len(done.notes)) == (0, False, 1)
    assert done.notes[0].startswith(LOST)
    assert "now capacity is None, padding 'reset'" in done.notes[0]
    assert done.to_json()["notes"] == done.notes


def test_a_flipped_bit_in_an_attribute_is_kept_and_reported(closed_half_flushed):
    path = closed_half_flushed()
    known = columns(path)
    set_attributes(path / "zarr.json", env={"id": "Doubtr-v0"})
    done = repaired(path, known)
    assert (done.kept, done.lost, len(done.notes)) == (85, 0, 1)
    assert done.notes[0].startswith(UNSURE)
    assert attributes(path)["env"] == {"id": "Doubtr-v0"}


def test_attributes_of_a_lane_come_from_its_store(closed_half_flushed):
    path = closed_half_flushed(n_lanes=2)
    (path / "lane-00001" / "zarr.json").write_text("{")
    done = repair(path)
    assert done.lost == 0
    assert done.notes[0].startswith(f"lane-00001: {LOST}")
    assert "padding 'zero', and env as those of the store" in done.notes[0]
    own = attributes(path / "lane-00001")
    assert (own["padding"], own["env"]) == ("zero", {"id": "Uncertain-v0"})


@pytest.mark.parametrize("how", ["cut", "one bit"])
def test_attributes_of_a_store_come_from_its_lanes(closed_half_flushed, how):
    path = closed_half_flushed(n_lanes=2)
    if how == "cut":
        (path / "zarr.json").write_text("{")
    else:
        set_attributes(path / "zarr.json", capacity=70)
    done = repair(path)
    assert done.lost == 0
    assert len(done.notes) == 1
    assert done.notes[0].startswith("zarr.json of the store is damaged: capacity, padding, env")
    assert done.notes[0].endswith("are now those of lane-00000")
    assert (attributes(path)["padding"], attributes(path)["capacity"]) == ("zero", None)


def test_the_checkpoint_of_a_lane_without_attributes_still_counts(killed_half_flushed, tmp_path):
    """The lane's uuid is in it, too: it is not that of another lane."""
    original = killed_half_flushed("raw")
    known = columns(original)
    path = shutil.copytree(original, tmp_path / "copy.zarr")  # where the state is not trusted
    (path / "zarr.json").unlink()
    done = repaired(path, known)
    assert (done.kept, done.untrusted, done.at_least) == (66, 19, False)


def test_a_schema_that_its_crc32c_proves_wins_over_an_array(closed_half_flushed):
    path = closed_half_flushed("raw")
    known = columns(path)
    file = path / "frames" / "zarr.json"
    file.write_text(file.read_text().replace('"uint8"', '"int8"'))
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert np.array_equal(columns(path)[1]["frames"], known[1]["frames"])


def test_repair_refuses_when_a_damaged_schema_and_an_array_contradict_each_other(
    closed_half_flushed,
):
    path = closed_half_flushed("raw")
    document = path / "zarr.json"
    document.write_text(document.read_text().replace('"dtype": "uint8"', '"dtype": "int8"', 1))
    assert_refused(path, "contradict each other, and nothing tells which is right")
