"""The list of models, in one shape that OpenAI's and Anthropic's clients read."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

_encode = msgspec.json.Encoder().encode
_COMPARED_CHARS = 200
_LEAST_CHARS = 3
"""Least characters of a part of a name that counts as similar."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as clients see it. Empty texts are unknown and left out."""

    name: str
    context_tokens: int | None = None
    """None if it is known only once the model is loaded."""
    capabilities: tuple[str, ...] = ()
    """Abilities such as `completion`, `tools` and `reasoning`."""
    tool_parser: str = ""
    reasoning_parser: str = ""
    state: str = ""
    """State of its residency."""


def near_names(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Up to three of the names that resemble `name`, the nearest first. Case is ignored, and so is
    a missing owner before the slash."""
    by_key: dict[str, str] = {}
    for each in names:
        by_key.setdefault(each.rpartition("/")[2].lower(), each)
        by_key[each.lower()] = each
    searched = name[:_COMPARED_CHARS].lower()
    keys = difflib.get_close_matches(searched, by_key, n=6, cutoff=0.5)
    # A longer name that contains this one is similar, too: Qwen3-4B and Qwen3-4B-4bit.
    longer = sorted(key for key in by_key if len(searched) >= _LEAST_CHARS and searched in key)
    return tuple(dict.fromkeys(by_key[key] for key in (*keys, *longer)))[:3]


def model_body(card: ModelCard, created_s: int) -> bytes:
    """The response of `/v1/models/{id}`; `created_s` is Unix time."""
    return _encode(_model(card, created_s))


def models_body(cards: Sequence[ModelCard], created_s: int) -> bytes:
    """The response of `/v1/models`: all models on one page."""
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
