"""Images that stand in foreign files as PNG or JPEG, as rows of uint8.

Invariant: an image of another size or kind than the others is refused, and never scaled.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.ids import Array

__all__ = ["decoded"]


def decoded(images: Iterable[bytes | None], shape: tuple[int, ...], name: str) -> Array:
    """(n, *shape) uint8 of the bytes of n files; raises FormatError if one is not of that shape."""
    pillow = need("PIL.Image", "pictures")
    rows = []
    for data in images:
        if data is None:
            raise FormatError(f"{name}: an image is missing")
        try:
            with pillow.open(io.BytesIO(data)) as image:
                # A palette has the colours of the image; every other mode says itself what it is.
                rows.append(np.asarray(image.convert("RGB") if image.mode == "P" else image))
        except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
            raise FormatError(f"{name}: not an image: {error!s:.200}") from error
        found = rows[-1]
        if found.dtype != np.uint8 or found.size != np.prod(shape) or found.shape[:2] != shape[:2]:
            raise FormatError(
                f"{name}: expected images of shape {shape} in uint8, found {found.dtype} "
                f"{found.shape}"
            )
    return np.stack(rows).reshape(-1, *shape) if rows else np.zeros((0, *shape), np.uint8)
