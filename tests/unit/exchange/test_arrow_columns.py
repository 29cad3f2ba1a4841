"""Without pyarrow a message says what to install; with it, see tests/exchange."""

import sys

import numpy as np
import pytest

from mmreplay import MissingExtraError
from mmreplay.exchange.arrow_columns import arrow_field, from_arrow, to_arrow


def test_each_direction_names_the_library_that_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (
        lambda: to_arrow(np.zeros((2, 3))),
        lambda: arrow_field("x", (3,), "float32"),
        lambda: from_arrow(None, (3,), "float32", "x"),
    ):
        with pytest.raises(MissingExtraError, match="needs pyarrow: pip install"):
            call()
