import pytest

from tests.node.parsing.reading import Calls, Parsed, read


def call(name: str, **params: str) -> str:
    body = "".join(f'<param name="{key}">{value}</param>' for key, value in params.items())
    return f'<function name="{name}">{body}</function>'


def test_reads_calls_with_types_by_the_schema() -> None:
    text = call("find", where="3", depth="3", exact="True", names="['a']", filter='{"n": 1}')
    found = {"where": "3", "depth": 3, "exact": True, "names": ["a"], "filter": {"n": 1}}
    assert read(f"Well.\n{text}\n{call('ping')}", tool_calls="minicpm5") == Parsed(
        "Well.", calls=(("find", found), ("ping", {}))
    )


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("<![CDATA[a <b> </param></function> & c]]>", "a <b> </param></function> & c"),
        ("\n<![CDATA[\na\n]]>\n", "\na\n"),
        ("<![CDATA[a]]]]><![CDATA[>b]]>", "a]]>b"),
        ("<![CDATA[]]>", ""),
        ("1 &lt; 2 &amp;&amp; &quot;q&quot;", '1 < 2 && "q"'),
        ("&#x41;&#66;&apos;&amp;lt;", "AB'&lt;"),
        ("?a=1&copy=2&lt=3&nbsp;&#0;&#xD800;", "?a=1&copy=2&lt=3&nbsp;&#0;&#xD800;"),
        ("a & b", "a & b"),
        ("a </param> b", "a </param> b"),
        ("a </function> b", "a </function> b"),
        (" spaced\n", " spaced\n"),
    ],
)
def test_a_string_is_kept_as_it_was_meant(written: str, value: str) -> None:
    assert read(call("find", where=written, depth="1"), tool_calls="minicpm5") == Parsed(
        calls=(("find", {"where": value, "depth": 1}),)
    )


@pytest.mark.parametrize("text", ['<function name="ping"/>', "<function name=' ping '></function>"])
def test_reads_a_call_without_arguments(text: str) -> None:
    assert read(text, tool_calls="minicpm5") == Parsed(calls=(("ping", {}),))


@pytest.mark.parametrize("text", ['<function name="ping"></function>', '<function name="ping"/>'])
def test_behind_an_answer_a_call_without_arguments_has_a_line_of_its_own(text: str) -> None:
    pinged: Calls = (("ping", {}),)
    assert read(f"So.\n{text}", tool_calls="minicpm5") == Parsed("So.", calls=pinged)
    assert read(f"So.\n{text}\nDone.", tool_calls="minicpm5") == Parsed(
        "So.\n\nDone.", calls=pinged
    )
    assert read(f"So.\n{text} it is.", tool_calls="minicpm5") == Parsed(f"So.\n{text} it is.")


@pytest.mark.parametrize(
    "text",
    [
        call("dig", where="a"),
        call("find", where="a")[:-5],
        call("find", where="<![CDATA[a")[:-30],
        '<function name="find"><param name="where"><![CDATA[a</function>',
        'Write <function name="ping"></function>, or <function name="ping"/>.',
        "A marker is <function=f>, another <function/>.",
        '<function name="ping">text</function>',
    ],
)
def test_what_is_no_whole_call_of_a_declared_tool_is_text(text: str) -> None:
    assert read(text, tool_calls="minicpm5") == Parsed(text)


def test_a_whole_call_behind_a_broken_opener_is_read() -> None:
    text = '<function name="ping"' + call("find", where="a")
    assert read(text, tool_calls="minicpm5") == Parsed(
        '<function name="ping"', calls=(("find", {"where": "a"}),)
    )
