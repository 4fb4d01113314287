"""OpenAI's `/v1/responses`: what a body may ask for.

A body may go on from stored responses or refer to stored items. Those come by `with_history`; only
then is the request complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from node.dialects.base import AnswerHead
from node.dialects.body import (
    FieldTable,
    Lenient,
    Refusal,
    absent,
    falsy,
    off,
    on,
    only,
    unsupported,
)
from node.dialects.chat_tools import wants_no_calls
from node.dialects.refusals import IGNORED, REFUSED_BY_ALL, refuse_reasoning, renamed
from node.dialects.responses_answer import ResponseFacts
from node.dialects.responses_events import ResponseWriter
from node.dialects.responses_input import (
    History,
    Item,
    input_items,
    messages_of,
    references,
    resolved,
)
from node.dialects.responses_tools import read_tool_set
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
from node.request import Message, TextRequest

ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDED = (
    ENCRYPTED_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values of `include`. All but the first are about items that an answer never has."""


class _Reasoning(Lenient):
    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class _Text(Lenient):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _StreamOptions(Lenient):
    include_obfuscation: bool | None = None


class ResponsesBody(SamplingFields):
    model: Annotated[str, Field(min_length=1)]
    input: object = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    max_output_tokens: Count | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    store: bool | None = None
    include: list[str] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def _is_plain_cache(value: object) -> bool:
    """Whether these cache options are hints at most."""
    if not isinstance(value, Mapping):
        return value is None
    asked = {key for key, each in value.items() if each}
    return asked <= {"mode", "ttl"} and value.get("mode") in (None, "implicit")


RESPONSES: FieldTable[ResponsesBody] = FieldTable(
    ResponsesBody,
    notes={
        **SAMPLING_NOTES,
        "model": "A model of the list of models, or an alias of the router.",
        "input": (
            "A string, or items: `message` (text parts), `function_call`, `function_call_output` "
            "(text), `reasoning`, `item_reference` to an item of a stored response. Other items, "
            "images, files and sounds are refused. A call's arguments that are no JSON object "
            "are shown to the model as text."
        ),
        "instructions": "A system message before all else, for this response only.",
        "previous_response_id": "A stored response; its input and output come before `input`.",
        "tools": (
            "`function`, and `namespace` with functions in it: the model knows those as "
            "`NAMESPACE__NAME`, calls are told as `namespace` and `name`. Others are refused. "
            "`strict` is shown to the model; its arguments are typed by the schema but not yet "
            "held to it. Tools of earlier responses are not carried over."
        ),
        "tool_choice": "`auto` or `none`.",
        "parallel_tool_calls": "false: the answer ends with its first call. Default true.",
        "reasoning": (
            "`effort` goes to the template, `none` turns thinking off. The whole reasoning text is "
            "in the item's `content`; with `summary` (or `generate_summary`) of `auto` or "
            "`detailed` it is in the item's `summary` instead, still whole, so `concise` is "
            "refused. `context` may be `auto`, `mode` may be `standard`."
        ),
        "text": "`format` of type `text`; `verbosity` of `medium`.",
        "max_output_tokens": "At least 1; by default, what the context has room for.",
        "stop": "A string or up to 16; they end the answer and are no part of it.",
        "stream": "Server-sent events, each with its sequence number.",
        "stream_options": "Only with `stream`. `include_obfuscation` may be false.",
        "store": "Keeps the response on the node, for follow-ups and GET. Default true.",
        "include": (
            "`reasoning.encrypted_content`: reasoning items carry their text in a form that "
            "clients give back unread. Of what an answer never has, such as search results, "
            "nothing is included. `message.output_text.logprobs` is refused."
        ),
        "metadata": "Up to 16 texts, told back in the response.",
        "enable_thinking": "For templates that know it; null leaves it to the template.",
        "chat_template_kwargs": (
            "More variables for the template; `enable_thinking` and `reasoning.effort` go before "
            "them."
        ),
    },
    refused={
        **REFUSED_BY_ALL,
        "conversation": Refusal(
            absent,
            "null",
            "This version of mlx-fleet has no conversations; use previous_response_id.",
        ),
        "prompt": Refusal(absent, "null", "This version of mlx-fleet has no stored prompts."),
        "top_logprobs": Refusal(only(0), "null or 0"),
        "context_management": Refusal(falsy, "null or empty"),
        "prompt_cache_options": Refusal(
            _is_plain_cache,
            "null, or `mode` implicit and `ttl`",
            "Every prompt is cached by itself.",
        ),
        "max_tokens": renamed("max_tokens", "max_output_tokens"),
        "max_completion_tokens": renamed("max_completion_tokens", "max_output_tokens"),
        "response_format": renamed("response_format", "text.format"),
        "reasoning_effort": renamed("reasoning_effort", "reasoning.effort"),
        "verbosity": Refusal(
            only("medium"), "null or medium", "verbosity is called text.verbosity here."
        ),
        "output_config": renamed("output_config", "reasoning.effort"),
        "thinking": renamed("thinking", "reasoning.effort or enable_thinking"),
        "stop_sequences": renamed("stop_sequences", "stop"),
        "system": renamed("system", "instructions"),
        "functions": renamed("functions", "tools"),
        "function_call": Refusal(
            only("none", "auto"), "null, none or auto", "function_call is called tool_choice here."
        ),
        "continue_final_message": Refusal(off, "null or false"),
        "add_generation_prompt": Refusal(on, "null or true"),
        "include_reasoning": Refusal(on, "null or true"),
        "service_tier": Refusal(only("auto", "default"), "null, auto or default"),
        "messages": renamed("messages", "input"),
    },
    ignored={
        **{
            name: why
            for name, why in IGNORED.items()
            if name not in ("metadata", "prompt_cache_options")
        },
        "client_metadata": "A label.",
        "image": "Says something only with images, which are refused.",
    },
)


def read_responses(data: bytes) -> "AskedResponse":
    """The body of `/v1/responses`. Raises `BadRequest` or `Unsupported`."""
    body = RESPONSES.read(data)
    items = _items(body)
    reasoning = body.reasoning or _Reasoning()
    summary = _summary(reasoning)
    _refuse_reasoning(reasoning)
    _refuse_text(body.text)
    tool_set = read_tool_set(body.tools)
    tools = () if wants_no_calls(body.tool_choice, "tool_choice") else tool_set.tools
    request = TextRequest(
        model=body.model,
        sampling=sampling_params(body),
        stops=stop_strings(body.stop, "stop"),
        max_tokens=token_limit(body.max_output_tokens),
        stream=_stream(body),
        messages=messages_of(items),
        prompt_field="input",
        tools=tools,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template=template_options(
            thinking=body.enable_thinking,
            effort=reasoning.effort,
            kwargs=body.chat_template_kwargs,
        ),
    )
    facts = ResponseFacts(
        previous_id=body.previous_response_id,
        store=body.store is not False,
        seals_reasoning=encrypts_reasoning(body.include),
        instructions=body.instructions,
        metadata=body.metadata or {},
        effort=reasoning.effort,
        summary=summary,
        tool_choice="none" if body.tool_choice == "none" else "auto",
        tool_set=tool_set,
    )
    asked = AskedResponse(request, facts, tuple(items), references(items))
    return asked if asked.needs_history else asked.with_history(History())


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A body that has been read. Its request is complete after `with_history`, which is called for
    already where nothing is needed."""

    request: TextRequest
    facts: ResponseFacts
    items: Sequence[Item]
    """This turn's input; once the history is there, without references."""
    references: tuple[str, ...] = ()
    """Ids of items that the input refers to."""

    @property
    def needs_history(self) -> bool:
        """Whether the body refers to what is stored."""
        return self.facts.previous_id is not None or bool(self.references)

    def with_history(self, history: History) -> "AskedResponse":
        """The same with what it refers to. Raises `UnknownItem`, and `BadRequest` if nothing is
        there to answer."""
        items: Sequence[Item] = self.items
        messages = self.request.messages or ()
        if self.needs_history:
            items = resolved(items, history)
            # Parsed as one: an answer may go on from the history into this turn's input.
            messages = messages_of([*history.items, *items])
        if self.facts.instructions:
            messages = (Message("system", self.facts.instructions), *messages)
        if not messages:
            raise BadRequest("input holds no message.", param="input")
        request = replace(self.request, messages=messages)
        return AskedResponse(request, self.facts, tuple(items))

    def writer(self, head: AnswerHead) -> ResponseWriter:
        return ResponseWriter(self.request, self.facts, self.items, head)


def encrypts_reasoning(include: Sequence[str] | None) -> bool:
    """Whether `include` asks for it. Raises `BadRequest`, or `Unsupported` for what answers could
    have but do not yet."""
    for at, value in enumerate(include or ()):
        if value == "message.output_text.logprobs":
            raise unsupported("logprobs", f"include[{at}]")
        if value not in INCLUDED:
            raise BadRequest(f"include[{at}] is not known.", param=f"include[{at}]")
    return ENCRYPTED_REASONING in (include or ())


def _items(body: ResponsesBody) -> list[Item]:
    if body.input is None and body.previous_response_id is None:
        raise BadRequest("input is missing.", param="input")
    return input_items([] if body.input is None else body.input)


def _stream(body: ResponsesBody) -> bool:
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadRequest("stream_options is only allowed with stream.", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise unsupported("padding of events", "stream_options.include_obfuscation")
    return bool(body.stream)


def _summary(reasoning: _Reasoning) -> str | None:
    """The kind of summary that is asked for. Raises `Unsupported` for one that is shorter than the
    reasoning."""
    for name in ("summary", "generate_summary"):
        if getattr(reasoning, name) not in (None, "auto", "detailed"):
            raise Unsupported(
                "This version of mlx-fleet does not shorten reasoning: a summary is its whole "
                "text. Use auto or detailed, or leave the field out.",
                param=f"reasoning.{name}",
            )
    return reasoning.summary or reasoning.generate_summary


def _refuse_reasoning(reasoning: _Reasoning) -> None:
    refuse_reasoning(reasoning)
    if reasoning.context not in (None, "auto"):
        raise unsupported(f"reasoning context {reasoning.context}", "reasoning.context")
    if reasoning.mode not in (None, "standard"):
        raise unsupported(f"reasoning mode {reasoning.mode}", "reasoning.mode")


def _refuse_text(text: _Text | None) -> None:
    if text is None:
        return
    if text.format is not None and text.format.get("type") != "text":
        raise unsupported("formats other than text", "text.format")
    if text.verbosity not in (None, "medium"):
        raise unsupported("a verbosity other than medium", "text.verbosity")
