from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read


def invoke(name: str, **parameters: str) -> str:
    body = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in parameters.items())
    return f'<invoke name="{name}">\n{body}</invoke>\n'


def block(*invokes: str) -> str:
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


class TestM2:
    def test_reads_several_calls_of_one_block(self) -> None:
        text = block(
            invoke("find", where="a", depth="2", exact="true", names='["x"]'), invoke("ping")
        )
        assert read(f"So.\n{text}", tool_calls="minimax_m2") == Parsed(
            "So.",
            calls=(
                ("find", {"where": "a", "depth": 2, "exact": True, "names": ["x"]}),
                ("ping", {}),
            ),
        )

    @pytest.mark.parametrize(
        "value",
        [
            '<html>\n <p class="c">é</p>\n</html>',
            "a </parameter> b",
            "a </invoke> b",
            '<parameter name="fake"> b',
            "ends\n",
            "",
        ],
    )
    def test_a_string_is_kept_as_it_stands(self, value: str) -> None:
        text = block(invoke("find", where=value, depth="1"))
        assert read(text, tool_calls="minimax_m2") == Parsed(
            calls=(("find", {"where": value, "depth": 1}),)
        )

    @pytest.mark.parametrize(
        "text",
        [
            invoke("find", where="a"),
            "<invoke name=' find '><parameter name='where'>a</parameter></invoke>",
            "<invoke name=find><parameter name=where>a</parameter></invoke>",
            block(invoke("find", where="a")).removesuffix("</minimax:tool_call>"),
            '[Calling tool: find({"where": "a"})]',
        ],
    )
    def test_reads_what_the_models_fall_back_to(self, text: str) -> None:
        assert read(text, tool_calls="minimax_m2") == Parsed(calls=(("find", {"where": "a"}),))

    @pytest.mark.parametrize(
        "text",
        [
            block(invoke("dig", where="a")),
            block(invoke("find", where="a"))[:-40],
            '<invoke name="ping">',
            'Write <invoke name="ping"></invoke>, and close with </invoke>.',
            "<minimax:tool_call>some tool</minimax:tool_call>",
        ],
    )
    def test_what_is_no_whole_call_of_a_declared_tool_is_text(self, text: str) -> None:
        assert read(text, tool_calls="minimax_m2") == Parsed(text)

    def test_a_call_at_the_end_of_reasoning_is_one(self) -> None:
        text = f"I look.\n{invoke('find', where='a')}</think>\n"
        found = read(text, tool_calls="minimax_m2", reasoning="think", tail="<think>\n")
        assert found == Parsed("", "I look.", (("find", {"where": "a"}),))


N = "]<]minimax[>["


def tag(name: str, *inside: str) -> str:
    return f"{N}<{name}>{''.join(inside)}{N}</{name}>"


def m3(name: str, *parameters: str) -> str:
    return f'{N}<invoke name="{name}">{"".join(parameters)}{N}</invoke>\n'


def m3_block(*invokes: str) -> str:
    return f"{N}<tool_call>\n{''.join(invokes)}{N}</tool_call>"


NESTED: dict[str, dict[str, Any]] = {
    "save": {
        "type": "object",
        "properties": {
            "point": {"$ref": "#/$defs/point"},
            "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
            "either": {
                "anyOf": [
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "object", "properties": {"item": {"type": "integer"}}},
                ]
            },
            "label": {
                "oneOf": [
                    {"type": "string"},
                    {"type": "object", "properties": {"text": {"type": "string"}}},
                ]
            },
            "any": {},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "tags": {"type": "array"}},
            }
        },
    }
}


class TestM3:
    def test_reads_several_calls_of_one_block(self) -> None:
        text = m3_block(m3("find", tag("where", "a"), tag("depth", "-2")), m3("ping"))
        assert read(f"So.{text}", tool_calls="minimax_m3") == Parsed(
            "So.", calls=(("find", {"where": "a", "depth": -2}), ("ping", {}))
        )

    @pytest.mark.parametrize(
        ("parameter", "value"),
        [
            (
                tag("point", tag("x", "1.5"), tag("tags", tag("item", "a"))),
                {"x": 1.5, "tags": ["a"]},
            ),
            (
                tag("points", tag("item", tag("x", "1")), "\n", tag("item", tag("x", "2"))),
                [{"x": 1}, {"x": 2}],
            ),
            (tag("points"), []),
            (tag("point"), {}),
            (tag("either", tag("item", "1"), tag("item", "2")), [1, 2]),
            (tag("either", tag("other", "1")), {"other": 1}),
            (tag("any", tag("a", tag("b", "true"))), {"a": {"b": True}}),
            (tag("any", tag("item", "1")), [1]),
            (tag("any", '{"json": 1}'), {"json": 1}),
            (tag("map", tag("k", "1")), {"k": "1"}),
            (tag("label", "text"), "text"),
            (tag("label", tag("text", "x")), tag("text", "x")),
        ],
    )
    def test_tags_within_tags_are_objects_and_lists(self, parameter: str, value: Any) -> None:
        found = read(m3_block(m3("save", parameter)), tool_calls="minimax_m3", tools=NESTED)
        key = parameter.removeprefix(f"{N}<").split(">")[0]
        assert found == Parsed(calls=(("save", {key: value}),))

    def test_a_string_may_contain_any_tags(self) -> None:
        value = f"<where>\n</where></invoke> {N}<x> é"
        text = m3_block(m3("find", tag("where", value)))
        assert read(text, tool_calls="minimax_m3") == Parsed(calls=(("find", {"where": value}),))

    @pytest.mark.parametrize(
        "text",
        [
            m3_block(m3("dig", tag("where", "a"))),
            m3_block(m3("find", tag("where", "a")))[:-60],
            m3_block(m3("find", f"{N}<where>a{N}</depth>")),
            m3_block(m3("find", f"{N}</where>")),
            f"{N} alone, and {N}<tool_call> {N}</tool_call>",
        ],
    )
    def test_what_is_no_whole_call_of_a_declared_tool_is_text(self, text: str) -> None:
        assert read(text, tool_calls="minimax_m3") == Parsed(text.strip())

    def test_an_empty_block_before_the_answer_is_no_text(self) -> None:
        assert read(m3_block() + "Hello", tool_calls="minimax_m3") == Parsed("Hello")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<mm:think>Hm.</mm:think>So.", Parsed("So.", "Hm.")),
            ("</mm:think>So.", Parsed("So.")),
            ("\n</mm:think>\n" + m3_block(m3("ping")), Parsed("", "", (("ping", {}),))),
            ("So, </mm:think> it is.", Parsed("So, </mm:think> it is.")),
        ],
    )
    def test_an_answer_without_reasoning_begins_with_its_end(
        self, text: str, expected: Parsed
    ) -> None:
        assert read(text, tool_calls="minimax_m3", reasoning="minimax_m3") == expected
