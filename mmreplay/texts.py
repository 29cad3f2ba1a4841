"""`Text`: a short text as a column, of a fixed number of bytes.

Invariant: what is stored of a text is its UTF-8, then zeros; so no text has a NUL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError

_MOST_BYTES = 1 << 16
_BYTE = np.dtype("uint8")


@dataclass(frozen=True, slots=True)
class Text:
    """A text of an episode, as a field of it.

    Args:
        width: bytes of UTF-8 at most, 1 to 65,536; each episode takes as many.

    Raises:
        SchemaError: another width.
    """

    width: int

    def __post_init__(self) -> None:
        width: Any = self.width
        is_whole = isinstance(width, (int, np.integer)) and not isinstance(width, bool)
        if not is_whole or not 1 <= width <= _MOST_BYTES:
            raise SchemaError(
                f"Text: expected bytes of UTF-8, 1 to {_MOST_BYTES:,}; found {width!r:.80}"
            )
        object.__setattr__(self, "width", int(width))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is stored of it."""
        return (self.width,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is stored of it."""
        return _BYTE

    @property
    def row_bytes(self) -> int:
        """Bytes that are stored of it."""
        return self.width

    def same_data(self, other: object) -> bool:
        """Whether both are texts of one width."""
        return self == other

    def coerce_loosely(self, value: object, name: str) -> npt.NDArray[Any]:
        """(width,) uint8 of a text; SchemaError: another value, one too long, or with a NUL."""
        data = encoded(value, name)
        if len(data) > self.width:
            raise SchemaError(
                f"{name}: expected a text of at most {self.width} bytes of UTF-8, found "
                f"{len(data)}: {value!r:.80}; shorten it, or declare mmreplay.Text({len(data)})"
            )
        return np.frombuffer(data.ljust(self.width, b"\0"), np.uint8)

    def to_json(self) -> dict[str, Any]:
        """As the store's attributes have it."""
        return {"text": self.width}


def encoded(value: object, name: str) -> bytes:
    """The UTF-8 of a text, or bytes as they are; SchemaError for what cannot be stored."""
    if not isinstance(value, (str, bytes)):
        raise SchemaError(f"{name}: expected a text, found {value!r:.80}; convert it with str()")
    try:
        data = value if isinstance(value, bytes) else value.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{name}: {value!r:.80} has no UTF-8: {error.reason}") from error
    if b"\0" in data:
        raise SchemaError(f"{name}: expected a text without NUL, found {value!r:.80}")
    return data


def stored_bytes(rows: npt.NDArray[Any]) -> list[bytes]:
    """The UTF-8 that is stored in (n, width) uint8."""
    data = np.ascontiguousarray(rows).view(f"S{rows.shape[1]}")[:, 0]
    return [one.partition(b"\0")[0] for one in data.tolist()]


def decoded(rows: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    """The texts that are stored in (n, width) uint8: (n,), of the length of the longest."""
    # Killed in the middle of a change, a writer leaves some bytes of either text.
    return np.array([one.decode(errors="replace") for one in stored_bytes(rows)], str)
