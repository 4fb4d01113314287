"""The body of OpenAI's `/v1/chat/completions`: its fields, and how they are parsed."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from node.dialects.base import ResponseHead
from node.dialects.chat.messages import MessageBody, read_messages
from node.dialects.chat.response import ChatStyle, ChatWriter, ReasoningField
from node.dialects.chat.tools import (
    FunctionBody,
    read_choice,
    read_function_call,
    read_functions,
    read_tools,
)
from node.dialects.fields.constraints import read_constraint
from node.dialects.fields.field_table import (
    FIRST_FAULT,
    FieldTable,
    Lenient,
    Refusal,
    only,
    unsupported,
)
from node.dialects.fields.openai_body import NOTES, REFUSED, OpenAIBody, includes_usage
from node.dialects.fields.refusals import IGNORED, budgets_elsewhere, refuse_reasoning, renamed
from node.dialects.fields.sampling import sampling_params, stop_strings, token_limit
from node.dialects.fields.template import Effort, template_options
from node.dialects.fields.thinking import (
    THINKING_NOTES,
    Budget,
    ChatThinkingBody,
    ThinkingFields,
    thinking_tokens,
)
from node.dialects.fields.tool_choice import (
    AUTO,
    HOSTED_NOTE,
    STRICT_NOTE,
    DeclaredTools,
    ToolChoice,
    check_arguments,
)
from node.errors import BadRequest
from node.request import Message, TextRequest, has_text

MAX_TOP_LOGPROBS = 20


class _Reasoning(Lenient):
    effort: Effort | None = None
    max_tokens: Budget | None = None


class ChatBody(OpenAIBody, ThinkingFields):
    messages: Annotated[list[MessageBody], FIRST_FAULT, Field(min_length=1)]
    tools: Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionBody], FIRST_FAULT] | None = None
    function_call: object = None
    reasoning_effort: Effort | None = None
    reasoning: _Reasoning | None = None
    thinking: ChatThinkingBody | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


CHAT = FieldTable(
    body=ChatBody,
    notes={
        **NOTES,
        **THINKING_NOTES,
        "messages": (
            "Roles system, developer, user, assistant, tool and function, in any order. Content is "
            "a string or a list of text parts; a part with media becomes [a line of "
            "text](#pictures-sounds-and-files). Assistant messages may have `tool_calls`, "
            "`function_call`, `refusal`, and `reasoning_content` or `reasoning`. A call's "
            "arguments that are not a JSON object are shown to the model as text. The response "
            "continues a last message of the assistant only with `continue_final_message`."
        ),
        "tools": f"Functions, and [custom tools](#custom-tools). {HOSTED_NOTE} {STRICT_NOTE}",
        "tool_choice": (
            "auto; none: the model sees no tools; required: the response is calls; a function or a "
            "custom tool by name: exactly one call of it. `allowed_tools` limits what may be "
            "called (mode auto) or must be (required); the model still sees all. A forced call "
            "overrides `response_format`; reasoning is not constrained."
        ),
        "parallel_tool_calls": "false: the response ends with its first call. Default true.",
        "functions": (
            "The older form of `tools`, not allowed together with it; calls come as "
            "`function_call`, one a response. `tool_choice` does not apply to functions, and is "
            "refused."
        ),
        "function_call": (
            'auto; none: the model sees no functions; `{"name": …}`: the response is a call of '
            "that one. For `functions` only: with `tools` it is refused."
        ),
        "reasoning_effort": "none to max, for templates with efforts; none turns thinking off.",
        "reasoning": (
            "Another place for `reasoning_effort` and `max_thinking_tokens`: `effort` and "
            "`max_tokens`. `summary`, `generate_summary` and `context` are hints; other members "
            "are refused."
        ),
        "thinking": (
            "Another place for `enable_thinking` and `max_thinking_tokens`: `type` enabled, "
            "adaptive (the same) or disabled, and `budget_tokens`."
        ),
        "enable_thinking": "For templates with this variable; null: the model's settings decide.",
        "chat_template_kwargs": (
            "More variables for the template; `enable_thinking` and `reasoning_effort` of the body "
            "override them."
        ),
        "include_reasoning": "false: the response's reasoning is not sent. Default true.",
        "continue_final_message": (
            "true: the response continues the last message, which must be an assistant's with text "
            "and without calls; not with a forced call. A constraint applies to the new text only."
        ),
        "add_generation_prompt": (
            "false only together with `continue_final_message`, true only without it."
        ),
        "logprobs": (
            "true: the log probability of each content token, in the distribution that was sampled "
            "from: after penalties and masks."
        ),
        "top_logprobs": (
            f"0 to {MAX_TOP_LOGPROBS} of the likeliest tokens with each token, fewer if no others "
            "could be sampled. Only with `logprobs`."
        ),
    },
    refused={
        **REFUSED,
        **budgets_elsewhere("max_thinking_tokens"),
        "input": renamed("input", "messages"),
        "instructions": renamed("instructions", "a message of the role system"),
        "prompt": renamed("prompt", "messages"),
        "system": renamed("system", "a message of the role system"),
        "text": renamed("text", "response_format or verbosity"),
        "best_of": Refusal(only(1), "null or 1", "All choices that are sampled are sent: use n."),
        "output_config": renamed("output_config", "reasoning_effort or response_format"),
    },
    ignored=IGNORED,
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed chat request."""

    request: TextRequest
    style: ChatStyle

    def writer(self, head: ResponseHead) -> ChatWriter:
        return ChatWriter(head, self.style)


def read_chat(body: bytes, reasoning_field: ReasoningField = "reasoning_content") -> ChatRequest:
    """Parses a request body; the response has its reasoning in `reasoning_field`. Raises
    `BadRequest` or `Unsupported`."""
    parsed = CHAT.read(body)
    messages = read_messages(parsed.messages)
    usage = includes_usage(parsed)
    is_legacy = bool(parsed.functions)
    tools, choice = _tools(parsed)
    request = TextRequest(
        model=parsed.model,
        sampling=sampling_params(parsed),
        stops=stop_strings(parsed.stop, "stop"),
        max_tokens=token_limit(parsed.max_completion_tokens, parsed.max_tokens),
        stream=bool(parsed.stream),
        messages=messages,
        tools=tools.tools if choice.shows_tools else (),
        # The older form has room for one call.
        parallel_tool_calls=not (
            parsed.parallel_tool_calls is False or choice.is_single or is_legacy
        ),
        template=template_options(
            thinking=_thinks(parsed),
            effort=_effort(parsed),
            kwargs=parsed.chat_template_kwargs,
        ),
        continue_final=_continues(parsed, messages[-1], must_call=choice.must_call),
        callable_tools=choice.callable_tools,
        must_call=choice.must_call,
        must_call_param="function_call" if is_legacy else "tool_choice",
        constraint=read_constraint(parsed),
        thinking_tokens=_thinking_tokens(parsed),
        logprobs=_logprobs(parsed),
        choices=parsed.n or 1,
        left_out=tools.left_out,
    )
    style = ChatStyle(
        include_usage=usage,
        reasoning=None if parsed.include_reasoning is False else reasoning_field,
        is_legacy=is_legacy,
        choices=request.choices,
        has_logprobs=request.logprobs is not None,
        custom=tools.custom,
    )
    return ChatRequest(request, style)


def _thinks(body: ChatBody) -> bool | None:
    """Returns whether thinking is on, by `thinking` or `enable_thinking`. Raises `BadRequest` if
    the two contradict each other, or `Unsupported`."""
    if body.thinking is None:
        return body.enable_thinking
    is_on = body.thinking.is_on
    if body.enable_thinking is not None and body.enable_thinking != is_on:
        raise BadRequest("thinking contradicts enable_thinking.", param="thinking")
    if is_on and _effort(body) == "none":
        raise BadRequest("thinking contradicts an effort of none.", param="thinking")
    return is_on


def _thinking_tokens(body: ChatBody) -> int | None:
    """Returns the thinking budget, under any of its names. Raises `BadRequest` if they contradict
    each other."""
    budgets: dict[str, int | None] = {}
    if body.reasoning is not None:
        budgets["reasoning.max_tokens"] = body.reasoning.max_tokens
    if body.thinking is not None and body.thinking.is_on:
        budgets["thinking.budget_tokens"] = body.thinking.budget_tokens
    return thinking_tokens(body, **budgets)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise BadRequest("top_logprobs is only allowed with logprobs.", param="top_logprobs")
    return None


def _effort(body: ChatBody) -> Effort | None:
    """Returns the effort, from `reasoning` or `reasoning_effort`. Raises `BadRequest` if the two
    contradict each other, or `Unsupported`."""
    if body.reasoning is None:
        return body.reasoning_effort
    refuse_reasoning(body.reasoning)
    if (body.reasoning.model_extra or {}).get("mode") is not None:
        raise unsupported("reasoning.mode in a chat", "reasoning.mode")
    effort = body.reasoning.effort
    if None not in (effort, body.reasoning_effort) and effort != body.reasoning_effort:
        raise BadRequest("reasoning.effort contradicts reasoning_effort.", param="reasoning.effort")
    return body.reasoning_effort if effort is None else effort


def _tools(body: ChatBody) -> tuple[DeclaredTools, ToolChoice]:
    """Returns the tools, and what the model may do with them."""
    if body.tools and body.functions:
        raise BadRequest("functions is not allowed together with tools.", param="functions")
    tools = read_tools(body.tools or ())
    functions = read_functions(body.functions or ())
    # Each choice is parsed with its own tools: a forced call needs a tool that can be called.
    choice = read_choice(body.tool_choice, tools)
    call = read_function_call(body.function_call, functions)
    if tools.tools and call != AUTO:
        raise _of_other_form("function_call", "functions", "tool_choice")
    if functions.tools:
        if choice != AUTO:
            raise _of_other_form("tool_choice", "tools", "function_call")
        tools, choice = functions, call
    check_arguments(tools.tools, choice)
    return tools, choice


def _of_other_form(field: str, about: str, here: str) -> BadRequest:
    return BadRequest(f"{field} refers to {about}, and there are none; use {here}.", param=field)


def _continues(body: ChatBody, last: Message, *, must_call: bool) -> bool:
    generates = body.add_generation_prompt
    if not body.continue_final_message:
        if generates is False:
            raise unsupported(
                "a prompt without the assistant's turn, except to continue its message",
                "add_generation_prompt",
            )
        return False
    if generates:
        raise BadRequest(
            "add_generation_prompt contradicts continue_final_message.",
            param="add_generation_prompt",
        )
    if must_call:
        raise BadRequest(
            "continue_final_message contradicts a forced call.", param="continue_final_message"
        )
    if last.role != "assistant" or last.tool_calls or not has_text(last.content):
        raise BadRequest(
            "continue_final_message needs an assistant's message with text and without calls at "
            "the end.",
            param="continue_final_message",
        )
    return True
