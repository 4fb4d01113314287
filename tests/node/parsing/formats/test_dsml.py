"""Calls of DeepSeek V3.2 and V4."""

import pytest

from tests.node.parsing.reading import Parsed, read


def parameter(name: str, text: str, string: str = "") -> str:
    mark = f' string="{string}"' if string else ""
    return f'<｜DSML｜parameter name="{name}"{mark}>{text}</｜DSML｜parameter>\n'


def invoke(name: str, *parameters: str) -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}</｜DSML｜invoke>\n'


def block(*calls: str, name: str = "tool_calls") -> str:
    return f"<｜DSML｜{name}>\n{''.join(calls)}</｜DSML｜{name}>"


@pytest.mark.parametrize("name", ["function_calls", "tool_calls"])
def test_calls_in_either_block_are_read(name: str) -> None:
    find = invoke("find", parameter("where", "x", "true"), parameter("depth", "3", "false"))
    text = "I look.\n\n" + block(find, invoke("ping"), name=name)
    assert read(text, tool_calls="dsml") == Parsed(
        "I look.", "", (("find", {"where": "x", "depth": 3}), ("ping", {}))
    )


def test_tags_may_have_a_space_behind_their_prefix() -> None:
    text = block(invoke("find", parameter("where", "x", "true")), name="calls")
    spaced = text.replace("｜DSML｜", "｜DSML｜ ")
    assert read(spaced, tool_calls="dsml") == Parsed(calls=(("find", {"where": "x"}),))


def test_ends_of_the_block_may_be_missing_and_its_begin_too() -> None:
    call = invoke("find", parameter("where", "x", "true"))
    expected = Parsed(calls=(("find", {"where": "x"}),))
    assert read(call, tool_calls="dsml") == expected
    assert read("<｜DSML｜tool_calls>" + call, tool_calls="dsml") == expected


def test_values_are_json_only_where_they_are_marked_so() -> None:
    text = block(
        invoke(
            "find",
            parameter("where", "  12 ", "true"),
            parameter("names", '["a", "b"]', "false"),
            parameter("filter", '{"n": {"deep": null}}', "false"),
            parameter("exact", "true", "false"),
            parameter("depth", "7"),
        )
    )
    assert read(text, tool_calls="dsml").calls[0][1] == {
        "where": "  12 ",
        "names": ["a", "b"],
        "filter": {"n": {"deep": None}},
        "exact": True,
        "depth": 7,
    }


@pytest.mark.parametrize(
    "value",
    [
        "<b>bold</b> & \"quoted\" 'text'",
        "one\n\ntwo\n",
        "an end </｜DSML｜parameter> within",
        "</｜DSML｜invoke> and </｜DSML｜tool_calls>",
        '{"not": "an object"}',
        "",
    ],
)
def test_a_value_runs_to_the_close_that_something_follows(value: str) -> None:
    text = block(invoke("find", parameter("where", value, "true"), parameter("depth", "1")))
    assert read(text, tool_calls="dsml").calls == (("find", {"where": value, "depth": 1}),)


def test_a_parameter_that_the_tool_does_not_declare_is_kept() -> None:
    text = block(invoke("find", parameter("mode", "fast", "true"), parameter("where", "x", "true")))
    assert read(text, tool_calls="dsml").calls == (("find", {"mode": "fast", "where": "x"}),)


@pytest.mark.parametrize(
    "text",
    [
        block(invoke("unknown", parameter("where", "x", "true"))),
        block(invoke("find", parameter("where", "x", "true")))[:-60],
        "<｜DSML｜tool_calls>\nnothing\n</｜DSML｜tool_calls>",
        "Write <｜DSML｜invoke name= for a call.",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, tool_calls="dsml") == Parsed(text)


def test_an_empty_block_is_no_text() -> None:
    assert read(block() + "So be it.", tool_calls="dsml") == Parsed("So be it.")


def test_without_tools_markup_is_text() -> None:
    text = block(invoke("find"))
    assert read(text, tool_calls="dsml", tools={}) == Parsed(text)
