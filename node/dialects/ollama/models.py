"""Bodies of Ollama's requests that only name a model."""

from pydantic import ValidationError

from node.dialects.fields.field_table import Lenient, refuse_invalid
from node.errors import BadRequest


class _NamedModel(Lenient):
    model: str | None = None
    name: str | None = None
    """The older name of the field."""


def read_named(body: bytes) -> str:
    """Returns the name of the model. Raises `BadRequest`."""
    try:
        parsed = _NamedModel.model_validate_json(body)
    except ValidationError as exc:
        refuse_invalid(exc)
    name = parsed.model or parsed.name
    if not name:
        raise BadRequest("model is missing.", param="model")
    return name
