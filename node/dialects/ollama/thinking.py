"""Ollama's field `think`."""

from typing import cast, get_args

from node.dialects.fields.template import Effort
from node.errors import BadRequest

LEVELS = tuple(each for each in get_args(Effort) if each != "none")


def read_think(value: object) -> tuple[bool | None, Effort | None]:
    """Returns (`enable_thinking`, effort). Raises `BadRequest`."""
    if value is None or isinstance(value, bool):
        return value, None
    if value not in LEVELS:
        levels = ", ".join(LEVELS)
        raise BadRequest(f"think must be true, false, or one of {levels}.", param="think")
    return True, cast(Effort, value)
