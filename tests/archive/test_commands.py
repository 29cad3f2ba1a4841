"""``mmreplay push`` and ``pull``."""

import json
import re
from importlib.metadata import entry_points

import pytest
from click.testing import CliRunner

import mmreplay
from tests.support.archives import assert_same, write


@pytest.fixture
def command():
    (script,) = entry_points(group="console_scripts", name="mmreplay")

    def run(*arguments):
        return CliRunner().invoke(script.load(), list(arguments), prog_name="mmreplay")

    return run


def test_push_and_pull_say_what_they_did(command, tmp_path):
    write("a.zarr", "lz4, named")
    url = f"file://{tmp_path}/archive"
    sent = command("push", "a.zarr", url)
    assert sent.exit_code == 0
    assert re.fullmatch(
        rf"{re.escape(url)}: 2 lanes, [\d.]+ kB in \d+ objects; [\d.]+ kB in \d+ objects sent\n",
        sent.output,
    )
    assert command("push", "a.zarr", url).output.endswith("objects; nothing to send\n")
    got = command("pull", url, "b.zarr")
    assert re.fullmatch(
        r".*b\.zarr: 200 transitions in 2 lanes, [\d.]+ kB; [\d.]+ kB received\n", got.output
    )
    assert_same("a.zarr", "b.zarr")
    for words, of in ((("push", "a.zarr", url), "sent_bytes"), (("pull", url, "b.zarr"), "bytes")):
        assert of in json.loads(command(*words, "--json").output)


def test_errors_are_sentences(command, tmp_path):
    got = command("pull", f"file://{tmp_path}/nowhere", "b.zarr")
    assert (got.exit_code, got.output.count("\n")) == (1, 1)
    assert got.output.startswith("Error: url: file://")
    got = command("info", "s3://bucket/pong")
    assert (got.exit_code, "mmreplay pull s3://bucket/pong PATH" in got.output) == (1, True)
    assert command("push", "a.zarr", "s3://x", "--grace", "-1").exit_code == 2


def test_the_progress_ends_with_all_bytes(tmp_path):
    write("a.zarr")
    for call in (
        lambda show: mmreplay.push("a.zarr", f"file://{tmp_path}/archive", progress=show),
        lambda show: mmreplay.pull(f"file://{tmp_path}/archive", "b.zarr", progress=show),
    ):
        seen = []
        made = call(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == sorted(seen)
        assert seen[-1] == (made.bytes, made.bytes)
