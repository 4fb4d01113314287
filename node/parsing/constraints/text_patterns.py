"""Patterns for what a schema says about strings. Each matches a whole text, in the syntax of Rust's
regex crate."""

import re

from node.parsing.constraints.regex_syntax import inner_pattern
from node.parsing.constraints.values import Flat, SchemaPlace

_DATE = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,30}[0-9A-Za-z])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_ATOM = r"[0-9A-Za-z_+-]{1,30}"
_IN_URI = r"(?:[0-9A-Za-z._~!$'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
_URI = (
    rf"[a-z][a-z0-9+.-]{{0,15}}://{_HOST}(?::[1-9][0-9]{{0,3}})?"
    rf"(?:/{_IN_URI})?(?:\?{_IN_URI})?(?:#{_IN_URI})?"
)
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_HOST}"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,6}[YMWD]|T[0-9]{1,6}[HMS])",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::(?:[0-9a-fA-F]{1,4})?",
    "uri": _URI,
    "uri-reference": _URI,
    "iri": _URI,
    "iri-reference": _URI,
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "json-pointer": _POINTER,
}
"""Patterns of texts that certainly have the format; not of all such texts."""
_OTHER_FORMATS = frozenset(("regex", "uri-template", "relative-json-pointer"))


def length_of(flat: Flat) -> str:
    """Returns the repetition in a pattern for the schema's string length."""
    fewest, most = int(flat.get("minLength", 0)), flat.get("maxLength")
    return f"{{{fewest},{'' if most is None else int(most)}}}"


def has_length(flat: Flat) -> bool:
    return "minLength" in flat or "maxLength" in flat


def patterns_of(flat: Flat, place: SchemaPlace) -> list[str]:
    """Returns the patterns that a string must match, all of them; empty if any string fits. Listed
    values (`enum`) are ignored. Raises `UnsupportedConstraint`."""
    patterns = []
    if has_length(flat):
        patterns.append(rf"(.|\n){length_of(flat)}")
    if "pattern" in flat:
        patterns.append(_whole(flat["pattern"], place))
    form = flat.get("format")
    if form in _OTHER_FORMATS:
        raise place.unsupported(f"the format {form}")
    if form in _FORMATS:
        patterns.append(_FORMATS[form])
    return patterns


def restricts_text(flat: Flat, place: SchemaPlace) -> bool:
    """True if the schema restricts strings. Raises `UnsupportedConstraint`."""
    return "enum" in flat or bool(patterns_of(flat, place))


def values_of(flat: Flat, place: SchemaPlace) -> list[str]:
    """Returns the listed strings that fit. Raises `UnsupportedConstraint`."""
    values = [each for each in flat.get("enum", ()) if isinstance(each, str)]
    if "pattern" in flat:
        raise place.unsupported("the keyword pattern beside the values")
    fewest = flat.get("minLength", 0)
    return [each for each in values if fewest <= len(each) <= flat.get("maxLength", len(each))]


def _whole(pattern: object, place: SchemaPlace) -> str:
    """Returns a schema's pattern, which may match anywhere, as one for a whole text."""
    refused = place.unsupported(f"the pattern {pattern}")
    if not isinstance(pattern, str):
        raise refused
    inner = pattern.removeprefix("^")
    begins, ends = inner != pattern, bool(re.search(r"(?<!\\)(?:\\\\)*\$\Z", inner))
    inner = inner[:-1] if ends else inner
    try:
        translated, has_choice = inner_pattern(inner)
    except ValueError:
        raise refused from None
    if has_choice and (begins or ends):
        raise refused
    before, after = ("" if begins else r"(.|\n)*"), ("" if ends else r"(.|\n)*")
    return f"{before}(?:{translated}){after}"
