"""Calls in outputs. Each of these was a fault of another server."""

import json
import re
from collections.abc import Iterable

import msgspec
import pydantic_core
import pytest

from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.registry import tool_call_name, tool_call_names
from node.parsing.scanning.step import LONGEST_BLOCK, LONGEST_CALL
from tests.node.parsing.reading import Parsed, collect, output_format, parsed, read
from tests.reports.samples import ARGUMENTS, CALLS

FIND = ("find", ARGUMENTS)
TAIL = "<|start|>assistant"
"""The end of the prompts of formats with headers."""
MARKED = tuple(form for form in CALLS if form != "muse")
"""The formats whose calls may stand within an answer; of the other they are messages of their
own."""


def tail_of(form: str) -> str:
    return TAIL if form in ("muse", "harmony") else ""


def pieces(text: str, size: int) -> Iterable[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


# --- what is a call --------------------------------------------------------------------------


@pytest.mark.parametrize("form", CALLS)
def test_a_stream_finds_the_calls_that_the_whole_text_has(form: str) -> None:
    assert read(CALLS[form], tool_calls=form, tail=tail_of(form)) == Parsed(calls=(FIND,))


@pytest.mark.parametrize("form", ["auto", "gemma4", "hermes", "lfm2", "minimax_m2", "qwen3_coder"])
@pytest.mark.parametrize(
    "call",
    [
        '[Calling tool: find({"where": "a b", "depth": 3})]',
        '[Calling tool: find({\n  "where": "a b",\n  "depth": 3\n})\n]',
        '[Calling tool="find" where="a b" depth=3]',
    ],
)
def test_a_call_in_brackets_is_a_call_and_no_text(form: str, call: str) -> None:
    assert read(call, tool_calls=form) == Parsed(calls=(FIND,))
    assert read(f"I look.\n{call}", tool_calls=form) == Parsed("I look.", calls=(FIND,))


@pytest.mark.parametrize("form", ["hermes", "lfm2"])
def test_nothing_of_a_call_in_brackets_is_sent_before_it_is_decided(form: str) -> None:
    machine = OutputParser(output_format(tool_calls=form))
    sent = [part for character in CALLS["bracket"] for part in machine.feed(character)]
    assert {part.kind for part in sent} == {PartKind.TOOL_START, PartKind.TOOL_ARGS}
    undeclared = '[Calling tool: browse({"url": "x"})]'
    assert read(undeclared, tool_calls=form) == Parsed(undeclared)


def test_a_function_without_its_outer_tag_is_a_call() -> None:
    bare = "<function=find>\n<parameter=where>\na b\n</parameter>\n<parameter=depth>\n3\n"
    bare += "</parameter>\n</function>"
    for form in ("qwen3_coder", "hermes", "auto"):
        assert read(bare, tool_calls=form) == Parsed(calls=(FIND,))
        assert read(f"So:\n{bare}", tool_calls=form) == Parsed("So:", calls=(FIND,))
    undeclared = bare.replace("find", "seek")
    assert read(undeclared, tool_calls="qwen3_coder") == Parsed(undeclared)


@pytest.mark.parametrize("key", ["parameters", "arguments"])
@pytest.mark.parametrize("opener", ["", "<|python_tag|>"])
def test_a_bare_object_that_names_a_declared_tool_is_a_call(opener: str, key: str) -> None:
    text = f'{opener}{{"name": "find", "{key}": {{"where": "a b", "depth": 3}}}}'
    assert read(text, tool_calls="llama3_json") == Parsed(calls=(FIND,))
    two = text + '; {"name": "ping", "parameters": {}}'
    assert read(two, tool_calls="llama3_json") == Parsed(calls=(FIND, ("ping", {})))


def test_tags_with_quoted_names_are_a_call() -> None:
    text = (
        '<function name="find"><param name="where"><![CDATA[a <b> & "c"]]></param>'
        '<param name="depth">3</param><param name="filter">{"q": "&lt;"}</param></function>'
    )
    called = ("find", {"where": 'a <b> & "c"', "depth": 3, "filter": {"q": "<"}})
    assert read(text, tool_calls="minicpm5") == Parsed(calls=(called,))


def test_commentary_is_read_before_any_of_it_is_taken_for_text() -> None:
    text = (
        "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant<|channel|>commentary"
        f"<|message|>I look it up.<|end|><|start|>assistant{CALLS['harmony']}"
    )
    expected = Parsed("I look it up.", "I need it.", (FIND,))
    assert read(text, reasoning="harmony", tool_calls="harmony", tail=TAIL) == expected


def test_markup_is_read_where_the_vocabulary_has_no_tokens_for_it() -> None:
    form = output_format(reasoning="think", tool_calls="hermes")
    text = f"<think>Hm.</think>{CALLS['hermes']}"
    for tokens in (frozenset[str](), frozenset({"<|end|>"})):
        machine = OutputParser(form, token_markers=tokens)
        kinds = [part.kind for character in text for part in machine.feed(character)]
        assert set(kinds) == {PartKind.REASONING, PartKind.TOOL_START, PartKind.TOOL_ARGS}


@pytest.mark.parametrize(
    ("alias", "form"),
    [
        ("qwen3", "hermes"),
        ("nous", "hermes"),
        ("Qwen3-Coder-XML", "qwen3_coder"),
        ("nemotron3", "qwen3_coder"),
        ("step3p5", "qwen3_coder"),
        ("glm47", "glm"),
        ("moonshot", "kimi_k2"),
        ("gpt_oss", "harmony"),
        ("seed", "seed_oss"),
        ("deepseek_r1", "deepseek_v3"),
        ("deepseek_v4", "dsml"),
        ("llama4", "llama3_json"),
        ("llama4_pythonic", "pythonic"),
        ("liquid", "lfm2"),
        ("minimax", "minimax_m2"),
        ("gemma_4", "gemma4"),
        ("function_gemma", "functiongemma"),
        ("granite3", "granite"),
        ("hy3", "hy_v3"),
        ("minicpm", "minicpm5"),
        ("muse_spark", "muse"),
        ("laguna", "glm"),
        ("solar_open", "solar"),
        ("meetkai", "functionary_v32"),
    ],
)
def test_a_name_of_another_server_reads_the_family_that_it_means(alias: str, form: str) -> None:
    name = tool_call_name(alias)
    output = output_format(tool_calls=name, tail=tail_of(form))
    assert parsed(output, pieces(CALLS[form], 4)) == Parsed(calls=(FIND,))


# --- what is none ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", tool_call_names())
@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "John", "age": 25}',
        '{"name": "John", "arguments": {}}',
        '{"name": "find", "age": 25}',
        '{"name": "find", "arguments": {}, "age": 25}',
        '[{"name": "John", "age": 25}]',
        "[see(note)] and [find] it",
    ],
)
def test_an_answer_of_json_is_an_answer(form: str, answer: str) -> None:
    for size in (1, 3, len(answer)):
        assert parsed(output_format(tool_calls=form), pieces(answer, size)) == Parsed(answer)


@pytest.mark.parametrize("form", MARKED)
def test_without_tools_markup_is_sent_as_it_stands(form: str) -> None:
    output = output_format(tool_calls=form, tools={}, tail=tail_of(form))
    for text in (f"A\n\n{CALLS[form].strip()}\n\nB", "A " + CALLS[form][: len(CALLS[form]) // 2]):
        for size in (1, 4, len(text)):
            parts = collect(output, pieces(text, size))
            assert (parts.text(PartKind.CONTENT), parts.calls) == (text, [])


@pytest.mark.parametrize("form", MARKED)
def test_an_answer_may_explain_markup(form: str) -> None:
    opener = re.split(r"find|\n", CALLS[form].strip())[0]
    for answer in (
        f"Begin with `{opener}` and the rest follows.",
        f"In code:\n```\n{opener}NAME\n```\nThen it runs, and <|im_end|> is the end.",
        "A turn ends with `<|im_end|>` or `</s>`. The next one begins behind it.",
    ):
        output = output_format(tool_calls=form, tail=tail_of(form))
        for size in (1, 3, len(answer)):
            assert parsed(output, pieces(answer, size)) == Parsed(answer)


@pytest.mark.parametrize("form", MARKED)
def test_a_cut_call_is_the_whole_call_or_none(form: str) -> None:
    before = "I look.\n\n"
    text = before + CALLS[form]
    output = output_format(tool_calls=form, tail=tail_of(form))
    for cut in range(len(before) + 1, len(text)):
        found = parsed(output, [text[:cut]])
        assert found.calls in ((), (FIND,)), f"cut behind {text[:cut]!r}"
        assert found.content.startswith(before.strip())


def test_an_answer_precedes_a_cut_call_that_is_sent_as_it_stands() -> None:
    call = "<tool_call>\n<function=find>\n<parameter=where>\na b"
    for form in ("qwen3_coder", "hermes"):
        assert read(f"I look.\n\n{call}", tool_calls=form) == Parsed(f"I look.\n\n{call}")


@pytest.mark.parametrize(
    ("opened", "most"),
    [
        ("<tool_call>", LONGEST_BLOCK),
        ('<tool_call>{"name": "open", "arguments": {"where": "', LONGEST_CALL),
        ('<tool_call>{"name": "find", "arguments": {"where": "', LONGEST_CALL),
        ("[Calling tool: open(", LONGEST_BLOCK),
        ("[Calling tool: find(", LONGEST_CALL),
    ],
)
def test_a_block_that_never_ends_delays_nothing_for_ever(opened: str, most: int) -> None:
    machine = OutputParser(output_format(tool_calls="hermes"))
    filler = "word " * 100
    fed = sent = 0
    for piece in [opened, *[filler] * (2 * most // len(filler) + 1)]:
        fed += len(piece)
        sent += sum(len(part.text) for part in machine.feed(piece))
        assert fed - sent <= most + len(opened)
    assert fed > 2 * most


def test_a_call_behind_a_block_that_never_ended_is_a_call() -> None:
    text = '<tool_call>{"name": "find' + "x" * LONGEST_BLOCK + CALLS["hermes"]
    assert parsed(output_format(tool_calls="hermes"), pieces(text, 997)).calls == (FIND,)


# --- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "Tokyo",
        "x </parameter> y",
        "first\nsecond\n\nfourth",
        "\n  indented\n",
        "if a < b and b > c: </p>",
        "<parameter> and <function> and </tool_call>",
        '{"a": [1, 2]}',
        "3",
        "",
    ],
)
@pytest.mark.parametrize("form", ["qwen3_coder", "minimax_m2", "seed_oss"])
def test_a_value_between_tags_keeps_each_of_its_characters(form: str, value: str) -> None:
    call = re.sub(r"\n?a b\n?", lambda match: match[0].replace("a b", value), CALLS[form])
    called = ("find", {"where": value, "depth": 3})
    if form != "qwen3_coder" and value.startswith("\n"):
        # A line's end behind the tag is the format's; these formats need none.
        call = call.replace(value, f"\n{value}\n")
    assert read(call, tool_calls=form) == Parsed(calls=(called,))


def test_a_page_of_html_is_one_value() -> None:
    page = (
        "<!doctype html>\n<html>\n  <body>\n\t<p title=\"a 'b'\">1 < 2 &amp; 3</p>\n\n"
        "    <invoke>not a call</invoke>\n  </body>\n</html>"
    )
    text = (
        '<minimax:tool_call>\n<invoke name="find">\n<parameter name="where">'
        f'{page}</parameter>\n<parameter name="depth">3</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    )
    called = ("find", {"where": page, "depth": 3})
    assert read(text, tool_calls="minimax_m2") == Parsed(calls=(called,))


def test_a_parameter_that_the_schema_lacks_swallows_none_behind_it() -> None:
    text = (
        "<tool_call>\n<function=find>\n<parameter=where>\na b\n</parameter>\n"
        "<parameter=mode>\nfast\n</parameter>\n<parameter=depth>\n3\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    called = ("find", {"where": "a b", "mode": "fast", "depth": 3})
    assert read(text, tool_calls="qwen3_coder") == Parsed(calls=(called,))


@pytest.mark.parametrize("form", CALLS)
def test_the_pieces_of_the_arguments_make_their_json(form: str) -> None:
    output = output_format(tool_calls=form, tail=tail_of(form))
    for size in (1, 3, 7):
        machine = OutputParser(output)
        parts = [part for piece in pieces(CALLS[form], size) for part in machine.feed(piece)]
        parts += machine.finish()
        assert parts[0].kind is PartKind.TOOL_START
        assert {part.kind for part in parts[1:]} == {PartKind.TOOL_ARGS}
        assert json.loads("".join(part.text for part in parts)) == ARGUMENTS


def test_a_call_that_is_repeated_is_made_once_unless_repeats_are_wanted() -> None:
    call = CALLS["hermes"]
    again = ("find", {**ARGUMENTS, "depth": 4})
    assert read(call * 2 + call.replace("3", "4"), tool_calls="hermes").calls == (FIND, again)
    output = output_format(tool_calls="hermes")
    assert parsed(output, "\n".join([call] * 13)).calls == (FIND,)
    wanted = msgspec.structs.replace(output, repeated_calls=True)
    assert parsed(wanted, "\n".join([call] * 13)).calls == (FIND,) * 13


ODD_VALUES = (
    '"\\ud800"',
    '"\\u0000"',
    "[" * 100 + "]" * 100,
    *("[" * depth + "]" * depth for depth in (980, 981, 982, 983, 5000)),
    "1e999",
    "[1e999]",
    "-0",
    "9" * 5000,
    "NaN",
)


@pytest.mark.parametrize("form", MARKED)
def test_odd_values_make_a_call_or_text_but_never_nothing(form: str) -> None:
    output = output_format(tool_calls=form, tools={"find": {}})
    before, _, behind = CALLS[form].rpartition("3")
    for value in ODD_VALUES:
        text = before + value + behind
        collected = collect(output, pieces(text, 997))
        if not collected.calls:
            assert collected.text(PartKind.CONTENT).strip() == text.strip()
        for segment in collected.segments:
            segment.text.encode()
        for call in collected.calls:
            # By a reader that takes no half characters, no constants and no deep nesting.
            pydantic_core.from_json(call.text, allow_inf_nan=False)
