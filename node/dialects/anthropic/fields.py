"""The fields of `/v1/messages` and `/v1/messages/count_tokens`: models of the bodies and the field
tables."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from node.dialects.anthropic.messages import MessageFields
from node.dialects.anthropic.tools import ToolChoiceBody
from node.dialects.fields.field_table import (
    FIRST_FAULT,
    FieldTable,
    Lenient,
    Refusal,
    absent,
    falsy,
    off,
    on,
    only,
)
from node.dialects.fields.refusals import (
    IGNORED,
    NO_GUIDES,
    ONE_CHOICE,
    REFUSED_BY_ALL,
    budgets_elsewhere,
    elsewhere,
    format_elsewhere,
    renamed,
)
from node.dialects.fields.sampling import SAMPLING_NOTES, Count, SamplingFields
from node.dialects.fields.thinking import THINKING_FIELDS, Budget
from node.dialects.fields.tool_choice import HOSTED_NOTE, STRICT_NOTE

# --- bodies ----------------------------------------------------------------------------------


class AnthropicThinkingBody(Lenient):
    type: str
    budget_tokens: Budget | None = None
    display: str | None = None


class OutputConfigBody(Lenient):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class _Diagnostics(Lenient):
    previous_message_id: str | None = None


class CountBody(Lenient):
    """The fields that determine the prompt."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[MessageFields], FIRST_FAULT, Field(min_length=1)]
    system: object = None
    tools: Annotated[list[dict[str, object]], FIRST_FAULT] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: AnthropicThinkingBody | None = None
    output_config: OutputConfigBody | None = None
    output_format: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, SamplingFields):
    """The fields of the prompt and of the response."""

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[str], FIRST_FAULT] | None = None
    stream: bool | None = None
    diagnostics: _Diagnostics | None = None


# --- tables ----------------------------------------------------------------------------------


_EDITS = re.compile(r"(?:clear_tool_uses|clear_thinking|compact)_\d{8}")


def _are_hints(value: object) -> bool:
    """True if a `context_management` only requests that a long history be shortened."""
    edits = value.get("edits") if isinstance(value, Mapping) else value
    if not isinstance(edits, list):
        return not edits
    kinds = [edit.get("type") if isinstance(edit, Mapping) else None for edit in edits]
    return all(isinstance(kind, str) and _EDITS.fullmatch(kind) for kind in kinds)


_PROMPT_NOTES: Mapping[str, str] = {
    "model": "A model or an alias.",
    "messages": (
        "Roles user, assistant, and system anywhere. Blocks: text, thinking, redacted_thinking and "
        "reports of a host's work (dropped), tool_use, tool_result, search_result, and document of "
        "text; an image or another document becomes [a line of text](#pictures-sounds-and-files); "
        "other blocks are refused by their path. An empty text leaves no line. A call's input that "
        "is not a JSON object is shown to the model as text. If the last message is an "
        "assistant's, the response continues it. `cache_control` has no effect: caching is "
        "automatic."
    ),
    "system": "A string or text blocks; lines that change with each request (billing headers) are "
    "removed.",
    "tools": (
        "Custom tools: `name`, `description`, `input_schema`, and `input_examples`, which are "
        f"added to the description. {STRICT_NOTE} `bash_…`, `text_editor_…`, `memory_…` and "
        "`computer_…`, which the client runs, are functions with the schemas of their types. "
        f"{HOSTED_NOTE} `defer_loading` is a hint: all tools are shown from the start. "
        "`eager_input_streaming` has no effect: a call's input is always streamed as the model "
        "generates it."
    ),
    "tool_choice": (
        "auto; any: the response is one call or several; tool: exactly one call of the tool named "
        "`name`; none: the model sees no tools, and no calls are parsed. "
        "`disable_parallel_tool_use` ends the response with its first call. All of these work with "
        "thinking: the model thinks first, and then calls."
    ),
    "thinking": (
        "disabled, adaptive, or enabled with `budget_tokens`: thinking ends after that many tokens "
        "at the latest, and the content follows. Any budget from 0 on is accepted; one of "
        "`max_tokens` or more has no effect; -1 is no limit, whatever the model's settings. "
        "`display`: summarized sends all of the thinking; omitted sends empty blocks, whose "
        "signature carries the thinking to the next turn. Without this field, the model's settings "
        "decide, or its chat template."
    ),
    "output_config": (
        "`effort`: low, medium, high, xhigh, max; for the chat template. `format` of type "
        "json_schema, with `schema`: the text is JSON that fits it; json_object: any JSON object, "
        "or with a `schema` one that fits it. With tools, the response may be calls instead; a "
        "forced call overrides `format`. `task_budget` is refused."
    ),
    "output_format": "The older name of `output_config.format`.",
    "enable_thinking": (
        "For templates with this variable, if `thinking` is not set; must not contradict it."
    ),
    "chat_template_kwargs": "An object: further variables of the chat template.",
}

_NO_LOGPROBS = "A response of /v1/messages has no field for log probabilities."

_REFUSED: Mapping[str, Refusal] = {
    **REFUSED_BY_ALL,
    **{name: elsewhere(name) for name in ("include", "previous_response_id")},
    "context_management": Refusal(
        _are_hints,
        "null, or edits of types `clear_tool_uses_…`, `clear_thinking_…` and `compact_…`, which "
        "are hints: nothing is removed from a history, the client trims it itself",
    ),
    "store": Refusal(off, "null or false", "Only /v1/responses stores responses."),
    **ONE_CHOICE,
    **NO_GUIDES,
    **format_elsewhere("output_config.format"),
    **budgets_elsewhere("thinking.budget_tokens"),
    "logprobs": Refusal(off, "null or false", _NO_LOGPROBS),
    "top_logprobs": Refusal(falsy, "null or 0", _NO_LOGPROBS),
    "response_format": Refusal(
        lambda value: value is None or value == {"type": "text"},
        'null or `{"type": "text"}`',
        "response_format is called output_config.format here.",
    ),
    "guided_json": renamed("guided_json", "output_config.format"),
    **{name: renamed(name, "thinking.budget_tokens") for name in THINKING_FIELDS},
    "prompt": renamed("prompt", "messages"),
    "input": renamed("input", "messages"),
    "instructions": renamed("instructions", "system"),
    "functions": renamed("functions", "tools"),
    "function_call": Refusal(
        only("auto"), "null or auto", "function_call is called tool_choice here."
    ),
    "parallel_tool_calls": Refusal(
        on, "null or true", "It is called tool_choice.disable_parallel_tool_use here."
    ),
    "stop": renamed("stop", "stop_sequences"),
    "max_completion_tokens": renamed("max_completion_tokens", "max_tokens"),
    "max_output_tokens": renamed("max_output_tokens", "max_tokens"),
    "reasoning_effort": renamed("reasoning_effort", "output_config.effort"),
    "reasoning": renamed("reasoning", "thinking or output_config.effort"),
    "include_reasoning": Refusal(
        on, "null or true", "include_reasoning is called thinking.display here."
    ),
    "text": renamed("text", "output_config"),
    "continue_final_message": Refusal(
        absent, "null", "A response always continues a last message of the assistant."
    ),
    "add_generation_prompt": Refusal(
        absent, "null", "A response always continues a last message of the assistant."
    ),
}

_IGNORED: Mapping[str, str] = {
    **IGNORED,
    "stream_options": "A stream always reports its usage.",
    "anthropic_beta": "It enables features, each of which has fields of its own.",
    "anthropic_version": "There is one version.",
    "betas": "It enables features, each of which has fields of its own.",
    "billing_policy": "Nothing is billed.",
    "cache_control": "The prefix cache is automatic.",
    "fallback_credit_token": "Nothing is billed.",
    "fallbacks": "For models that decline by policy, of which there are none.",
    "metadata": "A label.",
    "user_profile_id": "A label.",
    "workspace_id": "A label.",
}

_RESPONSE_NOTES: Mapping[str, str] = {
    **SAMPLING_NOTES,
    "max_tokens": "Required, at least 1.",
    "temperature": "0 to 1; 0 is greedy. Default 1.",
    "stop_sequences": "Up to 16 strings; matched on the text, across tokens; not part of it.",
    "stream": "Server-sent events; a ping in an idle interval.",
    "diagnostics": "With `previous_message_id`, the response says that no diagnosis is available.",
}

MESSAGES = FieldTable(MessagesBody, {**_PROMPT_NOTES, **_RESPONSE_NOTES}, _REFUSED, _IGNORED)
COUNT_TOKENS = FieldTable(
    CountBody,
    {
        **_PROMPT_NOTES,
        "thinking": (
            "disabled, adaptive, or enabled with a budget; the budget does not change the prompt."
        ),
        "tool_choice": "auto, any or tool, which do not change the prompt; none: without tools.",
        "output_config": (
            "`effort`, for the chat template; `format`, which does not change the prompt. "
            "`task_budget` is refused."
        ),
    },
    _REFUSED,
    {**_IGNORED, **dict.fromkeys(_RESPONSE_NOTES, "It concerns the response only.")},
)
