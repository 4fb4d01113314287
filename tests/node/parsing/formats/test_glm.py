import pytest

from tests.node.parsing.reading import Parsed, read


def call(name: str, *pairs: tuple[str, str], prefix: str = "", between: str = "\n") -> str:
    body = "".join(
        f"{between}<{prefix}arg_key>{key}</{prefix}arg_key>{between}"
        f"<{prefix}arg_value>{value}</{prefix}arg_value>"
        for key, value in pairs
    )
    return f"<{prefix}tool_call>{name}{body}{between}</{prefix}tool_call>"


@pytest.mark.parametrize("between", ["", "\n"])
@pytest.mark.parametrize(("form", "prefix"), [("glm", ""), ("longcat", "longcat_")])
def test_reads_calls_with_types_by_the_schema(form: str, prefix: str, between: str) -> None:
    pairs = (
        ("where", "7"),
        ("depth", "7"),
        ("exact", "false"),
        ("names", '["a", "b"]'),
        ("filter", '{"deep": {"n": 1}}'),
    )
    first = call("find", *pairs, prefix=prefix, between=between)
    second = call("ping", prefix=prefix, between=between)
    found = {
        "where": "7",
        "depth": 7,
        "exact": False,
        "names": ["a", "b"],
        "filter": {"deep": {"n": 1}},
    }
    assert read(f"I look.\n{first}\n{second}\n", tool_calls=form) == Parsed(
        "I look.", calls=(("find", found), ("ping", {}))
    )


@pytest.mark.parametrize(
    "value",
    [
        "  two\nlines\n",
        "a </arg_value> b",
        "a </tool_call> b",
        "a <arg_key> b",
        "<tool_call>ping</tool_call>",
        'é <b>"q"</b> \\n',
        '"a" or "b"',
        "",
    ],
)
def test_a_string_is_kept_as_it_stands(value: str) -> None:
    text = call("find", ("where", value), ("depth", "1"))
    assert read(text, tool_calls="glm") == Parsed(calls=(("find", {"where": value, "depth": 1}),))


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        ("glm", "<tool_call>", "</tool_call>"),
        ("ling3", "<tool_call>", "</tool_call>"),
        ("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
        ("k2_horizon", "<ifm|tool_call>", "</ifm|tool_call>"),
        ("hy_v3", "<tool_call>", "</tool_call>"),
    ],
)
def test_arguments_may_stand_behind_the_name(form: str, begin: str, end: str) -> None:
    name = "find<tool_sep>" if form == "hy_v3" else "find"
    for between in (" ", ", ", "\n"):
        values = ("where=/a", "depth=2", "exact=true", 'names=["a b"]')
        text = f"{begin}{name} {between.join(values)}{end}"
        arguments = {"where": "/a", "depth": 2, "exact": True, "names": ["a b"]}
        assert read(text, tool_calls=form).calls == (("find", arguments),)
    quoted = f"{begin}{name} where=\"a b\" depth='3'{end}"
    assert read(quoted, tool_calls=form).calls == (("find", {"where": "a b", "depth": 3}),)
    for body in ("where", "where=a b", "where= depth=1", "a tool"):
        text = f"{begin}{name} {body}{end}"
        assert read(text, tool_calls=form) == Parsed(text)


def test_a_string_that_is_quoted_as_a_whole_is_what_is_quoted() -> None:
    text = call("find", ("where", '"over \\"there\\""'))
    assert read(text, tool_calls="glm").calls == (("find", {"where": 'over "there"'}),)


def test_an_undeclared_key_is_kept() -> None:
    text = call("find", ("mode", "fast"), (" where ", "a"))
    assert read(text, tool_calls="glm").calls == (("find", {"mode": "fast", "where": "a"}),)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "find", "arguments": {"where": "a"}}</tool_call>',
        '<tool_call>find\n{"where": "a"}\n</tool_call>',
        '<tool_call>find{"where": "a"}',
    ],
)
def test_json_may_stand_for_the_call_or_its_arguments(text: str) -> None:
    assert read(text, tool_calls="glm") == Parsed(calls=(("find", {"where": "a"}),))


@pytest.mark.parametrize(
    "text",
    [
        call("dig", ("where", "a")),
        call("find", ("where", "a"))[:-12],
        call("find", ("where", "a"))[:-25],
        "<tool_call>ping",
        "<tool_call>find\n<arg_key>where</arg_key>\n</tool_call>",
        "A call stands in <tool_call>, its keys in <arg_key>, and </tool_call> ends it.",
        "Write <tool_call></tool_call>.",
    ],
)
def test_what_is_no_whole_call_of_a_declared_tool_is_text(text: str) -> None:
    assert read(text, tool_calls="glm") == Parsed(text.strip())


def test_a_call_at_the_end_of_reasoning_is_one() -> None:
    text = f"<think>I need it.\n{call('ping')}</think>\n"
    assert read(text, tool_calls="glm", reasoning="glm") == Parsed(
        "", "I need it.", (("ping", {}),)
    )


def test_the_box_around_an_answer_is_none_of_it() -> None:
    text = "<think>Hm.</think>\n<|begin_of_box|>42<|end_of_box|>"
    assert read(text, reasoning="glm") == Parsed("42", "Hm.")
    inside = "<think>Hm.</think>It is <|begin_of_box|>42<|end_of_box|> then."
    assert read(inside, reasoning="glm") == Parsed("It is 42 then.", "Hm.")


def test_longcat_reasons_in_a_tag_of_its_own() -> None:
    text = '<longcat_think>\nHm.\n</longcat_think>\n<longcat_tool_call>{"name": "ping"}'
    assert read(text, reasoning="longcat", tool_calls="longcat") == Parsed(
        "", "Hm.", (("ping", {}),)
    )


@pytest.mark.parametrize(("form", "prefix"), [("glm", ""), ("longcat", "longcat_")])
def test_an_empty_tag_before_the_answer_is_no_text(form: str, prefix: str) -> None:
    text = f"<{prefix}tool_call>\n</{prefix}tool_call>\nHello"
    assert read(text, tool_calls=form) == Parsed("Hello")
