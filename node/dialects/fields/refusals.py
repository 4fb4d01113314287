"""Fields that all dialects treat alike: extensions of other servers, and names from other dialects.

A field that one path applies must not be silently ignored by another.
"""

from collections.abc import Mapping

from node.dialects.fields.field_table import (
    Lenient,
    Refusal,
    absent,
    falsy,
    off,
    on,
    only,
    unsupported,
)
from node.errors import Unsupported
from node.protocol.paths import PATH_RESPONSES


def is_empty(value: object) -> bool:
    """True for null and for an empty string, list or object; not for 0 or false, which have a
    meaning."""
    return value is None or value in ("", [], {})


def renamed(name: str, here: str) -> Refusal:
    """Refuses a field under the name of another dialect: `name` is called `here`."""
    return Refusal(is_empty, "null or empty", f"{name} is called {here} here.")


def elsewhere(name: str, path: str = PATH_RESPONSES) -> Refusal:
    """Refuses a field that only `path` has."""
    return Refusal(is_empty, "null or empty", f"Only {path} supports {name}.")


def refuse_reasoning(reasoning: Lenient) -> None:
    """Refuses members of an object `reasoning` that other servers accept. Its class has to declare
    `effort` and `max_tokens`, which are applied. Raises `Unsupported`."""
    extra = reasoning.model_extra or {}
    if extra.get("enabled") is not None:
        raise Unsupported(
            "reasoning.enabled is called enable_thinking here.", param="reasoning.enabled"
        )
    if extra.get("exclude"):
        raise unsupported("reasoning.exclude", "reasoning.exclude")


ONE_CHOICE: Mapping[str, Refusal] = {
    "n": Refusal(only(1), "null or 1", "This path returns one response a request."),
    "best_of": Refusal(only(1), "null or 1"),
    "num_return_sequences": Refusal(
        only(1), "null or 1", "This path returns one response a request."
    ),
}
"""Refusals for paths whose responses have no choices."""

NO_GUIDES: Mapping[str, Refusal] = {
    name: Refusal(absent, "null", f"Only chats and completions support {name}.")
    for name in (
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    )
}
"""Refusals for paths that accept a constraint only in their own dialect's form."""


def format_elsewhere(here: str) -> Mapping[str, Refusal]:
    """Returns refusals of other servers' names for structured output, which the dialect calls
    `here`."""
    return {
        **{name: renamed(name, here) for name in ("format", "guided_decoding", "response_schema")},
        "json_mode": Refusal(off, "null or false", f"json_mode is called {here} here."),
    }


BUDGETS_ELSEWHERE = (
    "max_reasoning_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_tokens",
)
"""Other servers' names for a thinking budget that no path here accepts."""


def budgets_elsewhere(here: str) -> Mapping[str, Refusal]:
    """Returns refusals of other servers' names for a thinking budget, which the dialect calls
    `here`."""
    return {name: renamed(name, here) for name in BUDGETS_ELSEWHERE}


REFUSED_BY_ALL: Mapping[str, Refusal] = {
    "prompt_logprobs": Refusal(absent, "null"),
    "echo": Refusal(falsy, "null or false"),
    "suffix": Refusal(falsy, "null or empty"),
    "ebnf": Refusal(absent, "null"),
    "grammar": Refusal(absent, "null"),
    "json_schema": Refusal(absent, "null"),
    "regex": Refusal(absent, "null"),
    "structural_tag": Refusal(absent, "null"),
    "guided_whitespace_pattern": Refusal(absent, "null"),
    "dry_multiplier": Refusal(falsy, "null or 0"),
    "xtc_probability": Refusal(falsy, "null or 0"),
    "typical_p": Refusal(only(1, 1.0), "null or 1"),
    "repetition_penalty_range": Refusal(absent, "null"),
    "repetition_context_size": Refusal(absent, "null"),
    "length_penalty": Refusal(only(1, 1.0), "null or 1"),
    "use_beam_search": Refusal(falsy, "null or false"),
    "min_tokens": Refusal(falsy, "null or 0"),
    "ignore_eos": Refusal(falsy, "null or false"),
    "stop_token_ids": Refusal(falsy, "null or empty"),
    "include_stop_str_in_output": Refusal(falsy, "null or false"),
    "bad_words": Refusal(falsy, "null or empty"),
    "allowed_token_ids": Refusal(absent, "null"),
    "separate_reasoning": Refusal(on, "null or true", "Reasoning is always separate from content."),
    "skip_special_tokens": Refusal(on, "null or true"),
    "truncate_prompt_tokens": Refusal(absent, "null"),
    "return_token_ids": Refusal(falsy, "null or false"),
    "return_tokens_as_token_ids": Refusal(falsy, "null or false"),
    "cache_salt": Refusal(falsy, "null or empty"),
    "priority": Refusal(falsy, "null or 0"),
    "specprefill": Refusal(falsy, "null or false"),
    "timeout": Refusal(
        absent, "null", "A request has no time limit of its own: disconnect instead."
    ),
    "access_programs": Refusal(absent, "null"),
    "add_special_tokens": Refusal(off, "null or false"),
    "audio": Refusal(absent, "null"),
    "background": Refusal(falsy, "null or false"),
    "background_options": Refusal(absent, "null"),
    "chat_template": Refusal(absent, "null", "The template is the model's own."),
    "compaction": Refusal(absent, "null"),
    "container": Refusal(absent, "null"),
    "conversation": Refusal(absent, "null", "This version of mlx-fleet has no conversations."),
    "documents": Refusal(absent, "null"),
    "inference_geo": Refusal(
        only("global"), "null or global", "A node cannot promise a place of inference."
    ),
    "max_tool_calls": Refusal(absent, "null"),
    "mcp_servers": Refusal(falsy, "null or empty"),
    "modalities": Refusal(lambda value: not value or value == ["text"], 'null or `["text"]`'),
    "moderation": Refusal(absent, "null"),
    "prediction": Refusal(absent, "null"),
    "reasoning_format": Refusal(
        only("auto", "deepseek", "parsed"), "null, auto, deepseek or parsed"
    ),
    "speed": Refusal(only("standard"), "null or standard", "There is no faster mode."),
    "thread": Refusal(absent, "null"),
    "truncation": Refusal(only("disabled"), "null or disabled"),
    "web_search_options": Refusal(absent, "null"),
}
"""Refusals for the `FieldTable` of every dialect, which may say more about some fields. Most are
extensions of other servers."""

IGNORED: Mapping[str, str] = {
    "user": "A label.",
    "metadata": "A label.",
    "safety_identifier": "A label.",
    "request_id": "A label; the response has an id of our own.",
    "prompt_cache_key": "A hint; prompts are cached by their prefix.",
    "prompt_cache_retention": "A hint; the node's memory decides how long a prompt is cached.",
    "prompt_cache_options": "A hint; every prompt is cached, for as long as memory allows.",
    "service_tier": "A hint; there is one tier.",
    "verbosity": "A hint; it is not passed to the model.",
    "guided_decoding_backend": "There is one.",
    "dry_base": "Has a meaning only with `dry_multiplier`.",
    "dry_allowed_length": "Has a meaning only with `dry_multiplier`.",
    "dry_penalty_last_n": "Has a meaning only with `dry_multiplier`.",
    "dry_sequence_breakers": "Has a meaning only with `dry_multiplier`.",
    "xtc_threshold": "Has a meaning only with `xtc_probability`.",
    "specprefill_keep_pct": "Has a meaning only with `specprefill`.",
    "specprefill_backbone_pct": "Has a meaning only with `specprefill`.",
    "video_fps": "Has a meaning only with video parts.",
    "video_max_frames": "Has a meaning only with video parts.",
}
"""Ignored fields for a dialect's `FieldTable`, with the reason."""
