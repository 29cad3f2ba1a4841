"""The page as people use it: keys, addresses, filters, flags, sizes; and what strangers put in it."""

import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np

import mmreplay
from mmreplay import Field
from mmreplay.viewer.documents import pack
from tests.support.viewed import FRAME, play, record_pictures

EVIL = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'


def rows(page):
    """What the table shows, from its top."""
    page.page.locator(".rows .row").first.wait_for()
    shown = page.page.locator(".rows .row").filter(visible=True).all()
    found = [one.locator(".cell").all_text_contents() for one in shown]
    return sorted(found, key=lambda cells: int(cells[0].replace(",", "")))


def test_from_the_list_to_a_frame_with_keys_only(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr")
    page.sees("3 episodes")
    page.press("ArrowDown", "Enter")
    page.at(0)
    assert page.page.url.endswith("#/0/9/0")
    page.press("ArrowRight", "Shift+ArrowRight")
    page.at(11)
    page.press("End")
    page.at(21)
    page.sees("No transition begins here")
    page.press("ArrowLeft", "]")
    page.at(0)
    assert page.page.url.endswith("#/0/30/0")
    page.press("[", "End")
    page.at(21)
    page.press("Escape")
    page.sees("3 episodes")
    page.press("?")
    page.sees("these keys")


def test_the_address_tells_the_place_and_has_no_token(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr", place="#/0/9/7").at(7)
    before = page.frame()
    assert "token" not in page.page.url
    page.page.reload()
    page.at(7)
    assert np.array_equal(page.frame(), before)
    page.press("ArrowRight")
    page.at(8)
    page.page.go_back()
    page.page.go_forward()
    page.at(8)


def test_an_episode_of_the_command_line_comes_first(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr", "--episode", "-1").at(0)
    page.sees("Episode 2")
    assert page.page.url.endswith("#/0/30/0")


def test_play_goes_to_the_end(tmp_path, look):
    record_pictures(tmp_path / "s.zarr", episodes=[(200, "terminated")])
    page = look(tmp_path / "s.zarr", place="#/0/0/0").at(0)
    page.page.get_by_label("Steps a second").select_option("240")
    page.press(" ")
    page.at(200).sees("200 / 200")
    page.page.get_by_role("button", name="Play (space)").wait_for()
    assert page.page.get_by_role("button", name="Play (space)").text_content() != "❚❚"


def test_sort_filter_and_flag(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr")
    page.sees("3 episodes")
    page.page.get_by_role("button", name="Steps").click()
    first = page.page.locator('.rows .row[data-place="0"] .cell')
    assert first.nth(2).text_content() == "21"
    page.press("/")
    page.page.keyboard.type("length<10")
    page.sees("2 episodes of 3")
    page.page.keyboard.type(" truncated")
    page.sees("1 episode of 3")
    page.page.keyboard.type(" nonsense")
    page.sees("“nonsense” is not understood")
    page.page.get_by_label("Filter episodes").fill("")
    page.press("Enter", "f")
    page.page.get_by_label("Filter episodes").fill("flagged")
    page.sees("1 episode of 3")
    page.page.reload()  # the browser remembers
    page.page.get_by_label("Filter episodes").fill("flagged")
    page.sees("1 episode of 3")


def test_a_hundred_thousand_episodes_are_a_few_rows_of_the_page(tmp_path, serve, watch):
    record_pictures(tmp_path / "s.zarr")
    n = 100_000
    table = pack(
        {
            "row": np.arange(n) * 10.0,
            "return": np.random.default_rng(0).normal(size=n),
            "length": np.full(n, 9.0),
            "lane": np.zeros(n, np.int32),
            "end": np.ones(n, np.uint8),
            "evicted": np.zeros(n),
        }
    )
    page = watch(serve(tmp_path / "s.zarr")[1])
    page.page.route("**/episodes.bin", lambda route: route.fulfill(body=table))
    page.open()
    page.sees("100,000 episodes")
    page.press("End")
    page.page.locator('.rows .row[data-place="99999"]').wait_for()
    assert page.page.locator(".rows .row").count() < 100
    page.page.get_by_role("button", name="Return").click()
    page.press("Home")
    shown = page.page.locator('.rows .row[data-place="0"] .cell').nth(1).text_content()
    assert float(shown) == float(f"{np.random.default_rng(0).normal(size=n).max():.5g}")


def test_time_is_in_transitions_of_one_environment_and_of_many(tmp_path, look):
    record_pictures(tmp_path / "one.zarr")
    none, zeros = np.zeros(4, bool), np.zeros((4, *FRAME.shape), np.uint8)
    with mmreplay.create(tmp_path / "many.zarr", FRAME, Field((), "int64"), lanes=4) as writer:
        for length in (10, 20):
            writer.reset(zeros)
            for step in range(length):
                writer.step([0] * 4, [1] * 4, zeros, ~none if step == length - 1 else none, none)
    page = look(tmp_path / "one.zarr", tmp_path / "many.zarr")
    page.page.get_by_role("button", name="many.zarr", exact=True).click()
    page.sees("8 episodes")
    ends = page.page.evaluate(
        """async () => {
            const { page } = await import("./static/model.js");
            return page.stores.map((one) => [...one.table.times]);
        }"""
    )
    assert ends == [[9, 30, 37], [10, 20, 30, 40, 60, 80, 100, 120]]


def test_several_stores_are_on_the_same_axes(tmp_path, look):
    for name in "ab":
        record_pictures(tmp_path / f"{name}.zarr")
    page = look(tmp_path / "a.zarr", tmp_path / "b.zarr")
    page.page.locator(".bucket").first.wait_for()
    assert page.page.locator(".bucket").first.locator(".bar-of").count() == 2
    page.page.get_by_label("b.zarr: hide in the charts").click()
    page.page.get_by_label("b.zarr: show in the charts").wait_for()
    assert page.page.locator(".bucket").first.locator(".bar-of").count() == 1


def test_an_episode_without_its_beginning_is_listed_and_shown(tmp_path, look):
    path = tmp_path / "ring.zarr"
    record_pictures(path, episodes=[(60, "terminated"), (9, "truncated")], capacity=30)
    one = look(path)
    one.sees("2 episodes, 1 without a beginning")
    last = one.page.locator(".rows .row").filter(visible=True).last
    assert last.locator(".cell").all_text_contents()[:3] == [*"\u2013\u2013", "21"]
    one.press("End", "Enter")
    one.at(0)
    one.sees("21 steps left, 39 before them evicted")
    with mmreplay.open(path) as store:
        expected = store.transitions(store.ids[:1], stack=None).observation[0]
    assert np.array_equal(one.frame()[..., 0], expected)
    one.stack_at(0)
    titles = [c.get_attribute("title") for c in one.page.locator("section.stack canvas").all()]
    assert titles[:4] == ["evicted", "evicted", "evicted", "frame 0"]


def test_names_of_actions_and_the_transition_as_python(tmp_path, look):
    names = ["NOOP", "FIRE", "RIGHT", "LEFT"]
    record_pictures(tmp_path / "s.zarr", metadata={"action_names": names})
    page = look(tmp_path / "s.zarr", place="#/0/9/2", permissions=["clipboard-read"]).at(2)
    page.stack_at(2)
    assert page.numbers()["action"] == "2 RIGHT"
    page.press("c")
    page.sees("Copied")
    code = page.page.evaluate("() => navigator.clipboard.readText()")
    namespace = {}
    exec(code, namespace)
    batch = namespace["batch"]
    assert batch.id.tolist() == [11]
    assert f"reward {batch.reward[0]:g}, discount" in code
    namespace["store"].close()


def test_a_reward_that_is_no_number_makes_the_return_none(tmp_path, look):
    with mmreplay.create(tmp_path / "s.zarr", FRAME, Field((), "int64"), flush_s=0) as writer:
        picture = np.zeros(FRAME.shape, np.uint8)
        writer.reset(picture)
        for step in range(4):
            writer.step(0, np.nan if step == 2 else 1.0, picture)
    page = look(tmp_path / "s.zarr", place="#/0/0/1").at(1)
    page.page.locator("aside dd").get_by_text("2", exact=True).wait_for()
    page.press("ArrowRight", "ArrowRight")
    page.at(3)
    assert page.numbers()["return so far"] == "NaN"


def test_what_a_stranger_wrote_is_text(tmp_path, look):
    frame = {"left": FRAME, "speed": Field((2,), "float32")}
    path = tmp_path / "<b onclick=alert(1)>.zarr"
    names = [EVIL] * 4
    writer = mmreplay.create(
        path,
        frame,
        Field((), "int64"),
        extras={"x": Field(())},
        lane=EVIL.replace("/", ""),
        metadata={"id": EVIL, "action_names": names},
        flush_s=0,
    )
    play(writer, frame, 5, "terminated", x=1)
    writer.close()
    page = look(path)
    page.sees("1 episode")
    assert page.page.locator("dd", has_text=EVIL).count() == 1
    page.press("Enter")
    page.at(0)
    assert page.numbers()["action"] == f"0 {EVIL}"
    assert page.page.evaluate("() => window.broken") is None
    assert page.page.locator("img, b, #app script").count() == 0


def test_nothing_runs_that_is_not_the_page_s_own(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    page = look(tmp_path / "s.zarr")
    page.sees("3 episodes")
    page.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.broken = 1";
            document.body.append(script);
        }"""
    )
    assert page.page.evaluate("() => window.broken") is None
    assert page.complaints  # of the policy in the header, and of the one in the page
    assert all("Content Security Policy" in one for one in page.complaints)
    page.complaints.clear()


def test_dark_light_and_a_phone(tmp_path, look):
    record_pictures(tmp_path / "s.zarr")
    sizes = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "color_scheme": "dark"}
    page = look(tmp_path / "s.zarr", place="#/0/9/3", **sizes).at(3)
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = page.page.evaluate(background)
    wide = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.page.evaluate(wide)
    page.press("d")
    assert page.page.evaluate(background) != dark
    page.press("Escape")
    page.sees("3 episodes")
    assert page.page.evaluate(wide)


def test_a_copy_on_a_static_host_is_the_same_page(tmp_path, watch):
    record_pictures(tmp_path / "s.zarr")
    mmreplay.export_view(tmp_path / "s.zarr", tmp_path / "out", frames=32)
    host = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"],
        cwd=tmp_path / "out",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(host.stdout.readline().split("port ")[1].split()[0])
        page = watch(f"http://127.0.0.1:{port}/")
        page.open("#/0/30/5")
        page.at(5).stack_at(5)
        with mmreplay.open(tmp_path / "s.zarr") as store:
            batch = store.transitions([35])
            assert np.array_equal(page.stack(0)[..., 0], batch.observation[0])
            assert np.array_equal(page.stack(1)[..., 0], batch.next_observation[0])
        page.press("Escape")
        page.sees("3 episodes")
        assert page.page.locator(".row.absent").count() == 1
        page.press("Home", "ArrowDown", "Enter")
        page.sees("not in this export")
        assert all(urlsplit(one).port == port for one in page.requests)
    finally:
        host.kill()
        host.communicate()


def test_fields_of_episodes_are_columns_and_choose_episodes(tmp_path, look):
    tasks = ["pick the cube", EVIL, "pick the ball"]
    path = tmp_path / "s.zarr"
    fields = {"Task": mmreplay.Text(200), "success": Field((), "int8"), "goal": Field((2,), "int8")}
    with mmreplay.create(path, FRAME, Field((), "int64"), episode=fields) as writer:
        for number, task in enumerate(tasks):
            play(writer, FRAME, 5, "terminated", seed=number)
            writer.episode(Task=task, success=number - 1)
    page = look(path)
    page.sees("3 episodes")
    assert [cells[4:-1] for cells in rows(page)] == [
        ["pick the cube", "-1"],
        [EVIL, "0"],
        ["pick the ball", "1"],
    ]
    box = page.page.get_by_label("Filter episodes")
    for text, left in (
        ("success>=0", 2),
        ("task:pick", 2),
        ('task="pick the cube"', 1),
        ('task:"the b" success=1', 1),
        ("task:onerror", 1),
    ):
        box.fill(text)
        page.sees(f"{left} episode{'s' * (left > 1)} of 3")
    for text in ("task>1", "success=high", "success:1", "goal=1"):
        box.fill(text)
        page.sees("is not understood")
    box.fill("")
    page.page.get_by_role("button", name="Task").click()  # by text
    assert page.page.locator('.rows .row[data-place="0"] .cell').nth(4).text_content() == EVIL
    assert page.page.evaluate("window.broken") is None
    mmreplay.tag(path, [0], success=7)  # the page notices
    page.page.locator(".rows .cell", has_text="7").first.wait_for()
