"""The fields of `/v1/responses`: models of the body and the field table."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from node.dialects.fields.field_table import (
    FIRST_FAULT,
    FieldTable,
    Lenient,
    Refusal,
    absent,
    off,
    on,
    only,
)
from node.dialects.fields.refusals import (
    IGNORED,
    NO_GUIDES,
    ONE_CHOICE,
    REFUSED_BY_ALL,
    budgets_elsewhere,
    format_elsewhere,
    renamed,
)
from node.dialects.fields.sampling import SAMPLING_NOTES, Count, SamplingFields
from node.dialects.fields.template import Effort
from node.dialects.fields.thinking import THINKING_NOTES, Budget, ThinkingFields
from node.dialects.fields.tool_choice import HOSTED_NOTE, STRICT_NOTE

ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (
    ENCRYPTED_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
    LOGPROBS,
)
"""Values of `include`. All but the first and the last concern items that no response here has."""


class ReasoningBody(Lenient):
    effort: Effort | None = None
    max_tokens: Budget | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextBody(Lenient):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesStreamOptions(Lenient):
    include_obfuscation: bool | None = None


class ResponsesBody(SamplingFields, ThinkingFields):
    model: Annotated[str, Field(min_length=1)]
    input: object = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    text: TextBody | None = None
    max_output_tokens: Count | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    include: Annotated[list[str], FIRST_FAULT] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def _is_compaction(value: object) -> bool:
    """True if a `context_management` only requests that a long history be shortened."""
    if not isinstance(value, list):
        return not value
    return all(isinstance(each, Mapping) and each.get("type") == "compaction" for each in value)


def _is_plain_cache(value: object) -> bool:
    """True if the cache options are hints at most."""
    if not isinstance(value, Mapping):
        return value is None
    given = {key for key, each in value.items() if each}
    return given <= {"mode", "ttl"} and value.get("mode") in (None, "implicit")


RESPONSES: FieldTable[ResponsesBody] = FieldTable(
    ResponsesBody,
    notes={
        **SAMPLING_NOTES,
        **THINKING_NOTES,
        "model": "A model of the list of models, or an alias of the router.",
        "input": (
            "A string, or items: `message` (text parts), `function_call`, `custom_tool_call` and "
            "their outputs (text), `reasoning`, `item_reference` to an item of a stored response, "
            "`additional_tools`, whose `tools` are added to the body's: those of the first item "
            "are declared with them, others by a message in the item's place, as are the tools of "
            "a client's `tool_search_output`. `local_shell_call`, `shell_call` and "
            "`apply_patch_call` of another model are shown as calls of functions with these names, "
            "with their outputs. Items that report a host's work (`web_search_call` and the like, "
            "`compaction`) are left out. An empty list with `max_output_tokens` of 1 is a probe, "
            "and answered with one token. A part with media becomes [a line of "
            "text](#pictures-sounds-and-files). A call's arguments that are not a JSON object are "
            "shown to the model as text."
        ),
        "instructions": "A system message before all others, for this response only.",
        "previous_response_id": "A stored response; its input and output come before `input`.",
        "tools": (
            "`function`, `custom` ([custom tools](#custom-tools)), `tool_search` of the client "
            "(its calls are sent as `tool_search_call`), and `namespace` with functions and custom "
            "tools in it: the model sees those as `NAMESPACE__NAME`, calls are sent with "
            f"`namespace` and `name`. {HOSTED_NOTE} `defer_loading` is a hint: all tools are shown "
            f"from the start. {STRICT_NOTE} Tools of earlier responses are not carried over."
        ),
        "tool_choice": (
            "`auto`; `none`: the model sees no tools; `required`: the response is one call or "
            "several; a `function` or `custom` tool by its `name`, and `namespace` if it has one: "
            "one call of it; `allowed_tools`: of those in `tools`, with `mode` `auto` or "
            "`required`; the model still sees all. A forced call comes after the reasoning, and "
            "overrides `text.format`."
        ),
        "parallel_tool_calls": "false: the response ends with its first call. Default true.",
        "reasoning": (
            "`effort` is passed to the template, `none` turns thinking off. `max_tokens`: another "
            "name of `max_thinking_tokens`. The whole reasoning text is in the item's `content`; "
            "with `summary` (or `generate_summary`) of `auto`, `concise` or `detailed` it is in "
            "the item's `summary` instead, still whole: the three differ in name only. `context` "
            "is a hint; `mode` may be `standard`."
        ),
        "text": (
            "`format` of type `text`, `json_object` (with a `schema` one that fits it), or "
            "`json_schema` with `schema`, to which the text is constrained whatever `strict` is; "
            "with tools, the response may be calls instead. `verbosity` is a hint; it is not "
            "passed to the model."
        ),
        "max_output_tokens": "At least 1; by default, all that the context has room for.",
        "stop": "A string or up to 16; each ends the response and is not part of it.",
        "stream": "Server-sent events, each with its sequence number.",
        "stream_options": "Only with `stream`. `include_obfuscation` may be false.",
        "store": "Stores the response on the node, for follow-ups and GET. Default true.",
        "include": (
            "`reasoning.encrypted_content`: reasoning items carry their text in a form that "
            "clients send back without reading it. `message.output_text.logprobs`: the text comes "
            "with the log probabilities of its tokens, also in the stream. Values for what a "
            "response here never has, such as search results, have no effect."
        ),
        "top_logprobs": (
            "0 to 20: the number of likeliest tokens sent with each content token; from 1 on, also "
            "without `include`."
        ),
        "metadata": "Up to 16 texts, repeated in the response.",
        "enable_thinking": "For templates with this variable; null: the model's settings decide.",
        "chat_template_kwargs": (
            "More variables for the template; `enable_thinking` and `reasoning.effort` override "
            "them."
        ),
    },
    refused={
        **REFUSED_BY_ALL,
        **ONE_CHOICE,
        **NO_GUIDES,
        **format_elsewhere("text.format"),
        **budgets_elsewhere("max_thinking_tokens"),
        "guided_json": renamed("guided_json", "text.format"),
        "logprobs": Refusal(off, "null or false", f"logprobs is called include: {LOGPROBS} here."),
        "output_format": renamed("output_format", "text.format"),
        "conversation": Refusal(
            absent,
            "null",
            "This version of mlx-fleet has no conversations; use previous_response_id.",
        ),
        "prompt": Refusal(absent, "null", "This version of mlx-fleet has no stored prompts."),
        "context_management": Refusal(
            _is_compaction,
            "null, empty, or of type `compaction`, a hint: the client compacts the history itself",
        ),
        "prompt_cache_options": Refusal(
            _is_plain_cache,
            "null, or `mode` implicit and `ttl`",
            "Every prompt is cached automatically.",
        ),
        "max_tokens": renamed("max_tokens", "max_output_tokens"),
        "max_completion_tokens": renamed("max_completion_tokens", "max_output_tokens"),
        "response_format": renamed("response_format", "text.format"),
        "reasoning_effort": renamed("reasoning_effort", "reasoning.effort"),
        "output_config": renamed("output_config", "reasoning.effort"),
        "thinking": renamed("thinking", "reasoning.effort or enable_thinking"),
        "stop_sequences": renamed("stop_sequences", "stop"),
        "system": renamed("system", "instructions"),
        "functions": renamed("functions", "tools"),
        "function_call": Refusal(
            only("auto"), "null or auto", "function_call is called tool_choice here."
        ),
        "continue_final_message": Refusal(off, "null or false"),
        "add_generation_prompt": Refusal(on, "null or true"),
        "include_reasoning": Refusal(on, "null or true"),
        "messages": renamed("messages", "input"),
    },
    ignored={
        **{
            name: why
            for name, why in IGNORED.items()
            if name not in ("metadata", "prompt_cache_options")
        },
        "client_metadata": "A label.",
        "image": "Has a meaning only with images, which no model here accepts.",
    },
)
