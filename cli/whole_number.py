"""Whole numbers as options: 1000000, or 1e6 as people write it."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["WholeNumber"]


class WholeNumber(click.IntRange):
    """A whole number in a range, named as one in messages and in the help."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int; fails if it is none, or out of the range."""
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        # Digits are left as they are: a float has no more than 16 of them.
        whole = "e" in str(value).lower() and number.is_integer()
        return super().convert(int(number) if whole else value, param, ctx)
