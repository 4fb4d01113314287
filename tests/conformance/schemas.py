"""Validates answers of the dialects, whole and streamed, against the published schemas."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from node.dialects.anthropic.body import count_tokens_body, read_messages
from node.dialects.anthropic.errors import error_body as anthropic_error_body
from node.dialects.base import Collected, DialectRequest, ResponseHead, Writer
from node.dialects.chat.body import read_chat
from node.dialects.completions.completions import read_completion
from node.dialects.responses.body import read_responses
from node.dialects.responses.response import StoredResponse
from node.dialects.responses.stored import (
    ItemsPage,
    deleted_body,
    input_items_body,
    retrieved_body,
)
from node.errors import EngineFault, UnknownModel
from node.ipc.messages import Accepted, PartKind
from node.protocol.error_envelopes import openai_envelope
from node.protocol.models import ModelCard, models_body
from tests.conformance.answers import SAMPLES, USAGE, Sample
from tests.conformance.result import Result

OPENAI_SCHEMAS = "openai_openapi_subset.json"
SDK_SCHEMAS = "sdk_pydantic_json_schemas.json"
HEAD = ResponseHead("0123456789abcdef-5eed-000001", "small", 1_700_000_000)

Event = dict[str, Any]

_FUNCTIONS = (
    {"name": "find_ship", "description": "Finds a ship", "parameters": {"type": "object"}},
    {"name": "dock", "parameters": {"type": "object", "properties": {}}},
)
_ASK = {"role": "user", "content": "Where is the Aurora?"}
_CHAT = {
    "messages": [_ASK],
    "tools": [{"type": "function", "function": each} for each in _FUNCTIONS],
    "stream_options": {"include_usage": True},
}
_RESPONSES = {"input": [_ASK], "tools": [{"type": "function", **each} for each in _FUNCTIONS]}
_TURN = (
    {"role": "developer", "content": "You keep the harbour's log."},
    {"role": "user", "content": [{"type": "input_text", "text": "Where is the Aurora?"}]},
    {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I look it up."}],
    },
    {"role": "assistant", "content": "Let me see."},
    {"type": "function_call", "call_id": "call_1", "name": "find_ship", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "berth 4"},
)
_MESSAGES = {
    "max_tokens": 64,
    "messages": [_ASK],
    "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in _FUNCTIONS],
}


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    read: Callable[[bytes], DialectRequest]
    body: Mapping[str, Any]
    whole: tuple[str, ...]
    """Schemas of the whole answer."""
    event: tuple[str, ...]
    """Schemas of each streamed event."""
    arguments: Callable[[Sequence[Event]], dict[str, str]]
    """The streamed pieces of each call's arguments, joined."""
    shown: Callable[[Event], Event] = lambda event: event
    """The event as the schemas see it."""
    text_only: bool = False


def _chat_arguments(events: Sequence[Event]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for event in events:
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                key = str(call["index"])
                joined[key] = joined.get(key, "") + call["function"].get("arguments", "")
    return joined


def _response_arguments(events: Sequence[Event]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
    return joined


def _message_arguments(events: Sequence[Event]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            key = str(event["index"])
            joined[key] = joined.get(key, "") + event["delta"]["partial_json"]
    return joined


def _with_finish(event: Event) -> Event:
    """A chunk of a completion. The schemas, which are those of the whole, have no word for a
    chunk that is not the last one; OpenAI's own streams have null."""
    choices = [
        {**each, "finish_reason": each["finish_reason"] or "stop"} for each in event["choices"]
    ]
    return {**event, "choices": choices}


def _no_arguments(events: Sequence[Event]) -> dict[str, str]:
    return {}


DIALECTS = (
    Dialect(
        "chat",
        read_chat,
        _CHAT,
        ("CreateChatCompletionResponse", "openai.ChatCompletion"),
        ("CreateChatCompletionStreamResponse", "openai.ChatCompletionChunk"),
        _chat_arguments,
    ),
    Dialect(
        "completions",
        read_completion,
        {"prompt": "Once", "stream_options": {"include_usage": True}},
        ("CreateCompletionResponse", "openai.Completion"),
        ("CreateCompletionResponse", "openai.Completion"),
        _no_arguments,
        shown=_with_finish,
        text_only=True,
    ),
    Dialect(
        "responses",
        read_responses,
        _RESPONSES,
        ("Response", "openai.Response"),
        ("ResponseStreamEvent", "openai.ResponseStreamEvent"),
        _response_arguments,
    ),
    Dialect(
        "messages",
        read_messages,
        _MESSAGES,
        ("anthropic.Message",),
        ("anthropic.RawMessageStreamEvent",),
        _message_arguments,
    ),
)


@dataclass(slots=True)
class Schemas:
    """Validates values and counts them."""

    by_name: Mapping[str, Draft202012Validator]
    passed: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def check(self, where: str, value: Any, names: Sequence[str]) -> None:
        """`value` against those of the schemas that the corpus has."""
        for name in names:
            if name not in self.by_name:
                continue
            self.expect(f"{where} is no {name}", find_problem(self.by_name[name], value))

    def expect(self, where: str, problem: str | None) -> None:
        """Counts one check; `problem` is what is wrong with it."""
        if problem is None:
            self.passed += 1
        else:
            self.problems[f"{where}: {problem}"] += 1

    def result(self) -> Result:
        failing = [f"{line} ({count} times)" for line, count in self.problems.items()]
        return Result(self.passed, self.passed + self.problems.total(), failing)


def find_problem(validator: Draft202012Validator, value: Any) -> str | None:
    """Returns the value's first problem; of a form that `type` names, that of this form."""
    error = best_match(validator.iter_errors(value))
    while error is not None and error.context:
        other = {each.schema_path[0] for each in error.context if list(each.path)[-1:] == ["type"]}
        own = [each for each in error.context if each.schema_path[0] not in other]
        inner = best_match(own)
        if inner is None:
            break
        error = inner
    return None if error is None else f"{error.json_path}: {error.message[:160]}"


def check_schemas(corpus: Path) -> Result:
    """All samples through all dialects."""
    by_name = read_schemas(corpus / "api_schemas")
    if not by_name:
        return Result(skipped=f"there are no schemas in {corpus / 'api_schemas'}")
    schemas = Schemas(by_name)
    for dialect in DIALECTS:
        for sample in SAMPLES:
            if sample.is_text or not dialect.text_only:
                check_whole(schemas, dialect, sample)
                check_stream(schemas, dialect, sample)
        check_failure(schemas, dialect)
    for sample in SAMPLES:
        check_stored(schemas, sample)
    check_bodies(schemas)
    return schemas.result()


def read_schemas(folder: Path) -> dict[str, Draft202012Validator]:
    """A validator for each schema of the files that are there."""
    found: dict[str, Draft202012Validator] = {}
    openai, sdk = folder / OPENAI_SCHEMAS, folder / SDK_SCHEMAS
    if openai.exists():
        components = with_nulls(json.loads(openai.read_text())["components"])
        for name in components["schemas"]:
            root = {"$ref": f"#/components/schemas/{name}", "components": components}
            found[name] = Draft202012Validator(root)
    if sdk.exists():
        for name, schema in json.loads(sdk.read_text()).items():
            found[name] = Draft202012Validator(schema)
    return found


def with_nulls(schema: Any) -> Any:
    """The schema with what OpenAPI calls nullable in words of JSON schema."""
    if isinstance(schema, list):
        return [with_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: with_nulls(each) for key, each in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


def check_whole(schemas: Schemas, dialect: Dialect, sample: Sample) -> None:
    """The answer of stream=false."""
    collected = Collected(finish=sample.finish, stop=sample.stop, usage=USAGE)
    for step in sample.steps:
        collected.add(step)
    body = json.loads(_writer(dialect, stream=False).whole([collected]))
    schemas.check(f"{dialect.name}, whole", body, dialect.whole)


def check_stream(schemas: Schemas, dialect: Dialect, sample: Sample) -> None:
    """Each event, and what they are together."""
    writer = _writer(dialect, stream=True)
    stream = b"".join(writer.parts(step) for step in sample.steps) + writer.ending(sample.last)
    events = list(read_events(stream))
    for event in events:
        label = event.get("type") or event.get("object")
        schemas.check(f"{dialect.name}, event {label}", dialect.shown(event), dialect.event)
        for delta in _deltas(event):
            nulls = "it is null" if _has_null(delta) else None
            schemas.expect(f"{dialect.name}, a field of a delta", nulls)
    expected = [text for text in _arguments(sample) if text]
    joined = [text for text in dialect.arguments(events).values() if text]
    problem = None if joined == expected else f"{joined}, not {expected}"
    schemas.expect(f"{dialect.name}, joined arguments", problem)


def check_stored(schemas: Schemas, sample: Sample) -> None:
    """Checks the answers of the paths of a stored response."""
    stored = _stored(sample)
    for seals in (False, True):
        response = json.loads(retrieved_body(stored.body, seals_reasoning=seals))
        schemas.check("stored response", response, ("Response", "openai.Response"))
        for is_ascending in (False, True):
            page = ItemsPage(is_ascending=is_ascending, seals_reasoning=seals)
            items = json.loads(input_items_body(stored, page))
            schemas.check("input items", items, ("ResponseItemList",))
    deleted = json.loads(deleted_body(stored.response_id))
    expected = {"id": stored.response_id, "object": "response", "deleted": True}
    schemas.expect("deleted", None if deleted == expected else f"{deleted}")


def _stored(sample: Sample) -> StoredResponse:
    """A turn whose input is an item of each kind, and whose answer is the sample."""
    request = read_responses(json.dumps({"model": "small", **_RESPONSES, "input": _TURN}).encode())
    writer = request.writer(HEAD)
    writer.accepted(Accepted("row", USAGE.prompt_tokens, USAGE.cached_tokens))
    collected = Collected(finish=sample.finish, stop=sample.stop, usage=USAGE)
    for step in sample.steps:
        collected.add(step)
    writer.whole([collected])
    stored = writer.record()
    assert stored is not None
    return stored


def check_failure(schemas: Schemas, dialect: Dialect) -> None:
    """The event of a failure is JSON, after parts and before any."""
    for begun in (False, True):
        writer = _writer(dialect, stream=True)
        if begun:
            writer.parts(SAMPLES[0].steps[0])
        events = list(read_events(writer.error(EngineFault())))
        problem = None if events else "no event"
        schemas.expect(f"{dialect.name}, a failure in the stream", problem)
        names = {"messages": ("anthropic.ErrorResponse",), "responses": dialect.event}
        for event in events:
            schemas.check(f"{dialect.name}, failure", event, names.get(dialect.name, ()))


def check_bodies(schemas: Schemas) -> None:
    """Errors, the models, and counted tokens."""
    error = UnknownModel(param="model")
    schemas.check("error", json.loads(openai_envelope(error, "req_1")), ("ErrorResponse",))
    schemas.check(
        "error", json.loads(anthropic_error_body(error, "req_1")), ("anthropic.ErrorResponse",)
    )
    schemas.check("count", json.loads(count_tokens_body(12)), ("anthropic.MessageTokensCount",))
    card = ModelCard(
        name="small",
        context_tokens=4096,
        capabilities=("completion", "tools"),
        tool_parser="hermes",
        reasoning_parser="think",
        state="ready",
    )
    models = json.loads(models_body([card], 1_700_000_000))
    schemas.check("models", models, ("ListModelsResponse",))
    for model in models["data"]:
        schemas.check("model", model, ("Model", "openai.Model"))


def read_events(stream: bytes) -> Iterator[Event]:
    """The JSON of each event but `[DONE]`; comments and pings are none."""
    for block in stream.decode().split("\n\n"):
        lines = [line[5:].strip() for line in block.split("\n") if line.startswith("data:")]
        if lines and lines != ["[DONE]"]:
            yield json.loads("\n".join(lines))


def _writer(dialect: Dialect, *, stream: bool) -> Writer:
    body = {"model": "small", **dialect.body, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    writer = dialect.read(json.dumps(body).encode()).writer(HEAD)
    writer.accepted(Accepted("row", USAGE.prompt_tokens, USAGE.cached_tokens))
    return writer


def _arguments(sample: Sample) -> list[str]:
    collected = Collected()
    for step in sample.steps:
        collected.add(step)
    return [each.text for each in collected.segments if each.kind is PartKind.TOOL_START]


def _deltas(event: Event) -> Iterator[Any]:
    """The deltas in which a null would overwrite what a client has."""
    for choice in event.get("choices", ()):
        yield choice.get("delta", {})
    if event.get("type") == "content_block_delta":
        yield event["delta"]


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    if isinstance(value, list):
        return any(map(_has_null, value))
    return value is None
