"""Calls of Kimi K2."""

from tests.node.parsing.reading import Parsed, Tools, collect, output_format, read

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def call(call_id: str, arguments: str, end: str = "<|tool_call_end|>") -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}{end}"


def kimi(text: str, *, reasoning: str = "none") -> Parsed:
    return read(text, reasoning=reasoning, tool_calls="kimi_k2")


def test_a_call_in_a_section_is_read() -> None:
    text = BEGIN + call("functions.find:0", '{"where": "a < b"}') + END
    assert kimi(text) == Parsed(calls=(("find", {"where": "a < b"}),))


def test_calls_follow_each_other_and_text_stands_around_the_section() -> None:
    calls = call("functions.find:0", '{"depth": 1}') + "\n" + call("functions.ping:1", "{}")
    assert kimi(f"Looking.{BEGIN}{calls}{END} Done.") == Parsed(
        "Looking. Done.", "", (("find", {"depth": 1}), ("ping", {}))
    )


def test_ends_may_be_missing() -> None:
    calls = call("functions.find:0", '{"depth": 1}', "") + call("functions.ping:1", "{}", "")
    expected = Parsed(calls=(("find", {"depth": 1}), ("ping", {})))
    assert kimi(BEGIN + calls) == kimi(calls) == expected


def test_a_call_ends_reasoning_that_is_still_open() -> None:
    text = "<think>Let me see." + call("functions.ping:0", "{}")
    assert kimi(text, reasoning="think") == Parsed("", "Let me see.", (("ping", {}),))


def test_the_id_is_the_one_that_the_model_wrote() -> None:
    text = BEGIN + call(" functions.find:3 \n", '{"depth": 1}') + call("find", "{}") + END
    first, second = collect(output_format(tool_calls="kimi_k2"), [text]).calls
    assert first.call_id == "functions.find:3"
    assert second.call_id.startswith("call_")


def test_a_repeated_id_is_replaced() -> None:
    text = BEGIN + call("functions.find:0", '{"depth": 1}') + call("functions.find:0", "{}") + END
    first, second = collect(output_format(tool_calls="kimi_k2"), [text]).calls
    assert first.call_id == "functions.find:0" != second.call_id


def test_names_keep_their_dots_and_may_have_no_namespace() -> None:
    tools: Tools = {"fs.read": {}, "ping": {}}
    text = BEGIN + call("functions.fs.read:0", "{}") + call("ping:1", "{}") + END
    calls = read(text, tool_calls="kimi_k2", tools=tools).calls
    assert calls == (("fs.read", {}), ("ping", {}))


def test_what_is_no_call_stays_text() -> None:
    for text in (
        BEGIN + call("functions.unknown:0", "{}") + END,
        BEGIN + call("functions.find:0", "[1]") + END,
        BEGIN + "nothing" + END,
        BEGIN + call("functions.find:0", '{"where": "x', ""),
    ):
        assert kimi(text) == Parsed(text)


def test_an_empty_section_is_no_text() -> None:
    assert kimi(f"{BEGIN}{END}So be it.") == Parsed("So be it.")
