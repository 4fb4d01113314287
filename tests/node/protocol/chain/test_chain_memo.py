"""Tests for node.protocol.chain.chain_memo."""

import json
from array import array
from typing import Any

import msgspec
import pytest

from node.protocol.chain import bodies
from node.protocol.chain.chain_memo import ChainMemo, ItemChain, item_ends
from node.protocol.chain.prefix import PrefixHasher
from tests.node.protocol.bodies import MESSAGES, chain_of

KEY = (b"begin",)
SESSIONS, TURNS = 16, 6


def marked(session: int, count: int) -> dict[str, Any]:
    """An Anthropic body of so many messages, the last and the last but two marked for caching."""
    texts = ["the same begin " * 300] + [f"{session} says {number} " * 20 for number in range(80)]
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": text}]}
        for number, text in enumerate(texts[:count])
    ]
    for number in {-1, max(-3, -count)}:
        messages[number]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"model": "m", "system": "sys", "messages": messages}


def made_of(items: list[str], hashes: list[int]) -> ItemChain:
    """A list of items with a position each."""
    numbers = array("I", range(2, len(items) + 2))
    text = ("[" + ", ".join(items)).encode()
    sizes = array("I", [8 * number for number in range(1, len(items) + 2)])
    return ItemChain(text, array("Q", [1, *hashes]), sizes, numbers)


def test_a_session_is_stored_once_however_its_marks_of_caching_move() -> None:
    prefix_hasher = PrefixHasher()
    for turn in range(TURNS):
        for session in range(SESSIONS):
            body = marked(session, 61 + 2 * turn)
            assert chain_of(body, MESSAGES, prefix_hasher) == chain_of(body, MESSAGES)
    (family,) = prefix_hasher._memo._families.values()
    assert len(family) == SESSIONS
    assert {len(made.items) for made in family} == {61 + 2 * (TURNS - 1)}


def test_what_moved_marks_leave_alike_is_found_among_many_sessions() -> None:
    prefix_hasher = PrefixHasher()
    for session in range(SESSIONS):
        chain_of(marked(session, 61), MESSAGES, prefix_hasher)
    (key,) = prefix_hasher._memo._families
    for session in range(SESSIONS):
        text = json.dumps(marked(session, 63)["messages"]).encode()
        found = prefix_hasher._memo.longest(key, text)
        assert found is not None
        # The last three of the earlier turn are spelled anew: one lost its mark.
        assert len(found.items) == 58
        assert text.startswith(found.text + b", ")


def test_each_of_many_sessions_that_begin_alike_is_found() -> None:
    memo = ChainMemo(1 << 24)
    lists = [
        made_of(['"same"', f'"{number * 7919 % 1000}"'], [2, 1000 + number])
        for number in range(1000)
    ]
    for made in lists:
        memo.put(KEY, made)
    for made in lists:
        assert memo.longest(KEY, made.text + b"]") is made
        longer = memo.longest(KEY, made.text + b', "more"]')
        assert longer is made


def test_the_session_that_was_used_last_is_dropped_last() -> None:
    memo = ChainMemo(8_000)
    first, *others = [made_of([f'"{number}"'], [100 + number]) for number in range(20)]
    memo.put(KEY, first)
    for made in others:
        memo.put(KEY, made)
        assert memo.longest(KEY, b'["0"]') is first
    assert memo._used_bytes <= 8_000
    assert memo.longest(KEY, b'["1"]') is None


def test_the_longest_begin_counts_whichever_was_made_last() -> None:
    memo = ChainMemo(1 << 20)
    memo.put(KEY, made_of(['"a"', '"b"', '"c"'], [2, 3, 4]))
    memo.put(KEY, made_of(['"a"', '"x"'], [2, 5]))
    found = memo.longest(KEY, b'["a", "b", "d"]')
    assert found is not None
    assert (found.text, list(found.hashes), list(found.items)) == (b'["a", "b"', [1, 2, 3], [2, 3])


def test_texts_that_differ_within_the_first_item_have_nothing_in_common() -> None:
    memo = ChainMemo(1 << 20)
    memo.put(KEY, made_of(['"abc"', '"b"'], [2, 3]))
    assert memo.longest(KEY, b'["abd", "b"]') is None


def test_what_many_prompts_begin_with_is_made_and_stored_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bytes] = []

    def tools_of(raw: msgspec.Raw) -> bytes:
        made.append(bytes(raw))
        return b"tools"

    monkeypatch.setattr(bodies, "_tools_of_anthropic", tools_of)
    prefix_hasher, tools = PrefixHasher(), [{"name": "read", "description": "about it " * 5000}]
    for number in range(20):
        for count in (1, 2):
            body = {**marked(number, 61), "tools": tools}
            body["messages"] = body["messages"][1 : 1 + count]
            chain_of(body, MESSAGES, prefix_hasher)
    assert len(made) == 1
    assert len(made[0]) < prefix_hasher._memo._used_bytes < 2 * len(made[0])


def test_a_preamble_counts_and_is_evicted_when_least_recently_used() -> None:
    memo = ChainMemo(11_000)
    numbers = array("Q", [1]), array("I", [8])
    for name in (b"a", b"b"):
        memo.put_preamble((b"begin", name * 3000), numbers)
    memo.put(KEY, made_of(['"a"'], [2]))
    assert memo.preamble((b"begin", b"a" * 3000)) == numbers
    memo.put_preamble((b"begin", b"c" * 3000), numbers)
    assert memo.preamble((b"begin", b"b" * 3000)) is None
    assert memo.preamble((b"begin", b"a" * 3000)) == numbers
    assert memo.longest(KEY, b'["a"]') is not None
    assert 6000 < memo._used_bytes <= 11_000
    memo.put_preamble((b"begin", b"d" * 11_000), numbers)
    assert memo._used_bytes == 0
    assert memo.preamble((b"begin", b"a" * 3000)) is None


def test_only_what_goes_on_from_a_chain_takes_its_place() -> None:
    memo = ChainMemo(1 << 20)
    for items, hashes in (
        (['"a"'], [2]),
        (['"a"', '"b"'], [2, 3]),
        (['"a"', '"c"'], [2, 4]),
        (['"a" ', '"b"', '"d"'], [2, 3, 5]),
    ):
        memo.put(KEY, made_of(items, hashes))
    assert [list(made.hashes) for made in memo._families[KEY]] == [[1, 2, 4], [1, 2, 3, 5]]


def test_all_that_is_stored_counts_and_no_more_is_stored_than_may_be() -> None:
    memo = ChainMemo(1 << 16)
    for number in range(40):
        made = made_of([f'"{number}"'] * 300, list(range(number * 1000, number * 1000 + 300)))
        memo.put(KEY, made)
        family = memo._families[KEY]
        numbers = sum(20 * len(each.items) + len(each.text) for each in family)
        assert numbers < memo._used_bytes <= 1 << 16
    assert len(family) > 1


def test_an_end_is_found_behind_any_white_space() -> None:
    text = b'[ "a"\n,\t{"b": [1, 2]} , "c" ]'
    assert list(item_ends(text, 1)) == [5, 21, 27]
    assert list(item_ends(text, 5)) == [21, 27]
