"""One tool-calling session, and how models of several families write its answers.

The model calls a tool, then two at once, then answers in text, each time after reasoning. A test
runs a client against an agent whose engine writes that, and compares what the client understood.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.engine.scripted.script import Script
from tests.node.serving import RunningAgent, running

MODEL = "scripted"
QUESTION = "What is the weather in Zürich? Write it down, please."


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Names and arguments."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema."""


WEATHER = Tool(
    "get_weather",
    "The weather of the next days.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
NOTE = Tool(
    "write_note",
    "Writes a note.",
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "body": {"type": "string"},
            "marks": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["title", "body"],
    },
)
TOOLS = (WEATHER, NOTE)
FUNCTIONS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }
    for tool in TOOLS
]
"""The tools as OpenAI's chats and Ollama's declare them."""
RESULTS = {WEATHER.name: "18 °C, <rain> & sun", NOTE.name: '{"saved": true}'}
"""The result of each tool."""

SESSION = (
    Answer(
        reasoning="The user asks for weather, so I look it up.",
        calls=(("get_weather", {"city": "Zürich", "days": 2}),),
    ),
    Answer(
        reasoning="I write it down. A second look costs nothing.",
        text="I note that.",
        calls=(
            (
                "write_note",
                {
                    "title": 'Zürich, "today"',
                    "body": "18 °C\n<b>rain</b>, then sun",
                    "marks": {"place": "Zürich"},
                },
            ),
            ("get_weather", {"city": "São Paulo", "days": 1}),
        ),
    ),
    Answer(reasoning="Both are done.", text="In Zürich it has 18 °C.\n\nThe note is written."),
)


@dataclass(frozen=True, slots=True)
class Family:
    """The spelling of the session by the models of one family."""

    name: str
    tool_calls: str
    """The formats' names."""
    reasoning: str
    outputs: tuple[str, ...]


HERMES = Family(
    "hermes",
    "hermes",
    "think",
    (
        "<think>\nThe user asks for weather, so I look it up.\n</think>\n\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>',
        "<think>\nI write it down. A second look costs nothing.\n</think>\n\nI note that.\n"
        '<tool_call>\n{"name": "write_note", "arguments": {"title": "Zürich, \\"today\\"", '
        '"body": "18 °C\\n<b>rain</b>, then sun", "marks": {"place": "Zürich"}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "S\\u00e3o Paulo", '
        '"days": 1}}\n</tool_call>',
        "<think>\nBoth are done.\n</think>\n\nIn Zürich it has 18 °C.\n\nThe note is written.",
    ),
)
QWEN3_CODER = Family(
    "qwen3_coder",
    "qwen3_coder",
    "think",
    (
        "<think>\nThe user asks for weather, so I look it up.\n</think>\n\n<tool_call>\n"
        "<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        "<think>\nI write it down. A second look costs nothing.\n</think>\n\nI note that.\n\n"
        '<tool_call>\n<function=write_note>\n<parameter=title>\nZürich, "today"\n</parameter>\n'
        "<parameter=body>\n18 °C\n<b>rain</b>, then sun\n</parameter>\n<parameter=marks>\n"
        '{"place": "Zürich"}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n'
        "<function=get_weather>\n<parameter=city>\nSão Paulo\n</parameter>\n<parameter=days>\n1\n"
        "</parameter>\n</function>\n</tool_call>",
        "<think>\nBoth are done.\n</think>\n\nIn Zürich it has 18 °C.\n\nThe note is written.",
    ),
)
HARMONY = Family(
    "harmony",
    "harmony",
    "harmony",
    (
        "<|channel|>analysis<|message|>The user asks for weather, so I look it up.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        '<|message|>{"city": "Zürich", "days": 2}<|call|>',
        "<|channel|>analysis<|message|>I write it down. A second look costs nothing.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I note that.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.write_note <|constrain|>json"
        '<|message|>{"title": "Zürich, \\"today\\"", "body": "18 °C\\n<b>rain</b>, then sun", '
        '"marks": {"place": "Zürich"}}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        '<|message|>{"city": "São Paulo", "days": 1}<|call|>',
        "<|channel|>analysis<|message|>Both are done.<|end|><|start|>assistant<|channel|>final"
        "<|message|>In Zürich it has 18 °C.\n\nThe note is written.<|return|>",
    ),
)
MISTRAL = Family(
    "mistral",
    "mistral",
    "mistral",
    (
        "[THINK]The user asks for weather, so I look it up.[/THINK]"
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Zürich", "days": 2}',
        "[THINK]I write it down. A second look costs nothing.[/THINK]I note that."
        '[TOOL_CALLS]write_note[ARGS]{"title": "Zürich, \\"today\\"", '
        '"body": "18 °C\\n<b>rain</b>, then sun", "marks": {"place": "Zürich"}}'
        '[TOOL_CALLS]get_weather[ARGS]{"city": "São Paulo", "days": 1}',
        "[THINK]Both are done.[/THINK]In Zürich it has 18 °C.\n\nThe note is written.",
    ),
)
FAMILIES = (HERMES, QWEN3_CODER, HARMONY, MISTRAL)


@contextlib.asynccontextmanager
async def serving(
    home: Path, family: Family = HERMES, outputs: Sequence[str] = (), **script: Any
) -> AsyncIterator[RunningAgent]:
    """An agent whose model writes the session, or other `outputs`, as that family does; `script`
    are further fields of `Script`."""
    async with running(
        home,
        Script(outputs=tuple(outputs) or family.outputs, **script),
        tool_parsers=(("", family.tool_calls),),
        reasoning_parsers=(("", family.reasoning),),
    ) as agent:
        yield agent


def without_reasoning(session: Sequence[Answer]) -> list[Answer]:
    """Returns the session as a client understands it that knows no reasoning."""
    return [replace(answer, reasoning="") for answer in session]
