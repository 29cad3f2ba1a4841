"""The state page and the checkpoint of a lane that was not closed: damage to one of them."""

import os

import pytest

import mmreplay
from mmreplay import CorruptStoreError, Field, verify

ACTION = Field((), "uint8", chunk=8)


@pytest.mark.parametrize(
    ("file", "state", "found"),
    [("state", "crashed", ".live/state"), ("checkpoint", "unknown", ".live")],
)
def test_a_crashed_store_that_cannot_be_recovered(make, story, kill, kinds, file, state, found):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    kill(writer)
    (writer.path / ".live" / file).write_bytes(b"")
    report = verify(writer.path)
    assert (report.state, [one.file for one in report.findings]) == (state, [found])


def test_a_truncated_checkpoint_is_damage_though_half_of_it_can_be_read(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    kill(writer)
    checkpoint = writer.path / ".live" / "checkpoint"
    os.truncate(checkpoint, 4096)
    (finding,) = verify(writer.path).findings
    assert finding.message.endswith(".live/checkpoint: expected 8,192 bytes, found 4,096")
    for use in (mmreplay.open, mmreplay.repair, lambda path: make(append=True)):
        with pytest.raises(CorruptStoreError, match="expected 8,192 bytes, found 4,096"):
            use(writer.path)
