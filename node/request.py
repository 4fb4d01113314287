"""A client's request, independent of the dialect: messages, tools, sampling, and when to end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from node.ipc.generate import Constraint, SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image, audio or a file between the texts of a message."""

    kind: str
    """The name that templates with media use: image, audio, video."""
    text: str
    """Text that replaces it in the prompt of a model that accepts text only."""
    param: str = ""
    """The body's field with its type, for errors."""


BEFORE_ITEMS = -1
"""The source of a message from before the body's items: a system prompt in a field of its own, or
earlier turns that the body only refers to."""
NO_ITEM = -2
"""The source of a message that a later prompt may lack although it begins with the same items."""

Content = str | tuple[TextPart | MediaPart, ...]


def has_text(content: Content) -> bool:
    """True if a part of the content is text that is not empty."""
    if isinstance(content, str):
        return bool(content)
    return any(isinstance(part, TextPart) and part.text for part in content)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call made by an earlier response."""

    call_id: str
    name: str
    arguments: str
    """The client's own text: JSON text of an object, or nothing for an empty one. The template
    gets any other text as the only value of an object, `arguments`."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: Content = ""
    reasoning: str = ""
    """In an assistant's message only; empty if the client sent none back."""
    tool_calls: tuple[ToolCall, ...] = ()
    """In an assistant's message only."""
    tool_call_id: str = ""
    """In a tool message: the call whose result it is."""
    name: str = ""
    """In a tool message, the tool's name, if the client sent it. Otherwise the speaker's."""
    source: int = field(default=BEFORE_ITEMS, compare=False)
    """Index of the body's item that the message came from, the last one if there were several; or
    `BEFORE_ITEMS` or `NO_ITEM`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    function: Mapping[str, Any]
    """OpenAI's definition as the template gets it: `name`, and those of `description`, `parameters`
    and `strict` that the client sent; JSON types, None only in `const` and `enum`."""
    param: str = field(default="tools", compare=False)
    """The body's field that has the schema, for errors."""
    is_custom: bool = False
    """True for a custom tool, whose input is text: the only argument of the function."""
    pattern: str | None = None
    """For a custom tool: the pattern that all of its text must match. The template does not show
    it."""
    is_unenforceable: bool = False
    """True if the text has a grammar that the engine cannot enforce, so that no call is forced."""

    @property
    def name(self) -> str:
        return str(self.function["name"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments; empty if the client sent none."""
        given = self.function.get("parameters")
        return given if isinstance(given, Mapping) else {}

    @property
    def constrained_parameters(self) -> Mapping[str, Any]:
        """The schema that constrains the arguments of a call."""
        shown = self.parameters
        if self.pattern is None:
            return shown
        texts = {
            name: {**schema, "pattern": self.pattern}
            for name, schema in shown["properties"].items()
        }
        return {**shown, "properties": texts}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something in the body that only a host could run, and that is left out."""

    path: str
    kind: str
    """Its type, as the body names it."""
    name: str = ""
    """The name by which a `tool_choice` may refer to it; empty if it has none."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Options for the chat template besides messages and tools."""

    enable_thinking: bool | None = None
    """None: as the template does by default."""
    reasoning_effort: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The client's own variables; the named fields above override them."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A validated request. Exactly one of `messages` and `prompt` is set."""

    model: str
    sampling: SamplingParams
    stops: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids as the client sent them."""
    prompt_field: str = "messages"
    """The body's field that has the prompt, for errors about it."""
    tools: tuple[Tool, ...] = ()
    """Also empty if the client wants no calls: the template then shows no tools, and no calls are
    parsed from the output."""
    late_tools: tuple[Tool, ...] = ()
    """Tools declared within the conversation, by messages that show them; the template does not.
    They override tools of the same name in `tools`."""
    parallel_tool_calls: bool = True
    """False: the response ends with its first call."""
    template: TemplateOptions = TemplateOptions()
    continue_final: bool = False
    """True: the response continues the last message, which is an assistant's, instead of a new
    one."""
    callable_tools: tuple[str, ...] | None = None
    """Names of those of `tools` that may be called; None for all. The template shows all of them
    anyway."""
    must_call: bool = False
    """True: the response is a call, or several if `parallel_tool_calls` allows it."""
    must_call_param: str = "tool_choice"
    """The body's field that forces the call, for errors."""
    constraint: Constraint | None = None
    """Structured output: the constraint on the response's text."""
    thinking_tokens: int | None = None
    """Thinking budget: most tokens of reasoning; None for the model's default, or no limit."""
    logprobs: int | None = None
    """Same as `GenerateRequest.logprobs`."""
    choices: int = 1
    """Number of choices."""
    left_out: tuple[LeftOut, ...] = ()
    """Parts of the body that have no effect; they are reported with the response."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """All tools whose calls are parsed, including those that may not be called now."""
        return tuple({tool.name: tool for tool in (*self.tools, *self.late_tools)}.values())
