"""Channels of GPT-OSS."""

import pytest

from node.parsing.output_parser import OutputParser
from tests.node.parsing.reading import TOOLS, Parsed, collect, output_format, parsed, read

START = "<|start|>assistant"
CALL = '<|message|>{"where": "x"}<|call|>'
CALLS = (("find", {"where": "x"}),)


def harmony(text: str, tail: str = START) -> Parsed:
    return read(text, reasoning="harmony", tool_calls="harmony", tail=tail)


def analysis(text: str) -> str:
    return f"<|channel|>analysis<|message|>{text}<|end|>{START}"


def final(text: str, end: str = "<|return|>") -> str:
    return f"<|channel|>final<|message|>{text}{end}"


def test_analysis_is_reasoning_and_final_is_the_answer() -> None:
    text = analysis("Let me\nthink.") + final("It is <b>so</b>.")
    assert harmony(text) == Parsed("It is <b>so</b>.", "Let me\nthink.")
    assert harmony(text, tail="") == Parsed("It is <b>so</b>.", "Let me\nthink.")


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find",
        "<|channel|>commentary to=find code",
        "<|channel|>analysis to=functions.find",
        " to=functions.find<|channel|>commentary json",
        " to=functions.find<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.find\n<|constrain|>json\n",
    ],
)
def test_a_call_is_returned_wherever_its_recipient_stands(header: str) -> None:
    assert harmony(header + CALL) == Parsed(calls=CALLS)
    assert harmony(analysis("Hm.") + header + CALL) == Parsed("", "Hm.", CALLS)


def test_a_call_needs_no_end() -> None:
    header = "<|channel|>commentary to=functions.find"
    assert harmony(header + CALL.removesuffix("<|call|>")) == Parsed(calls=CALLS)


def test_calls_may_follow_each_other() -> None:
    header = "<|channel|>commentary to=functions."
    text = f"{header}find{CALL}{START}{header}ping<|message|>{{}}<|call|>"
    assert harmony(text) == Parsed(calls=(*CALLS, ("ping", {})))


def test_commentary_without_a_recipient_is_content() -> None:
    preamble = "<|channel|>commentary<|message|>I look it up.<|end|>"
    text = f"{preamble}{START}<|channel|>commentary to=functions.find{CALL}"
    assert harmony(text) == Parsed("I look it up.", "", CALLS)


def test_the_last_channel_of_a_header_counts() -> None:
    text = "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>"
    assert harmony(text) == Parsed("", "Hm.")


def test_a_message_may_begin_without_an_end_before_it() -> None:
    text = f"<|channel|>analysis<|message|>Hm.{START}{final('So.')}"
    assert harmony(text) == Parsed("So.", "Hm.")


def test_the_prompt_may_have_opened_the_message() -> None:
    tail = f"{START}<|channel|>final<|message|>It "
    assert harmony("is so.<|return|>", tail) == Parsed("is so.")
    tail = f"{START}<|channel|>analysis<|message|>"
    assert harmony("Hm.<|end|>" + START + final("So."), tail) == Parsed("So.", "Hm.")
    assert harmony("Hello", tail + "Hm.<|end|>" + START) == Parsed("Hello")


def test_text_without_any_header_is_the_answer() -> None:
    for text in ("Just so.", "to be or not", "assistant to nobody", "json"):
        assert harmony(text) == Parsed(text)


@pytest.mark.parametrize(
    "cut", ["<|channel|>", "<|channel|>ana", "<|channel|>commentary to=functions.fi", " to="]
)
def test_a_header_that_the_output_ends_within_is_no_text(cut: str) -> None:
    assert harmony(cut) == Parsed()
    assert harmony(analysis("Hm.") + cut) == Parsed("", "Hm.")


def test_what_is_no_call_stays_text_with_its_header() -> None:
    header = "<|channel|>commentary to=functions."
    for text in (
        f'{header}unknown<|message|>{{"a": 1}}',
        f"{header}find<|message|>not json<|call|>",
        f'{header}find<|message|>{{"where": <|end|>',
        f'{header}find<|message|>{{"where": "x',
    ):
        assert harmony(text) == Parsed(text)


def test_a_header_without_a_message_is_text() -> None:
    text = "<|channel|>commentary to=functions.find, which is for calls"
    assert harmony(text) == Parsed(text)


def test_reasoning_that_is_not_split_keeps_its_markers() -> None:
    text = analysis("Hm.") + final("So.")
    assert read(text, tool_calls="harmony", tail=START) == Parsed(
        "<|channel|>analysis<|message|>Hm.<|end|>So."
    )


def test_without_tools_a_call_is_not_returned_and_channels_are_read_all_the_same() -> None:
    call = "<|channel|>commentary to=functions.find" + CALL
    text = analysis("Hm.") + call
    found = read(text, reasoning="harmony", tool_calls="harmony", tail=START, tools={})
    assert found == Parsed("", "Hm.")
    assert read(final("So."), tool_calls="harmony", tail=START, tools={}) == Parsed("So.")


def test_the_token_that_ends_a_call_is_to_be_fed() -> None:
    form = output_format(reasoning="harmony", tool_calls="harmony")
    assert OutputParser(form).stop_tokens == {"<|call|>"}


def test_markers_that_the_vocabulary_has_count_as_tokens_only() -> None:
    form = output_format(reasoning="harmony", tool_calls="harmony", tail=START)
    machine = OutputParser(form, token_markers=frozenset({"<|channel|>", "<|message|>", "<|end|>"}))
    parts = [
        *machine.feed_token("<|channel|>", special=True),
        *machine.feed("final"),
        *machine.feed_token("<|message|>", special=True),
        *machine.feed("It ends with <|end|> here."),
        *machine.feed_token("<|end|>", special=True),
        *machine.finish(),
    ]
    assert "".join(part.text for part in parts) == "It ends with <|end|> here."


def test_a_stop_string_is_searched_in_the_answer_only() -> None:
    form = output_format(reasoning="harmony", tool_calls="harmony", tail=START)
    machine = OutputParser(form, stops=(".",))
    parts = [*machine.feed(analysis("First. Then.") + final("One. Two."))]
    assert [part.text for part in parts] == ["First. Then.", "One"]
    assert machine.stop == "."


def test_arguments_are_returned_as_the_model_wrote_them() -> None:
    text = '<|channel|>commentary to=functions.find<|message|>{"where":"x",  "depth":1}<|call|>'
    form = output_format(reasoning="harmony", tool_calls="harmony", tail=START)
    assert collect(form, text).calls[0].text == '{"where":"x",  "depth":1}'
    assert parsed(form, text).calls[0][0] in TOOLS
