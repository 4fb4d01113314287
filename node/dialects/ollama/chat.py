"""The body of Ollama's `/api/chat`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from node.dialects.base import ResponseHead
from node.dialects.chat.tools import read_tools
from node.dialects.fields.field_table import FIRST_FAULT, FieldTable
from node.dialects.fields.template import template_options
from node.dialects.fields.thinking import THINKING_NOTES, ThinkingFields, thinking_tokens
from node.dialects.fields.tool_choice import STRICT_NOTE
from node.dialects.ollama.messages import MessageList, read_messages
from node.dialects.ollama.options import BODY_NOTES, IGNORED, OllamaBody, base_request
from node.dialects.ollama.residency import ResidencyRequest, read_keep_alive
from node.dialects.ollama.response import ChatLines, LineWriter
from node.dialects.ollama.thinking import read_think
from node.request import Message, TextRequest, has_text

Resolve = Callable[[str], str]
"""Returns the model that a name with or without a tag stands for."""


class OllamaChatBody(OllamaBody, ThinkingFields):
    messages: MessageList | None = None
    tools: Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


OLLAMA_CHAT = FieldTable(
    body=OllamaChatBody,
    notes={
        **BODY_NOTES,
        **THINKING_NOTES,
        "messages": (
            "Roles system, user, assistant and tool. Assistant messages may have `thinking` and "
            "`tool_calls`, tool messages `tool_name` or `tool_call_id`; without an id, a result "
            "belongs to the first call of that name which has none. `images` become [a line of "
            "text](#pictures-sounds-and-files). A last message of the assistant is continued. "
            "Without messages, the model is only loaded or unloaded."
        ),
        "tools": f"Functions; a 400 if the model's calls are not parsed. {STRICT_NOTE}",
        "chat_template_kwargs": "More variables for the template; `think` overrides them.",
    },
    refused={},
    ignored=IGNORED,
)


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """A parsed request for text."""

    request: TextRequest
    model: str
    """The name by which the client's body chooses the model."""
    keep_alive_s: float | None
    lines: Callable[..., LineWriter] = field(default=ChatLines)
    hides_thinking: bool = False

    @property
    def needs(self) -> Mapping[str, tuple[str, str]]:
        """The capabilities that the model must have: for each the field that asks for it, and
        Ollama's word."""
        template = self.request.template
        thinks = template.enable_thinking or template.reasoning_effort is not None
        needed = {"tools": ("tools", "tools")} if self.request.tools else {}
        return {**needed, "reasoning": ("think", "thinking")} if thinks else needed

    def writer(self, head: ResponseHead) -> LineWriter:
        if head.model == self.request.model:
            head = replace(head, model=self.model)
        return self.lines(head, hides_thinking=self.hides_thinking)


def read_ollama_chat(body: bytes, resolve: Resolve) -> OllamaRequest | ResidencyRequest:
    """Parses a request body. Raises `BadRequest` or `Unsupported`."""
    parsed = OLLAMA_CHAT.read(body)
    model, keep_alive_s = resolve(parsed.model), read_keep_alive(parsed.keep_alive)
    if not parsed.messages:
        return ResidencyRequest(model, keep_alive_s, is_chat=True)
    messages = read_messages(parsed.messages)
    thinking, effort = read_think(parsed.think)
    tools = read_tools([{"type": "function", **tool} for tool in parsed.tools or ()])
    request = replace(
        base_request(parsed, model),
        messages=messages,
        tools=tools.tools,
        template=template_options(
            thinking=thinking, effort=effort, kwargs=parsed.chat_template_kwargs
        ),
        continue_final=_continues(messages[-1]),
        thinking_tokens=thinking_tokens(parsed),
        left_out=tools.left_out,
    )
    hides = thinking is False
    return OllamaRequest(request, parsed.model, keep_alive_s, hides_thinking=hides)


def _continues(last: Message) -> bool:
    return last.role == "assistant" and not last.tool_calls and has_text(last.content)
