"""JSON schemas as the grammar library is to read them."""

from collections.abc import Mapping
from typing import Any


class NotHeld(Exception):
    """What no grammar can hold an answer to: a sentence, and the body's field that asks for it."""

    def __init__(self, reason: str, param: str) -> None:
        super().__init__(reason)
        self.param = param


WHITE_SPACE = r"\n?[ \t]{0,32}"
"""Between the tokens of JSON: pretty printing has room, and no model can go on with it."""


def held_schema(schema: object, param: str) -> dict[str, Any]:
    """The schema with what only describes left out, such as formats that JSON Schema does not
    define, and with bounded white space. Raises `NotHeld`."""
    if schema is False:
        raise NotHeld("No value fits the schema false.", param)
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise NotHeld(f"{param} must be a JSON schema, an object.", param)
    return {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
