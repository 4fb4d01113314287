"""Tests for router.api.tickets."""

import json
from typing import Any

import pytest

from node.protocol.chain.prefix import (
    OutputText,
    PrefixHasher,
    ResponseOutput,
    chain_with_output,
    read_fields,
)
from node.protocol.messages import Stored
from router.api.body_room import BodyRoom
from router.api.tickets import THREAD_BYTES, Tickets, takes_long
from router.types import Ticket
from tests.router.api.test_responses import item_id, response_id
from tests.router.conftest import AddNode, RunningRouter, silent

RESPONSES = "/v1/responses"


def chat(count: int, length: int) -> bytes:
    messages = [{"role": "user", "content": "x" * length} for _ in range(count)]
    return json.dumps({"model": "m", "messages": messages}).encode()


@pytest.mark.parametrize(
    ("body", "long"),
    [
        (chat(1, THREAD_BYTES), True),
        (chat(1, THREAD_BYTES - 1000), False),
        (chat(200, 3000), False),
        (chat(7000, 20), True),
        (chat(2000, 20), False),
    ],
    ids=["large", "one message", "a session", "many messages", "short"],
)
def test_a_chain_is_made_in_a_thread_where_it_would_stall_the_loop(body: bytes, long: bool) -> None:
    assert takes_long(body) is long


async def ticket(router: RunningRouter, **fields: Any) -> Ticket:
    body = json.dumps({"model": "m", **fields}).encode()
    tickets = Tickets(router.core, BodyRoom())
    return await tickets.next(await tickets.read(router.caller(), RESPONSES, (), body, 0.0))


async def test_what_goes_on_from_a_response_has_the_chain_of_the_whole_conversation(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    name = response_id(router)
    first = await ticket(router, input="hello", instructions="Be brief.")
    assert first.chain is not None
    end = chain_with_output(first.chain, ResponseOutput(RESPONSES, [OutputText("so")])).end
    assert end is not None
    router.core.prefixes.on_stored(Stored(name, "r/k", *end))
    continuation: dict[str, Any] = {"previous_response_id": name, "input": "more"}
    items = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "more"},
    ]
    whole = await ticket(router, input=items, instructions="Be brief.")
    assert whole.chain is not None and whole.is_whole
    following = await ticket(router, **continuation, instructions="Be brief.")
    assert following.chain is not None and following.is_whole
    assert name.endswith(f"-{following.follows}") and following.follows
    assert following.chain.hashes == whole.chain.hashes[-2:]
    assert following.chain.sizes == whole.chain.sizes[-2:]
    for other in ({"instructions": "Be long."}, {"previous_response_id": name[:-1] + "2"}):
        given = {**continuation, "instructions": "Be brief.", **other}
        alone = await ticket(router, **given)
        fields = read_fields(json.dumps(given).encode())
        assert alone.chain == PrefixHasher().chain(fields, RESPONSES, "m") and not alone.is_whole


async def test_a_chain_of_what_refers_to_stored_items_is_not_the_whole_prompt_s(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    name = response_id(router)
    items = [
        {"type": "item_reference", "id": item_id(router, "a")},
        {"role": "user", "content": "x"},
    ]
    referring = await ticket(router, input=items)
    assert referring.pinned_node_id and not referring.is_whole
    router.core.prefixes.on_stored(Stored(name, "r/k", hash=5, front=0, size_bytes=100))
    both = await ticket(router, input=items, previous_response_id=name)
    assert both.pinned_node_id and not both.is_whole
    assert (await ticket(router, input=items[1:])).is_whole
