"""What a client asks for, in words of no dialect: messages, tools, how to sample, when to end."""

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
    """A picture, a sound or a file between the texts of a message."""

    kind: str
    """As templates that know media name it: image, audio, video."""
    text: str
    """What the prompt of a model shows that takes text only."""
    param: str = ""
    """The body's field that says what it is, for errors."""


BEFORE_ITEMS = -1
"""The source of what stands before a body's items: a system prompt that is a field of its own, or
earlier turns that the body only names."""
NO_ITEM = -2
"""The source of what a later prompt may lack though it begins with the same items."""

Content = str | tuple[TextPart | MediaPart, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an earlier answer made."""

    call_id: str
    name: str
    arguments: str
    """As the client gave it back: JSON text of an object, or nothing for an empty one. The
    template is shown other text as an object's only value, `arguments`."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: Content = ""
    reasoning: str = ""
    """Of an assistant's message; empty where the client gave none back."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant's message."""
    tool_call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: str = ""
    """Of a tool's message: the tool's name where the client says it. Else the speaker's."""
    source: int = field(default=BEFORE_ITEMS, compare=False)
    """Index of the item of the body that it came from, the last one where it came from several;
    `BEFORE_ITEMS`, or `NO_ITEM`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    function: Mapping[str, Any]
    """OpenAI's definition as the template gets it: `name`, and `description`, `parameters` and
    `strict` where the client gave them; JSON types, None only in `const` and `enum`."""
    param: str = field(default="tools", compare=False)
    """The body's field that holds the schema, for errors."""
    is_custom: bool = False
    """It is answered with text, the only argument of the function."""
    pattern: str | None = None
    """Of a custom tool: what all of its text matches. The template does not show it."""
    is_unheld: bool = False
    """Its text has a grammar that no call can be held to, so that none is forced."""

    @property
    def name(self) -> str:
        return str(self.function["name"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments; empty where the client gave none."""
        given = self.function.get("parameters")
        return given if isinstance(given, Mapping) else {}

    @property
    def held_parameters(self) -> Mapping[str, Any]:
        """The schema that the arguments of a call are held to."""
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
    """Something of the body that only a host could run."""

    path: str
    kind: str
    """Its type, as the body says it."""
    name: str = ""
    """By which a choice may name it."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What the chat template is told besides messages and tools."""

    enable_thinking: bool | None = None
    """None: as the template does by itself."""
    reasoning_effort: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The client's own; the named ones above go before them."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What a body asks for, validated. Exactly one of `messages` and `prompt` is there."""

    model: str
    sampling: SamplingParams
    stops: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids as the client gave them."""
    prompt_field: str = "messages"
    """The body's field that holds the prompt, for errors about it."""
    tools: tuple[Tool, ...] = ()
    """Empty too where the client wants no calls: the template then shows none, and none are read
    out of the answer."""
    late_tools: tuple[Tool, ...] = ()
    """Declared within the conversation, by messages that show them; the template does not. One of
    a name that is in `tools` goes before that."""
    parallel_tool_calls: bool = True
    """False: the answer ends with its first call."""
    template: TemplateOptions = TemplateOptions()
    continue_final: bool = False
    """The answer goes on from the last message, which is an assistant's, in place of a new one."""
    callable_tools: tuple[str, ...] | None = None
    """Names of those of `tools` that may be called; None: all. The template shows all the same."""
    must_call: bool = False
    """The answer is a call, or several where `parallel_tool_calls` lets it."""
    must_call_param: str = "tool_choice"
    """The body's field that asks for it, for errors."""
    constraint: Constraint | None = None
    """What the answer's text has to be."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning; None: as many as the model's default says, or no limit."""
    logprobs: int | None = None
    """As in `GenerateRequest`."""
    choices: int = 1
    """How many answers."""
    left_out: tuple[LeftOut, ...] = ()
    """What has no effect on the answer, to be told beside it."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """All tools that calls are read of, those that may be called now or not."""
        return tuple({tool.name: tool for tool in (*self.tools, *self.late_tools)}.values())
