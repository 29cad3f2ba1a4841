"""Interrupts (Ctrl-C) in a line that a test chooses."""

import linecache
import sys
from pathlib import Path

import mmreplay

PACKAGE = str(Path(mmreplay.__file__).parent)


def interrupted(do, is_wanted, *places):
    """Interrupt a call at the first line for which `is_wanted(frame)` is true.

    `places` are the beginnings of the modules that count. Returns whether there was such a line.
    """
    where = tuple(f"{PACKAGE}/{place}" for place in places)

    def in_line(frame, event, _):
        if event == "line" and not _is_spared(frame) and is_wanted(frame):
            sys.settrace(None)
            raise KeyboardInterrupt
        return in_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: in_line if frame.f_code.co_filename.startswith(where) else None)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _is_spared(frame):
    """Whether an interrupt in this line would be none, or would reach nobody.

    Python interrupts nothing between the end of a block and what its `with` does then, nor at a
    `try`, which does nothing; and it prints what is raised while it closes a generator that nobody
    holds any more.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.strip().startswith(("with ", "try:")) or isinstance(sys.exception(), GeneratorExit)
