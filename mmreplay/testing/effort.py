"""How hard the tests look: quickly, as with every change, or for as long as it takes."""

from __future__ import annotations

import os

__all__ = ["THOROUGH"]

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
"""Whether this is `make crash`, or another long search; hypothesis then tries more as well."""
