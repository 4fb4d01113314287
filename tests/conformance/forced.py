"""Calls that are demanded: a model without sense must yet call a declared tool, with arguments
that fit, in the spelling of each family."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from node.ipc.generate import GenerateRequest, OutputFormat, ToolSchema
from node.parsing.registry import are_compatible, tool_call_names
from node.protocol.messages import FinishReason
from tests.conformance.corpus import read_lines
from tests.conformance.random_model import Drawn, RandomModel, with_random_model
from tests.conformance.result import Result

CASES = 200
MAX_TOKENS = 2000
THINKING_TOKENS = 16
_FILE = "bfcl/bfcl_cases.jsonl"
_UNFORCED = frozenset({"none"})
CLOSERS = (
    *("</parameter>", "</param>", "</arg_value>", "</longcat_arg_value>", "</ifm|arg_value>"),
    *("</steptml:invoke>", "</seed:tool_call>", "<|close|>", "<|sep|>", "]]>", "<escape>"),
    *('<|"|>', "</｜DSML｜parameter>", "</atem:parameter>", "]<]minimax[>[", "\nAction:"),
    *("</steptml:parameter>", "</arg_value:opensource>", "</function_calls>"),
)
"""The endings of a raw value: without tokens for them a model with random weights would never write
one."""


def check_forced(corpus: Path) -> list[tuple[str, Result]]:
    """All cases in the commonest spelling, and again with the spellings in turn."""
    path = corpus / _FILE
    if not path.is_file():
        return [("forced calls", Result(skipped=f"there is no {path}"))]
    cases = [_tools(row["tools"]) for row in islice(read_lines(path), CASES)]
    names = [name for name in tool_call_names() if name not in _UNFORCED]
    in_turn = list(zip(cases, cycle(names), strict=False))

    def work(model: RandomModel) -> list[tuple[str, Result]]:
        return [
            ("forced calls, hermes", _draw(model, [(tools, "hermes") for tools in cases])),
            (f"forced calls, {len(names)} formats in turn", _draw(model, in_turn)),
        ]

    return with_random_model(work, CLOSERS)


def _tools(given: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    return tuple(
        ToolSchema(
            tool["function"]["name"],
            tool["function"].get("parameters") or {},
            param=f"tools[{at}].parameters",
        )
        for at, tool in enumerate(given)
    )


def _draw(model: RandomModel, cases: list[tuple[tuple[ToolSchema, ...], str]]) -> Result:
    requests = [
        GenerateRequest(
            uid=str(at),
            tokens=model.prompt(),
            max_tokens=MAX_TOKENS,
            sampling=model.sampling(at),
            # Where the format lets it reason first, it would not end by itself.
            thinking_tokens=THINKING_TOKENS,
            output=OutputFormat(
                # Of outputs as a whole, the format names both.
                reasoning="none" if are_compatible("think", name) else name,
                tool_calls=name,
                tools=tools,
                must_call=True,
                parallel_calls=at % 2 == 0,
            ),
        )
        for at, (tools, name) in enumerate(cases)
    ]
    drawn = model.draw(requests)
    result = Result(total=len(cases))
    for at, (tools, name) in enumerate(cases):
        problems = list(_problems(drawn[str(at)], tools))
        result.passed += not problems
        result.failing += [f"{name}, case {at}: {problem}" for problem in problems]
    return result


def _problems(drawn: Drawn, tools: Sequence[ToolSchema]) -> Iterator[str]:
    if drawn.refused is not None:
        yield f"refused: {drawn.refused.reason}"
    elif drawn.finish is not FinishReason.STOP:
        yield f"ended with {drawn.finish}: {drawn.error}"
    elif not drawn.calls:
        yield f"no call in {drawn.text()[:100]!r}"
    elif drawn.text().strip():
        yield f"text beside calls: {drawn.text()[:100]!r}"
    schemas = {tool.name: tool.parameters for tool in tools}
    for name, arguments in drawn.calls:
        if name not in schemas:
            yield f"{name} is not declared"
            continue
        value = json.loads(arguments)
        error = next(Draft202012Validator(schemas[name]).iter_errors(value), None)
        if error is not None or not isinstance(value, dict):
            yield f"{name}: {error and error.message[:100]} of {arguments[:100]}"
