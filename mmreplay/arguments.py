"""Check arguments of the user: whole numbers, bools, seeds, masks and functions.

Invariant: an argument that does not fit is a `SchemaError` that names it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError, SchemaError


def whole_number(
    name: str, value: Any, least: int | None = 1, most: int | None = None, otherwise: str = ""
) -> int:
    """A whole number of Python, numpy or anything else that is one, but no bool."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if number is None or not low <= number <= high:
        most_ = "or more" if most is None else f"to {most:,}"
        bounds = "" if least is None else f", {least:,} {most_}"
        raise SchemaError(
            f"{name}: expected a whole number{bounds}{otherwise}; found {value!r:.80}"
        )
    return number


def whole_number_or_none(
    name: str, value: object, least: int = 1, most: int | None = None
) -> int | None:
    """As `whole_number`, or None."""
    return None if value is None else whole_number(name, value, least, most, ", or None")


def check_takes(name: str, function: Any, *arguments: str) -> None:
    """Refuse what cannot be called with these arguments, by position."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise SchemaError(
            f"{name}: expected a function of ({', '.join(arguments)}), found {function!r:.200}: "
            f"{error}"
        ) from error
    except ValueError:  # a function in C may have no signature
        return


def true_or_false(name: str, value: object) -> bool:
    """A bool, of Python or numpy."""
    if not isinstance(value, (bool, np.bool_)):
        raise SchemaError(f"{name}: expected True or False; found {value!r:.80}")
    return bool(value)


def check_number(name: str, value: Any, most: float = math.inf, *, least: float = 0) -> None:
    """Refuse what is not a finite number from `least` to `most`; `least` is 0 or -inf."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or math.isinf(value):
        bounds = f" in [0, {most}]" if most < math.inf else "" if least else ", 0 or more"
        raise SchemaError(f"{name}: expected a number{bounds}, found {value!r:.80}")


def low_and_high(name: str, value: Any) -> tuple[float, float]:
    """Two numbers, the lower one first."""
    bounds = np.array(value) if isinstance(value, (tuple, list)) else np.empty(0)
    if bounds.shape != (2,) or bounds.dtype.kind not in "iuf" or not bounds[0] < bounds[1]:
        raise SchemaError(
            f"{name}: expected (low, high), numbers with low < high, or None; found {value!r}"
        )
    return float(bounds[0]), float(bounds[1])


def is_reproducible(seed: Any) -> bool:
    """Whether all processes with it draw the same: a whole number, or several of them."""
    parts = np.asarray(seed, dtype=object).ravel()  # object: large numbers stay whole
    return all(isinstance(part, (int, np.integer)) for part in parts)


def check_seed(seed: Any) -> None:
    """Refuse what is not a seed for numpy, and bools."""
    try:
        if isinstance(seed, (bool, np.bool_)):
            raise TypeError("a bool")
        np.random.default_rng(seed)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"seed: expected a whole number, 0 or more, several of them, or None; found "
            f"{seed!r:.80}"
        ) from error


def mask_of(name: str, given: Any, n: int, what: str) -> npt.NDArray[np.bool_]:
    """(n,) bool of a mask or of numbers; negative ones count from the end."""
    array = np.asarray(given)
    if array.dtype == np.bool_ and array.shape == (n,):
        return array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SchemaError(
            f"{name}: expected whole numbers, or a bool for each of {n:,} {what}; found "
            f"{array.dtype} {array.shape}"
        )
    numbers = array.astype(np.int64)
    odd = numbers[(numbers < -n) | (numbers >= n)]
    if odd.size:
        raise SchemaError(f"{name}: expected {what} 0 to {n - 1:,}, found number {odd[0]:,}")
    out = np.zeros(n, np.bool_)
    out[numbers] = True
    return out


def imported(name: str, text: str, call: str, otherwise: str = "") -> Callable[..., Any]:
    """The callable of a ``module:callable``; MmreplayError if there is none. `call` shows a use."""
    module, _, path = str(text).partition(":")
    if not (module and path):
        raise MmreplayError(
            f"{name}: expected {otherwise}'module:callable' or a callable, found {text!r:.80}"
        )
    try:
        found: object = operator.attrgetter(path)(importlib.import_module(module))
    except Exception as error:  # the user's module may raise anything while it is imported
        raise MmreplayError(
            f"{name} {text!r}: loading it raised {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise MmreplayError(
            f"{name} {text!r}: expected a callable {call}, found an object of type "
            f"{type(found).__name__}"
        )
    return found
