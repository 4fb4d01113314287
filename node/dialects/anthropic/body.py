"""Anthropic's dialect: parses the bodies of `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from node.dialects.anthropic.fields import (
    COUNT_TOKENS,
    MESSAGES,
    AnthropicThinkingBody,
    CountBody,
    OutputConfigBody,
)
from node.dialects.anthropic.messages import read_conversation, read_system
from node.dialects.anthropic.response import MessageWriter, ThinkingShown
from node.dialects.anthropic.tools import ToolChoiceBody, read_choice, read_tools
from node.dialects.base import ResponseHead
from node.dialects.fields.constraints import response_format
from node.dialects.fields.field_table import unsupported
from node.dialects.fields.sampling import sampling_params, stop_strings, token_limit
from node.dialects.fields.template import Effort, template_options
from node.dialects.fields.thinking import budget_tokens
from node.dialects.fields.tool_choice import ToolChoice, check_arguments
from node.errors import BadRequest
from node.ipc.generate import Constraint, SamplingParams
from node.request import Message, TextRequest


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A parsed request to `/v1/messages`."""

    request: TextRequest
    thinking: ThinkingShown
    diagnosed: bool

    def writer(self, head: ResponseHead) -> MessageWriter:
        """Returns a new writer for this request's response."""
        return MessageWriter(head, self.thinking, diagnosed=self.diagnosed)


def read_messages(body: bytes) -> MessagesRequest:
    """Parses the body of `/v1/messages`. Raises `BadRequest` or `Unsupported`."""
    parsed = MESSAGES.read(body)
    diagnostics = parsed.diagnostics
    request = _request(
        parsed,
        sampling=sampling_params(parsed),
        stops=stop_strings(parsed.stop_sequences, "stop_sequences"),
        max_tokens=token_limit(parsed.max_tokens),
        stream=bool(parsed.stream),
    )
    return MessagesRequest(
        request,
        _shown(parsed.thinking),
        diagnosed=diagnostics is not None and diagnostics.previous_message_id is not None,
    )


def read_count_tokens(body: bytes) -> TextRequest:
    """Parses the body of `/v1/messages/count_tokens`. Raises `BadRequest` or `Unsupported`."""
    parsed = COUNT_TOKENS.read(body)
    return _request(parsed, sampling=SamplingParams(), stops=(), max_tokens=None, stream=False)


def count_tokens_body(tokens: int) -> bytes:
    """Returns the JSON response of `/v1/messages/count_tokens`."""
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
        raise BadRequest("messages has no message to respond to.", param="messages")
    tools = read_tools(body.tools)
    choice = read_choice(body.tool_choice, tools)
    check_arguments(tools.tools, choice)
    constraint = _constraint(body)
    if continued:
        _refuse_constraints(choice, constraint)
    return TextRequest(
        model=body.model,
        sampling=sampling,
        stops=stops,
        max_tokens=max_tokens,
        stream=stream,
        messages=(*([Message("system", system)] if system else []), *messages),
        tools=tools.tools if choice.shows_tools else (),
        parallel_tool_calls=not choice.is_single and not _is_serial(body.tool_choice),
        template=template_options(
            thinking=thinks,
            effort=_effort(body.output_config),
            kwargs=body.chat_template_kwargs,
        ),
        continue_final=continued,
        callable_tools=choice.callable_tools,
        must_call=choice.must_call,
        constraint=constraint,
        thinking_tokens=_thinking_tokens(body.thinking),
        left_out=tools.left_out,
    )


def _is_serial(choice: ToolChoiceBody | None) -> bool:
    """True if the response may have one call at most."""
    return choice is not None and bool(choice.disable_parallel_tool_use)


def _constraint(body: CountBody) -> Constraint | None:
    """Returns the constraint, under either name of the format. Raises `BadRequest`, also if the two
    contradict each other."""
    config = body.output_config
    newer = None if config is None else config.format
    if None not in (newer, body.output_format) and newer != body.output_format:
        raise BadRequest("output_format contradicts output_config.format.", param="output_format")
    if newer is not None:
        return response_format(newer, "output_config.format")
    return response_format(body.output_format, "output_format")


def _refuse_constraints(choice: ToolChoice, constraint: Constraint | None) -> None:
    """Raises `BadRequest` if the client has begun the response itself while a forced call or a
    constraint covers all of it."""
    param = "tool_choice" if choice.must_call else constraint and constraint.param
    if param:
        raise BadRequest(
            f"{param} constrains the whole response, so the last message must not be the "
            "assistant's.",
            param=param,
        )


def _is_continued(messages: Sequence[Message], index: int, *, thinks: bool) -> bool:
    """True if the response continues the last message, whose index in the body is `index`. An
    assistant's message without content is dropped instead."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        return False
    path = f"messages[{index}].content"
    if last.tool_calls:
        raise BadRequest(f"{path} calls a tool whose result is missing.", param=path)
    if not last.content and last.reasoning:
        raise BadRequest(f"{path} has no text that the response could continue.", param=path)
    if last.content and thinks:
        raise BadRequest(
            "With thinking on, the last message must not be the assistant's: a response that "
            "begins with thinking cannot continue it.",
            param="thinking",
        )
    return bool(last.content)


def _thinks(thinking: AnthropicThinkingBody | None, *, enabled: bool | None) -> bool | None:
    if thinking is None:
        return enabled
    is_on = _is_on(thinking)
    if enabled is not None and enabled != is_on:
        raise BadRequest("enable_thinking contradicts thinking.", param="enable_thinking")
    return is_on


def _is_on(thinking: AnthropicThinkingBody) -> bool:
    if thinking.type == "disabled":
        return False
    if thinking.type not in ("adaptive", "enabled"):
        raise unsupported(f"thinking of type {thinking.type}", "thinking.type")
    if thinking.display not in (None, "summarized", "omitted"):
        raise unsupported(f"the display {thinking.display} of thinking", "thinking.display")
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise BadRequest("thinking.budget_tokens is missing.", param="thinking.budget_tokens")
    return True


def _thinking_tokens(thinking: AnthropicThinkingBody | None) -> int | None:
    if thinking is None or thinking.type == "disabled":
        return None
    given = thinking.budget_tokens
    return None if given is None else budget_tokens(given)


def _shown(thinking: AnthropicThinkingBody | None) -> ThinkingShown:
    if thinking is not None and thinking.type == "disabled":
        return ThinkingShown.NONE
    if thinking is not None and thinking.display == "omitted":
        return ThinkingShown.OMITTED
    return ThinkingShown.SHOWN


def _effort(config: OutputConfigBody | None) -> Effort | None:
    if config is None:
        return None
    if (config.model_extra or {}).get("task_budget") is not None:
        raise unsupported("output_config.task_budget", "output_config.task_budget")
    return config.effort
