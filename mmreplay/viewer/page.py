"""The files of the page itself, read once and found by name.

Invariant: only listed names are served; no name becomes a path.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from importlib import resources

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
"""What the page may load: part of the page too, for static hosts."""


@dataclasses.dataclass(frozen=True, slots=True)
class PageFile:
    """One file: its bytes, its media type, and an ETag of them."""

    body: bytes
    media_type: str
    etag: str


@functools.cache
def page_files() -> dict[str, PageFile]:
    """The files of the page by name; ``index.html`` is what a visitor gets first."""
    out = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            body = file.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:16]
            out[file.name] = PageFile(body, _TYPES[kind], etag)
    return out
