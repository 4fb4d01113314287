"""OpenAI's `/v1/responses`: what a body asks for.

A body may go on from stored responses or refer to stored items. Those come by `with_history`; only
then is the request complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from node.dialects.base import AnswerHead
from node.dialects.fields.constraints import format_owner, response_format
from node.dialects.fields.field_table import unsupported
from node.dialects.fields.media import text_only
from node.dialects.fields.refusals import refuse_reasoning
from node.dialects.fields.sampling import sampling_params, stop_strings, token_limit
from node.dialects.fields.template import template_options
from node.dialects.fields.thinking import thinking_tokens
from node.dialects.fields.tool_choice import check_arguments
from node.dialects.responses.answer import ResponseFacts
from node.dialects.responses.events import ResponseWriter
from node.dialects.responses.fields import (
    ENCRYPTED_REASONING,
    INCLUDED,
    LOGPROBS,
    RESPONSES,
    ReasoningBody,
    ResponsesBody,
    TextBody,
)
from node.dialects.responses.input import (
    History,
    added_tools,
    input_items,
    left_out_items,
    messages_of,
    references,
    resolved,
)
from node.dialects.responses.items import Item
from node.dialects.responses.tools import ToolSet, read_choice, read_tool_set
from node.errors import BadRequest
from node.ipc.generate import Constraint
from node.request import NO_ITEM, Message, TextRequest


def read_responses(data: bytes) -> "AskedResponse":
    """The body of `/v1/responses`. Raises `BadRequest` or `Unsupported`."""
    body = RESPONSES.read(data)
    items = _items(body)
    reasoning = body.reasoning or ReasoningBody()
    _refuse_reasoning(reasoning)
    request = TextRequest(
        model=body.model,
        sampling=sampling_params(body),
        stops=stop_strings(body.stop, "stop"),
        max_tokens=token_limit(body.max_output_tokens),
        stream=_stream(body),
        messages=messages_of(items),
        prompt_field="input",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template=template_options(
            thinking=body.enable_thinking,
            effort=reasoning.effort,
            kwargs=body.chat_template_kwargs,
        ),
        constraint=_constraint(body.text),
        thinking_tokens=thinking_tokens(body, **{"reasoning.max_tokens": reasoning.max_tokens}),
        logprobs=_logprobs(body),
    )
    facts = _facts(body, reasoning)
    asked = AskedResponse(request, facts, tuple(items), references(items), body.tools)
    return asked if asked.needs_history else asked.with_history(History())


def _facts(body: ResponsesBody, reasoning: ReasoningBody) -> ResponseFacts:
    return ResponseFacts(
        previous_id=body.previous_response_id,
        store=body.store is not False,
        seals_reasoning=encrypts_reasoning(body.include),
        instructions=body.instructions,
        metadata=body.metadata or {},
        effort=reasoning.effort,
        summary=_summary(reasoning),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tool_set=ToolSet(),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text_format=_shown_format(body.text),
    )


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
    tools: object = None
    """The field `tools`, which the input may add to."""

    @property
    def needs_history(self) -> bool:
        """Whether the body refers to what is stored."""
        return self.facts.previous_id is not None or bool(self.references)

    def with_history(self, history: History) -> "AskedResponse":
        """The same with what it refers to. Raises `UnknownItem`, `BadRequest` if nothing is there
        to answer, and `Unsupported` for media in what the user says now."""
        items: Sequence[Item] = self.items
        messages = self.request.messages or ()
        if self.needs_history:
            items = resolved(items, history)
            # Parsed as one: an answer may go on from the history into this turn's input.
            messages = messages_of([*history.items, *items], earlier=len(history.items))
        if self.facts.instructions:
            messages = (Message("system", self.facts.instructions), *messages)
        if not messages:
            messages = _probe(self.request)
        whole = replace(self, items=tuple(items), references=())
        return whole._with_tools(history, text_only(messages))

    def _with_tools(self, history: History, messages: Sequence[Message]) -> "AskedResponse":
        """The same with its tools, those that the items add included. Raises `BadRequest` or
        `Unsupported`."""
        items = [*history.items, *self.items]
        tool_set = read_tool_set(self.tools, added_tools(items, earlier=len(history.items)))
        declared = tool_set.declared
        choice = read_choice(self.facts.tool_choice, declared)
        check_arguments(declared.tools, choice)
        request = replace(
            self.request,
            messages=tuple(messages),
            tools=tool_set.front if choice.shows_tools else (),
            late_tools=tool_set.late if choice.shows_tools else (),
            parallel_tool_calls=self.request.parallel_tool_calls and not choice.is_single,
            callable_tools=choice.callable_tools,
            must_call=choice.must_call,
            left_out=(*declared.left_out, *left_out_items(self.items)),
        )
        return replace(self, request=request, facts=replace(self.facts, tool_set=tool_set))

    def writer(self, head: AnswerHead) -> ResponseWriter:
        return ResponseWriter(self.request, self.facts, self.items, head)


def _probe(request: TextRequest) -> tuple[Message, ...]:
    """What stands for an input of nothing, with which clients look whether a model answers: they
    ask for one token. Raises `BadRequest` where more is asked for."""
    if request.max_tokens != 1:
        raise BadRequest("input holds no message.", param="input")
    return (Message("user", source=NO_ITEM),)


def encrypts_reasoning(include: Sequence[str] | None) -> bool:
    """Whether `include` asks for it. Raises `BadRequest` for a value that is not known."""
    for at, value in enumerate(include or ()):
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


def _summary(reasoning: ReasoningBody) -> str | None:
    """The kind of summary that is asked for, whose text is the whole reasoning anyway. Raises
    `BadRequest`."""
    for name in ("summary", "generate_summary"):
        if getattr(reasoning, name) not in (None, "auto", "concise", "detailed"):
            raise BadRequest(
                f"reasoning.{name} must be auto, concise or detailed.", param=f"reasoning.{name}"
            )
    return reasoning.summary or reasoning.generate_summary


def _refuse_reasoning(reasoning: ReasoningBody) -> None:
    refuse_reasoning(reasoning)
    if reasoning.mode not in (None, "standard"):
        raise unsupported(f"reasoning mode {reasoning.mode}", "reasoning.mode")


def _constraint(text: TextBody | None) -> Constraint | None:
    if text is None:
        return None
    return response_format(text.format, "text.format")


def _shown_format(text: TextBody | None) -> Mapping[str, Any]:
    """The format as the response repeats it, with the fields that clients look for."""
    if text is None or text.format is None:
        return {"type": "text"}
    if text.format["type"] != "json_schema":
        return text.format
    owner, _ = format_owner(text.format, "text.format")
    given = {**text.format, **owner, "type": "json_schema", "json_schema": None}
    said = {key: value for key, value in given.items() if value is not None}
    return {"name": "schema", "description": None, "strict": True, **said}


def _logprobs(body: ResponsesBody) -> int | None:
    """How many alternatives are told with each token of the text; None: no probabilities."""
    if LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    return body.top_logprobs or None
