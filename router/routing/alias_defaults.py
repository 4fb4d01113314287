"""Adds an alias target's default fields to requests that lack them, spelled in the dialect of the
path. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.prefix import Fields
from node.protocol.paths import (
    PATH_CHAT,
    PATH_COMPLETIONS,
    PATH_COUNT_TOKENS,
    PATH_MESSAGES,
    PATH_OLLAMA_CHAT,
    PATH_OLLAMA_GENERATE,
    PATH_RESPONSES,
)

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_THINKS = ("thinking", "enable_thinking", "reasoning_effort", "reasoning", "output_config")
"""Fields by which a client controls thinking; a default beside one of them could contradict it."""
_BUDGETS = (
    "max_thinking_tokens",
    "thinking_token_budget",
    "thinking_budget",
    "reasoning_max_tokens",
    "reasoning",
    "thinking",
)
_KWARGS = "chat_template_kwargs"
_THINKING_KWARGS = ("enable_thinking", "thinking", "reasoning_effort")
_NULL = b"null"
_OFF = "none"
_decode_object = msgspec.json.Decoder(Fields).decode


def _same(value: Any) -> Any:
    return value


class _Place(NamedTuple):
    """The place of a default in a request body."""

    at: tuple[str, ...]
    """The field, and a field inside it if there is a second name."""
    unless: tuple[str, ...] = ()
    """Other fields by which a client sets the same thing."""
    shape: Callable[[Any], Any] = _same


_SAMPLED = {name: _Place((name,)) for name in _SAMPLING}
_KWARGS_PLACE = {_KWARGS: _Place((_KWARGS,))}
_SWITCH = _Place(("enable_thinking",), _THINKS)
_COUNTED = {
    "enable_thinking": _SWITCH,
    "max_thinking_tokens": _Place(
        ("thinking",), _THINKS, lambda tokens: {"type": "enabled", "budget_tokens": tokens}
    ),
    "reasoning_effort": _Place(
        ("output_config", "effort"), (), lambda effort: "low" if effort == "minimal" else effort
    ),
    **_KWARGS_PLACE,
}
_OLLAMA = {
    **{name: _Place(("options", name)) for name in _SAMPLING},
    "repetition_penalty": _Place(("options", "repeat_penalty")),
    "max_tokens": _Place(("options", "num_predict")),
    "stop": _Place(("options", "stop")),
    "enable_thinking": _Place(("think",)),
    "reasoning_effort": _Place(("think",), (), lambda effort: effort != _OFF and effort),
    "max_thinking_tokens": _Place(("max_thinking_tokens",), _BUDGETS),
}
_PLACES: Mapping[str, Mapping[str, _Place]] = {
    PATH_CHAT: {
        **_SAMPLED,
        "max_tokens": _Place(("max_tokens",), ("max_completion_tokens",)),
        "stop": _Place(("stop",)),
        "reasoning_effort": _Place(("reasoning_effort",), ("reasoning",)),
        "enable_thinking": _SWITCH,
        "max_thinking_tokens": _Place(("max_thinking_tokens",), _BUDGETS),
        **_KWARGS_PLACE,
    },
    PATH_COMPLETIONS: {
        **_SAMPLED,
        "max_tokens": _Place(("max_tokens",), ("max_completion_tokens",)),
        "stop": _Place(("stop",)),
    },
    PATH_RESPONSES: {
        **_SAMPLED,
        "max_tokens": _Place(("max_output_tokens",)),
        "stop": _Place(("stop",)),
        "reasoning_effort": _Place(("reasoning", "effort")),
        "enable_thinking": _SWITCH,
        "max_thinking_tokens": _Place(("max_thinking_tokens",), _BUDGETS),
        **_KWARGS_PLACE,
    },
    PATH_MESSAGES: {
        **_SAMPLED,
        "temperature": _Place(("temperature",), (), lambda value: min(value, 1)),
        "max_tokens": _Place(("max_tokens",)),
        "stop": _Place(
            ("stop_sequences",), (), lambda stop: [stop] if isinstance(stop, str) else stop
        ),
        **_COUNTED,
    },
    PATH_COUNT_TOKENS: _COUNTED,
    PATH_OLLAMA_CHAT: {**_OLLAMA, **_KWARGS_PLACE},
    PATH_OLLAMA_GENERATE: _OLLAMA,
}
"""The supported defaults by path. Others are not added."""


def with_defaults(fields: Fields, defaults: Mapping[str, Any], path: str) -> Fields:
    """The request's fields with the defaults that it lacks. Values that it has keep their bytes;
    `null` means "not set"."""
    places = _PLACES.get(path, {})
    made = dict(fields)
    for name, value in _spelled_for(path, defaults).items():
        place = places.get(name)
        if place is not None and not _is_set(fields, name, place, value):
            _add(made, place.at, place.shape(value))
    return made


def _spelled_for(path: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Spells an effort of `none` as `enable_thinking: false` in Anthropic's dialect, which lacks
    it."""
    is_off = defaults.get("reasoning_effort") == _OFF
    if not is_off or path not in (PATH_MESSAGES, PATH_COUNT_TOKENS):
        return defaults
    others = {name: value for name, value in defaults.items() if name != "reasoning_effort"}
    return {**others, "enable_thinking": False}


def _is_set(fields: Fields, name: str, place: _Place, value: Any) -> bool:
    """True if the client has set what the default is about."""
    about = place.unless
    if name == "reasoning_effort" and value == _OFF:
        about = (*about, "thinking", "enable_thinking")
    if any(_has(fields, each) for each in about):
        return True
    kwargs = _object(fields, _KWARGS) or {}
    return name in _THINKS and any(_has(kwargs, each) for each in _THINKING_KWARGS)


def _add(made: Fields, at: tuple[str, ...], value: Any) -> None:
    """Sets an absent field, or adds the missing fields of an object that the client has sent."""
    outer, inner = at[0], at[1:]
    given = {inner[0]: value} if inner else value
    if not _has(made, outer):
        made[outer] = _raw(given)
    elif (inner or outer == _KWARGS) and (known := _object(made, outer)) is not None:
        added = {key: _raw(each) for key, each in given.items() if not _has(known, key)}
        made[outer] = _raw({**known, **added}) if added else made[outer]


def _object(fields: Fields, name: str) -> Fields | None:
    """A field's own fields; None if it is no object, which the node will refuse."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _decode_object(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw) != _NULL


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
