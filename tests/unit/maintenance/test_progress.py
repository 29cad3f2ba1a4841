"""Progress in bytes: it grows up to the total, and stops there."""

from mmreplay import snapshot


def test_the_progress_of_a_snapshot_ends_at_the_total(make, story, tmp_path):
    writer = make(n_lanes=2)
    story.play_every_end(writer)
    seen = []
    snapshot(writer.path, tmp_path / "copy.zarr", lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
