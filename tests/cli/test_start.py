"""How every command starts, fails and ends."""

import errno
import json
import os
import subprocess
import sys

import pytest
import zarr

import mmreplay
from tests.support.documents import drop_copy

COMMANDS = ("info", "episodes", "verify", "bench")

HELP = """\
Usage: mmreplay [OPTIONS] COMMAND [ARGS]...

  Record, inspect and convert stores of reinforcement-learning experience.

  A store is a directory with episodes of observations, actions and rewards.
  Start with:

      mmreplay record CartPole-v1 cart.zarr --steps 1000

  Exit status: 0 for success, 1 for an error, 2 for wrong usage, 130 after
  Ctrl-C.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  record       Record a Gymnasium environment.
  info         Show what is in a store.
  episodes     List the episodes.
  stats        Show means, bounds and quantiles of the fields.
  tag          Give fields of episodes a value.
  view         Show every step in a web page.
  verify       Check a store for damage.
  repair       Make a damaged store sound again.
  snapshot     Copy a store, also while it is written.
  push         Send a store to object storage.
  pull         Get a store from object storage.
  pack         Copy, merge, filter and recompress stores.
  columns      List the extra columns.
  add-column   Add a column that a function computes.
  drop-column  Remove a column that was added.
  render       Draw an episode as a film or contact sheet.
  plot         Draw returns, lengths, rewards and actions.
  import       Convert another library's dataset to a store.
  export       Convert a store to another library's dataset.
  bench        Measure how fast this machine samples.
"""


def test_help(command):
    result = command("--help")
    assert (result.status, result.out, result.err) == (0, HELP, "")
    assert command("-h").out == HELP


def test_version(command):
    assert command("--version").out == f"mmreplay {mmreplay.__version__}\n"


def test_the_list_of_commands_agrees_with_the_commands(command):
    """It is written out, so that it can be shown without importing them."""
    from mmreplay_cli import _COMMANDS, main

    assert main.list_commands(None) == list(_COMMANDS)
    for name in _COMMANDS:
        assert main.get_command(None, name).name == name


def test_help_imports_nothing_heavy():
    code = "import mmreplay_cli, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(out.stdout.split()) & {"mmreplay", "numpy", "rich", "zarr", "numcodecs"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Usage: mmreplay [OPTIONS] COMMAND [ARGS]..."),
        (["nope"], "Error: No such command 'nope'."),
        (["recrod", "a"], "Error: No such command 'recrod'. Did you mean 'record'?"),
        (["verfy"], "Error: No such command 'verfy'. Did you mean 'verify'?"),
        (["info"], "Error: Missing argument 'PATH'."),
        (["info", "a", "b"], "Error: Got unexpected extra argument (b)"),
        (["verify", "a", "--nope"], "--nope"),
        (["episodes", "a", "--sort", "colour"], "Error: Invalid value for '--sort'"),
        (["episodes", "a", "--limit", "-1"], "Error: Invalid value for '--limit'"),
        (["bench", "a", "--batch-size", "0"], "Error: Invalid value for '--batch-size'"),
        (
            ["bench", "a", "--stack", "x"],
            "Invalid value for '--stack': 'x': expected a whole number in digits",
        ),
        (["bench", "a", "--seconds", "0"], "Error: Invalid value for '--seconds'"),
    ],
)
def test_wrong_usage_is_status_2(command, arguments, text):
    result = command(*arguments)
    assert (result.status, result.out) == (2, "")
    assert text in result.err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_not_a_store_is_a_message(command, folder, name, as_json):
    (folder / "file").write_text("x")
    (folder / "empty").mkdir()
    zarr.create_group(folder / "group.zarr")
    for path, message in {
        "nothing.zarr": "nothing.zarr: there is no store here; check the path, or record one first",
        "file": "file: expected a directory, found a file: not a store",
        "empty": "empty: no zarr.json in it: not a store; check the path, or, if it was one, put "
        "its zarr.json files back from a copy",
        "group.zarr": "group.zarr/zarr.json: a zarr group, but no mmreplay store: "
        "attributes.mmreplay is missing",
    }.items():
        result = command(name, path, *as_json)
        assert (result.status, result.out, result.err) == (1, "", f"Error: {message}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_newer_format(command, folder, store, name):
    path = folder / store / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["mmreplay"]["format"] = 2
    path.write_text(json.dumps(document))
    result = command(name, store)
    assert result.status == 1
    text = f"{result.out}{result.err}"
    assert "expected format 1, found 2; a newer mmreplay may read it" in text.replace("\n", " ")


@pytest.mark.parametrize("name", ["info", "episodes", "bench"])
def test_a_corrupt_document_is_a_message(command, store, folder, name):
    (folder / store / "zarr.json").write_text('{"zarr_format": 3,')
    result = command(name, store)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(
        "Error: store.zarr/zarr.json: expected JSON, found something else: "
    )


def test_a_missing_column_is_a_message(command, store, folder):
    drop_copy(folder / store)
    (folder / store / "resets" / "zarr.json").unlink()
    result = command("info", store)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: store.zarr/resets/zarr.json: missing")


def test_an_error_of_the_system_is_a_message_without_a_traceback(command, store, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error", "/dev/disk")

    monkeypatch.setattr(mmreplay, "open", broken)
    result = command("info", store)
    assert (result.status, result.out) == (1, "")
    assert result.err == "Error: /dev/disk: Input/output error\n"


def test_memory_that_runs_out_is_a_message(command, store, monkeypatch):
    def large(*_):
        raise MemoryError("malloc of size 19291136 failed")

    monkeypatch.setattr(mmreplay, "open", large)
    result = command("info", store)
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith("Error: out of memory (malloc of size 19291136 failed): ")


def test_a_bug_keeps_its_traceback(command, store, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(mmreplay, "open", broken)
    with pytest.raises(ZeroDivisionError):
        command("info", store)


def test_ctrl_c_is_status_130_without_a_traceback(command, store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mmreplay, "open", interrupted)
    result = command("info", store)
    assert (result.status, result.out) == (130, "")
    assert result.err.strip() == "Aborted!"


@pytest.mark.parametrize(("module", "said"), [("click", ""), ("numpy", "Aborted!\n")])
def test_so_is_ctrl_c_while_it_is_still_importing(folder, store, module, said):
    (folder / "early").mkdir()
    (folder / "early" / f"{module}.py").write_text("raise KeyboardInterrupt")
    above = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "mmreplay_cli", "info", store],
        env={**os.environ, "PYTHONPATH": f"{folder / 'early'}{os.pathsep}{above}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


EMPTY = "expected a path, as a str or pathlib.Path, found ''"


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", "CartPole-v1", "", "--steps", "1"],
        *(["info", ""], ["episodes", ""], ["verify", ""], ["repair", ""], ["bench", ""]),
        *(["snapshot", "", "x"], ["snapshot", "store.zarr", ""], ["pack", "", "x"]),
        *(["pack", "store.zarr", ""], ["export", "arrays", "", "x"], ["import", "arrays", "", "x"]),
        *(["export", "arrays", "store.zarr", ""], ["import", "arrays", "store.zarr", ""]),
        *(["view", ""], ["view", "store.zarr", "--export", ""]),
        *(["plot", "", "--out", "x.png"], ["render", "", "--out", "x.png"]),
        *(["plot", "store.zarr", "--out", ""], ["render", "store.zarr", "--out", ""]),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_working_directory(command, store, folder, arguments):
    result = command(*arguments)
    assert (result.status, result.out) == (1, "")
    assert EMPTY in result.err
    assert [one.name for one in folder.iterdir()] == [store]


@pytest.mark.parametrize("name", ["info", "episodes", "verify", "repair"])
def test_a_pattern_where_one_store_is_expected(command, store, name):
    result = command(name, "*.zarr")
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "Error: *.zarr: there is no store here; a pattern stands for several stores, and one is "
        "expected; name it\n"
    )


def test_a_pipe_gets_no_colours_and_may_be_closed_early(write, folder, play):
    with write() as writer:
        for _ in range(200):
            play(writer, 1, "terminated")
    run = [sys.executable, "-m", "mmreplay_cli", "episodes", "store.zarr"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("FORCE_COLOR", None)
    pipe = subprocess.PIPE  # shorter than what is written into it
    with subprocess.Popen(
        run, stdout=pipe, stderr=pipe, text=True, env=environment, pipesize=4096
    ) as process:
        line = process.stdout.readline()
        assert line.split()[0] == "#"
        assert "\x1b" not in line
        process.stdout.close()
        assert process.stderr.read() == ""


def test_json_is_one_object_and_nothing_else(command, store):
    for name in COMMANDS:
        more = ["--seconds", "0.01"] if name == "bench" else []
        result = command(name, store, "--json", *more)
        assert (result.status, result.err) == (0, ""), name
        assert isinstance(json.loads(result.out), dict)
        assert result.out.startswith("{\n")
        assert result.out.endswith("}\n")


@pytest.mark.parametrize("name", ["info", "episodes", "verify"])
def test_a_crashed_store_can_be_read(command, write, name, play, die):
    writer = write()
    play(writer, 5)
    die(writer)
    result = command(name, "store.zarr")
    assert (result.status, result.err) == (0, "")


def test_the_working_directory_is_left_out_where_a_path_begins_only(command, folder):
    inside = folder / "more" / str(folder).strip("/")
    inside.mkdir(parents=True)
    assert command("info", inside / "no.zarr").err.startswith(f"Error: more{folder}/no.zarr: there")
    assert command("info", folder / "no.zarr").err.startswith("Error: no.zarr: there")


def test_a_full_output_is_told_from_a_full_disk(folder):
    mmreplay.create("s.zarr", mmreplay.Field((2,)), mmreplay.Field((), "int64")).close()
    shell = subprocess.run(
        f"{sys.executable} -m mmreplay_cli info s.zarr > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.returncode == 1
    assert "the output cannot be written: No space left" in shell.stderr
