"""Lanes that are not closed: live, or left by a crash; and one that is opened meanwhile."""

import numpy as np

import mmreplay
from mmreplay import Field, verify
from mmreplay.maintenance.verify.steps import StepRules
from tests.support.disks.trees import flip

ACTION = Field((), "uint8", chunk=8)


def test_a_live_store_is_sound_and_its_damage_is_found(make, story, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    report = verify(writer.path)
    assert (report.state, report.findings, report.warnings) == ("live", [], [])
    assert report.rows == 37
    flip(writer.path / "frames" / "c.1.0", 17)
    assert {one.file for one in verify(writer.path).findings} == {"frames/c.1.0"}
    flip(writer.path / "frames" / "c.1.0", 17)
    (writer.path / "rewards" / "c.2").unlink()
    assert {one.file for one in verify(writer.path).findings} == {"rewards/c.2"}


def test_a_crashed_store_is_sound_and_its_damage_is_found(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION, capacity=100)
    for _ in range(2):  # the second one recovers
        for _ in range(7):
            story.play(writer, 30, "terminated")
        kill(writer)
        report = verify(writer.path)
        assert (report.state, report.findings) == ("crashed", [])
        assert report.rows > 100
        writer = make(append=True)
    kill(writer)
    # Not of the oldest: the kill may have come before those below base were unlinked.
    file = sorted((writer.path / "actions").glob("c.*"), key=lambda path: int(path.name[2:]))[-2]
    file.unlink()
    assert [one.file for one in verify(writer.path).findings] == [f"actions/{file.name}"]


def test_a_lane_that_is_opened_and_closed_between_two_looks_is_examined_again(
    tmp_path, monkeypatch
):
    path, looks = tmp_path / "s.zarr", []
    frames, none = np.zeros((2, 3), np.uint8), np.zeros(2, bool)

    def write():
        with mmreplay.create(
            path, Field((3,), "uint8"), ACTION, lanes=2, capacity=40, flush_s=0, append=True
        ) as writer:
            writer.reset(frames)
            for _ in range(30):
                writer.step([0, 0], [1.0, 1.0], frames, none, none)

    def check_first(rules):
        looks.append(rules)
        if len(looks) == 1:
            write()
        real(rules)

    real = StepRules._check_first
    monkeypatch.setattr(StepRules, "_check_first", check_first)
    write()
    report = verify(path)
    assert (report.state, report.findings, len(looks)) == ("closed", [], 2)
