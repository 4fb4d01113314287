"""Calls and reasoning of Gemma 4, and calls of FunctionGemma."""

from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read

FORMATS = [
    ("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    ("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
]
PINGED: tuple[str, Any] = ("ping", {})


@pytest.mark.parametrize(("name", "begin", "end", "quote"), FORMATS)
def test_reads_values_of_all_kinds(name: str, begin: str, end: str, quote: str) -> None:
    def text(value: str) -> str:
        return quote + value + quote

    arguments = (
        f"where:{text('a } , b:<br>' + end)},depth:-2,exact:true,names:[{text('x')}, y,],"
        f"filter:{{deep:{{n:1.5e3,none:null}},{text('k')}:{text('')},list:[]}}"
    )
    parsed = read(f"So. {begin}call:find{{{arguments}}}{end} Well.", tool_calls=name)
    found = {
        "where": "a } , b:<br>" + end,
        "depth": -2,
        "exact": True,
        "names": ["x", "y"],
        "filter": {"deep": {"n": 1500.0, "none": None}, "k": "", "list": []},
    }
    assert parsed == Parsed("So.  Well.", "", (("find", found),))


@pytest.mark.parametrize(("name", "begin", "end", "quote"), FORMATS)
def test_reads_several_calls(name: str, begin: str, end: str, quote: str) -> None:
    for text in (
        f"{begin}call:ping{{}}{end}{begin}call:find{{where:{quote}/a{quote}}}{end}",
        f"{begin}call:ping{{}}call:find{{where:{quote}/a{quote}}}{end}",
        f"{begin}call:ping{{}}\ncall:find{{where:{quote}/a{quote}}}",
    ):
        assert read(text, tool_calls=name) == Parsed("", "", (PINGED, ("find", {"where": "/a"})))


def test_bare_text_is_a_string_where_the_schema_accepts_one() -> None:
    tools = {
        "find": {
            "properties": {
                "zip": {"type": "string"},
                "deep": {"type": "object", "properties": {"zip": {"type": "string"}}},
            }
        }
    }
    text = '<|tool_call>call:find{zip:007,deep:{zip:08,n:9},sum:1+2,json:{"a": "}"}}<tool_call|>'
    found = {"zip": "007", "deep": {"zip": "08", "n": 9}, "sum": "1+2", "json": {"a": "}"}}
    assert read(text, tool_calls="gemma4", tools=tools).calls == (("find", found),)


@pytest.mark.parametrize(
    "text",
    [
        '<|tool_call>call:find(where="/a")',
        '```tool_code\nfind(where="/a")\n```',
        '```tool_code\nprint(find(where="/a"))\n```',
        'tool_code = find(where="/a")\nprint(tool_code)',
        'call:find{where:<|"|>/a<|"|>}',
        'call:find{"where":"/a"}',
        '<|tool_call>{"name": "find", "arguments": {"where": "/a"}}<tool_call|>',
        '[Calling tool: find({"where": "/a"})]',
    ],
)
def test_reads_what_small_models_write_in_its_place(text: str) -> None:
    assert read(text, tool_calls="gemma4") == Parsed("", "", (("find", {"where": "/a"}),))


@pytest.mark.parametrize("form", ["gemma4", "functiongemma", "auto"])
@pytest.mark.parametrize(
    "text",
    [
        '```tool_code\nfind(where="/a")\nping()\n```',
        '```tool_code\nprint(find(where="/a"))\nprint(ping())\n```',
        '```tool_code\n[find(where="/a"), ping()]\n```',
        '```tool_code\nfind(where="/a")\nping()',
    ],
)
def test_a_fence_may_contain_several_calls(text: str, form: str) -> None:
    calls = (("find", {"where": "/a"}), PINGED)
    assert read(f"So.\n{text}", tool_calls=form) == Parsed("So.", "", calls)
    other = text.replace("ping", "open")
    assert not read(other, tool_calls=form).calls[1:]
    assert "open()" in read(other, tool_calls=form).content


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call>call:open{a:1}<tool_call|>",
        '<|tool_call>call:find{where:<|"|>/a',
        "<|tool_call>call:find{where:}<tool_call|>",
        "<|tool_call>call:find",
        "The token <|tool_call> begins it.",
        "You can call:ping{} so.",
        "```tool_code\nx = 1\n```",
        "x = find(where=1)",
        "call:find{where:" + "[" * 200,
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, tool_calls="gemma4") == Parsed(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel>thought\nr<channel|>a", Parsed("a", "r")),
        ("<|channel>r<channel|>a", Parsed("a", "r")),
        ("<|channel>thoughts are free<channel|>a", Parsed("a", "thoughts are free")),
        ("<|channel>thought\n<channel|>a", Parsed("a")),
        ("<|channel>thought<channel|>a", Parsed("a")),
        ("<|channel><|channel>thought\nr<channel|>a", Parsed("a", "r")),
        ("<|channel>thought\nr", Parsed("", "r")),
        ("<|channel>thought\nr<channel|><|channel>content\na<channel|>", Parsed("a", "r")),
        ("<|channel>thought\nr\n<|channel>response\na", Parsed("a", "r")),
        ("a <|channel>thought\nr<channel|>\nb", Parsed("a \nb", "r")),
        ("a <|chan", Parsed("a <|chan")),
        ("<|tool_call><tool_call|>a", Parsed("a")),
        ("a", Parsed("a")),
    ],
)
def test_reads_channels(text: str, expected: Parsed) -> None:
    assert read(text, reasoning="gemma4", tool_calls="gemma4") == expected


def test_calls_end_the_reasoning() -> None:
    text = "<|channel>thought\nr <|tool_call>call:ping{}<tool_call|>"
    assert read(text, reasoning="gemma4", tool_calls="gemma4") == Parsed("", "r", (PINGED,))
