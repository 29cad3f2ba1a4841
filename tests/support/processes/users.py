"""Processes of another user than root, who started the tests.

Invariant: nothing of the calling process becomes another user.
"""

import json
import os
import traceback

import numcodecs  # noqa: F401 (another user cannot import it where Python lies in root's home)

from mmreplay.system import platform


def unavailable():
    """Why no process can become another user; empty if one can."""
    return "" if hasattr(os, "setuid") and os.geteuid() == 0 else "only root may be another user"


def become(uid, gid):
    """Be another user from here on, with no rights but theirs; for a process that ends."""
    platform.boot_id()  # which imports an encoding
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def as_user(uid, gid, call):
    """What a call returns, as JSON tells it, in a forked process of another user.

    All that it needs must have been imported by the caller, who has no threads.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            become(uid, gid)
            answer = {"result": call()}
        except BaseException:
            answer = {"wrong": traceback.format_exc()}
        with os.fdopen(write, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = json.loads(file.read())
    os.waitpid(pid, 0)
    if "wrong" in told:
        raise AssertionError(told["wrong"])
    return told["result"]
