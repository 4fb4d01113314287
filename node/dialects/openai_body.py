"""What the bodies of OpenAI's chat and completions have in common, and how usage is told."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from node.dialects.body import Lenient, Refusal, absent, falsy, only, unsupported
from node.dialects.sampling import SAMPLING_NOTES, Count, SamplingFields
from node.errors import BadRequest, EngineFault
from node.types import RowUsage

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def off(value: object) -> bool:
    """Only null and false; not 0, which says something."""
    return value is None or value is False


def on(value: object) -> bool:
    """Only null and true."""
    return value is None or value is True


class StreamOptions(Lenient):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIBody(SamplingFields):
    model: Annotated[str, Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def wants_usage(body: OpenAIBody) -> bool:
    """Whether a stream is to end with a chunk of usage. Raises `BadRequest` or `Unsupported`."""
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise BadRequest("stream_options is only allowed with stream.", param="stream_options")
    if options.continuous_usage_stats:
        raise unsupported("usage on every chunk", "stream_options.continuous_usage_stats")
    return bool(options.include_usage)


def usage_fields(usage: RowUsage | None) -> dict[str, object]:
    """The answer's `usage`. Raises `EngineFault` if the engine told none."""
    if usage is None:
        raise EngineFault("The engine ended the request without its accounts.")
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


NOTES: Mapping[str, str] = {
    **SAMPLING_NOTES,
    "model": "A model of the list of models, or an alias of the router.",
    "max_tokens": "At least 1; by default, what the context has room for.",
    "max_completion_tokens": "Goes before `max_tokens`.",
    "stop": "A string or up to 16; they end the answer and are no part of it.",
    "stream": "Server-sent events, ending with `[DONE]`.",
    "stream_options": (
        "Only with `stream`. `include_usage`: one more chunk, with the usage. "
        "`include_obfuscation` is ignored: nothing is padded. `continuous_usage_stats` is refused."
    ),
}
"""By field of `OpenAIBody`."""

_LATER = "Constrained output comes with a later version of mlx-fleet."

REFUSED: Mapping[str, Refusal] = {
    "n": Refusal(only(1), "null or 1", "This version of mlx-fleet gives one answer a request."),
    "best_of": Refusal(only(1), "null or 1"),
    "logprobs": Refusal(off, "null or false"),
    "top_logprobs": Refusal(falsy, "null or 0"),
    "prompt_logprobs": Refusal(absent, "null"),
    "echo": Refusal(falsy, "null or false"),
    "suffix": Refusal(falsy, "null or empty"),
    "response_format": Refusal(
        lambda value: value is None or value == {"type": "text"}, 'null or `{"type": "text"}`'
    ),
    "structured_outputs": Refusal(absent, "null", _LATER),
    "guided_json": Refusal(absent, "null", _LATER),
    "guided_regex": Refusal(absent, "null", _LATER),
    "guided_choice": Refusal(absent, "null", _LATER),
    "guided_grammar": Refusal(absent, "null", _LATER),
    "max_thinking_tokens": Refusal(absent, "null"),
    "thinking_token_budget": Refusal(absent, "null"),
    "reasoning_max_tokens": Refusal(absent, "null"),
    "thinking_budget": Refusal(absent, "null"),
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
    "skip_special_tokens": Refusal(on, "null or true"),
    "truncate_prompt_tokens": Refusal(absent, "null"),
    "return_token_ids": Refusal(falsy, "null or false"),
    "return_tokens_as_token_ids": Refusal(falsy, "null or false"),
    "cache_salt": Refusal(falsy, "null or empty"),
    "priority": Refusal(falsy, "null or 0"),
    "specprefill": Refusal(falsy, "null or false"),
    "timeout": Refusal(absent, "null", "A request has no time limit of its own: hang up instead."),
    "store": Refusal(off, "null or false", "Only /v1/responses stores answers."),
    "service_tier": Refusal(only("auto", "default"), "null, auto or default"),
}
"""For a dialect's `FieldTable`; the names that OpenAI does not have are other servers'."""

IGNORED: Mapping[str, str] = {
    "user": "A label.",
    "metadata": "A label.",
    "safety_identifier": "A label.",
    "request_id": "A label; the answer's id is our own.",
    "prompt_cache_key": "A hint; prompts are cached by what they begin with.",
    "prompt_cache_retention": "A hint; how long a prompt is cached is up to the node's memory.",
    "prompt_cache_options": "A hint; every prompt is cached, for as long as memory allows.",
    "dry_base": "Says something only with `dry_multiplier`.",
    "dry_allowed_length": "Says something only with `dry_multiplier`.",
    "dry_penalty_last_n": "Says something only with `dry_multiplier`.",
    "dry_sequence_breakers": "Says something only with `dry_multiplier`.",
    "xtc_threshold": "Says something only with `xtc_probability`.",
    "specprefill_keep_pct": "Says something only with `specprefill`.",
    "specprefill_backbone_pct": "Says something only with `specprefill`.",
    "video_fps": "Says something only with video parts.",
    "video_max_frames": "Says something only with video parts.",
}
"""For a dialect's `FieldTable`."""
