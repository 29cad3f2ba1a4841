"""What cannot be shown says why, in its place, and the rest goes on."""

import shutil

import numpy as np

import mmreplay
from tests.support.viewed import record_pictures


def damage(path, at=3):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_damaged_frames_have_a_sentence_and_those_beside_them_are_painted(tmp_path, look):
    path = tmp_path / "s.zarr"
    record_pictures(path)
    with mmreplay.open(path) as store:
        whole = store.trajectory(1)
    damage(path / "frames" / "c.1.0.0")  # frames 7 to 10 of the episode
    page = look(path, place="#/0/9/6").at(6)
    assert np.array_equal(page.frame()[..., 0], whole.observation[6])
    note = page.page.locator(".picture .sentence")
    assert not note.is_visible()
    page.press("ArrowRight")
    page.at(7)
    assert "c.1.0.0" in note.text_content()
    assert "mmreplay verify" in note.text_content()
    assert note.is_visible()
    assert page.numbers()["action"] == str(whole.action[7])
    page.press(*["ArrowRight"] * 4)
    page.at(11)
    assert not note.is_visible()
    assert np.array_equal(page.frame()[..., 0], whole.observation[11])


def test_rewards_that_are_gone_have_a_sentence_under_the_strip(tmp_path, look):
    path = tmp_path / "s.zarr"
    record_pictures(path)
    page = look(path, place="#/0/9/5").at(5)
    (path / "rewards" / "c.0").unlink()
    page = look(path, place="#/0/9/5")
    page.sees("missing")


def test_a_store_that_is_removed_says_so_and_the_other_is_shown(tmp_path, look):
    record_pictures(tmp_path / "a.zarr")
    record_pictures(tmp_path / "b.zarr", episodes=[(4, "terminated"), (5, "")])
    page = look(tmp_path / "a.zarr", tmp_path / "b.zarr")
    page.sees("3 episodes")
    shutil.rmtree(tmp_path / "a.zarr")
    page.sees("not readable")
    page.page.get_by_role("button", name="b.zarr", exact=True).click()
    page.sees("2 episodes")
    page.page.locator(".rows .row").nth(1).click()
    page.at(0)
    record_pictures(tmp_path / "a.zarr", episodes=[(7, "")])
    page.press("Escape")
    page.page.get_by_role("button", name="a.zarr", exact=True).click()
    page.sees("1 episode")


def test_a_server_that_was_ended_says_so(tmp_path, serve, watch):
    record_pictures(tmp_path / "s.zarr")
    process, url = serve(tmp_path / "s.zarr")
    page = watch(url)
    page.open("#/0/9/5")
    page.at(5)
    process.terminate()
    process.wait()
    page.sees("The server does not answer")
    page.press("ArrowRight")  # what is here already goes on
    page.at(6)


def test_an_address_of_an_episode_that_there_is_not(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr", place="#/0/11/0")
    page.sees("No episode begins with id 11")
    page.press("Escape")
    page.sees("3 episodes")
