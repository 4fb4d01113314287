"""Token counts of chain positions, with tokenizers and templates of several kinds."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from node.dialects.anthropic.body import read_messages
from node.dialects.chat.body import read_chat
from node.dialects.completions.completions import read_completion
from node.dialects.responses.body import read_responses
from node.dialects.responses.input import History
from node.prompt.chain_positions import SLACK_LENGTH, position_tokens
from node.prompt.prompt import Prompt
from node.prompt.renderer import PromptRenderer
from node.prompt.scripted_tokens import ScriptedRenderer
from node.protocol.chain.prefix import Chain
from node.request import TextRequest
from tests.node.prompt.template.samples import LISTED, OPEN, POOR, STRICT
from tests.node.prompt.test_renderer import PLAIN, QUOTING, TRIMMING
from tests.node.protocol.bodies import (
    ANSWER,
    CHAT,
    COMPLETIONS,
    CONVERSATION,
    DIALECTS,
    MESSAGES,
    RESPONSES,
    TEXT,
    Spelling,
    Turn,
    body,
    chain_of,
)
from tests.node.tokenizers import byte_level, made_folder, metaspace, prepending

_TOOLS_LAST = (
    "{% set begin = messages[0] if messages and messages[0].role == 'system' else none %}"
    "{% if begin or tools %}<|begin|>system\n{% if begin %}{{ begin.content }}{% endif %}"
    "{% if tools %}\n\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "<|end|>\n{% endif %}"
)
# As Qwen's: tools behind the system prompt, results as user messages.
TOOLS_LAST = _TOOLS_LAST + (
    "{% for m in messages %}{% if m.role != 'system' or not loop.first %}"
    "{% if m.role == 'tool' %}<|begin|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|end|>\n{% else %}<|begin|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
TEMPLATES = {
    "open": OPEN,
    "listed": LISTED,
    "tools last": TOOLS_LAST,
    "strict": STRICT,
    "poor": POOR,
    "plain": PLAIN,
    "quoting": QUOTING,
    "trimming": TRIMMING,
}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "metaspace": metaspace,
    "prepending": prepending,
}
UNSAID = Spelling(reasoning=False)

Renderer = PromptRenderer | ScriptedRenderer


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Renderer]:
    base = tmp_path_factory.mktemp("positions")
    made: dict[str, Renderer] = {"scripted": ScriptedRenderer()}
    for name, template in TEMPLATES.items():
        made[name] = PromptRenderer(made_folder(base / name, byte_level(), template))
    for name, kind in KINDS.items():
        made[name] = PromptRenderer(made_folder(base / name, kind(), TOOLS_LAST))
    return made


NAMES = ("scripted", *TEMPLATES, *KINDS)


def request_of(path: str, fields: dict[str, Any]) -> TextRequest:
    data = json.dumps(fields).encode()
    if path == CHAT:
        return read_chat(data).request
    if path == MESSAGES:
        return read_messages(data).request
    return read_responses(data).request if path == RESPONSES else read_completion(data).request


def bound(renderer: Renderer, path: str, fields: dict[str, Any]) -> tuple[Chain, Prompt, list[int]]:
    prompt = renderer.render(request_of(path, fields))
    chain = chain_of(fields, path)
    counts = list(position_tokens(chain, prompt.layout))
    assert len(counts) == len(chain)
    assert counts == sorted(counts)
    assert not counts or counts[-1] <= len(prompt.tokens)
    return chain, prompt, counts


def alike(first: Any, second: Any) -> int:
    least = min(len(first), len(second))
    return next((i for i in range(least) if first[i] != second[i]), least)


_FORK = st.tuples(CONVERSATION, TEXT, TEXT, TEXT, st.lists(ANSWER, max_size=1))


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", NAMES)
@given(fork=_FORK, system=st.just("") | TEXT, has_tools=st.booleans())
@settings(max_examples=12, deadline=None)
def test_what_shares_positions_shares_their_tokens(
    renderers: dict[str, Renderer],
    name: str,
    path: str,
    fork: tuple[list[Turn], str, str, str, list[Turn]],
    system: str,
    *,
    has_tools: bool,
) -> None:
    begin, same, one, other, answers = fork
    fields: dict[str, Any] = {"spelling": UNSAID} | ({} if has_tools else {"tools": []})
    more = [*answers, Turn("on")] if answers else []
    texts = (same, same + one, same + other)
    sides = [
        bound(renderers[name], path, body(path, [*begin, Turn(text), *more], system, **fields))
        for text in texts
    ]
    for chain, prompt, counts in sides:
        for second, rendered, _ in sides:
            kept = alike(chain.hashes, second.hashes)
            if kept:
                assert counts[kept - 1] <= alike(prompt.tokens, rendered.tokens)


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", ["open", "tools last", *KINDS])
@given(turns=CONVERSATION, system=TEXT)
@settings(max_examples=10, deadline=None)
def test_the_last_position_stands_for_all_but_what_opens_the_answer(
    renderers: dict[str, Renderer], name: str, path: str, turns: list[Turn], system: str
) -> None:
    fields = body(path, [*turns, Turn("go on")], system, spelling=UNSAID)
    _, prompt, counts = bound(renderers[name], path, fields)
    assert 0 <= len(prompt.tokens) - counts[-1] <= 24


LONG = "".join(f"Line {number} says nothing new.\n" for number in range(400))
LONG_WIDE = "".join(f"Zeile {number} sagt nichts Neües über Füße. 🎉\n" for number in range(400))


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", ["scripted", "open", "tools last", "metaspace"])
@pytest.mark.parametrize("text", [LONG, LONG_WIDE], ids=["ascii", "wide"])
def test_cuts_inside_a_long_message_miss_a_few_tokens_only(
    renderers: dict[str, Renderer], name: str, path: str, text: str
) -> None:
    data = text.encode()
    whole, prompt, counts = bound(renderers[name], path, body(path, [Turn(text)], "sys"))
    for number in (1, 3, 8):
        cut = number * 1024 + 40
        turn = Turn(data[:cut].decode(errors="ignore") + "Another end.")
        chain, other, _ = bound(renderers[name], path, body(path, [turn], "sys"))
        kept = alike(whole.hashes, chain.hashes)
        assert kept == whole.items[-2] + number if path == CHAT else whole.preamble + number
        actual = alike(prompt.tokens, other.tokens)
        # Some characters have four tokens here.
        assert actual - 3 * SLACK_LENGTH <= counts[kept - 1] <= actual


def shown(path: str, text: str, pictures: int) -> dict[str, Any]:
    """Returns a user message with this many images."""
    picture: dict[str, Any] = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AA"},
    }
    if path != CHAT:
        source = {"type": "base64", "media_type": "image/png", "data": "AA"}
        picture = {"type": "image", "source": source, "image_url": "data:image/png;base64,AA"}
    if path == RESPONSES:
        picture["type"] = "input_image"
    kind = "input_text" if path == RESPONSES else "text"
    return {"role": "user", "content": [*([picture] * pictures), {"type": kind, "text": text}]}


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", ["scripted", "open", "tools last", "metaspace"])
def test_pictures_are_bound_as_the_lines_that_stand_for_them(
    renderers: dict[str, Renderer], name: str, path: str
) -> None:
    field = "input" if path == RESPONSES else "messages"
    turns = body(path, [Turn("so", ()), Turn("go on")])[field]
    other = [shown(path, LONG, 1), shown(path, LONG, 20)]
    other += [shown(path, LONG[:cut] + "Another end.", 20) for cut in range(0, 3000, 300)]
    whole, *others = (
        bound(renderers[name], path, body(path, [], "sys", **{field: [message, *turns]}))
        for message in (shown(path, LONG, 20), *other)
    )
    chain, prompt, counts = whole
    kept = [alike(chain.hashes, each.hashes) for each, _, _ in others]
    actual = [alike(prompt.tokens, each.tokens) for _, each, _ in others]
    assert all(counts[one - 1] <= two for one, two in zip(kept, actual, strict=True))
    assert len(set(kept)) > 3
    assert kept[1] == len(chain)
    assert actual[1] - counts[-1] <= 24


@pytest.mark.parametrize("name", ["scripted", "open", "tools last", "strict", "poor", "metaspace"])
def test_tools_added_within_a_session_leave_the_positions_before_them(
    renderers: dict[str, Renderer], name: str
) -> None:
    turns = body(RESPONSES, [Turn("go"), Turn("so", ()), Turn("on")])["input"]
    schema = {"type": "object", "properties": {"x": {"type": "string", "description": LONG[:3000]}}}
    function = {"type": "function", "name": "late", "parameters": schema}
    adding = {"type": "additional_tools", "role": "developer", "tools": [function]}
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [function]}
    other = {**function, "description": "Another."}
    inputs = [
        turns,
        [*turns, adding, turns[0]],
        [*turns, {**adding, "tools": [other]}, turns[0]],
        [*turns, call, found, turns[0]],
        [*turns, call, {**found, "tools": [other, function]}, turns[0]],
        [*turns, call, {**found, "tools": []}],
        [adding, *turns],
        [{**adding, "tools": [other]}, *turns],
    ]
    sides = [
        bound(renderers[name], RESPONSES, body(RESPONSES, [], "sys", input=items))
        for items in inputs
    ]
    for chain, prompt, counts in sides:
        for second, rendered, _ in sides:
            kept = alike(chain.hashes, second.hashes)
            if kept:
                assert counts[kept - 1] <= alike(prompt.tokens, rendered.tokens)
    base = sides[0]
    for later in sides[1:6]:
        assert alike(base[0].hashes, later[0].hashes) == len(base[0])
    for leading in sides[6:]:
        assert alike(base[0].hashes, leading[0].hashes) <= base[0].preamble


@pytest.mark.parametrize("path", DIALECTS)
def test_two_systems_with_a_long_begin_in_common_share_it(
    renderers: dict[str, Renderer], path: str
) -> None:
    for name in ("open", "tools last"):
        bodies = [body(path, [Turn("hi")], LONG + end) for end in ("here", "there")]
        (first, prompt, counts), (second, other, _) = (
            bound(renderers[name], path, each) for each in bodies
        )
        kept = alike(first.hashes, second.hashes)
        actual = alike(prompt.tokens, other.tokens)
        assert kept > 3
        assert actual - 1100 <= counts[kept - 1] <= actual


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("system", ["", "You help."])
def test_sessions_with_the_same_tools_and_system_share_all_of_both(
    renderers: dict[str, Renderer], path: str, system: str
) -> None:
    for name in ("open", "tools last"):
        first, prompt, counts = bound(renderers[name], path, body(path, [Turn("hi")], system))
        second, other, _ = bound(renderers[name], path, body(path, [Turn("what")], system))
        kept = alike(first.hashes, second.hashes)
        assert kept == len(first) - 1
        assert 0 <= alike(prompt.tokens, other.tokens) - counts[kept - 1] <= 8


def test_the_ends_of_items_are_where_the_prompt_is_cut(renderers: dict[str, Renderer]) -> None:
    fields = body(CHAT, [Turn("hello"), Turn("so", ()), Turn("more")], "sys", tools=[])
    _, prompt, counts = bound(renderers["open"], CHAT, fields)
    assert prompt.boundaries == tuple(counts)


def test_an_item_that_a_prompt_lacks_has_the_end_of_the_one_before(
    renderers: dict[str, Renderer],
) -> None:
    turns = [Turn("hello"), Turn("", (("read", {"path": "x"}),)), Turn("more")]
    chain, _, counts = bound(renderers["open"], CHAT, body(CHAT, turns))
    hello, called, result, more = (counts[stop - 1] for stop in chain.items)
    assert hello == called < result < more


def test_a_system_message_that_will_be_cleared_ends_what_is_bound(
    renderers: dict[str, Renderer],
) -> None:
    turns = body(MESSAGES, [Turn("hello")], "sys")["messages"]
    passing = {"role": "system", "content": "now", "clear_at": "next_user_message"}
    fields = body(MESSAGES, [], "sys", messages=[*turns, passing], tools=[])
    chain, prompt, counts = bound(renderers["open"], MESSAGES, fields)
    assert counts[-1] == counts[chain.items[0] - 1]
    assert counts[-1] in prompt.boundaries


def test_what_a_response_goes_on_from_is_bound_as_one_position(
    renderers: dict[str, Renderer],
) -> None:
    items = body(RESPONSES, [Turn("hello"), Turn("so", ()), Turn("more")])["input"]
    fields = {"model": "m", "previous_response_id": "resp_1", "input": items[-1:]}
    data = json.dumps(fields).encode()
    request = read_responses(data).with_history(History(items[:-1])).request
    prompt = renderers["open"].render(request)
    before = chain_of({"input": items[:-1]}, RESPONSES).end
    counts = position_tokens(chain_of(fields, RESPONSES, head=before), prompt.layout)
    assert len(counts) == 2
    assert tuple(counts) == prompt.boundaries[1:]


def test_an_answer_that_goes_on_is_no_item_yet(renderers: dict[str, Renderer]) -> None:
    fields = body(CHAT, [Turn("hello"), Turn("so", ())], continue_final_message=True, tools=[])
    _, prompt, counts = bound(renderers["open"], CHAT, fields)
    assert counts[0] == counts[1] == prompt.boundaries[0]


@pytest.mark.parametrize("prompt", ["a b " * 1000, list(range(2000)), "ü " * 2000])
@pytest.mark.parametrize("name", ["scripted", "open", "metaspace"])
def test_completions_are_bound_cut_by_cut(
    renderers: dict[str, Renderer], name: str, prompt: Any
) -> None:
    fields = {"model": "m", "prompt": prompt}
    chain, rendered, counts = bound(renderers[name], COMPLETIONS, fields)
    cut = {"model": "m", "prompt": prompt[: len(prompt) // 2]}
    second, other, _ = bound(renderers[name], COMPLETIONS, cut)
    kept = alike(chain.hashes, second.hashes)
    assert kept
    assert 0 < counts[kept - 1] <= alike(rendered.tokens, other.tokens)
    assert counts[-1] == len(rendered.tokens)


def test_without_places_nothing_is_known() -> None:
    chain = chain_of(body(CHAT, [Turn("hello")]), CHAT)
    assert list(position_tokens(chain, Prompt((1, 2)).layout)) == [0] * len(chain)


def test_a_template_that_changes_the_text_binds_no_cut_inside(tmp_path: Path) -> None:
    upper = OPEN.replace("{{ m.content }}", "{{ m.content | upper }}")
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), upper))
    _, _, counts = bound(renderer, CHAT, body(CHAT, [Turn(LONG)], tools=[]))
    assert set(counts[:-1]) == {0}
    assert counts[-1] > 0


def test_a_template_that_cuts_contents_binds_nothing(tmp_path: Path) -> None:
    short = OPEN.replace("{{ m.content }}", "{{ m.content[:40] }}")
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), short))
    _, prompt, counts = bound(renderer, CHAT, body(CHAT, [Turn("x" * 38)], tools=[]))
    assert (prompt.layout, counts[-1]) == (None, 0)


def test_a_message_out_of_order_binds_nothing_before_others(tmp_path: Path) -> None:
    swapped = OPEN.replace("for m in messages", "for m in messages | reverse")
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), swapped))
    turns = [Turn("one"), Turn("two", ()), Turn("three")]
    _, _, counts = bound(renderer, CHAT, body(CHAT, turns, tools=[]))
    assert counts[:2] == [0, 0]


def test_binding_costs_little_for_a_long_session(renderers: dict[str, Renderer]) -> None:
    chance = random.Random(1)
    turns = [Turn(" ".join(str(chance.random()) for _ in range(150))) for _ in range(40)]
    _, prompt, counts = bound(renderers["open"], CHAT, body(CHAT, turns, tools=[]))
    assert prompt.layout is not None
    assert all(len(item.stretches) == 1 for item in prompt.layout.items)
    assert replace(prompt, layout=None) == prompt
    assert counts[-1] > 1000
