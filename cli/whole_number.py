"""Whole numbers as options: 1000000 or 1e6."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["WholeNumber"]


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int; fails if it is not one, or out of range."""
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        # Only numbers with an exponent: a float has at most 16 digits.
        whole = "e" in str(value).lower() and number.is_integer()
        return super().convert(int(number) if whole else value, param, ctx)
