"""The encoding of one half of the tail into shards, shared by two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["SealJob"]


class SealJob:
    """The encoding of one half of the tail, shared by the sealing thread and the writer.

    Args:
        n_parts: inner chunks, over all compressed columns.
        encode: (part, fast) -> the bytes of that inner chunk.
        finish: called with all parts' bytes, in the sealing thread; writes and publishes.
    """

    def __init__(
        self,
        n_parts: int,
        encode: Callable[[int, bool], bytes],
        finish: Callable[[list[bytes]], None],
    ) -> None:
        """Begin nothing yet."""
        self._encode = encode
        self._finish = finish
        self._parts: list[bytes | None] = [None] * n_parts
        self._todo = iter(range(n_parts))
        self._lock = threading.Lock()
        self._left = n_parts
        self._hurry = False
        self._encoded = threading.Event()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def work(self, *, fast: bool) -> None:
        """Encode parts until none is left to take; `fast` for a writer that cannot wait.

        Once the writer has to help, the sealing thread hurries too.
        """
        self._hurry |= fast
        try:
            while True:
                with self._lock:
                    part = next(self._todo, None)
                if part is None:
                    return
                self._parts[part] = self._encode(part, self._hurry)
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self._encoded.set()
        except BaseException as error:  # the writer raises it at its next border
            self.error = error
            self._encoded.set()  # nobody may wait for a part that was begun, and will not come
            if not isinstance(error, Exception):  # a KeyboardInterrupt in a writer that helps
                raise

    def run(self) -> None:
        """The sealing thread's part: encode, wait for the writer's share, finish."""
        try:
            self.work(fast=False)
            self._encoded.wait()
            if self.error is None:
                self._finish([part for part in self._parts if part is not None])
        except BaseException as error:  # noqa: BLE001 (the writer raises it at its next border)
            self.error = error
        finally:
            self.done.set()
