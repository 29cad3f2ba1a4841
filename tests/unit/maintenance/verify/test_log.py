"""One log that is not closed: which of its rows are examined, and which are not trusted."""

import shutil

import numpy as np

import mmreplay
from mmreplay import Field, verify

ACTION = Field((), "uint8", chunk=8)


def test_a_crashed_store_after_a_reboot_is_sound(make, story, kill, kinds):
    """The state page is not trusted then, and the checkpoint says what there is."""
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    story.play(writer, 25, "terminated")
    kill(writer)
    state = writer.path / ".live" / "state"
    data = bytearray(state.read_bytes())
    data[56:72] = bytes(16)  # the boot id
    state.write_bytes(data)
    report = verify(writer.path)
    assert (report.state, report.rows, report.findings) == ("crashed", 16, [])


def test_a_copy_of_a_crashed_store_counts_its_untrusted_rows(tmp_path, kill):
    writer = mmreplay.create(
        tmp_path / "s.zarr", mmreplay.Field((3,)), mmreplay.Field((), "int64"), flush_s=0
    )
    writer.reset(np.zeros(3, "u1"))
    writer.flush()
    for _ in range(5):
        writer.step(0, 0.0, np.zeros(3, "u1"))
    kill(writer)
    copy = shutil.copytree(tmp_path / "s.zarr", tmp_path / "copy.zarr")
    assert verify(tmp_path / "s.zarr").untrusted == 0
    report = verify(copy)
    assert (report.sound, report.rows, report.untrusted) == (True, 1, 5)
    assert "speaks of 5 rows" in report.warnings[0].message
    with mmreplay.open(copy) as store:
        assert store.info()["live"]["untrusted_rows"] == 5
    assert mmreplay.repair(copy).untrusted == 5
    assert verify(copy).rows == 1
