"""`mmreplay` as a shell runs it, in forks of a process that has imported what the command needs.

Invariant: a command has standard streams, a working directory and an environment of its own.
"""

import contextlib
import os
import sys

from mmreplay_cli import main
from tests.support.disks.scratch import scratch_directory
from tests.support.processes.forks import Forks, serve


class Commands(Forks):
    """Client of the server that forks commands; a context manager."""

    def __init__(self):
        super().__init__("tests.support.processes.commands", quiet=True)

    def run(self, arguments, folder):
        """Exit status, and what is printed, of ``mmreplay ARGUMENTS`` in a folder."""
        paths = [folder.with_name(f"{folder.name}.{one}") for one in ("out", "errors", "traceback")]
        order = {"arguments": arguments, "folder": str(folder), "paths": list(map(str, paths[:2]))}
        status = self.wait(self.fork(order, str(paths[2])), however=True)
        printed, told = (one.read_text(encoding="utf-8") for one in paths[:2])
        return status, printed, told


def _run(order):
    os.chdir(order["folder"])
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(one, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for one in order["paths"]]
    for number, one in enumerate(streams):
        os.dup2(one, number)
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    sys.argv = ["mmreplay", *order["arguments"]]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.stdout.flush()


def _warm_up():
    """Import what commands need as they run, so that no child has to."""
    with scratch_directory() as folder, contextlib.redirect_stdout(sys.stderr):
        store = str(folder / "s.zarr")
        for arguments in (
            ["record", "ALE/Breakout-v5", str(folder / "breakout.zarr"), "--steps", "1"],
            ["record", "CartPole-v1", store, "--steps", "20", "--envs", "2"],
            *([command, store] for command in ("info", "episodes", "verify")),
        ):
            main(arguments, standalone_mode=False)


if __name__ == "__main__":
    _warm_up()
    serve(_run)
