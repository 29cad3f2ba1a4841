"""The objects of an archive: read, write, list and remove them, and exchange one by its ETag.

Invariant: nothing of obstore, and none of its errors, leaves this module.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, TypeAlias

from mmreplay.errors import (
    FailedStoreError,
    LockedError,
    MissingExtraError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.system.locks import DirectoryLock
from mmreplay.system.user_paths import is_url

Progress: TypeAlias = Callable[[int, int], None] | None

SMALL_BYTES = 256 << 20  # the most that is read of an object that has no known size
_AT_ONCE = 16
_PIECE_BYTES = 8 << 20
_ONE_REQUEST_BYTES = 64 << 20
_LOCK_S = 30.0
# A whole object may take long where many share a line; a line that is silent has broken.
_CLIENT = {"timeout": "1h", "read_timeout": "1m"}
_SETTING = re.compile(
    r"(?:aws|azure|google)_(allow_http|allow_invalid_certificates|http1_only|http2_only|proxy_\w+|"
    r"(?:connect_|read_|pool_idle_)?timeout|user_agent)"
)


class Objects:
    """Objects below a URL, or in a store object of obstore, which may have settings of its own.

    `make` makes the directory of a ``file://`` URL; `url` is for messages. SchemaError for anything
    else. All methods raise FailedStoreError when the storage fails for longer than obstore tries
    again.
    """

    def __init__(self, url: Any, *, make: bool = False) -> None:
        try:
            import obstore  # noqa: PLC0415 (an extra)
            from obstore import exceptions, store  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(
                'object storage needs obstore: pip install "mmreplay[s3]"'
            ) from error
        self._api, self._errors = obstore, exceptions
        self.url = str(url)
        self._store = url
        if not isinstance(url, store.ObjectStore):
            if not is_url(url):
                raise SchemaError(
                    f"url: expected a URL such as s3://bucket/pong or file:///data/pong, or a "
                    f"store object of obstore, found {url!r:.200}"
                )
            own: dict[str, Any] = {"mkdir": make} if self.url.startswith("file:") else {}
            if not self.url.startswith(("file:", "memory:")):
                own = {"client_options": _client_options()}
            try:
                self._store = store.from_url(self.url, **own)
            except (exceptions.BaseError, ValueError, TypeError, OSError) as error:
                kind = SchemaError if "mkdir" not in own else StoreNotFoundError
                raise kind(f"url: {self.url}: {_first_line(error)}") from error
        self._local: Any = self._store.prefix if isinstance(self._store, store.LocalStore) else None

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise FailedStoreError(
                f"{self.url}: {what}: it is gone, as a newer push may not need it: call again"
            ) from error
        # What obstore does not know it raises as one of the last two.
        except (self._errors.BaseError, NotImplementedError, ValueError) as error:
            raise FailedStoreError(
                f"{self.url}: {what}: {_first_line(error)}; call again: what has arrived stays"
            ) from error

    def read(self, key: str, most: int) -> tuple[bytes, str | None] | None:
        """A small object and its ETag; None if it is not there, FailedStoreError if too large."""
        with self._explained(f"reading {key}"):
            try:
                found = self._api.get(self._store, key)
            except FileNotFoundError:
                return None
            return b"".join(self._pieces(found, most)), found.meta["e_tag"]

    def stream(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object, in pieces; FailedStoreError if they are more than `size`."""
        with self._explained(f"reading {key}"):
            yield from self._pieces(self._api.get(self._store, key), size)

    @staticmethod
    def _pieces(found: Any, most: int) -> Iterator[bytes]:
        left = most
        for piece in found.stream(min_chunk_size=_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                raise ValueError(f"expected at most {most:,} bytes, found more")
            yield piece

    def write(self, key: str, path: Path, size: int) -> None:
        """Make an object of a file of `size` bytes."""
        with self._explained(f"writing {key}"):
            self._api.put(self._store, key, path, use_multipart=size > _ONE_REQUEST_BYTES)

    def exchange(self, key: str, data: bytes, tag: str | None) -> None:
        """Replace the small object with this ETag, or none for None; LockedError if it changed."""
        mode: Any = "create" if tag is None else {"e_tag": tag}
        with self._explained(f"writing {key}"):
            try:
                if self._local is not None and tag is not None:
                    self._exchange_file(key, data, tag)
                else:
                    self._api.put(self._store, key, data, mode=mode)
            except (self._errors.PreconditionError, self._errors.AlreadyExistsError) as error:
                # Of a request that was sent again, the first may have been the one that arrived.
                now = self.read(key, SMALL_BYTES)
                if now is None or now[0] != data:
                    raise _overtaken(self.url) from error

    def _exchange_file(self, key: str, data: bytes, tag: str) -> None:
        """The same in a directory, under a lock that other hosts see if the file system has it."""
        lock = DirectoryLock(
            self._local, patience_s=_LOCK_S, who=lambda: ": another push is ending"
        )
        try:
            if self._api.head(self._store, key)["e_tag"] != tag:
                raise _overtaken(self.url)
            self._api.put(self._store, key, data)
        finally:
            lock.release()

    def sizes(self) -> dict[str, tuple[int, float]]:
        """(bytes, when it was written) of each object."""
        with self._explained("listing"):
            return {
                one["path"]: (one["size"], one["last_modified"].timestamp())
                for some in self._api.list(self._store)
                for one in some
            }

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone are left alone."""
        with self._explained("removing objects"), contextlib.suppress(FileNotFoundError):
            self._api.delete(self._store, list(keys))


def _client_options() -> dict[str, str]:
    """Ours, in place of which obstore would take none from the environment: so those, too."""
    found = ((_SETTING.fullmatch(name.lower()), value) for name, value in os.environ.items())
    return _CLIENT | {match[1]: value for match, value in found if match is not None}


def _overtaken(url: str) -> LockedError:
    return LockedError(
        f"{url}: another push ended while this one ran; the archive is what it wrote, and nothing "
        f"was lost: push again if yours is to be the archive"
    )


def _first_line(error: Exception) -> str:
    """The first line of an error of obstore, whose messages continue with data structures."""
    return str(error).strip().split("\n")[0][:500]


def do_all(jobs: Iterable[tuple[Callable[[], object], int]], progress: Progress) -> None:
    """Do (call, bytes) many at once; the first error, or an interrupt, ends what has not begun."""
    listed = list(jobs)
    total, done = sum(size for _, size in listed), 0
    pool = futures.ThreadPoolExecutor(_AT_ONCE, "mmreplay-archive")
    try:
        running = {pool.submit(call): size for call, size in listed}
        for one in futures.as_completed(running):
            one.result()
            done += running[one]
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


def is_hub(url: object) -> bool:
    """Whether a URL names a repository of the Hugging Face Hub."""
    return str(url).startswith("hf://")
