"""What a JSON schema says of numbers, as the grammar library can hold it.

The library reckons in floats of 64 bits, which not all whole numbers beyond 2**53 are.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

LARGEST = 10**18
"""Of integers that may be any: those with more digits are a model's that does not find the end."""
_LARGEST_BOUND = 2**53
_LARGEST_FACTOR = 10**5
_MOST_REMAINDERS = 10**4
"""Of a division by the digits of a factor, its zeros left out: the library looks at each."""
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_INTEGERS = ("integer", ["integer"])


class Unheld(Exception):
    """A sentence on what cannot be held."""


def hold_numbers(schema: dict[str, Any]) -> None:
    """Narrows what the schema says of numbers, so that what is held fits. Raises `Unheld` where
    that cannot be said."""
    for keyword in ("enum", "const"):
        if keyword in schema and not _is_exact(schema[keyword]):
            raise Unheld(f"The keyword {keyword} holds a number that is too large to be held.")
    factor = schema.get("multipleOf")
    if isinstance(factor, int | float) and is_number(factor) and not _is_divisor(factor):
        raise Unheld("The keyword multipleOf has too many digits to be held.")
    for keyword in (*_LOWER, *_UPPER):
        if is_number(schema.get(keyword)):
            schema[keyword] = _nearer(keyword, schema[keyword])
    if _is_narrow(schema):
        raise Unheld("A range narrower than 1 is not held next to a whole number.")
    _bound_integers(schema)


def _nearer(keyword: str, bound: float) -> float:
    """The bound, or a tighter one that can be held. Raises `Unheld` where there is none."""
    held = max(-_LARGEST_BOUND, min(_LARGEST_BOUND, bound))
    if held < bound if keyword in _LOWER else held > bound:
        raise Unheld(f"The keyword {keyword} is too large to be held.")
    return held


def is_number(value: object) -> bool:
    """Whether it is one that JSON can say."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _is_exact(value: object) -> bool:
    """Whether the numbers in a JSON value are written as themselves: as the shortest digits of the
    float next to them, filled up with zeros."""
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
    """Gives integers that may be any a limit, far out."""
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
    """Whether numbers lie within less than 1 next to a whole one that is excluded: the library
    lets that one through."""
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
    """Exclusive bounds, also as draft 4 writes them."""
    excluded = schema.get(f"exclusiveM{word}")
    bound = schema.get(f"m{word}") if excluded is True else excluded
    if isinstance(bound, int | float) and is_number(bound):
        yield bound
