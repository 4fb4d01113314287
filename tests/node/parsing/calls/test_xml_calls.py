from typing import Any

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

FORMS = ("qwen3_coder", "hermes")


def parameter(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def call(*parameters: str, name: str = "find") -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


@pytest.mark.parametrize("form", FORMS)
def test_reads_a_call_with_types_by_the_schema(form: str) -> None:
    text = call(
        parameter("where", "7"),
        parameter("depth", "7"),
        parameter("exact", "True"),
        parameter("names", '["a", "b"]'),
        parameter("filter", '{"deep": {"n": 1.5}}'),
    )
    assert read(text, tool_calls=form) == Parsed(
        calls=(
            (
                "find",
                {
                    "where": "7",
                    "depth": 7,
                    "exact": True,
                    "names": ["a", "b"],
                    "filter": {"deep": {"n": 1.5}},
                },
            ),
        )
    )


def test_reads_calls_in_one_tag_and_in_several() -> None:
    one, two = call(parameter("where", "a")), call(name="ping")
    expected: tuple[tuple[str, Any], ...] = (("find", {"where": "a"}), ("ping", {}))
    assert read(f"{one}\n{two}", tool_calls="qwen3_coder") == Parsed(calls=expected)
    together = one.replace("\n</tool_call>", two.removeprefix("<tool_call>"))
    assert read(together, tool_calls="qwen3_coder") == Parsed(calls=expected)


def test_reads_a_call_on_one_line() -> None:
    text = (
        "<tool_call><function=find><parameter=where>a b</parameter><parameter=depth>1</parameter>"
        "</function></tool_call>"
    )
    assert read(text, tool_calls="qwen3_coder").calls == (("find", {"where": "a b", "depth": 1}),)


@pytest.mark.parametrize(
    "value",
    [
        "x </parameter> y",
        "x</parameter>",
        "a </function> b",
        "a </tool_call> b",
        "a </function>\n</tool_call> b",
        "a <parameter=fake> b",
        "a <parameter=fake> b </parameter> c <parameter=x",
        "a <parameter=where>again",
        "<tool_call>\n<function=find>",
        "<div>\n  <p class=\"c\">é 'q' \\n</p>\n</div>",
        '{"json": "as text"}',
        '"quoted" in part',
        "\n  two lines ends\n",
        "    indented",
        "",
        "null",
    ],
)
def test_a_string_is_kept_as_it_stands(value: str) -> None:
    text = call(parameter("where", value), parameter("depth", "1"))
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        calls=(("find", {"where": value, "depth": 1}),)
    )
    assert read(call(parameter("where", value)), tool_calls="qwen3_coder").calls == (
        ("find", {"where": value}),
    )


def test_what_stands_behind_the_last_end_of_a_value_is_no_part_of_it() -> None:
    text = (
        "<tool_call><function=find><parameter=where>a</parameter> x</parameter> so\n"
        "<parameter=depth>1</parameter> so </function></tool_call>"
    )
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        calls=(("find", {"where": "a</parameter> x", "depth": 1}),)
    )


def test_an_undeclared_parameter_is_kept_and_swallows_nothing() -> None:
    text = call(parameter("mode", "fast"), parameter("where", "a"), parameter("level", "2"))
    assert read(text, tool_calls="qwen3_coder").calls == (
        ("find", {"mode": "fast", "where": "a", "level": 2}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=find>\n<parameter=where>\na\n<parameter=depth>\n1\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=where>\na\n</parameter>\n<parameter=depth>\n1\n"
        "</function>\n</tool_call>",
        "<function=find>\n<parameter=where>\na\n</parameter>\n<parameter=depth>\n1\n</parameter>\n"
        "</function>",
        "<function=find>\n<parameter=where>\na\n</parameter>\n<parameter=depth>\n1\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=where>\na\n</parameter>\n<parameter=depth>\n1\n"
        "</parameter>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=where>\na\n</parameter>\n<parameter=depth>\n1\n"
        "</parameter>\n</function>\n",
        '<tool_call><function="find">{"where": "a", "depth": 1}</function></tool_call>',
        '<function=find>{"where": "a", "depth": 1}</function>',
        "<tool_call>\n<function=find\n<parameter=where>a</parameter><parameter=depth>1</parameter>"
        "</function>\n</tool_call>",
    ],
)
def test_a_tag_may_be_missing(text: str) -> None:
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        calls=(("find", {"where": "a", "depth": 1}),)
    )


def test_text_in_the_tag_is_content() -> None:
    text = (
        "<tool_call>I look it up.\n<function=find><parameter=where>a</parameter></function> so "
        "</tool_call>\nDone."
    )
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        "I look it up.\nso \nDone.", calls=(("find", {"where": "a"}),)
    )


def test_a_call_stands_behind_a_few_lines_in_the_tag() -> None:
    words = "Let me check,\n\nif a < b:\n"
    call = "<function=find><parameter=where>a</parameter></function></tool_call>"
    found = (("find", {"where": "a"}),)
    assert read(f"<tool_call>{words}{call}", tool_calls="qwen3_coder") == Parsed(
        words.strip(), calls=found
    )
    text = f"<tool_call>{words * 3}"
    assert read(text + call, tool_calls="qwen3_coder") == Parsed(text.strip(), calls=found)
    for text in ("the <tool_call> tag\nof <tool_call>", "<tool_call> and </tool_call>"):
        assert read(f"A {text}", tool_calls="qwen3_coder") == Parsed(f"A {text}")


@pytest.mark.parametrize("call", ["<function=ping></function>", "<function=ping>\n</function>"])
def test_a_call_without_a_tag_and_arguments_has_a_line_of_its_own(call: str) -> None:
    pinged: Calls = (("ping", {}),)
    assert read(f"So.\n{call}", tool_calls="qwen3_coder") == Parsed("So.", calls=pinged)
    assert read(f"So.\n{call} \nDone.", tool_calls="qwen3_coder") == Parsed(
        "So.\n\nDone.", calls=pinged
    )
    for text in (f"So. {call}", f"So.\n{call} it is", f"So:\n- {call}"):
        assert read(text, tool_calls="qwen3_coder") == Parsed(text)


@pytest.mark.parametrize(
    "value",
    [
        "use <parameter=depth> tag",
        "use\n<parameter=depth>3</parameter>\nas it is",
        "use\n<parameter=depth>3</parameter>",
    ],
)
def test_a_value_may_quote_the_tag_of_another_parameter(value: str) -> None:
    for text in (value, f"\n{value}\n", f"\r\n{value}\r\n"):
        text = (
            f"<tool_call><function=find><parameter=where>{text}</parameter></function></tool_call>"
        )
        assert read(text, tool_calls="qwen3_coder").calls == (("find", {"where": value}),)


def test_line_ends_of_both_kinds_part_a_value_from_its_tags() -> None:
    text = (
        "<tool_call>\r\n<function=find>\r\n<parameter=where>\r\na\r\n\r\n</parameter>\r\n"
        "<parameter=depth>\r\n1\r\n</parameter>\r\n</function>\r\n</tool_call>\r\n"
    )
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        calls=(("find", {"where": "a\r\n", "depth": 1}),)
    )


def test_several_values_may_lack_their_ends() -> None:
    text = (
        "<function=find>\n<parameter=where>\na\n<parameter=depth>\n1\n<parameter=exact>\ntrue\n"
        "</parameter>\n</function>"
    )
    assert read(text, tool_calls="qwen3_coder").calls == (
        ("find", {"where": "a", "depth": 1, "exact": True}),
    )


def test_an_answer_continues_behind_a_bare_call() -> None:
    text = "First.\n<function=find><parameter=where>a</parameter></function>\nIs 1 < 2?"
    assert read(text, tool_calls="qwen3_coder") == Parsed(
        "First.\n\nIs 1 < 2?", calls=(("find", {"where": "a"}),)
    )


@pytest.mark.parametrize(
    "text",
    [
        call(parameter("where", "a"), name="dig"),
        call(parameter("where", "a"))[:-30],
        "<tool_call>\n<function=find>\n<parameter=where>\na\n</parameter>\n",
        "<tool_call>\n<function=find>\n<parameter=where>\na",
        "<tool_call>\n<function=ping>",
        "<function=ping>",
        "The marker is <function=find> here.",
        "Write <function=ping></function> for a call without arguments.",
        "Docs: </tool_call>, <function=name> and <parameter=where>.",
        "<tool_call>no function in here</tool_call>",
        "<tool_call><function=find where></function></tool_call>",
        "<tool_call><function=find<parameter=where>a</parameter></function></tool_call>",
        "<tool_call><function=find><parameter=where\na</parameter></function></tool_call>",
        "<tool_call><function=find>text</function></tool_call>",
    ],
)
def test_what_is_no_whole_call_of_a_declared_tool_is_text(text: str) -> None:
    assert read(text, tool_calls="qwen3_coder") == Parsed(text.strip())


def test_a_truncated_call_behind_a_whole_one_is_text() -> None:
    cut = "<tool_call>\n<function=find>\n<parameter=where>\nhal"
    assert read(call(name="ping") + "\n" + cut, tool_calls="qwen3_coder") == Parsed(
        cut, calls=(("ping", {}),)
    )


def test_a_bare_call_without_arguments_stands_alone() -> None:
    text = "<function=ping></function>\n<function=ping></function>"
    assert read(text, tool_calls="qwen3_coder") == Parsed(calls=(("ping", {}),))


@pytest.mark.parametrize(
    ("block", "thought"),
    [
        ("<tool_call>{}</tool_call>", "Hm."),
        ("<tool_call>I see.{}</tool_call>", "Hm.\n<tool_call>I see."),
    ],
)
def test_a_call_may_end_reasoning(block: str, thought: str) -> None:
    text = block.format("<function=find><parameter=where>a</parameter></function>")
    found = read(f"Hm.\n{text}", reasoning="think", tool_calls="qwen3_coder", tail="<think>")
    assert found == Parsed("", thought, (("find", {"where": "a"}),))


def test_in_reasoning_a_tag_contains_nothing_behind_its_calls() -> None:
    call = "<function=find><parameter=where>a</parameter></function>"
    text = f"<tool_call>{call} so </tool_call>"
    found = read(f"{text}</think>", reasoning="think", tool_calls="qwen3_coder", tail="<think>")
    assert found == Parsed("", text)


def test_seed_oss_values_keep_their_last_line_end() -> None:
    text = (
        "Well.\n<seed:tool_call>\n<function=find>\n<parameter=where>a\nb\n</parameter>\n"
        "<parameter=depth>2</parameter>\n</function>\n</seed:tool_call>"
    )
    assert read(text, tool_calls="seed_oss") == Parsed(
        "Well.", calls=(("find", {"where": "a\nb\n", "depth": 2}),)
    )


def test_seed_oss_writes_no_json_in_its_tag() -> None:
    text = '<seed:tool_call>{"name": "ping", "arguments": {}}</seed:tool_call>'
    assert read(text, tool_calls="seed_oss") == Parsed(text)


def test_seed_oss_reasons_in_a_tag_of_its_own() -> None:
    text = (
        "<seed:think>a<seed:cot_budget_reflect>b</seed:cot_budget_reflect></seed:think>\n"
        "<seed:tool_call><function=ping></function></seed:tool_call>"
    )
    assert read(text, tool_calls="seed_oss", reasoning="seed") == Parsed(
        "", "a<seed:cot_budget_reflect>b</seed:cot_budget_reflect>", (("ping", {}),)
    )
