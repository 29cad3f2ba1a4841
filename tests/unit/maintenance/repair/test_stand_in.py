"""What is read in the place of a damaged lane, and what of its attributes is kept."""

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    Field,
    repair,
    verify,
)
from mmreplay.reading import log_reader
from tests.support.tampering.repairs import check_kept, set_attributes

ROWS = 85
LATER = pytest.mark.deep(only=True)


def test_a_damaged_random_state_is_left_out(closed_store, story):
    path = closed_store()
    set_attributes(path / "zarr.json", generator="{}")
    assert repair(path).lost == 0
    with mmreplay.open(path) as store:
        story.check(store)
    assert "generator" not in mmreplay.open(path).live.readers[0].metadata


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        ("state", "missing"),
        pytest.param("state", "zeros", marks=LATER),
        pytest.param("checkpoint", "short", marks=LATER),
        ("checkpoint", "zeros"),
        pytest.param("frames.tail", "missing", marks=LATER),
        ("frames.tail", "short"),  # nothing tells that one of zeros is damaged
        ("rewards/zarr.json", "short"),
    ],
)
def test_a_damaged_file_of_an_open_lane(killed_store, tmp_path, monkeypatch, lost, how):
    monkeypatch.setattr(log_reader, "_PATIENCE_S", 0)  # nothing will make it whole
    path, original = killed_store("lz4"), tmp_path / "original.zarr"
    mmreplay.snapshot(path, original)
    file = path / (lost if "/" in lost else f".live/{lost}")
    if how == "missing":
        file.unlink()
    elif how == "short":
        file.write_bytes(file.read_bytes()[:100])
    else:
        file.write_bytes(bytes(file.stat().st_size))
    repair(path)
    ids = check_kept(path, original)
    least = ROWS - 16 if lost.endswith("tail") else ROWS
    with mmreplay.open(path) as store:
        assert store.lanes[0].rows >= least
    assert len(ids) >= least - 6


def test_a_capacity_that_a_flipped_bit_made_smaller_takes_no_row_away(tmp_path, quick_disk):
    path = tmp_path / "s.zarr"
    with mmreplay.create(
        path, Field((8,), codec="raw", chunk=8), Field((), "int64", chunk=16), capacity=900
    ) as writer:
        writer.reset(np.zeros(8, "uint8"))
        for t in range(300):
            writer.step(t, float(t), np.full(8, t % 250, "uint8"))
    text = (path / "zarr.json").read_text()
    assert '"capacity": 900' in text
    (path / "zarr.json").write_text(text.replace('"capacity": 900', '"capacity": 100'))
    done = repair(path)
    assert (done.kept, done.lost) == (301, 0)
    assert verify(path).sound
    with mmreplay.open(path) as store:
        assert len(store) == 300
        assert store.lanes[0].rewards[:300].tolist() == list(range(300))
