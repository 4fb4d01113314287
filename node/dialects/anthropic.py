"""Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from node.dialects.anthropic_answer import MessageWriter, ThinkingShown
from node.dialects.anthropic_messages import MessageFields, read_conversation, read_system
from node.dialects.anthropic_tools import FORCED, ToolChoice, read_tools
from node.dialects.base import AnswerHead
from node.dialects.body import FieldTable, Lenient, Refusal, absent, off, on, only, unsupported
from node.dialects.refusals import IGNORED, REFUSED_BY_ALL, elsewhere, renamed
from node.dialects.sampling import (
    SAMPLING_NOTES,
    Count,
    SamplingFields,
    sampling_params,
    stop_strings,
    token_limit,
)
from node.dialects.template import Effort, template_options
from node.errors import BadRequest, Unsupported
from node.generate import SamplingParams
from node.request import Message, TextRequest

# --- bodies ----------------------------------------------------------------------------------


class _Thinking(Lenient):
    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: str | None = None


class _OutputConfig(Lenient):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _Diagnostics(Lenient):
    previous_message_id: str | None = None


class CountBody(Lenient):
    """What makes a prompt."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[MessageFields], Field(min_length=1)]
    system: object = None
    tools: list[dict[str, object]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, SamplingFields):
    """What makes an answer."""

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    diagnostics: _Diagnostics | None = None


# --- tables ----------------------------------------------------------------------------------


def _clears_nothing(value: object) -> bool:
    """Whether a context_management leaves the conversation as it is."""
    edits = value.get("edits") if isinstance(value, Mapping) else value
    if not isinstance(edits, list):
        return not edits
    return all(
        isinstance(edit, Mapping)
        and edit.get("type") == "clear_thinking_20251015"
        and edit.get("keep") in ("all", {"type": "all"})
        for edit in edits
    )


_PROMPT_NOTES: Mapping[str, str] = {
    "model": "A model or an alias.",
    "messages": "Roles user, assistant, and system anywhere. Blocks: text, thinking, "
    "redacted_thinking (dropped), tool_use, tool_result, and document of plain text; other blocks "
    "are refused by their path. A call's input that is no JSON object is shown to the model as "
    "text. The answer goes on from a last message of the assistant. "
    "`cache_control` has no effect: the cache is automatic.",
    "system": "A string or text blocks; lines that change with each request (billing headers) are "
    "removed.",
    "tools": "Custom tools: `name`, `description`, `input_schema`, and `input_examples`, which go "
    "into the description. `strict` is shown to the model; its arguments are typed by the "
    "schema but not yet held to it. Tools of other types and `defer_loading` are refused. "
    "`eager_input_streaming` has no effect: an input is sent once the call is complete.",
    "tool_choice": "auto, or none: neither does the model see tools, nor are calls read. "
    "`disable_parallel_tool_use` ends the answer with its first call. any and tool are refused.",
    "thinking": "disabled, adaptive, or enabled with a `budget_tokens` of at least `max_tokens` - "
    "1, which ends nothing; smaller budgets are refused. `display`: summarized sends all of the "
    "thinking; omitted sends empty blocks, whose signature brings the thinking back with the next "
    "turn. Without this field the chat template decides.",
    "output_config": "`effort`: low, medium, high, xhigh, max; for the chat template. `format` and "
    "`task_budget` are refused.",
    "enable_thinking": "For templates that know it, where `thinking` is left out; must not "
    "contradict it.",
    "chat_template_kwargs": "An object: further variables of the chat template.",
}

_REFUSED: Mapping[str, Refusal] = {
    **REFUSED_BY_ALL,
    **{name: elsewhere(name) for name in ("include", "previous_response_id")},
    "context_management": Refusal(
        _clears_nothing, "null, no edits, or clear_thinking that keeps all"
    ),
    "store": Refusal(off, "null or false", "Only /v1/responses stores answers."),
    "prompt": renamed("prompt", "messages"),
    "input": renamed("input", "messages"),
    "instructions": renamed("instructions", "system"),
    "functions": renamed("functions", "tools"),
    "function_call": Refusal(
        only("none", "auto"), "null, none or auto", "function_call is called tool_choice here."
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
    "service_tier": "There is one tier.",
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
        "thinking": "disabled, adaptive, or enabled with any budget, which no prompt shows.",
        "tool_choice": "auto, any or tool, which no prompt shows; none: without tools.",
    },
    _REFUSED,
    {**_IGNORED, **dict.fromkeys(_ANSWER_NOTES, "It is about the answer.")},
)


# --- requests --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """A body of `/v1/messages`."""

    request: TextRequest
    thinking: ThinkingShown
    diagnosed: bool

    def writer(self, head: AnswerHead) -> MessageWriter:
        """Who spells the answer."""
        return MessageWriter(head, self.thinking, diagnosed=self.diagnosed)


def read_messages(body: bytes) -> AskedMessage:
    """The body of `/v1/messages`. Raises `BadRequest` or `Unsupported`."""
    parsed = MESSAGES.read(body)
    if parsed.thinking is not None:
        _check_budget(parsed.thinking, parsed.max_tokens)
    diagnostics = parsed.diagnostics
    request = _request(
        parsed,
        sampling=sampling_params(parsed),
        stops=stop_strings(parsed.stop_sequences, "stop_sequences"),
        max_tokens=token_limit(parsed.max_tokens),
        stream=bool(parsed.stream),
    )
    return AskedMessage(
        request,
        _shown(parsed.thinking),
        diagnosed=diagnostics is not None and diagnostics.previous_message_id is not None,
    )


def read_count_tokens(body: bytes) -> TextRequest:
    """The body of `/v1/messages/count_tokens`. Raises `BadRequest` or `Unsupported`."""
    parsed = COUNT_TOKENS.read(body)
    choice = parsed.tool_choice
    if choice is not None and choice.type in FORCED:
        # A prompt does not show whether a call is forced.
        parsed.tool_choice = None
    return _request(parsed, sampling=SamplingParams(), stops=(), max_tokens=None, stream=False)


def count_tokens_body(tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`."""
    return msgspec.json.encode({"input_tokens": tokens})


def _request(
    body: CountBody,
    *,
    sampling: SamplingParams,
    stops: tuple[str, ...],
    max_tokens: int | None,
    stream: bool,
) -> TextRequest:
    system = "" if body.system is None else read_system(body.system)
    messages = read_conversation(body.messages)
    thinks = _thinks(body.thinking, enabled=body.enable_thinking)
    continued = _is_continued(messages, len(body.messages) - 1, thinks=bool(thinks))
    if messages and messages[-1].role == "assistant" and not continued:
        messages.pop()
    if not messages:
        raise BadRequest("messages holds nothing to answer.", param="messages")
    choice = body.tool_choice
    return TextRequest(
        model=body.model,
        sampling=sampling,
        stops=stops,
        max_tokens=max_tokens,
        stream=stream,
        messages=(*([Message("system", system)] if system else []), *messages),
        tools=read_tools(body.tools, choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        template=template_options(
            thinking=thinks,
            effort=_effort(body.output_config),
            kwargs=body.chat_template_kwargs,
        ),
        continue_final=continued,
    )


def _is_continued(messages: Sequence[Message], index: int, *, thinks: bool) -> bool:
    """Whether the answer goes on from the last message, whose index in the body is given. An
    assistant's without anything in it asks for nothing."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        return False
    path = f"messages[{index}].content"
    if last.tool_calls:
        raise BadRequest(f"{path} calls a tool whose result is missing.", param=path)
    if not last.content and last.reasoning:
        raise BadRequest(f"{path} has no text to go on from.", param=path)
    if last.content and thinks:
        raise BadRequest(
            "With thinking on, the last message must not be the assistant's: an answer that "
            "thinks does not begin in the middle.",
            param="thinking",
        )
    return bool(last.content)


def _thinks(thinking: _Thinking | None, *, enabled: bool | None) -> bool | None:
    if thinking is None:
        return enabled
    asked = _asks_for_thinking(thinking)
    if enabled is not None and enabled != asked:
        raise BadRequest("enable_thinking contradicts thinking.", param="enable_thinking")
    return asked


def _asks_for_thinking(thinking: _Thinking) -> bool:
    if thinking.type == "disabled":
        return False
    if thinking.type not in ("adaptive", "enabled"):
        raise unsupported(f"thinking of type {thinking.type}", "thinking.type")
    if thinking.display not in (None, "summarized", "omitted"):
        raise unsupported(f"the display {thinking.display} of thinking", "thinking.display")
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise BadRequest("thinking.budget_tokens is missing.", param="thinking.budget_tokens")
    return True


def _check_budget(thinking: _Thinking, max_tokens: int) -> None:
    """Refuses a budget that would end the thinking before `max_tokens` does."""
    if thinking.type == "disabled" or thinking.budget_tokens is None:
        return
    if thinking.budget_tokens < max_tokens - 1:
        raise Unsupported(
            "This version of mlx-fleet does not hold thinking to a budget; use thinking of type "
            "adaptive without one, or a budget_tokens of max_tokens - 1.",
            param="thinking.budget_tokens",
        )


def _shown(thinking: _Thinking | None) -> ThinkingShown:
    if thinking is not None and thinking.type == "disabled":
        return ThinkingShown.NONE
    if thinking is not None and thinking.display == "omitted":
        return ThinkingShown.OMITTED
    return ThinkingShown.SHOWN


def _effort(config: _OutputConfig | None) -> Effort | None:
    if config is None:
        return None
    for name in ("format", "task_budget"):
        if (config.model_extra or {}).get(name) is not None:
            raise unsupported(f"output_config.{name}", f"output_config.{name}")
    return config.effort
