"""Calls in tags, with values that nothing quotes: what is spelled is read, and models' own writing
is among it."""

from typing import Any

import pytest

from node.ipc.generate import ToolSchema
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.formats.minimax_m3 import MINIMAX_M3
from tests.node.parsing.spelled_calls import TEXT, TOOLS, check_drawn, spelled, takes

MARK = "]<]minimax[>["
MARKERS: dict[str, tuple[str, ...]] = {
    "apertus": ("<|tools_prefix|>", "<|tools_suffix|>"),
    "dsml": ("｜DSML｜",),
    "glm": (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "k2_horizon": ("<ifm|tool_call>", "</ifm|tool_call>", "</ifm|arg_value>"),
    "ling3": ("<tool_call>", "</tool_call>"),
    "longcat": ("<longcat_tool_call>", "</longcat_tool_call>"),
    "minicpm5": ("<function", "</function>", "<param", "</param>"),
    "minimax_m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "minimax_m3": (MARK,),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "seed_oss": ("<seed:tool_call>", "</seed:tool_call>"),
    "step3": ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<｜tool_sep｜>"),
}
"""The markers that the families' vocabularies have as tokens, by format."""
FIND = {
    "find": {
        "properties": {
            "where": TEXT,
            "depth": {"type": "integer"},
            "names": {"type": "array", "items": TEXT},
        },
        "required": ["where"],
    },
    "ping": {},
}
VALUES = ' two\nlines <b> &amp; "q" é'


@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("form", MARKERS)
def test_what_is_spelled_is_read_as_calls_that_fit(form: str, kind: str) -> None:
    alone = check_drawn(form, TOOLS[kind])
    several = check_drawn(form, TOOLS[kind], MARKERS[form], parallel=True)
    assert alone + several > 0


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=find>\n<parameter=where>\n{v}\n</parameter>\n<parameter=depth>\n"
            '2\n</parameter>\n<parameter=names>\n["a", "b"]\n</parameter>\n</function>\n'
            "</tool_call>",
        ),
        (
            "seed_oss",
            "<seed:tool_call>\n<function=find>\n<parameter=where>{v}</parameter>\n"
            "<parameter=depth>2</parameter>\n</function>\n</seed:tool_call>",
        ),
        (
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="find">\n<parameter name="where">{v}</parameter>\n'
            '<parameter name="names">["a"]</parameter>\n</invoke>\n</minimax:tool_call>',
        ),
        (
            "glm",
            "<tool_call>find\n<arg_key>where</arg_key>\n<arg_value>{v}</arg_value>\n"
            "<arg_key>depth</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        ),
        (
            "glm",
            "<tool_call>find<arg_key>where</arg_key><arg_value>{v}</arg_value></tool_call>",
        ),
        ("ling3", "<tool_call>ping\n</tool_call>"),
        (
            "longcat",
            "<longcat_tool_call>find\n<longcat_arg_key>where</longcat_arg_key>\n"
            "<longcat_arg_value>{v}</longcat_arg_value>\n</longcat_tool_call>",
        ),
        (
            "k2_horizon",
            "<ifm|tool_calls>\n<ifm|tool_call>find\n<ifm|arg_key>where</ifm|arg_key>\n"
            "<ifm|arg_value>{v}</ifm|arg_value>\n</ifm|tool_call>\n</ifm|tool_calls>",
        ),
        (
            "dsml",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="find">\n'
            '<｜DSML｜parameter name="where" string="true">{v}</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="depth" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        (
            "dsml",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>\n'
            "</｜DSML｜tool_calls>",
        ),
        (
            "step3",
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="find">\n<steptml:parameter name="where">{v}'
            "</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
        ),
        (
            "minicpm5",
            '<function name="find"><param name="where"><![CDATA[{v}]]></param>'
            '<param name="depth">2</param></function>',
        ),
        ("minicpm5", '<function name="find"><param name="where">plain</param></function>'),
        (
            "minimax_m3",
            f'{MARK}<tool_call>\n{MARK}<invoke name="find">{MARK}<where>{{v}}{MARK}</where>'
            f"{MARK}<names>{MARK}<item>a{MARK}</item>{MARK}</names>{MARK}</invoke>\n"
            f"{MARK}</tool_call>",
        ),
        (
            "minimax_m3",
            f'{MARK}<tool_call>\n{MARK}<invoke name="ping">{MARK}</invoke>\n{MARK}</tool_call>',
        ),
        ("apertus", '<|tools_prefix|>[{"find": {"where": "a"}}]<|tools_suffix|>'),
    ],
)
def test_a_model_writes_as_it_does(form: str, text: str) -> None:
    assert takes(form, FIND, text.replace("{v}", VALUES))


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        (
            "seed_oss",
            "<seed:tool_call>\n<function=f>\n<parameter=o>",
            "</parameter>\n</function>\n</seed:tool_call>",
        ),
        ("minicpm5", '<function name="f"><param name="o">', "</param></function>"),
    ],
)
def test_objects_may_be_printed_as_python_does(form: str, begin: str, end: str) -> None:
    inner = {"properties": {"k": {"type": "boolean"}, "l": {"type": "array"}}}
    tools = {"f": {"properties": {"o": {"type": "object", **inner}}}}
    assert takes(form, tools, f"{begin}{{'k': True, 'l': ['a', None, 1]}}{end}")
    assert not takes(form, tools, f"{begin}{{'k': 5}}{end}")
    assert not takes(form, tools, f"{begin}{{'k': true}}{end}")
    assert not takes(form, tools, f"{begin}{{'l': ['</parameter>']}}{end}")


@pytest.mark.parametrize("form", MARKERS)
def test_a_call_has_what_is_required_and_only_what_is_declared(form: str) -> None:
    tools = {"f": {"properties": {"a": TEXT}, "required": ["a"], "additionalProperties": True}}
    texts = {
        "glm": "<tool_call>f{}</tool_call>",
        "qwen3_coder": "<tool_call>\n<function=f>\n{}</function>\n</tool_call>",
    }
    pairs = {
        "glm": "<arg_key>{}</arg_key><arg_value>x</arg_value>",
        "qwen3_coder": "<parameter={}>\nx\n</parameter>\n",
    }
    if form in texts:
        pair, text = pairs[form], texts[form]
        assert takes(form, tools, text.format(pair.format("a")))
        assert not takes(form, tools, text.format(""))
        assert not takes(form, tools, text.format(pair.format("b")))
        assert not takes(form, tools, text.format(pair.format("a") + pair.format("b")))


@pytest.mark.parametrize("parallel", [False, True])
def test_several_calls_only_where_they_may_be(*, parallel: bool) -> None:
    ping = "<tool_call>ping</tool_call>"
    assert takes("glm", FIND, f"{ping}\n{ping}", parallel=parallel) is parallel
    call = '<invoke name="ping">\n</invoke>\n'
    text = f"<minimax:tool_call>\n{call}{call}</minimax:tool_call>"
    assert takes("minimax_m2", FIND, text, parallel=parallel) is parallel


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("seed_oss", "a>b"),
        ("glm", " a"),
        ("dsml", 'a"b'),
        ("step3", "a\nb"),
        ("minicpm5", "a/b"),
        ("k2_horizon", ""),
    ],
)
def test_a_name_that_would_not_be_read_is_refused(form: str, name: str) -> None:
    with pytest.raises(UnsupportedConstraint, match="name") as refused:
        spelled(Lark({}), form, {"f": {"properties": {name: TEXT}}})
    assert refused.value.param == "tools.f"


def test_a_text_that_would_be_read_as_the_end_of_a_value_is_not_written() -> None:
    tools = {"f": {"properties": {"a": TEXT, "b": {"type": "array"}}}}
    text = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert takes("qwen3_coder", tools, text.format("<b></parameter </p>"))
    for inner in ("a</parameter>b", "a\n<parameter=b>\n1", "</function>", "a\r"):
        assert not takes("qwen3_coder", tools, text.format(inner))
    text = text.replace("=a>", "=b>")
    assert takes("qwen3_coder", tools, text.format('[{"a</param": "</x>"}, 1, -2.5, null]'))
    for inner in ('["a</parameter>"]', '[{"</function>": 1}]', '[["<parameter=a>"]]'):
        assert not takes("qwen3_coder", tools, text.format(inner))


def test_nested_tags_leave_json_for_what_they_cannot_express() -> None:
    tools = {
        "f": {
            "properties": {
                "t": {"type": "array", "prefixItems": [TEXT], "items": False},
                "o": {"type": ["object", "null"], "properties": {"x": TEXT}},
                "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        }
    }

    def call(body: str) -> str:
        body = body.replace("<", f"{MARK}<")
        return (
            f'{MARK}<tool_call>\n{MARK}<invoke name="f">{body}{MARK}</invoke>\n{MARK}</tool_call>'
        )

    for body in (
        '<t>["x"]</t><m>{"a": 1}</m>',
        "<o>null</o>",
        "<o><x>1</x></o>",
    ):
        assert takes("minimax_m3", tools, call(body))
    # It would be read as a string.
    assert not takes("minimax_m3", tools, call("<o></o>"))


@pytest.mark.parametrize(
    "properties",
    [
        {"/a": TEXT},
        {"a": {"type": "object", "not": {}}},
        {"a": {"type": ["object", "null"], "properties": {"x": False}}},
    ],
)
def test_what_nested_tags_cannot_write_is_refused(properties: dict[str, Any]) -> None:
    tool = ToolSchema("f", {"properties": properties})
    with pytest.raises(UnsupportedConstraint):
        MINIMAX_M3.calls_grammar(Lark({}), [tool], parallel=False)
