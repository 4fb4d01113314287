"""Prefix chains: what keeps them, what parts them."""

import base64
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocol.chain.prefix import (
    PIECE_BYTES,
    Chain,
    OutputCall,
    OutputText,
    PrefixHasher,
    ResponseOutput,
    chain_with_output,
    read_fields,
)
from node.protocol.chain.prefix import read_fields as fields_of
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
    answer_of,
    body,
    chain_of,
    shuffled,
)

BILLING = "x-anthropic-billing-header: cc_version=1; cch=4ab;\n"
HELLO = [Turn("hello")]

OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
each_dialect = pytest.mark.parametrize("path", DIALECTS)
few = settings(max_examples=40, deadline=None)


def begins(longer: Chain, shorter: Chain) -> bool:
    return longer.hashes[: len(shorter)] == shorter.hashes


def shared(first: Chain, second: Chain) -> int:
    pairs = zip(first.hashes, second.hashes, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(first))


@each_dialect
@given(turns=CONVERSATION, more=CONVERSATION, system=st.just("") | TEXT)
@few
def test_appending_messages_keeps_every_earlier_hash(
    path: str, turns: list[Turn], more: list[Turn], system: str
) -> None:
    short = chain_of(body(path, turns, system), path)
    long = chain_of(body(path, [*turns, *more], system), path)
    assert begins(long, short)
    assert long.items[: len(short.items)] == short.items
    assert long.sizes[: len(short)] == short.sizes
    assert len(long) > len(short)
    assert len(set(long.hashes)) == len(long)
    assert list(long.sizes) == sorted(set(long.sizes))


@each_dialect
@given(turns=CONVERSATION, seed=st.integers(0, 99), system=st.just("") | TEXT)
@few
def test_the_order_of_keys_and_white_space_do_not_matter(
    path: str, turns: list[Turn], seed: int, system: str
) -> None:
    plain = body(path, turns, system, chat_template_kwargs={"a": 1, "b": {"c": 2, "d": 3}})
    other = shuffled(plain, random.Random(seed))
    spaced = json.dumps(other, indent=seed % 4, separators=(" ,", " :  "), ensure_ascii=False)
    assert chain_of(spaced.encode(), path) == chain_of(plain, path)


@each_dialect
@given(turns=CONVERSATION, system=st.just("") | TEXT, parts=st.booleans())
@few
def test_ids_reasoning_marks_of_caching_and_volatile_lines_do_not_matter(
    path: str, turns: list[Turn], system: str, *, parts: bool
) -> None:
    other = Spelling("toolu", parts, reasoning=False, cached=parts, volatile=BILLING)
    first = chain_of(body(path, turns, system), path)
    second = chain_of(body(path, turns, system, spelling=other), path)
    assert (first.hashes, first.preamble) == (second.hashes, second.preamble)


@each_dialect
@given(turns=CONVERSATION, at=st.integers(0, 9), cut=st.integers(0, 5000), system=TEXT)
@few
def test_a_changed_byte_changes_everything_after_it_and_nothing_before(
    path: str, turns: list[Turn], at: int, cut: int, system: str
) -> None:
    users = [i for i, turn in enumerate(turns) if turn.calls is None]
    number = users[at % len(users)]
    text = turns[number].text
    place = cut % len(text)
    changed = text[:place] + ("#" if text[place] != "#" else "+") + text[place + 1 :]
    before = chain_of(body(path, turns[:number], system), path)
    first = chain_of(body(path, turns, system), path)
    second = chain_of(
        body(path, [*turns[:number], Turn(changed), *turns[number + 1 :]], system), path
    )
    kept = shared(first, second)
    assert kept >= len(before)
    assert not set(first.hashes[kept:]) & set(second.hashes[kept:])
    # Whole pieces before the changed one are kept, and the changed one is not.
    ahead = len(text[:place].encode())
    begin = before.sizes[-1] if before.sizes else 0
    assert first.sizes[kept] > begin + ahead
    assert kept == len(before) or first.sizes[kept - 1] <= begin + 400 + ahead


@each_dialect
@given(turns=CONVERSATION, answer=ANSWER, system=st.just("") | TEXT)
@few
def test_the_answered_chain_is_that_of_the_answer_given_back(
    path: str, turns: list[Turn], answer: Turn, system: str
) -> None:
    before = [*turns, Turn("go on")]
    longer = chain_with_output(chain_of(body(path, before, system), path), answer_of(path, answer))
    back = Spelling("other", parts=True)
    following = chain_of(body(path, [*before, answer, Turn("and")], system, spelling=back), path)
    assert begins(following, longer)
    assert longer.sizes == following.sizes[: len(longer)]
    assert longer.items[-1] == len(longer)
    assert len(longer) > len(chain_of(body(path, before, system), path))


@each_dialect
@given(turns=CONVERSATION, system=st.just("") | TEXT)
@few
def test_a_memo_gives_what_no_memo_gives(path: str, turns: list[Turn], system: str) -> None:
    remembers, forgets = PrefixHasher(), PrefixHasher(memo_bytes=2000)
    for count in range(1, len(turns) + 1):
        prefix = body(path, turns[:count], system)
        fresh = chain_of(prefix, path)
        for prefix_hasher in (remembers, remembers, forgets):
            assert chain_of(prefix, path, prefix_hasher) == fresh


@each_dialect
def test_turns_forks_and_repeats_of_long_sessions_are_unchanged_by_the_memo(
    path: str,
) -> None:
    chance = random.Random(2)
    turns = [
        Turn(f"{number} " * 300, None if number % 2 == 0 else (("read", {"path": str(number)}),))
        for number in range(12)
    ]
    remembers, forgets = PrefixHasher(), PrefixHasher(memo_bytes=30_000)
    for _ in range(60):
        kept = turns[: chance.randrange(1, 12)]
        fork = [Turn(f"fork {chance.randrange(3)} " * 200)] * chance.randrange(2)
        sent = body(path, [*kept, *fork], "sys " * chance.choice([1, 500]))
        text = json.dumps(sent, indent=chance.choice([None, None, 1])).encode()
        fresh = chain_of(text, path)
        assert chain_of(text, path, remembers) == fresh
        assert chain_of(text, path, forgets) == fresh


def test_the_memo_is_bounded_however_many_sessions_begin_alike() -> None:
    prefix_hasher = PrefixHasher(memo_bytes=100_000)
    for number in range(50):
        chain_of(body(CHAT, [Turn("same " * 1000), Turn(str(number), ())]), CHAT, prefix_hasher)
    (family,) = prefix_hasher._memo._families.values()
    assert 10 < len(family) < 20
    assert prefix_hasher._memo._used_bytes <= 100_000


@each_dialect
def test_salt_model_and_template_variables_part_everything(path: str) -> None:
    sent = body(path, HELLO, "sys")
    fields = fields_of(json.dumps(sent).encode())
    chains = [
        PrefixHasher().chain(fields, path, "m"),
        PrefixHasher().chain(fields, path, "other"),
        PrefixHasher().chain(fields, path, "m", salt="s"),
        chain_of({**sent, "enable_thinking": True}, path),
        chain_of({**sent, "enable_thinking": False}, path),
        chain_of({**sent, "chat_template_kwargs": {"date": "today"}}, path),
    ]
    every = [number for chain in chains if chain is not None for number in chain.hashes]
    assert len(chains[0] or ()) * len(chains) == len(every) == len(set(every))


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        (CHAT, {"enable_thinking": False}, {"thinking": {"type": "disabled"}}),
        (CHAT, {"enable_thinking": False}, {"reasoning_effort": "none"}),
        (CHAT, {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (CHAT, {"tools": []}, {"tool_choice": "none"}),
        (CHAT, {}, {"tool_choice": "required", "temperature": 0.1, "seed": 5, "stream": False}),
        (MESSAGES, {"enable_thinking": True}, {"thinking": {"type": "adaptive"}}),
        (MESSAGES, {"tools": None}, {"tool_choice": {"type": "none"}}),
        (RESPONSES, {"tools": []}, {"tool_choice": "none"}),
        (RESPONSES, {"input": "hi"}, {"input": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_two_ways_to_request_the_same_prompt_have_one_chain(
    path: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    turns = [Turn("hi")]
    assert chain_of(body(path, turns, **first), path) == chain_of(body(path, turns, **second), path)


def test_all_dialects_have_one_chain_for_one_prompt() -> None:
    turns = [Turn("hello"), Turn("so", (("read", {"path": "x"}),)), Turn("more")]
    chains = [chain_of(body(path, turns[:1], "sys"), path) for path in DIALECTS]
    assert all(chain.hashes == chains[0].hashes for chain in chains)
    # A system prompt that is a field is no item.
    assert [(len(chain.items), chain.preamble) for chain in chains] == [(2, 1), (1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("ours", "chats"),
    [
        ({}, {}),
        ({"think": True}, {"enable_thinking": True}),
        ({"think": False}, {"reasoning_effort": "none"}),
        ({"think": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"options": {"seed": 1}, "keep_alive": 5, "think": None}, {"seed": 1}),
    ],
)
@given(turns=CONVERSATION)
def test_a_chat_of_ollama_s_has_the_chain_of_a_chat(
    ours: dict[str, Any], chats: dict[str, Any], turns: list[Turn]
) -> None:
    known = chain_of(body(CHAT, turns, "sys", **chats), CHAT)
    spelled = body(CHAT, turns, "sys", **ours)
    for message in spelled["messages"]:
        if message["role"] == "tool":
            message["tool_name"] = message.pop("tool_call_id")
        for call in message.get("tool_calls", ()):
            del call["id"]
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert chain_of(spelled, OLLAMA_CHAT) == known


def test_a_picture_of_ollama_s_is_the_line_of_a_chat_s() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    parts = [image, {"type": "text", "text": "a"}]
    for role in ("user", "assistant"):
        theirs = {"messages": [{"role": role, "content": "a", "images": ["eA=="]}]}
        ours = {"messages": [{"role": role, "content": parts}]}
        assert chain_of(theirs, OLLAMA_CHAT) == chain_of(ours, CHAT)


def test_a_prompt_of_ollama_s_has_the_chain_of_a_user_s_message_or_of_a_completion() -> None:
    messages = [{"role": "system", "content": "sys"}, {"role": "user", "content": "hi"}]
    chat = chain_of({"messages": messages}, CHAT)
    generate = chain_of({"system": "sys", "prompt": "hi", "images": None}, OLLAMA_GENERATE)
    assert (generate.hashes, generate.preamble) == (chat.hashes, 1)
    raw = chain_of({"prompt": "hi", "raw": True}, OLLAMA_GENERATE)
    assert raw.hashes == chain_of({"prompt": "hi"}, COMPLETIONS).hashes


@given(text=TEXT, more=TEXT)
@few
def test_a_longer_message_keeps_the_cuts_inside(text: str, more: str) -> None:
    short = chain_of(body(CHAT, [Turn(text)]), CHAT)
    long = chain_of(body(CHAT, [Turn(text + more)]), CHAT)
    whole = (1 + len(text.encode())) // PIECE_BYTES
    assert begins(long, short) == (more == "")
    assert shared(short, long) >= short.preamble + whole


def chat_of(role: str, content: object, **fields: object) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": content, **fields}]}).encode()


def call(arguments: object) -> bytes:
    function = {"name": "f", "arguments": arguments}
    return chat_of("assistant", None, tool_calls=[{"function": function}])


def image(url: str) -> bytes:
    return chat_of("user", [{"type": "image_url", "image_url": {"url": url}}])


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (chat_of("user", "a"), chat_of("user", [{"type": "text", "text": "a"}])),
        (
            chat_of("assistant", "ab"),
            chat_of("assistant", [{"type": "text", "text": x} for x in "ab"]),
        ),
        (chat_of("assistant", "no"), chat_of("assistant", None, refusal="no")),
        (chat_of("system", "a\n"), chat_of("system", "x-anthropic-billing-header: 1\na\n")),
        (chat_of("tool", "a", tool_call_id="1"), chat_of("tool", "a", tool_call_id="2")),
        (call('{"a": 1, "b": 2}'), call('{"b":2,"a":1}')),
        (call('{"a": 1}'), call({"a": 1})),
        (call(""), call("{}")),
        (call("{}"), call(None)),
        (image(data_url(b"pixels")), image(data_url(b"pixels", "image/webp"))),
        (image(data_url(b"pixels")), image("https://x/1")),
        (image("https://x/1"), chat_of("user", "[image left out: this model takes text only]")),
    ],
)
def test_these_are_the_same(first: bytes, second: bytes) -> None:
    assert chain_of(first, CHAT) == chain_of(second, CHAT)


PAIRS = [
    (chat_of("user", "a"), chat_of("assistant", "a")),
    (chat_of("system", "a"), chat_of("developer", "a")),
    (chat_of("user", "a"), chat_of("user", "a", name="bob")),
    (chat_of("user", "aNbob"), chat_of("user", "a", name="bob")),
    (chat_of("user", "ab"), chat_of("user", [{"type": "text", "text": each} for each in "ab"])),
    (
        chat_of("user", "x-anthropic-billing-header: 1"),
        chat_of("user", "x-anthropic-billing-header: 2"),
    ),
    (call('{"a": 1'), call('{"a": 2')),
    (call('{"a": 1'), call({"a": 1})),
    (image("https://x/1"), chat_of("user", [{"type": "input_audio"}])),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_these_are_not_the_same(first: bytes, second: bytes) -> None:
    assert shared(chain_of(first, CHAT), chain_of(second, CHAT)) == 0


def test_one_message_of_two_texts_is_not_two_messages() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    two = chain_of({"messages": turns}, CHAT)
    one = chain_of(chat_of("user", "a\nb"), CHAT)
    assert (len(two.items), len(one.items), shared(two, one)) == (2, 1, 0)


def test_a_system_message_of_volatile_lines_alone_has_no_position() -> None:
    messages = [{"role": "system", "content": BILLING}, {"role": "user", "content": "a"}]
    chain = chain_of({"messages": messages}, CHAT)
    assert list(chain.items) == [0, 1]
    assert chain.hashes == chain_of(chat_of("user", "a"), CHAT).hashes


def test_the_blocks_of_an_anthropic_message_count_as_the_prompt_shows_them() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "r"}
    text = {"type": "text", "text": "a"}

    def chain(*blocks: dict[str, Any]) -> Chain:
        return chain_of({"messages": [{"role": "user", "content": list(blocks)}]}, MESSAGES)

    assert chain(result, text) == chain(text, result)
    assert chain({"type": "text", "text": ""}, text, result) == chain(text, result)
    assert chain(result) != chain({**result, "is_error": True})
    document = {"type": "document", "source": {"type": "text", "data": "a"}}
    assert chain(document) == chain(text)
    pictured = {"type": "base64", "media_type": "image/png", "data": "cGl4ZWxz"}
    assert chain({"type": "image", "source": pictured}) != chain(text)


def test_a_reference_to_an_item_counts_by_its_id() -> None:
    first, second = (
        chain_of({"input": [{"type": "item_reference", "id": each}]}, RESPONSES) for each in "ab"
    )
    assert first.hashes != second.hashes


def test_a_function_of_a_namespace_counts_by_the_name_the_model_knows() -> None:
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    inside = chain_of({"input": [{**item, "namespace": "n"}]}, RESPONSES)
    assert inside == chain_of({"input": [{**item, "name": "n__f"}]}, RESPONSES)
    function = {"type": "function", "name": "f", "parameters": {}}
    spaced = {"type": "namespace", "name": "n", "tools": [function]}
    alone = chain_of({"input": "a", "tools": [function]}, RESPONSES)
    assert alone != chain_of({"input": "a", "tools": [spaced]}, RESPONSES)


def test_a_response_goes_on_from_the_chain_before_as_if_it_had_all_been_sent() -> None:
    turns = [Turn("hello"), Turn("so", (("read", {"path": "x"}),), "thought"), Turn("more")]
    whole = chain_of(body(RESPONSES, turns, "sys"), RESPONSES)
    items = body(RESPONSES, turns)["input"]
    first = chain_of(body(RESPONSES, turns[:1], "sys"), RESPONSES)
    answered = chain_with_output(first, answer_of(RESPONSES, turns[1]))
    after = body(RESPONSES, turns, "sys", input=items[-2:], previous_response_id="r")
    following = chain_of(after, RESPONSES, head=answered.end)
    assert following.preamble == 1
    assert following.hashes == whole.hashes[len(answered) - 1 :]
    assert following.sizes == whole.sizes[len(answered) - 1 :]
    assert list(following.items) == [2, 3]
    assert following.end == whole.end
    del after["input"]
    nothing = chain_of(after, RESPONSES, head=answered.end)
    assert nothing.hashes == answered.hashes[-1:]
    assert (nothing.preamble, len(nothing.items)) == (1, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"instructions": "others"},
        {"instructions": None},
        {"tools": []},
        {"tool_choice": "none"},
        {"reasoning": {"effort": "high"}},
        {"chat_template_kwargs": {"a": 1}},
        {"model": "other"},
        {"salt": "s"},
    ],
    ids=str,
)
def test_what_begins_in_another_way_does_not_go_on_from_a_chain(other: dict[str, Any]) -> None:
    sent = body(RESPONSES, [Turn("hello")], "sys")
    end = chain_of(sent, RESPONSES).end
    after = {"model": "m", "salt": "", **sent, "previous_response_id": "r"}

    def goes_on(given: dict[str, Any]) -> bool:
        fields, salt = read_fields(json.dumps(given).encode()), given["salt"]
        return (
            PrefixHasher().chain(fields, RESPONSES, given["model"], salt=salt, head=end) is not None
        )

    assert goes_on(after)
    assert not goes_on({**after, **other})


@pytest.mark.parametrize("wrong", [{"hash": -1}, {"hash": 1 << 64}, {"size_bytes": 1 << 32}])
def test_there_is_nothing_to_go_on_from_a_head_that_is_none(wrong: dict[str, int]) -> None:
    fields = read_fields(json.dumps(body(RESPONSES, [Turn("hello")], "sys")).encode())
    made = PrefixHasher().chain(fields, RESPONSES, "m")
    assert made is not None and made.end is not None
    head = made.end._replace(**wrong)
    assert PrefixHasher().chain(fields, RESPONSES, "m", head=head) is None


def test_completions_are_texts_or_token_ids() -> None:
    text = chain_of({"prompt": "abc"}, COMPLETIONS)
    assert text == chain_of({"prompt": ["abc"]}, COMPLETIONS)
    ids = chain_of({"prompt": list(range(1000))}, COMPLETIONS)
    assert ids == chain_of({"prompt": [list(range(1000))]}, COMPLETIONS)
    assert (len(text), len(ids), list(ids.items)) == (1, 4, [4])
    longer = chain_of({"prompt": list(range(1001))}, COMPLETIONS)
    assert shared(ids, longer) == 3
    assert chain_with_output(text, ResponseOutput(COMPLETIONS, [OutputText("d")])) == text


def test_an_empty_answer_is_an_item_of_a_chat_and_none_of_a_response() -> None:
    chat = chain_of(body(CHAT, HELLO), CHAT)
    empty = [*body(CHAT, HELLO)["messages"], {"role": "assistant", "content": ""}]
    assert chain_with_output(chat, ResponseOutput(CHAT, [])) == chain_of(
        {**body(CHAT, []), "messages": empty}, CHAT
    )
    response = chain_of(body(RESPONSES, HELLO), RESPONSES)
    assert chain_with_output(response, ResponseOutput(RESPONSES, [OutputText("")])) == response
    texts: list[OutputText | OutputCall] = [OutputText("a"), OutputCall("f", "{}"), OutputText("b")]
    assert len(chain_with_output(response, ResponseOutput(RESPONSES, texts)).items) == 4


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/embeddings", {"input": "a"}),
        (CHAT, {}),
        (CHAT, {"messages": "a"}),
        (CHAT, {"messages": [1]}),
        (CHAT, {"messages": [{"role": "wizard"}]}),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "smell"}]}]}),
        (CHAT, {"messages": [], "tools": 5}),
        (COMPLETIONS, {}),
        (COMPLETIONS, {"prompt": None}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        (COMPLETIONS, {"prompt": [-1]}),
        (MESSAGES, {"messages": [{"role": "tool", "content": "a"}]}),
        (MESSAGES, {"messages": None}),
        (MESSAGES, {"messages": [], "system": 5}),
        (RESPONSES, {}),
        (RESPONSES, {"input": [{"type": "smell_call"}]}),
        (RESPONSES, {"input": [{"role": "wizard", "content": "a"}]}),
    ],
)
def test_a_body_that_an_endpoint_refuses_has_no_chain(path: str, given: dict[str, Any]) -> None:
    fields = fields_of(json.dumps(given).encode())
    assert PrefixHasher().chain(fields, path, "m") is None


@pytest.mark.parametrize("data", [b"", b"[]", b'"a"', b"{", b'{"a"}', b'{"\xff": 1}'])
def test_fields_are_those_of_a_json_object(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        fields_of(data)


def test_the_head_of_an_empty_chain_is_nothing() -> None:
    chain = chain_of({"messages": []}, CHAT)
    assert (len(chain), chain.head) == (0, 0)
