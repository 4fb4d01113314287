"""Builds the engine's request from a request and its prompt."""

import msgspec

from node.errors import BadRequest
from node.ipc.generate import JSON_KINDS, GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import Loaded
from node.parsing.selection import AUTO, NONE
from node.prompt.prompt import Prompt
from node.request import TextRequest


def generate_request(
    request: TextRequest, uid: str, prompt: Prompt, info: Loaded
) -> GenerateRequest:
    """Returns the request for the engine. Raises `BadRequest` for a token id outside the
    vocabulary."""
    sampling, vocab_size = request.sampling, info.vocab_size
    if any(token >= vocab_size for token, _ in sampling.logit_bias):
        raise BadRequest(
            f"logit_bias has a token beyond the vocabulary of {vocab_size}.", param="logit_bias"
        )
    if isinstance(request.prompt, tuple) and max(request.prompt) >= vocab_size:
        raise BadRequest(
            f"prompt has a token beyond the vocabulary of {vocab_size}.", param="prompt"
        )
    if sampling.top_k >= vocab_size:
        sampling = msgspec.structs.replace(sampling, top_k=0)
    return GenerateRequest(
        uid,
        prompt.tokens,
        request.max_tokens,
        sampling,
        request.stops,
        prompt.boundaries,
        prompt.reusable_tokens,
        prompt.dropped_output,
        output=_output(request, prompt),
        constraint=request.constraint,
        thinking_tokens=request.thinking_tokens,
        logprobs=request.logprobs,
        choices=request.choices,
    )


def _output(request: TextRequest, prompt: Prompt) -> OutputFormat | None:
    """Returns the format in which the output is parsed; None if it is plain text."""
    reasoning, tool_calls = prompt.formats
    if not request.callable and tool_calls == AUTO:
        # Such a model has no markup of its own that could show up in the text.
        tool_calls = NONE
    # The engine refuses a call that cannot be forced.
    if reasoning == tool_calls == NONE and not request.must_call:
        return None
    # Without tools the markup of calls is text; the engine must know it to keep its tokens.
    tools = _callable(request) if tool_calls != NONE else ()
    return OutputFormat(
        reasoning,
        tool_calls,
        prompt.tail,
        tools,
        request.parallel_tool_calls,
        must_call=request.must_call,
        must_call_param=request.must_call_param,
        is_json=request.constraint is not None and request.constraint.kind in JSON_KINDS,
    )


def _callable(request: TextRequest) -> tuple[ToolSchema, ...]:
    wanted = request.callable_tools
    return tuple(
        ToolSchema(
            tool.name,
            dict(tool.constrained_parameters),
            strict=tool.function.get("strict") is True,
            strict_if_possible=tool.pattern is not None,
            param=tool.param,
        )
        for tool in request.callable
        if wanted is None or tool.name in wanted
    )
