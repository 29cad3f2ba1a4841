"""PNG and JPEG images of foreign files as rows of uint8.

Invariant: an image of another size is refused before it is decoded, and never scaled; only these
two decoders of Pillow are used, as others start programs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.ids import Array

_FORMATS = ("PNG", "JPEG")


def decoded(images: Iterable[bytes | None], shape: tuple[int, ...], name: str) -> Array:
    """(n, *shape) uint8 from the bytes of n files; raises FormatError for another shape."""
    pillow = need("PIL.Image", "pictures")
    bombs = pillow.DecompressionBombError, pillow.DecompressionBombWarning
    rows = []
    for data in images:
        if data is None:
            raise FormatError(f"{name}: an image is missing")
        try:
            with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
                if (image.height, image.width) != shape[:2]:
                    raise _unlike(name, shape, f"one of {image.width} x {image.height}")
                rows.append(np.asarray(image.convert("RGB") if image.mode == "P" else image))
        except (OSError, SyntaxError, ValueError, *bombs) as error:
            raise FormatError(f"{name}: not an image in PNG or JPEG: {error!s:.200}") from error
        found = rows[-1]
        if found.dtype != np.uint8 or found.size != math.prod(shape):
            raise _unlike(name, shape, f"{found.dtype} {found.shape}")
    return np.stack(rows).reshape(-1, *shape) if rows else np.zeros((0, *shape), np.uint8)


def _unlike(name: str, shape: tuple[int, ...], found: str) -> FormatError:
    return FormatError(f"{name}: expected images of shape {shape} in uint8, found {found}")
