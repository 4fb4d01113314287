"""Any text, cut anywhere, through every pair of formats."""

import json
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.dialects.base import Collected, Segment
from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.marked import MarkedLayout
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for, reasoning_names, tool_call_names
from node.parsing.scanning.step import LONGEST_BLOCK, LONGEST_CALL

TOOLS = (
    ToolSchema(
        "find",
        {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    ),
    ToolSchema("dock"),
    ToolSchema("computer"),
)
EXAMPLES = 200 // len(tool_call_names())
"""Examples of each tool-call format, so that all together take the same time however many there
are."""
STOP = "\N{SECTION SIGN}halt"
LONGEST_MARKER = 200

BLOCKS = {
    "apertus": '<|tools_prefix|>[{"find": {"a": "v", "n": 1}}]<|tools_suffix|>',
    "apriel": '<tool_calls>[{"name": "find", "arguments": {"a": "v"}}]</tool_calls>',
    "command_r": '<|START_ACTION|>[{"tool_name": "find", "parameters": {"a": "v"}}]<|END_ACTION|>',
    "command_r_plus": 'Action:\n```json\n[{"tool_name": "find", "parameters": {"a": "v"}}]\n```',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n"
    '```json\n{"a": "v"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
    '{"a": "v"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "dsml": '<｜DSML｜tool_calls><｜DSML｜invoke name="find"><｜DSML｜parameter name="a" '
    'string="true">v</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>',
    "firefunction": ' functools[{"name": "find", "arguments": {"a": "v"}}]',
    "functionary_v31": '<function=find>{"a": "v"}</function>',
    "functionary_v32": '>>>find\n{"a": "v"}',
    "functiongemma": "<start_function_call>call:find{a:<escape>v<escape>,n:1}<end_function_call>",
    "gemma4": '<|tool_call>call:find{a:<|"|>v<|"|>,n:1}<tool_call|>',
    "gigachat3": '<|function_call|>{"name": "find", "arguments": {"a": "v"}}',
    "glm": "<tool_call>find\n<arg_key>a</arg_key>\n<arg_value>v</arg_value>\n</tool_call>",
    "granite": '<|tool_call|>[{"name": "find", "arguments": {"a": "v"}}]',
    "granite_20b_fc": '<function_call> {"name": "find", "arguments": {"a": "v"}}',
    "harmony": "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
    '{"a": "v"}<|call|>',
    "hermes": '<tool_call>\n{"name": "find", "arguments": {"a": "v"}}\n</tool_call>',
    "hy_v3": "<tool_calls:opensource><tool_call:opensource>find<tool_sep:opensource>"
    "<arg_key:opensource>a</arg_key:opensource><arg_value:opensource>v</arg_value:opensource>"
    "</tool_call:opensource></tool_calls:opensource>",
    "inkling": '<|content_invoke_tool_json|>{"name": "find", "args": {"a": "v"}}<|end_message|>',
    "internlm2": '<|action_start|><|plugin|>{"name": "find", "parameters": {}}<|action_end|>',
    "jamba": '<tool_calls>[{"name": "find", "arguments": {"a": "v"}}]</tool_calls>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
    '<|tool_call_argument_begin|>{"a": "v"}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|><|open|>argument '
    'key="a" type="string"<|sep|>v<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>",
    "lfm2": '<|tool_call_start|>[find(a="v", n=1)]<|tool_call_end|>',
    "llama3_json": '{"name": "find", "parameters": {"a": "v"}}',
    "longcat": '<longcat_tool_call>{"name": "find", "arguments": {}}</longcat_tool_call>',
    "minicpm5": '<function name="find"><param name="a"><![CDATA[v]]></param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="find">\n<parameter name="a">v</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="find">]<]minimax[>[<a>v'
    "]<]minimax[>[</a>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    "mistral": '[TOOL_CALLS]find[ARGS]{"a": "v"}',
    "muse": ' to=find<|message|><atem:function_calls><atem:invoke name="find"><atem:parameter '
    'name="a">v</atem:parameter></atem:invoke></atem:function_calls>',
    "olmo3": "<function_calls>find(a='v', n=1)</function_calls>",
    "phi4_functools": 'functools[{"name": "find", "arguments": {"a": "v"}}]',
    "pythonic": "[find(a='v', n=1)]",
    "qwen3_coder": "<tool_call>\n<function=find>\n<parameter=a>\nv\n</parameter>\n</function>\n"
    "</tool_call>",
    "seed_oss": "<seed:tool_call><function=find><parameter=a>v</parameter></function>"
    "</seed:tool_call>",
    "solar": '<|tool_call:begin|>1<|tool_call:name|>find<|tool_call:args|>{"a": "v"}'
    "<|tool_call:end|>",
    "step3": '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="find">'
    '<steptml:parameter name="a">v</steptml:parameter></steptml:invoke><｜tool_call_end｜>'
    "<｜tool_calls_end｜>",
    "ui_tars": "Action: click(point='<point>1 2</point>')",
    "xlam": '[{"name": "find", "arguments": {"a": "v"}}]',
}
"""A call in each format, by its name."""

PLAIN = (
    "a",
    "é",
    " ",
    "\n",
    "\n\n",
    "word",
    "\N{SAILBOAT}\N{VARIATION SELECTOR-16}",
    "1",
    ".",
    "?",
)
"""Pieces that form no markup."""
SHARP = (*"{}[]<>|:=\"'\\/()`", '{"a": 1}', '"name"', '{"name": "find", "arguments": {}}', "find")
SHARPER = ("find(a='v')", "<function=find>", "<parameter=a>", "</", "```json\n", STOP, "\x00", ",")

Cut = list[str]


def read(
    form: OutputFormat | None, pieces: Iterable[str], stops: tuple[str, ...] = ()
) -> tuple[list[Segment], OutputParser]:
    """Returns the segments that the parser finds, and the parser."""
    machine = OutputParser(form, stops)
    collected = Collected()
    for piece in pieces:
        collected.add(machine.feed(piece))
        if machine.ended:
            break
    collected.add(machine.finish())
    # Ids are made of the request's name: of the same name here.
    return collected.segments, machine


def joined(segments: Iterable[Segment], *kinds: PartKind) -> str:
    return "".join(each.text for each in segments if each.kind in kinds)


def spoken(segments: Iterable[Segment]) -> str:
    return joined(segments, PartKind.CONTENT, PartKind.REASONING)


def markers_of(reasoning: str, tool_calls: str) -> list[str]:
    grammar = layout_for(reasoning, tool_calls)
    return sorted({*grammar.openers, *grammar.orphans, *grammar.strict, *grammar.stop_tokens})


def halves(markers: Sequence[str]) -> Iterator[str]:
    for marker in markers:
        yield marker[: len(marker) // 2]
        yield marker[len(marker) // 2 :]


def within(inner: str, outer: str) -> bool:
    """Returns True if the characters of `inner` are in `outer`, in order, but for white space: what
    parts two pieces is returned with the second, and there may be reasoning between them."""
    rest = iter(outer)
    return all(character in rest for character in "".join(inner.split()))


@st.composite
def forms(draw: st.DrawFn, tool_calls: str) -> OutputFormat:
    """A format with the given tool calls, and any reasoning."""
    reasoning = draw(st.sampled_from(reasoning_names()))
    opener = layout_for(reasoning, "none").opener
    return OutputFormat(
        reasoning=reasoning,
        tool_calls=tool_calls,
        prompt_tail=draw(st.sampled_from(("", f"\n{opener}", f"\n{opener}\n", "a: "))),
        tools=draw(st.sampled_from((TOOLS, ()))),
        parallel_calls=draw(st.booleans()),
        repeated_calls=draw(st.booleans()),
        streams_calls=draw(st.booleans()),
    )


def fragments(form: OutputFormat) -> list[str]:
    """Returns the pieces that outputs in the format are made of."""
    markers = markers_of(form.reasoning, form.tool_calls)
    blocks = [BLOCKS[each] for each in (form.tool_calls, "hermes") if each in BLOCKS]
    cut = [block[: len(block) * 2 // 3] for block in blocks]
    # The markers and blocks more than once: most of what is made shall contain some.
    return [*PLAIN, *SHARP, *SHARPER, *halves(markers), *cut, *(markers * 3), *(blocks * 5)]


@st.composite
def outputs(draw: st.DrawFn, form: OutputFormat) -> str:
    pieces = st.sampled_from(fragments(form))
    return "".join(draw(st.lists(pieces, max_size=14)))


@st.composite
def cuts(draw: st.DrawFn, text: str) -> Cut:
    """The text in pieces."""
    points = draw(st.lists(st.integers(0, len(text)), max_size=6))
    return [text[begin:end] for begin, end in pairwise([0, *sorted(points), len(text)])]


@pytest.mark.parametrize("tool_calls", tool_call_names())
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(data=st.data())
def test_what_is_read_is_in_the_text_however_it_is_cut(
    tool_calls: str, data: st.DataObject
) -> None:
    form = data.draw(forms(tool_calls))
    text = data.draw(outputs(form))
    stops = data.draw(st.sampled_from(((), (STOP,))))
    whole, machine = read(form, [text], stops)
    assert within(spoken(whole), text)
    for pieces in (data.draw(cuts(text)), list(text)):
        again, other = read(form, pieces, stops)
        assert again == whole
        assert (other.ended, other.stop, other.error) == (
            machine.ended,
            machine.stop,
            machine.error,
        )
    check_calls(whole, form, machine.error)
    if stops:
        assert STOP not in joined(whole, PartKind.CONTENT)
    assert machine.stop in (None, *stops)
    assert machine.ended or machine.stop is None


def check_calls(segments: Sequence[Segment], form: OutputFormat, error: str | None = None) -> None:
    calls = [each for each in segments if each.kind is PartKind.TOOL_START]
    if error is not None:
        # The last one turned out to be none, and nothing follows it.
        assert form.streams_calls
        assert segments[-1] is calls.pop()
    names = {tool.name for tool in form.tools}
    for call in calls:
        assert call.name in names
        assert isinstance(json.loads(call.text), dict)
    assert len({call.call_id for call in calls}) == len(calls)
    if not form.parallel_calls:
        assert len(calls) <= 1
    if not form.repeated_calls:
        spelled = [(call.name, json.dumps(json.loads(call.text), sort_keys=True)) for call in calls]
        assert len(set(spelled)) == len(spelled)


@pytest.mark.parametrize("tool_calls", tool_call_names())
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_tokens_of_the_vocabulary_are_read_however_the_text_between_is_cut(
    tool_calls: str, data: st.DataObject
) -> None:
    form = data.draw(forms(tool_calls))
    markers = markers_of(form.reasoning, tool_calls) or ["<mark>"]
    special = frozenset(data.draw(st.lists(st.sampled_from(markers), max_size=4)))
    pieces = data.draw(st.lists(st.sampled_from(fragments(form)), max_size=14))
    results = []
    for by_character in (False, True):
        machine = OutputParser(form, token_markers=frozenset(markers))
        collected = Collected()
        for piece in pieces:
            if machine.ended:
                break
            if piece in markers:
                collected.add(machine.feed_token(piece, special=piece in special))
                continue
            for text in piece if by_character else [piece]:
                if not machine.ended:
                    collected.add(machine.feed(text))
        collected.add(machine.finish())
        results.append((collected.segments, machine.error))
    assert results[0] == results[1]
    segments, error = results[0]
    assert within(spoken(segments), "".join(pieces))
    check_calls(segments, form, error)


@pytest.mark.parametrize("tool_calls", tool_call_names())
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_text_without_markup_is_returned_whole(tool_calls: str, data: st.DataObject) -> None:
    form = data.draw(forms(tool_calls))
    text = "".join(data.draw(st.lists(st.sampled_from(PLAIN), max_size=20)))
    segments, _ = read(form, data.draw(cuts(text)))
    assert len(segments) <= 1
    # Within reasoning, white space next to its opener is markup.
    begins_within = form.reasoning != "none" and joined(segments, PartKind.CONTENT) != text
    assert spoken(segments) == text or (begins_within and spoken(segments) == text.strip())


@pytest.mark.parametrize("tool_calls", sorted(BLOCKS.keys() & {*tool_call_names()}))
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_a_call_is_read_out_of_the_text_before_it(tool_calls: str, data: st.DataObject) -> None:
    block = BLOCKS[tool_calls]
    grammar = layout_for("none", tool_calls)
    may_follow = isinstance(grammar, MarkedLayout) and block.startswith(grammar.openers)
    text = "".join(data.draw(st.lists(st.sampled_from(PLAIN), max_size=8))) if may_follow else ""
    form = OutputFormat(tool_calls=tool_calls, tools=TOOLS)
    segments, _ = read(form, data.draw(cuts(text + block)))
    assert spoken(segments) == text.rstrip()
    called = [each.name for each in segments if each.kind is PartKind.TOOL_START]
    assert called == ["computer" if tool_calls == "ui_tars" else "find"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_without_formats_all_text_is_content(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from((None, OutputFormat(), OutputFormat(tools=TOOLS))))
    text = data.draw(outputs(OutputFormat("think", "hermes")))
    segments, machine = read(form, data.draw(cuts(text)))
    assert joined(segments, PartKind.CONTENT) == text
    assert spoken(segments) == text
    assert not machine.ended


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_content_ends_before_a_stop_string(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from((None, OutputFormat(), OutputFormat(tools=TOOLS))))
    text = data.draw(outputs(OutputFormat("think", "hermes")))
    segments, machine = read(form, data.draw(cuts(text)), (STOP,))
    assert joined(segments, PartKind.CONTENT) == text.partition(STOP)[0]
    assert machine.ended == (STOP in text)
    assert machine.stop == (STOP if STOP in text else None)


def openings(tool_calls: str) -> list[str]:
    """Returns begins of blocks that never end."""
    return [*layout_for("none", tool_calls).openers[:2], BLOCKS.get(tool_calls, "")[:-1]]


def longest(opening: str) -> int:
    """Returns the greatest length of a block that begins so."""
    return LONGEST_CALL if "find" in opening or "click(" in opening else LONGEST_BLOCK


@pytest.mark.parametrize("tool_calls", tool_call_names())
@pytest.mark.parametrize("filler", ["a", '{"a": [', "word \n", "<", '"'])
def test_no_more_is_buffered_than_a_block_may_have(tool_calls: str, filler: str) -> None:
    piece = (filler * 4096)[:4096]
    for opening in openings(tool_calls):
        most = longest(opening)
        machine = OutputParser(OutputFormat(tool_calls=tool_calls, tools=TOOLS))
        emitted = sum(len(part.text) for part in machine.feed(opening))
        fed = len(opening)
        while fed < 200 * 1024 and not machine.ended:
            emitted += sum(len(part.text) for part in machine.feed(piece))
            fed += len(piece)
            assert fed - emitted <= most + len(opening) + LONGEST_MARKER


@pytest.mark.parametrize("tool_calls", tool_call_names())
def test_white_space_without_end_uses_no_memory(tool_calls: str) -> None:
    # It may be no part of the answer: what was emitted does not show what is buffered.
    piece = " " * 4096
    for opening in openings(tool_calls):
        machine = OutputParser(OutputFormat(tool_calls=tool_calls, tools=TOOLS))
        machine.feed(opening)
        tracemalloc.start()
        for _ in range(200):
            if not machine.ended:
                machine.feed(piece)
        buffered_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert buffered_bytes < 4 * longest(opening)
