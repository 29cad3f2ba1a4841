"""The line of a progress bar."""

import io
import re
import sys

from mmreplay_cli.wording import progress


def test_numbers_of_long_recordings_fit_80_columns(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    text = "123,456 steps/s, 1,234,567 episodes, 12.3 GB"
    with progress("record", "steps") as show:
        show(100_000_000, 100_000_000, text)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sys.stderr.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert max(map(len, lines)) <= 80
    assert any(f"100000000/100000000 {text} 0:00:00" in line for line in lines)
