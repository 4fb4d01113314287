"""OpenAI's chat: what a body of `/v1/chat/completions` may ask for."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from node.dialects.base import AnswerHead
from node.dialects.body import FieldTable, Lenient, unsupported
from node.dialects.chat_answer import ChatAnswer, ChatStyle, ReasoningField
from node.dialects.chat_messages import MessageBody, read_messages
from node.dialects.chat_tools import (
    FunctionBody,
    ToolBody,
    read_functions,
    read_tools,
    wants_no_calls,
)
from node.dialects.openai_body import NOTES, REFUSED, OpenAIBody, wants_usage
from node.dialects.refusals import IGNORED, refuse_reasoning, renamed
from node.dialects.sampling import sampling_params, stop_strings, token_limit
from node.dialects.template import Effort, template_options
from node.errors import BadRequest
from node.request import Content, Message, TextPart, TextRequest, Tool


class _Reasoning(Lenient):
    effort: Effort | None = None


class ChatBody(OpenAIBody):
    messages: Annotated[list[MessageBody], Field(min_length=1)]
    tools: list[ToolBody] | None = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionBody] | None = None
    function_call: object = None
    reasoning_effort: Effort | None = None
    reasoning: _Reasoning | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


_NO_FORCE = "Forcing a call, by `required`, a name or `allowed_tools`, is refused."

CHAT = FieldTable(
    body=ChatBody,
    notes={
        **NOTES,
        "messages": (
            "Roles system, developer, user, assistant, tool and function, in any order. Content is "
            "a string or a list of text parts; parts with media are refused. Of an assistant: "
            "`tool_calls`, `function_call`, `refusal`, and `reasoning_content` or `reasoning`. "
            "A call's arguments that are no JSON object are shown to the model as text. "
            "An assistant's message at the end does not go on without `continue_final_message`."
        ),
        "tools": (
            "Functions; other types are refused. `strict` is shown to the model; its arguments are "
            "typed by the schema but not yet held to it."
        ),
        "tool_choice": f"auto, or none: the model is shown no tools. {_NO_FORCE}",
        "parallel_tool_calls": "false: the answer ends with its first call. Default true.",
        "functions": "The older form of `tools`; answered with `function_call`, once an answer.",
        "function_call": f"auto, or none: the model is shown no functions. {_NO_FORCE}",
        "reasoning_effort": (
            "none to max, for templates that know efforts; none turns thinking off."
        ),
        "reasoning": "Another place for `reasoning_effort`: `effort`. What else it may hold is "
        "refused.",
        "enable_thinking": "For templates that know it; null leaves it to the template.",
        "chat_template_kwargs": (
            "More variables for the template; `enable_thinking` and `reasoning_effort` of the body "
            "go before them."
        ),
        "include_reasoning": "false: the answer's reasoning is not sent. Default true.",
        "continue_final_message": (
            "true: the answer goes on from the last message, which must be an assistant's with "
            "text and without calls."
        ),
        "add_generation_prompt": (
            "false only together with `continue_final_message`, true only without it."
        ),
    },
    refused={
        **REFUSED,
        "input": renamed("input", "messages"),
        "instructions": renamed("instructions", "a message of the role system"),
        "prompt": renamed("prompt", "messages"),
        "system": renamed("system", "a message of the role system"),
        "text": renamed("text", "response_format or verbosity"),
        "thinking": renamed("thinking", "enable_thinking"),
        "output_config": renamed("output_config", "reasoning_effort"),
    },
    ignored=IGNORED,
)


@dataclass(frozen=True, slots=True)
class AskedChat:
    """A chat's body that has been read."""

    request: TextRequest
    style: ChatStyle

    def writer(self, head: AnswerHead) -> ChatAnswer:
        return ChatAnswer(head, self.style)


def read_chat(body: bytes, reasoning_field: ReasoningField = "reasoning_content") -> AskedChat:
    """Reads a body; its answer tells reasoning in `reasoning_field`. Raises `BadRequest` or
    `Unsupported`."""
    parsed = CHAT.read(body)
    messages = read_messages(parsed.messages)
    usage = wants_usage(parsed)
    is_legacy = bool(parsed.functions)
    request = TextRequest(
        model=parsed.model,
        sampling=sampling_params(parsed),
        stops=stop_strings(parsed.stop, "stop"),
        max_tokens=token_limit(parsed.max_completion_tokens, parsed.max_tokens),
        stream=bool(parsed.stream),
        messages=messages,
        tools=_tools(parsed),
        # The older form has room for one call.
        parallel_tool_calls=parsed.parallel_tool_calls is not False and not is_legacy,
        template=template_options(
            thinking=parsed.enable_thinking,
            effort=_effort(parsed),
            kwargs=parsed.chat_template_kwargs,
        ),
        continue_final=_continues(parsed, messages[-1]),
    )
    reasoning = None if parsed.include_reasoning is False else reasoning_field
    return AskedChat(request, ChatStyle(usage, reasoning, is_legacy))


def _effort(body: ChatBody) -> Effort | None:
    """Of either field. Raises `BadRequest` if they contradict each other, or `Unsupported`."""
    if body.reasoning is None:
        return body.reasoning_effort
    refuse_reasoning(body.reasoning)
    for name in ("summary", "generate_summary", "context", "mode"):
        if (body.reasoning.model_extra or {}).get(name) is not None:
            raise unsupported(f"reasoning.{name} in a chat", f"reasoning.{name}")
    effort = body.reasoning.effort
    if None not in (effort, body.reasoning_effort) and effort != body.reasoning_effort:
        raise BadRequest("reasoning.effort contradicts reasoning_effort.", param="reasoning.effort")
    return body.reasoning_effort if effort is None else effort


def _tools(body: ChatBody) -> tuple[Tool, ...]:
    if body.tools and body.functions:
        raise BadRequest("functions is not allowed together with tools.", param="functions")
    tools = read_tools(body.tools or ())
    functions = read_functions(body.functions or ())
    no_tools = wants_no_calls(body.tool_choice, "tool_choice")
    no_functions = wants_no_calls(body.function_call, "function_call")
    return (() if no_tools else tools) + (() if no_functions else functions)


def _continues(body: ChatBody, last: Message) -> bool:
    generates = body.add_generation_prompt
    if not body.continue_final_message:
        if generates is False:
            raise unsupported(
                "a prompt without the assistant's turn but to continue its message",
                "add_generation_prompt",
            )
        return False
    if generates:
        raise BadRequest(
            "add_generation_prompt contradicts continue_final_message.",
            param="add_generation_prompt",
        )
    if last.role != "assistant" or last.tool_calls or not _has_text(last.content):
        raise BadRequest(
            "continue_final_message needs an assistant's message with text and without calls at "
            "the end.",
            param="continue_final_message",
        )
    return True


def _has_text(content: Content) -> bool:
    if isinstance(content, str):
        return bool(content)
    return any(isinstance(part, TextPart) and part.text for part in content)
