"""The list of models, in one shape that OpenAI's and Anthropic's clients read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What clients are told of a model. Empty texts are not known yet, and not told."""

    name: str
    context_tokens: int | None = None
    """None where it is known only once the model is loaded."""
    capabilities: tuple[str, ...] = ()
    """Such as `completion`, `tools` and `reasoning`."""
    tool_parser: str = ""
    reasoning_parser: str = ""
    state: str = ""
    """Of its residency."""


def model_body(card: ModelCard, created_s: int) -> bytes:
    """The answer of `/v1/models/{id}`; `created_s` is Unix time."""
    return _encode(_model(card, created_s))


def models_body(cards: Sequence[ModelCard], created_s: int) -> bytes:
    """The answer of `/v1/models`: all of them on one page."""
    ends = {
        "first_id": cards[0].name if cards else None,
        "last_id": cards[-1].name if cards else None,
    }
    data = [_model(card, created_s) for card in cards]
    return _encode({"object": "list", "data": data, "has_more": False, **ends})


def _model(card: ModelCard, created_s: int) -> dict[str, object]:
    facts: dict[str, object] = {
        "context_window": card.context_tokens,
        "max_model_len": card.context_tokens,
        "max_input_tokens": card.context_tokens,
        "tool_call_parser": card.tool_parser,
        "reasoning_parser": card.reasoning_parser,
        "state": card.state,
    }
    return {
        "id": card.name,
        "object": "model",
        "created": created_s,
        "owned_by": "mlx-fleet",
        "type": "model",
        "display_name": card.name,
        "created_at": datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "capabilities": card.capabilities,
        **{field: fact for field, fact in facts.items() if fact not in (None, "")},
    }
