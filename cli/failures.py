"""The one place where an error becomes a message on stderr and exit status 1.

Errors with a known cause are a `MmreplayError` or an error of the operating system. Anything else
is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from .wording import plain


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors with a known cause into a message without a traceback."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, click.ClickException):
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # click exits silently: the reader of the output is gone
        text = str(error)
        if not _is_known(error) and error.strerror is not None:
            # Of a store, errors name the file.
            text = f"{error.filename or 'the output cannot be written'}: {error.strerror}"
        raise click.ClickException(plain(_as_typed(text))) from error
    except MemoryError as error:  # of Python, numpy, pyarrow or PyAV
        what = f" ({error})" if str(error) else ""
        text = f"out of memory{what}: end other programs, or raise the limit of this one"
        raise click.ClickException(plain(f"{text} (`ulimit -v`)")) from error
    except Exception as error:
        if not _is_known(error):
            raise
        raise click.ClickException(plain(_as_typed(str(error)))) from error


def _as_typed(text: str) -> str:
    """With paths in the working directory made relative."""
    with suppress(OSError):  # it may be gone
        # Where a path begins: the working directory's may stand within a longer one.
        return re.sub(rf"(?<![^\s'\"`(=:]){re.escape(f'{Path.cwd()}{os.sep}')}", "", text)
    return text


def _is_known(error: Exception) -> bool:
    # Not imported for this: a command that never imported mmreplay cannot have raised its errors.
    mmreplay = sys.modules.get("mmreplay")
    return mmreplay is not None and isinstance(error, mmreplay.MmreplayError)
