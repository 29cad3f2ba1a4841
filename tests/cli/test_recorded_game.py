"""Real Atari frames through every command: recorded, looked at, verified, sampled, damaged."""

import json
import random
import re

import pytest

import mmreplay


def test_a_game_is_recorded_described_listed_verified_sampled_and_damaged(command, folder):
    arguments = "--steps 300 --envs 2 --json".split()
    result = command("record", "ALE/Breakout-v5", "game.zarr", *arguments)
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out)["steps"] == 300

    about = json.loads(command("info", "game.zarr", "--json").out)
    assert (about["state"], about["environments"], about["transitions"]) == ("closed", 2, 300)
    assert about["env"]["id"] == "ALE/Breakout-v5"
    assert about["fields"]["frames"]["shape"] == [2, 84, 84]
    assert about["fields"]["frames"]["codec"] == "lz4"
    assert about["bytes_raw"] > 40 * about["fields"]["frames"]["bytes_on_disk"]
    assert about["bytes_stacked"] > 7.8 * about["bytes_raw"]

    listed = json.loads(command("episodes", "game.zarr", "--json").out)["episodes"]
    assert len(listed) == about["episodes"] == about["terminated"] + about["truncated"]
    assert sum(one["length"] for one in listed) == 300
    assert max(one["return"] for one in listed) == about["returns"]["max"]

    out = command("info", "game.zarr").out
    assert "environment   ALE/Breakout-v5, policy random, seed 0\n" in out
    assert "return per episode: min " in out
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r" times smaller than two stacks of 4 per transition \(.* MB\)\n", out)

    assert command("verify", "game.zarr").out.startswith(
        f"game.zarr: sound, closed; {about['rows']:,} rows of 2 environments in 1 lane; "
    )
    fast = json.loads(command("bench", "game.zarr", "--seconds", "0.01", "--json").out)
    assert fast["frame_bytes_per_s"] == pytest.approx(fast["batches_per_s"] * 32 * 2 * 4 * 84 * 84)

    (shard,) = (folder / "game.zarr" / "frames").glob("c.0*")
    whole = shard.read_bytes()
    generator = random.Random(0)
    for _ in range(2):
        data = bytearray(whole)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        shard.write_bytes(data)
        result = command("verify", "game.zarr", "--json")
        assert result.status == 1
        files = {one["file"] for one in json.loads(result.out)["findings"]}
        assert files == {"frames/c.0.0.0.0"}
    shard.write_bytes(whole)
    assert mmreplay.verify("game.zarr").sound
