"""Tests the costs of requests to paid servers, and whose budget is charged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from node.protocol.chain.prefix import PrefixHasher, read_fields
from router.errors import PaidBudgetUsed
from router.fleet.fleet import Fleet
from router.prices import Prices
from router.records.outcomes import (
    OUTCOME_CANCELLED,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
    OUTCOME_SERVED,
    UnreportedAttempt,
)
from router.routing.paid_budgets import (
    OUTPUT_TOKENS,
    TOKENS_PER_BYTE,
    Budgets,
    month_s,
    next_month_s,
)
from router.types import Caller, Target, Ticket, Tokens
from tests.fakes import FakeClock
from tests.router.conftest import CHAT, lease, model_status, node_record, node_status, ticket

CLOUD = Target("m", is_paid=True)
NEW_YEAR_S = datetime(2027, 1, 1, tzinfo=UTC).timestamp()


class World:
    """A paid server at 2 and 10 a million tokens, 1 for cached ones, an hour before midnight."""

    def __init__(self, spent: float = 0.0) -> None:
        self.fleet = Fleet()
        prices = {"input": 2.0, "output": 10.0, "cached": 1.0}
        self.fleet.add(replace(node_record("http://p", "p", "openai"), prices=prices))
        self.fleet.on_status("id-p", node_status(model_status("m")))
        self.clock = FakeClock(NEW_YEAR_S - 3600)
        charged = {"key-1": spent} if spent else {}
        self.budgets = Budgets(self.fleet, charged, self.clock, lambda _lease, _cost: None)

    def charge(self, ticket: Ticket, outcome: str, **fields: Any) -> float | None:
        attempt = UnreportedAttempt(outcome, **fields)
        return self.budgets.charge(ticket, lease(node_id="id-p"), attempt)


def caller(budget: float | None = 1.0) -> Caller:
    return msgspec.structs.replace(ticket().caller, paid_budget=budget)


def paid(cost_bound: float = 0.5, request_id: str = "r") -> Ticket:
    return ticket(request_id, cost_bound=cost_bound, caller=caller())


def test_the_estimated_cost_of_a_request_is_that_of_its_prompt_and_its_longest_answer() -> None:
    budgets = World().budgets
    body = {"messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 100}
    fields = read_fields(json.dumps(body).encode())
    chain = PrefixHasher().chain(fields, CHAT, "m")
    assert chain is not None
    prompt = chain.sizes[-1] * TOKENS_PER_BYTE
    expected = pytest.approx((prompt * 2 + 100 * 10) / 1e6, rel=1e-3)
    assert budgets.cost_bound(CLOUD, fields, chain) == expected
    three = fields | read_fields(b'{"n":3}')
    assert budgets.cost_bound(CLOUD, three, chain) == pytest.approx(
        (prompt * 2 + 300 * 10) / 1e6, rel=1e-3
    )
    without = {name: value for name, value in fields.items() if name != "max_tokens"}
    assert budgets.cost_bound(CLOUD, without, chain) == pytest.approx(
        (prompt * 2 + OUTPUT_TOKENS * 10) / 1e6, rel=1e-3
    )
    assert budgets.cost_bound(Target("m"), fields, chain) == 0.0


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        (b'{"prompt":"x","max_tokens":100}', 1),
        (b'{"prompt":[1,2,3],"max_tokens":1e2}', 1),
        (b'{"prompt":["x","y"],"max_tokens":100,"n":3}', 6),
        (b'{"prompt":[[1],[2]],"max_tokens":100,"n":1,"best_of":5}', 10),
    ],
)
def test_each_answer_to_each_prompt_costs(body: bytes, answers: int) -> None:
    fields = read_fields(body)
    chain = PrefixHasher().chain(fields, "/v1/completions", "m")
    cost = World().budgets.cost_bound(CLOUD, fields, chain)
    assert cost == pytest.approx(answers * 100 * 10 / 1e6, rel=0.1)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [(b'{"num_predict":100}', 100), (b'{"num_predict":-1}', OUTPUT_TOKENS), (b"7", OUTPUT_TOKENS)],
)
def test_a_limit_may_be_one_of_ollama_s_options(options: bytes, tokens: int) -> None:
    fields = read_fields(b'{"messages":[],"options":%b}' % options)
    cost = World().budgets.cost_bound(CLOUD, fields, None)
    assert cost == pytest.approx(tokens * 10 / 1e6, rel=0.1)


@pytest.mark.parametrize("value", [b"0", b"-5", b"null", b'"9"', b"[]", b"1e999", b"true"])
def test_a_limit_that_is_none_is_as_if_it_were_not_there(value: bytes) -> None:
    fields = read_fields(b'{"max_tokens":%b,"max_output_tokens":7}' % value)
    cost = World().budgets.cost_bound(CLOUD, fields, None)
    assert cost < 100 * 10 / 1e6


def test_what_the_router_cannot_read_counts_by_its_length() -> None:
    fields = read_fields(b'{"prompt":["%b",[1]],"max_tokens":1}' % (b"x" * 100_000))
    cost = World().budgets.cost_bound(CLOUD, fields, None)
    assert cost == pytest.approx(100_000 * TOKENS_PER_BYTE * 2 / 1e6, rel=0.01)


def test_cached_tokens_have_their_own_price_where_there_is_one() -> None:
    assert Prices(2.0, 10.0, 1.0).cost(1_000_000, 400_000, 100_000) == pytest.approx(2.6)
    assert Prices(2.0, 10.0).cost(1_000_000, 400_000, 100_000) == pytest.approx(3.0)


def test_a_request_that_might_exceed_the_budget_is_refused() -> None:
    world = World(spent=0.4)
    world.budgets.check(caller(), 0.6)
    with pytest.raises(PaidBudgetUsed, match=r"1 a month, 0.60 is left, .* cost 0.61") as raised:
        world.budgets.check(caller(), 0.61)
    assert raised.value.retry_after_s == 3600
    assert "2027-01-01" in raised.value.message


def test_what_requests_in_flight_may_cost_is_reserved() -> None:
    world = World()
    reserved = (paid(0.5, "1"), paid(0.4, "2"))
    for each in reserved:
        world.budgets.reserve(each)
    world.budgets.check(caller(), 0.1)
    with pytest.raises(PaidBudgetUsed):
        world.budgets.check(caller(), 0.2)
    other = msgspec.structs.replace(caller(), key_id="key-2")
    world.budgets.check(other, 1.0)
    # The first one goes on to a model that is free.
    world.budgets.reserve(msgspec.structs.replace(reserved[0], cost_bound=None))
    world.budgets.check(caller(), 0.6)
    world.budgets.release(reserved[1])
    world.budgets.check(caller(), 1.0)


def test_an_answer_costs_what_its_server_reports() -> None:
    world = World()
    tokens = Tokens(prompt=100_000, cached=50_000, completion=10_000)
    assert world.charge(paid(), OUTCOME_SERVED, tokens=tokens) == pytest.approx(0.25)
    assert world.budgets.spent("key-1") == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("outcome", "began", "cost"),
    [
        (OUTCOME_SERVED, True, 0.5),
        (OUTCOME_CANCELLED, False, 0.5),
        (OUTCOME_CANCELLED, True, 0.5),
        (OUTCOME_NODE_FAILED, True, 0.5),
        (OUTCOME_NODE_FAILED, False, 0.0),
        (OUTCOME_REFUSED, False, 0.0),
    ],
)
def test_without_its_report_the_most_that_it_may_have_cost_is_kept(
    outcome: str, began: bool, cost: float
) -> None:
    world = World()
    assert world.charge(paid(), outcome, began=began) == cost
    assert world.budgets.spent("key-1") == cost


def test_a_request_of_a_free_node_costs_nothing() -> None:
    assert World().charge(ticket(), OUTCOME_SERVED, tokens=Tokens(1, 0, 1)) is None


def test_a_new_month_is_a_new_budget() -> None:
    world = World(spent=1.0)
    with pytest.raises(PaidBudgetUsed):
        world.budgets.check(caller(), 0.01)
    world.clock.advance(3600)
    world.budgets.check(caller(), 1.0)
    assert world.budgets.spent("key-1") == 0.0


def test_months_are_those_of_the_calendar_in_utc() -> None:
    inside = datetime(2028, 2, 29, 23, 59, tzinfo=UTC).timestamp()
    assert month_s(inside) == datetime(2028, 2, 1, tzinfo=UTC).timestamp()
    assert next_month_s(inside) == datetime(2028, 3, 1, tzinfo=UTC).timestamp()
    assert next_month_s(NEW_YEAR_S - 1) == NEW_YEAR_S == month_s(NEW_YEAR_S)
