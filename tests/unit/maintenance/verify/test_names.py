"""Names that do not belong into a store: files, folders, links."""

import shutil

import pytest

from mmreplay import Field, verify
from tests.support.tampering.findings import messages, texts

ACTION = Field((), "uint8", chunk=8)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("frames/c.99.0", "no part of the store: expected no chunk file for rows 792 to 799"),
        ("frames/c.0", "no part of the store: expected chunk files only"),
        ("rewards/notes.txt", "no part of the store: expected chunk files only"),
        (
            "checksums/rewards/c.1",
            "no part of the store: expected no chunk file for rows 1,024 to 2,047",
        ),
        ("finals/id/c.7", "no part of the store: expected no chunk file"),
        ("finals/notes.txt", "no part of the store: expected arrays and groups of the schema only"),
        ("notes.txt", "no part of the store: expected arrays and groups of the schema only"),
        ("extras/notes.txt", "no part of the store: expected arrays and groups of the schema only"),
    ],
)
def test_a_foreign_file_is_named(lz4_store, path, text):
    (lz4_store / path).write_bytes(b"x")
    (found,) = messages(lz4_store, path)
    assert found.startswith(text)


def test_a_foreign_folder_is_named(lz4_store):
    (lz4_store / "more").mkdir()
    assert messages(lz4_store, "more")


def test_no_link_is_followed(lz4_store, tmp_path):
    file = lz4_store / "rewards" / "c.0"
    file.rename(tmp_path / "away")
    file.symlink_to(tmp_path / "away")
    (text,) = messages(lz4_store, "rewards/c.0")
    assert text.startswith("expected a regular file, found a link")
    shutil.move(lz4_store / "resets", tmp_path / "resets")
    (lz4_store / "resets").symlink_to(tmp_path / "resets")
    (text,) = texts(verify(lz4_store))
    assert text.startswith("resets: expected a directory, found a link or a file")


def test_what_a_write_that_was_cut_off_has_left_is_harmless(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    (writer.path / "frames" / "c.9.0.12ab.tmp").write_bytes(b"")
    kill(writer)
    report = verify(writer.path)
    assert (report.findings, report.warnings) == ([], [])
