"""Adapts what a JSON schema says about numbers to the grammar library.

The library calculates in 64-bit floats, which cannot represent all integers beyond 2**53.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

LARGEST = 10**18
"""Largest integer if the schema sets no bound; a model that writes more digits does not find the
end."""
_LARGEST_BOUND = 2**53
_LARGEST_FACTOR = 10**5
_MOST_REMAINDERS = 10**4
"""Largest value of a factor's digits without trailing zeros, since the library enumerates the
remainders of division by it."""
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_INTEGERS = ("integer", ["integer"])


class UnsupportedNumbers(Exception):
    """A rule about numbers that is not supported; the message is a sentence."""


def narrow_numbers(schema: dict[str, Any]) -> None:
    """Narrows the schema's rules about numbers so that every number the library allows fits. Raises
    `UnsupportedNumbers` if that is not possible."""
    for keyword in ("enum", "const"):
        if keyword in schema and not _is_exact(schema[keyword]):
            raise UnsupportedNumbers(
                f"The keyword {keyword} has a number that is too large to be enforced."
            )
    factor = schema.get("multipleOf")
    if isinstance(factor, int | float) and is_number(factor) and not _is_divisor(factor):
        raise UnsupportedNumbers("The keyword multipleOf has too many digits to be enforced.")
    for keyword in (*_LOWER, *_UPPER):
        if is_number(schema.get(keyword)):
            schema[keyword] = _nearer(keyword, schema[keyword])
    if _is_narrow(schema):
        raise UnsupportedNumbers(
            "A range narrower than 1 next to an excluded integer is not supported."
        )
    _bound_integers(schema)


def _nearer(keyword: str, bound: float) -> float:
    """Returns the bound, or a tighter one that the library can represent. Raises
    `UnsupportedNumbers` if there is none."""
    nearest = max(-_LARGEST_BOUND, min(_LARGEST_BOUND, bound))
    if nearest < bound if keyword in _LOWER else nearest > bound:
        raise UnsupportedNumbers(f"The keyword {keyword} is too large to be enforced.")
    return nearest


def is_number(value: object) -> bool:
    """True if it is a number that JSON can express."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _is_exact(value: object) -> bool:
    """True if the library writes the numbers in a JSON value exactly: as the shortest digits of the
    nearest float, padded with zeros."""
    if isinstance(value, Mapping):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    try:
        return not is_number(value) or value % 1 != 0 or int(Decimal(repr(float(value)))) == value
    except OverflowError:
        return False


def _is_divisor(factor: float) -> bool:
    digits = Decimal(str(factor)).normalize().as_tuple().digits
    return factor <= _LARGEST_FACTOR and int("".join(map(str, digits))) <= _MOST_REMAINDERS


def _bound_integers(schema: dict[str, Any]) -> None:
    """Sets far bounds for integers that have none."""
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or "integer" not in types or "number" in types:
        return
    if {"enum", "const", "multipleOf"} & schema.keys():
        return
    if _bounds(schema, "inimum", max) is None:
        schema["minimum"] = -LARGEST
    if _bounds(schema, "aximum", min) is None:
        schema["maximum"] = LARGEST


def _is_narrow(schema: Mapping[str, Any]) -> bool:
    """True if the range is narrower than 1 and excludes an integer at its end, which the library
    would allow."""
    if schema.get("type") in _INTEGERS:
        return False
    low, high = _bounds(schema, "inimum", max), _bounds(schema, "aximum", min)
    excluded = (*_excluded(schema, "inimum"), *_excluded(schema, "aximum"))
    return (
        low is not None
        and high is not None
        and high - low < 1
        and any(float(each).is_integer() for each in excluded)
    )


def _bounds(schema: Mapping[str, Any], word: str, tightest: Callable[..., float]) -> float | None:
    bound = schema.get(f"m{word}")
    bounds = [*_excluded(schema, word), *([bound] if is_number(bound) else [])]
    return tightest(bounds) if bounds else None


def _excluded(schema: Mapping[str, Any], word: str) -> Iterator[float]:
    """Yields the exclusive bounds, including those in draft 4's form."""
    excluded = schema.get(f"exclusiveM{word}")
    bound = schema.get(f"m{word}") if excluded is True else excluded
    if isinstance(bound, int | float) and is_number(bound):
        yield bound
