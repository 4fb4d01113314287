"""Parses the body of OpenAI's `/v1/responses`.

A body may continue stored responses or refer to stored items; `with_history` resolves those, and
only then is the request complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from node.dialects.base import ResponseHead
from node.dialects.fields.constraints import format_owner, response_format
from node.dialects.fields.field_table import unsupported
from node.dialects.fields.media import text_only
from node.dialects.fields.refusals import refuse_reasoning
from node.dialects.fields.sampling import sampling_params, stop_strings, token_limit
from node.dialects.fields.template import template_options
from node.dialects.fields.thinking import thinking_tokens
from node.dialects.fields.tool_choice import check_arguments
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
from node.dialects.responses.response import ResponseFacts
from node.dialects.responses.tools import ToolSet, read_choice, read_tool_set
from node.errors import BadRequest
from node.ipc.generate import Constraint
from node.request import NO_ITEM, Message, TextRequest


def read_responses(data: bytes) -> "ResponsesRequest":
    """Parses the body of `/v1/responses`. Raises `BadRequest` or `Unsupported`."""
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
    parsed = ResponsesRequest(request, facts, tuple(items), references(items), body.tools)
    return parsed if parsed.needs_history else parsed.with_history(History())


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
class ResponsesRequest:
    """A parsed request. It is complete after `with_history`, which `read_responses` calls itself if
    the body refers to nothing stored."""

    request: TextRequest
    facts: ResponseFacts
    items: Sequence[Item]
    """The input of this turn; after `with_history`, without references."""
    references: tuple[str, ...] = ()
    """Ids of the items that the input refers to."""
    tools: object = None
    """The field `tools`; the input may add more."""

    @property
    def needs_history(self) -> bool:
        """True if the body refers to stored responses or items."""
        return self.facts.previous_id is not None or bool(self.references)

    def with_history(self, history: History) -> "ResponsesRequest":
        """Returns the request with all references resolved. Raises `UnknownItem`, `BadRequest` if
        there is no message to respond to, and `Unsupported` for media in the user's current
        message."""
        items: Sequence[Item] = self.items
        messages = self.request.messages or ()
        if self.needs_history:
            items = resolved(items, history)
            # Parsed as one list: a response may begin in the history and end in this turn's input.
            messages = messages_of([*history.items, *items], earlier=len(history.items))
        if self.facts.instructions:
            messages = (Message("system", self.facts.instructions), *messages)
        if not messages:
            messages = _probe(self.request)
        whole = replace(self, items=tuple(items), references=())
        return whole._with_tools(history, text_only(messages))

    def _with_tools(self, history: History, messages: Sequence[Message]) -> "ResponsesRequest":
        """Returns the request with its tools, including those that input items add. Raises
        `BadRequest` or `Unsupported`."""
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

    def writer(self, head: ResponseHead) -> ResponseWriter:
        return ResponseWriter(self.request, self.facts, self.items, head)


def _probe(request: TextRequest) -> tuple[Message, ...]:
    """Returns the message for an empty input, which clients send with a limit of one token to check
    that a model responds. Raises `BadRequest` for any other limit."""
    if request.max_tokens != 1:
        raise BadRequest("input has no message.", param="input")
    return (Message("user", source=NO_ITEM),)


def encrypts_reasoning(include: Sequence[str] | None) -> bool:
    """True if `include` requests encrypted reasoning. Raises `BadRequest` for an unknown value."""
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
    """Returns the kind of summary that the request sets; the text is the whole reasoning for any of
    them. Raises `BadRequest`."""
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
    """Returns the text format as the response repeats it, with all fields that clients expect."""
    if text is None or text.format is None:
        return {"type": "text"}
    if text.format["type"] != "json_schema":
        return text.format
    owner, _ = format_owner(text.format, "text.format")
    given = {**text.format, **owner, "type": "json_schema", "json_schema": None}
    present = {key: value for key, value in given.items() if value is not None}
    return {"name": "schema", "description": None, "strict": True, **present}


def _logprobs(body: ResponsesBody) -> int | None:
    """Returns the number of alternatives sent with each content token; None for no log
    probabilities."""
    if LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    return body.top_logprobs or None
