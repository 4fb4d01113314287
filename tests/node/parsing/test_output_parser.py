import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from node.dialects.base import Collected
from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.scanning.step import LONGEST_BLOCK, LONGEST_CALL

CONTENT, REASONING = PartKind.CONTENT, PartKind.REASONING
TOOLS = (
    ToolSchema("f", {"type": "object", "properties": {"n": {"type": "integer"}, "s": {}}}),
    ToolSchema("g"),
)


def form(**changes: Any) -> OutputFormat:
    return OutputFormat(**{"reasoning": "think", "tool_calls": "hermes", "tools": TOOLS} | changes)


def call(name: str = "f", **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def parts_of(machine: OutputParser, pieces: Iterable[str]) -> list[Part]:
    """Returns the parts that result piece by piece; neighbours of a kind as one."""
    collected = Collected()
    for piece in pieces:
        collected.add(machine.feed(piece))
        if machine.ended:
            break
    collected.add(machine.finish())
    return [Part(each.kind, each.text, 0, each.name) for each in collected.segments]


def read(output: OutputFormat | None, text: str, stops: tuple[str, ...] = ()) -> list[Part]:
    """Parses the text, with the same result however it is cut."""
    machine = OutputParser(output, stops)
    whole = parts_of(machine, [text])
    for pieces in cuts(text):
        again = OutputParser(output, stops)
        assert parts_of(again, pieces) == whole
        assert (again.ended, again.stop) == (machine.ended, machine.stop)
    return whole


def cuts(text: str) -> Iterator[Iterable[str]]:
    yield text
    for at in range(1, len(text)):
        yield text[:at], text[at:]


def content(text: str) -> Part:
    return Part(CONTENT, text)


def reasoning(text: str) -> Part:
    return Part(REASONING, text)


def call_part(name: str, arguments: str) -> Part:
    return Part(PartKind.TOOL_START, arguments, 0, name)


class TestCalls:
    def test_a_call_is_a_start_and_its_arguments(self) -> None:
        machine = OutputParser(form(), uid="row")
        parts = machine.feed(call("g") + call(n=1))
        assert [(each.kind, each.name, each.index, each.text) for each in parts] == [
            (PartKind.TOOL_START, "g", 0, ""),
            (PartKind.TOOL_ARGS, "", 0, "{}"),
            (PartKind.TOOL_START, "f", 1, ""),
            (PartKind.TOOL_ARGS, "", 1, '{"n": 1}'),
        ]
        assert machine.finish() == []
        ids = [each.call_id for each in parts if each.call_id]
        assert len(set(ids)) == 2
        assert all(each.startswith("call_") for each in ids)

    def test_ids_are_those_of_the_request(self) -> None:
        ids = {
            part.call_id
            for uid in ("a", "a", "b")
            for part in OutputParser(form(), uid=uid).feed(call("g"))
            if part.kind is PartKind.TOOL_START
        }
        assert len(ids) == 2

    def test_parts_are_in_the_order_in_which_they_were_generated(self) -> None:
        text = f"<think>a</think>b{call('g')}c{call(n=1)}"
        assert read(form(), text) == [
            reasoning("a"),
            content("b"),
            call_part("g", "{}"),
            content("c"),
            call_part("f", '{"n": 1}'),
        ]

    def test_the_arguments_are_the_json_that_the_model_wrote(self) -> None:
        written = '{"s":  "\\u00e9 \\"q\\" é", "n": 1 }'
        text = f'<tool_call>{{"name": "f", "arguments": {json.dumps(written)}}}</tool_call>'
        assert read(form(), text) == [call_part("f", written)]

    def test_arguments_that_are_not_strictly_json_become_it(self) -> None:
        text = '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_call>'
        (part,) = read(form(), text)
        assert json.loads(part.text) == {"s": "a\nb"}

    def test_a_call_that_was_made_before_is_returned_once(self) -> None:
        text = call(n=1, s="a") + call(s="a", n=1) + call(n=2) + call(n=1, s="a")
        names = [part.text for part in read(form(), text)]
        assert [json.loads(each) for each in names] == [{"n": 1, "s": "a"}, {"n": 2}]

    def test_a_call_that_was_made_before_is_returned_again_on_demand(self) -> None:
        assert len(read(form(repeated_calls=True), call(n=1) * 13)) == 13

    def test_the_first_call_ends_the_sequence_where_one_is_wanted(self) -> None:
        output = form(parallel_calls=False)
        text = f"a{call(n=1)}b{call(n=2)}"
        assert read(output, text) == [content("a"), call_part("f", '{"n": 1}')]
        machine = OutputParser(output)
        machine.feed(text)
        assert (machine.ended, machine.stop) == (True, None)
        assert machine.finish() == []

    def test_without_tools_their_markup_is_content(self) -> None:
        text = f"<think>a</think>b {call(n=1)} c"
        assert read(form(tools=()), text) == [reasoning("a"), content(f"b {call(n=1)} c")]
        assert read(form(tool_calls="none"), text)[1] == content(f"b {call(n=1)} c")

    @pytest.mark.parametrize(
        "cut", ["", "\n", "\n<tool", "\n<tool_call>\n", '<tool_call>{"name": "', call("g")[:-15]]
    )
    def test_of_forced_calls_a_truncated_one_is_no_content(self, cut: str) -> None:
        for before, parts_before in (("", []), (call(n=1), [call_part("f", '{"n": 1}')])):
            machine = OutputParser(form(must_call=True, prompt_tail="</think>\n\n"))
            collected = Collected()
            collected.add([*machine.feed(before + cut), *machine.finish(is_cut=True)])
            calls = [Part(each.kind, each.text, 0, each.name) for each in collected.segments]
            assert calls == parts_before
            # A model that ends by itself has meant it, and one that is free may talk of calls.
            free = OutputParser(form(prompt_tail="</think>\n\n"))
            parts = [*free.feed(before + cut), *free.finish(is_cut=True)]
            text = "".join(part.text for part in parts if part.kind is CONTENT)
            assert text.strip() == cut.strip()

    def test_a_truncated_call_is_content(self) -> None:
        text = f"a\n{call(n=1)[:-20]}"
        assert read(form(), text) == [content(text)]


class TestWhiteSpace:
    def test_that_of_an_answer_is_kept(self) -> None:
        assert read(form(), " a\n\n\n b \n") == [content(" a\n\n\n b \n")]
        assert read(None, "\n a \n") == [content("\n a \n")]

    def test_that_next_to_reasoning_is_markup(self) -> None:
        text = "\n<think>\n a\n\n b \n</think>\n\n c\n"
        assert read(form(), text) == [reasoning("a\n\n b"), content("c\n")]

    def test_that_between_an_answer_and_calls_is_markup(self) -> None:
        assert read(form(), f"a\n\n{call(n=1)}\n{call(n=2)}\n") == [
            content("a"),
            call_part("f", '{"n": 1}'),
            call_part("f", '{"n": 2}'),
        ]

    def test_paragraphs_are_not_merged_where_an_answer_continues(self) -> None:
        texts = [part.text for part in read(form(), f"a\n\n{call(n=1)}\n\nb") if not part.name]
        assert "".join(texts).split() == ["a", "b"]
        assert "\n\n" in "".join(texts)

    def test_a_piece_of_white_space_is_returned(self) -> None:
        machine = OutputParser(form())
        pieces = ("a", "\n\n", "b", " ", "c")
        found = [part.text for piece in pieces for part in machine.feed(piece)]
        assert "".join(found) == "a\n\nb c"


class TestStops:
    @pytest.mark.parametrize("output", [None, form(), form(tools=())])
    def test_the_answer_ends_before_a_stop_string(self, output: OutputFormat | None) -> None:
        assert read(output, "some halt more", ("halt",)) == [content("some ")]
        machine = OutputParser(output, ("halt",))
        assert [part.text for piece in ("ha", "l") for part in machine.feed(piece)] == []
        machine.feed("t")
        assert (machine.ended, machine.stop) == (True, "halt")

    @pytest.mark.parametrize("output", [None, form()])
    def test_what_only_begins_as_a_stop_string_is_returned(
        self, output: OutputFormat | None
    ) -> None:
        assert read(output, "a hal", ("halt",)) == [content("a hal")]

    def test_stop_strings_are_searched_in_the_answer_only(self) -> None:
        text = f"<think>a. halt.</think>b{call(s='halt.')}c halt d"
        assert read(form(), text, ("halt",)) == [
            reasoning("a. halt."),
            content("b"),
            call_part("f", '{"s": "halt."}'),
            content("c "),
        ]

    def test_markup_parts_what_would_be_a_stop_string(self) -> None:
        text = f"ha{call('g')}lt"
        assert [part.text for part in read(form(), text, ("halt",))] == ["ha", "{}", "lt"]

    def test_a_stop_string_may_be_markup(self) -> None:
        assert read(form(tools=()), "a <tool_call> b", ("<tool_call>",)) == [content("a ")]


class TestReasoning:
    def test_it_reports_whether_the_sequence_is_in_reasoning(self) -> None:
        machine = OutputParser(form(prompt_tail="<think>\n"))
        machine.feed("a")
        assert machine.in_reasoning
        machine.feed("</think>b")
        assert not machine.in_reasoning
        assert not OutputParser(None).in_reasoning

    def test_its_markers_count_as_tokens_only_where_they_are_such(self) -> None:
        machine = OutputParser(form(), token_markers=frozenset({"<think>", "</think>"}))
        collected = Collected()
        collected.add(machine.feed_token("<think>", special=False))
        collected.add(machine.feed("the text </think> "))
        collected.add(machine.feed_token("</think>", special=False))
        collected.add(machine.feed("an answer </think>"))
        collected.add(machine.feed_token("</think>", special=False))
        collected.add(machine.finish())
        assert collected.text(REASONING) == "the text </think>"
        assert collected.text(CONTENT) == "an answer </think>"

    @pytest.mark.parametrize("tools", [TOOLS, ()])
    def test_a_stray_end_token_is_no_content(self, tools: tuple[ToolSchema, ...]) -> None:
        for end in ("</think>", "</tool_call>"):
            machine = OutputParser(form(tools=tools))
            parts = [*machine.feed("a"), *machine.feed_token(end, special=False)]
            parts += [*machine.feed("b"), *machine.finish()]
            text = "".join(part.text for part in parts)
            # Without tools the ends of calls are text, as all of their markup.
            kept = end == "</tool_call>" and not tools
            assert text == (f"a{end}b" if kept else "ab")

    def test_a_stray_end_as_text_is_content(self) -> None:
        text = "One ends with </think>, the other with </tool_call>."
        assert read(form(), text) == [content(text)]


QUOTED = ('<|"|>', "x", '<|"|>')


class TestTokens:
    def test_markup_is_read_from_tokens_as_from_text(self) -> None:
        machine = OutputParser(form(), token_markers=frozenset({"<tool_call>", "</tool_call>"}))
        collected = Collected()
        collected.add(machine.feed_token("<tool_call>", special=True))
        collected.add(machine.feed('\n{"name": "g", "arguments": {}}\n'))
        collected.add(machine.feed_token("</tool_call>", special=True))
        collected.add(machine.finish())
        assert [(each.kind, each.name, each.text) for each in collected.segments] == [
            (PartKind.TOOL_START, "g", "{}")
        ]

    @pytest.mark.parametrize("output", [None, form(), OutputFormat()])
    def test_special_tokens_are_no_text(self, output: OutputFormat | None) -> None:
        machine = OutputParser(output)
        parts = [*machine.feed("a"), *machine.feed_token("<|end|>", special=True)]
        parts += [*machine.feed_token("<|added|>", special=False), *machine.finish()]
        assert "".join(part.text for part in parts) == "a<|added|>"

    @pytest.mark.parametrize("special", [False, True])
    @pytest.mark.parametrize(
        ("tool_calls", "tools", "tokens"),
        [
            ("gemma4", TOOLS, ("<|tool_call>", "call:z{s:", *QUOTED, "}", "<tool_call|>")),
            ("gemma4", (), ("<|tool_call>", "call:f{s:", *QUOTED, "}", "<tool_call|>")),
            ("mistral", (), ("[TOOL_CALLS]", "f", "[ARGS]", "{}")),
            ("lfm2", (), ("<|tool_call_start|>", "[f()]", "<|tool_call_end|>")),
            (
                "kimi_k2",
                TOOLS,
                (
                    *("<|tool_call_begin|>", "z:0"),
                    *("<|tool_call_argument_begin|>", "{}", "<|tool_call_end|>"),
                ),
            ),
        ],
    )
    def test_the_markup_of_a_call_that_is_text_is_text(
        self, tool_calls: str, tools: tuple[ToolSchema, ...], tokens: tuple[str, ...], special: bool
    ) -> None:
        machine = OutputParser(form(reasoning="none", tool_calls=tool_calls, tools=tools))
        collected = Collected()
        for text in tokens:
            if text[0] in "<[" and text != "[f()]":
                collected.add(machine.feed_token(text, special=special))
            else:
                collected.add(machine.feed(text))
        collected.add(machine.finish())
        assert collected.text(CONTENT) == "".join(tokens)

    def test_reasoning_that_is_not_wanted_keeps_its_markup(self) -> None:
        machine = OutputParser(form(reasoning="none", tool_calls="mistral"))
        parts = [*machine.feed_token("[THINK]", special=True), *machine.feed("r")]
        parts += [*machine.feed_token("[/THINK]", special=True), *machine.feed("a")]
        assert "".join(part.text for part in [*parts, *machine.finish()]) == "[THINK]r[/THINK]a"

    @pytest.mark.parametrize("tail", ["", "<think>\n\n</think>\n\n"])
    def test_markers_of_reasoning_in_an_answer_stay_together(self, tail: str) -> None:
        machine = OutputParser(
            form(prompt_tail=tail), token_markers=frozenset({"<think>", "</think>"})
        )
        parts = []
        for text in ("Put it in ", "<think>", " and ", "</think>", " tags.", "</think>"):
            is_token = text.startswith("<")
            parts += machine.feed_token(text, special=False) if is_token else machine.feed(text)
        joined = "".join(part.text for part in [*parts, *machine.finish()])
        assert joined == "Put it in <think> and </think> tags."


class TestBlanks:
    @pytest.mark.parametrize("tools", [TOOLS, ()])
    @pytest.mark.parametrize("blank", ["<tool_call></tool_call>", "<tool_call>\n\n</tool_call>"])
    def test_an_empty_block_where_the_answer_begins_is_no_text(
        self, blank: str, tools: tuple[ToolSchema, ...]
    ) -> None:
        output = form(tools=tools)
        assert read(output, f"{blank}a") == [content("a")]
        assert read(output, f"<think>r</think>\n{blank}\n{blank}a") == [
            reasoning("r"),
            content("a"),
        ]
        assert read(output, f"a {blank} b") == [content(f"a {blank} b")]
        assert read(output, "<tool_call> </tool") == [content("<tool_call> </tool")]


class TestHolding:
    @pytest.mark.parametrize("filler", ["x", "{", "<", " ", "\n", '"', "</think>"])
    def test_an_endless_block_becomes_text_at_the_same_place(self, filler: str) -> None:
        opened = '<tool_call>{"s": "'
        text = "a" + opened + filler * (3 * LONGEST_BLOCK // len(filler))
        expected = parts_of(OutputParser(form()), [text])
        assert "".join(part.text for part in expected).strip() == text.strip()
        for size in (997, LONGEST_BLOCK):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert parts_of(OutputParser(form()), pieces) == expected

    def test_no_more_is_buffered_than_a_block_may_have(self) -> None:
        for begin, most in (
            ('{"s": "', LONGEST_BLOCK),
            ('{"name": "g2", "s": "', LONGEST_BLOCK),
            ('{"name": "f", "arguments": {"s": "', LONGEST_CALL),
            ('{"arguments": {"s": "', LONGEST_CALL),
        ):
            machine = OutputParser(form())
            shown = fed = 0
            for piece in [f"<tool_call>{begin}", *["x" * 1000] * (most // 1000 + 100)]:
                fed += len(piece)
                shown += sum(len(part.text) for part in machine.feed(piece))
                assert fed - shown <= most + len("<tool_call>")
            assert shown >= most

    def test_a_call_behind_an_endless_one_is_read(self) -> None:
        text = "<tool_call>{" + "x" * LONGEST_BLOCK + call("g")
        assert read_once(form(), text)[-1] == call_part("g", "{}")

    def test_text_that_is_no_markup_is_returned_at_once(self) -> None:
        machine = OutputParser(form())
        assert machine.feed("a < b") == [content("a < b")]
        assert machine.feed(" <tool") == []
        assert machine.feed("s>") == [content(" <tools>")]


def read_once(output: OutputFormat, text: str) -> list[Part]:
    return parts_of(OutputParser(output), [text])


def test_of_no_text_there_are_no_parts() -> None:
    for output in (None, form()):
        machine = OutputParser(output)
        assert machine.feed("") == []
        assert machine.finish() == []


def test_a_format_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError):
        OutputParser(form(reasoning="no such"))
    with pytest.raises(KeyError):
        OutputParser(form(tool_calls="no such"))
