"""Threads that run while the block that starts them does.

Invariant: once the block has ended none of them runs, and what one of them failed with is raised.
"""

import threading


class BackgroundThreads:
    """Threads that run while a block does; a context manager."""

    def __init__(self, *tasks):
        self._over = threading.Event()
        self._failures = []
        self._threads = [threading.Thread(target=self._run, args=(task,)) for task in tasks]

    def _run(self, task):
        try:
            task(self.going)
        except BaseException as error:
            self._failures.append(error)

    def going(self):
        """Whether the block has not ended, and nothing has failed."""
        return not self._over.is_set() and not self._failures

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
