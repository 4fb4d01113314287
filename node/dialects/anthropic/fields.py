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
    ONE_ANSWER,
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


class ThinkingBody(Lenient):
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
    thinking: ThinkingBody | None = None
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
    "messages": "Roles user, assistant, and system anywhere. Blocks: text, thinking, "
    "redacted_thinking and what a host did (dropped), tool_use, tool_result, search_result, and "
    "document of text; of an image or another document [a line of "
    "text](#pictures-sounds-and-files) is left; other blocks are refused by their path. A text "
    "that is empty leaves no line. A call's input that is no JSON object is shown to the model as "
    "text. The answer goes on from a last message of the assistant. `cache_control` has no effect: "
    "the cache is automatic.",
    "system": "A string or text blocks; lines that change with each request (billing headers) are "
    "removed.",
    "tools": "Custom tools: `name`, `description`, `input_schema`, and `input_examples`, which go "
    "into the description. "
    f"{STRICT_NOTE} "
    "`bash_…`, `text_editor_…`, `memory_…` and `computer_…`, which the client runs, are functions "
    f"with the schemas of their types. {HOSTED_NOTE} "
    "`defer_loading` is a hint: all tools are shown from the start. "
    "`eager_input_streaming` has no effect: an input is streamed as the model writes it, whether "
    "it asks for that or not.",
    "tool_choice": "auto; any: the answer is a call, or several; tool: it is one call of the tool "
    "named `name`; none: neither does the model see tools, nor are calls read. "
    "`disable_parallel_tool_use` ends the answer with its first call. Any of them goes together "
    "with thinking: the model thinks first, and then calls.",
    "thinking": "disabled, adaptive, or enabled with `budget_tokens`: thinking ends after so many "
    "tokens at the latest, and the answer follows. Any budget from 0 on is taken; one of "
    "`max_tokens` or more ends nothing; -1 is no limit, whatever the model's settings say. "
    "`display`: summarized sends all of the thinking; omitted sends empty blocks, whose signature "
    "brings the thinking back with the next turn. Without this field the model's settings decide, "
    "or its chat template.",
    "output_config": "`effort`: low, medium, high, xhigh, max; for the chat template. `format` of "
    "type json_schema, with `schema`: the text is JSON that fits it; json_object: any JSON object, "
    "with a `schema` one that fits it. With tools, the answer may be calls instead; a forced call "
    "goes before. `task_budget` is refused.",
    "output_format": "The older name of `output_config.format`.",
    "enable_thinking": "For templates that know it, where `thinking` is left out; must not "
    "contradict it.",
    "chat_template_kwargs": "An object: further variables of the chat template.",
}

_NO_LOGPROBS = "An answer of /v1/messages has no place for probabilities."

_REFUSED: Mapping[str, Refusal] = {
    **REFUSED_BY_ALL,
    **{name: elsewhere(name) for name in ("include", "previous_response_id")},
    "context_management": Refusal(
        _are_hints,
        "null, or edits of types `clear_tool_uses_…`, `clear_thinking_…` and `compact_…`, which "
        "are hints: nothing is taken out of a history, the client trims it by itself",
    ),
    "store": Refusal(off, "null or false", "Only /v1/responses stores answers."),
    **ONE_ANSWER,
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
        absent, "null", "An answer goes on from a last message of the assistant by itself."
    ),
    "add_generation_prompt": Refusal(
        absent, "null", "An answer goes on from a last message of the assistant by itself."
    ),
}

_IGNORED: Mapping[str, str] = {
    **IGNORED,
    "stream_options": "A stream tells its usage anyway.",
    "anthropic_beta": "It names features, each of which has fields of its own.",
    "anthropic_version": "There is one version.",
    "betas": "It names features, each of which has fields of its own.",
    "billing_policy": "Nothing is billed.",
    "cache_control": "The prefix cache is automatic.",
    "fallback_credit_token": "Nothing is billed.",
    "fallbacks": "For models that decline by policy, of which there are none.",
    "metadata": "A label.",
    "user_profile_id": "A label.",
    "workspace_id": "A label.",
}

_ANSWER_NOTES: Mapping[str, str] = {
    **SAMPLING_NOTES,
    "max_tokens": "Required, at least 1.",
    "temperature": "0 to 1; 0 is greedy. Default 1.",
    "stop_sequences": "Up to 16 strings; matched on the text, across tokens; not part of it.",
    "stream": "Server-sent events; a ping where there is nothing to say.",
    "diagnostics": "With `previous_message_id`, the answer says that no diagnosis is available.",
}

MESSAGES = FieldTable(MessagesBody, {**_PROMPT_NOTES, **_ANSWER_NOTES}, _REFUSED, _IGNORED)
COUNT_TOKENS = FieldTable(
    CountBody,
    {
        **_PROMPT_NOTES,
        "thinking": "disabled, adaptive, or enabled with a budget, which no prompt shows.",
        "tool_choice": "auto, any or tool, which no prompt shows; none: without tools.",
        "output_config": "`effort`, for the chat template; `format`, which no prompt shows. "
        "`task_budget` is refused.",
    },
    _REFUSED,
    {**_IGNORED, **dict.fromkeys(_ANSWER_NOTES, "It is about the answer.")},
)
