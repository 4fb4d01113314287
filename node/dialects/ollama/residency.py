"""Requests of Ollama's clients that only load or unload a model: those without messages or
prompt."""

from dataclasses import dataclass

from node.errors import BadRequest
from node.protocol.ollama.keep_alive import keep_alive_s


@dataclass(frozen=True, slots=True)
class ResidencyRequest:
    """A request to load a model, or to unload it."""

    model: str
    keep_alive_s: float | None
    is_chat: bool
    """True for `/api/chat`, whose response has a message."""

    @property
    def unloads(self) -> bool:
        return self.keep_alive_s == 0


def read_keep_alive(value: object) -> float | None:
    """Returns the field as `node.protocol.ollama.keep_alive` does. Raises `BadRequest`."""
    try:
        return keep_alive_s(value)
    except ValueError as error:
        raise BadRequest(str(error), param="keep_alive") from None
