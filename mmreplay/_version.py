"""The version, written once: the build reads it from here, and so does `mmreplay.__version__`."""

from typing import Final

__version__: Final = "0.1.0"
