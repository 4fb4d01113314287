"""Fields that the bodies of OpenAI's chat and completions share, and the `usage` object of their
responses."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from node.dialects.fields.constraints import CONSTRAINT_NOTES, ConstraintFields
from node.dialects.fields.field_table import Lenient, Refusal, absent, falsy, off, only, unsupported
from node.dialects.fields.refusals import REFUSED_BY_ALL, elsewhere, format_elsewhere, renamed
from node.dialects.fields.sampling import SAMPLING_NOTES, Count, SamplingFields
from node.errors import BadRequest, EngineFault
from node.ipc.messages import RowUsage


class OpenAIStreamOptions(Lenient):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


MAX_CHOICES = 16


class OpenAIBody(SamplingFields, ConstraintFields):
    model: Annotated[str, Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: OpenAIStreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None


def includes_usage(body: OpenAIBody) -> bool:
    """Returns True if the stream is to end with a chunk that has the usage. Raises `BadRequest` or
    `Unsupported`."""
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise BadRequest("stream_options is only allowed with stream.", param="stream_options")
    if options.continuous_usage_stats:
        raise unsupported("usage on every chunk", "stream_options.continuous_usage_stats")
    return bool(options.include_usage)


def usage_fields(usage: RowUsage | None) -> dict[str, object]:
    """Returns the response's `usage` object. Raises `EngineFault` if the engine reported no
    usage."""
    if usage is None:
        raise EngineFault("The engine ended the request without reporting its usage.")
    details = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.reasoning_overflow_tokens:
        details["reasoning_overflow_tokens"] = usage.reasoning_overflow_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


NOTES: Mapping[str, str] = {
    **SAMPLING_NOTES,
    **CONSTRAINT_NOTES,
    "model": "A model of the list of models, or an alias of the router.",
    "max_tokens": "At least 1; by default, all that the context has room for.",
    "max_completion_tokens": "Overrides `max_tokens`.",
    "stop": "A string or up to 16; each ends the response and is not part of it.",
    "stream": "Server-sent events, ending with `[DONE]`.",
    "stream_options": (
        "Only with `stream`. `include_usage`: a last chunk has the usage. `include_obfuscation` is "
        "ignored: nothing is padded. `continuous_usage_stats` is refused."
    ),
    "n": (
        f"1 to {MAX_CHOICES} choices, sampled independently after a single prefill; the i-th as "
        "with `seed` + i. Default 1."
    ),
}
"""Notes by field of `OpenAIBody`."""

REFUSED: Mapping[str, Refusal] = {
    **REFUSED_BY_ALL,
    **{name: elsewhere(name) for name in ("include", "previous_response_id")},
    "store": Refusal(off, "null or false", "Only /v1/responses stores responses."),
    "context_management": Refusal(falsy, "null or empty"),
    **format_elsewhere("response_format or structured_outputs"),
    "num_return_sequences": Refusal(only(1), "null or 1", "num_return_sequences is called n here."),
    "ebnf": renamed("ebnf", "guided_grammar, in Lark's notation,"),
    "grammar": renamed("grammar", "guided_grammar, in Lark's notation,"),
    "json_schema": Refusal(absent, "null", "json_schema is called guided_json here."),
    "regex": renamed("regex", "guided_regex"),
    "output_format": renamed("output_format", "response_format"),
    "stop_sequences": renamed("stop_sequences", "stop"),
    "max_output_tokens": renamed("max_output_tokens", "max_completion_tokens"),
}
"""Refusals for a dialect's `FieldTable`."""
