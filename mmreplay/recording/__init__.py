"""Recording: Gymnasium environments as a source of rows.

Invariant: every recorded transition was made by the environment (an autoreset is not one), and
every episode ends with the observation that the environment ended it with.
"""

from __future__ import annotations

import mmreplay.writing.env_fields  # noqa: F401 (says which extra to install where Gymnasium is missing)
