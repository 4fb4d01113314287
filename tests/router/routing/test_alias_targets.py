"""Which of an alias's models a request goes to. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.overflow import LONGEST_TOKEN_BYTES, Overflow
from router.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    NodeFailed,
    NoNodeReady,
    QueueFull,
    RouterError,
    ShuttingDown,
)
from router.prices import Prices
from router.routing.alias_targets import (
    SURE_TOKENS_PER_BYTE,
    TargetQuery,
    falls_back,
    order,
    overflow,
)
from router.states import CORDONED
from router.types import ModelRoute, Moment, NodeView, Target
from tests.router.conftest import model_status, node_view

NOW_S = 100.0
SMALL = TargetQuery(prompt_bytes=100)
A, B, C = Target("a"), Target("b"), Target("c")


def route(*targets: Target, **fields: Any) -> ModelRoute:
    return ModelRoute(targets or (A, B, C), "auto", **fields)


def chosen(route: ModelRoute, query: TargetQuery, *fleet: NodeView) -> list[str]:
    return [target.model for target in order(route, query, Moment(NOW_S, fleet)).targets]


def view(name: str, *models: ModelStatus, **fields: Any) -> NodeView:
    return msgspec.structs.replace(node_view(name, *models), **fields)


def on_disk(name: str, **fields: Any) -> ModelStatus:
    return model_status(name, state=ModelState.ON_DISK, **fields)


def everything(**fields: Any) -> NodeView:
    return view("n", *(on_disk(name, **fields) for name in "abc"))


def test_a_single_target_is_chosen_whatever_its_state() -> None:
    assert order(ModelRoute((A,)), SMALL, Moment(NOW_S, ())).targets == (A,)


def test_targets_are_tried_in_their_order() -> None:
    assert chosen(route(), SMALL, everything()) == ["a", "b", "c"]


def test_a_target_that_no_node_has_or_that_none_can_be_reached_with_is_passed_over() -> None:
    away = view("x", on_disk("b"), reachable=False)
    cordoned = view("y", on_disk("c"), state=CORDONED)
    assert chosen(route(), SMALL, view("n", on_disk("a")), away, cordoned) == ["a"]
    assert chosen(route(A, C), SMALL, cordoned, view("n", on_disk("c"))) == ["c"]


def test_a_target_whose_context_is_surely_too_small_on_every_node_is_passed_over() -> None:
    fleet = view("n", on_disk("a", context_tokens=4096), on_disk("b", context_tokens=32768))
    at_most = int(4096 / SURE_TOKENS_PER_BYTE)
    assert chosen(route(A, B), TargetQuery(at_most), fleet) == ["a", "b"]
    assert chosen(route(A, B), TargetQuery(at_most + 10), fleet) == ["b"]
    larger = view("m", on_disk("a", context_tokens=65536))
    assert chosen(route(A, B), TargetQuery(at_most + 10), fleet, larger) == ["a", "b"]
    unreported = view("m", on_disk("a"))
    assert chosen(route(A, B), TargetQuery(at_most + 10), fleet, unreported) == ["a", "b"]


def test_a_prompt_is_too_long_for_a_target_only_where_every_node_reports_a_shorter_context() -> (
    None
):
    small, large = on_disk("a", context_tokens=10), on_disk("a", context_tokens=20)
    fleet = view("n", small), view("m", large, reachable=False)

    def found(prompt_bytes: int, *views: NodeView) -> Overflow | None:
        return overflow(A, prompt_bytes, Moment(NOW_S, views))

    assert found(20 * LONGEST_TOKEN_BYTES - 1, *fleet) is None
    assert found(20 * LONGEST_TOKEN_BYTES, *fleet) == Overflow(20 * LONGEST_TOKEN_BYTES // 4, 20)
    for unreported in (view("o", on_disk("a")), view("o", status=None, remembered=frozenset("a"))):
        assert found(1 << 30, *fleet, unreported) is None
    assert found(1 << 30, *fleet, view("o", on_disk("b"))) is not None
    assert found(1 << 30, view("o", on_disk("b"))) is None


def test_a_target_whose_loads_have_failed_everywhere_is_passed_over_until_they_may_be_tried() -> (
    None
):
    failed = model_status("a", state=ModelState.FAILED, retry_after_s=30.0)
    fleet = view("n", failed, on_disk("b"), status_at_s=NOW_S - 10)
    assert chosen(route(A, B), SMALL, fleet) == ["b"]
    assert chosen(route(A, B), SMALL, view("n", failed, on_disk("b"), status_at_s=NOW_S - 30)) == [
        "a",
        "b",
    ]
    assert chosen(route(A, B), SMALL, fleet, view("m", on_disk("a"))) == ["a", "b"]


def test_where_none_fits_the_first_that_exists_gives_the_reason() -> None:
    away = view("x", on_disk("b"), on_disk("c"), reachable=False)
    gone = Target("a", is_known=False)
    found = order(route(gone, B, C), SMALL, Moment(NOW_S, (away,)))
    assert found.targets == (B,)
    assert "a: no node has it; b: no node that has it can be reached" in found.why


def test_warm_chooses_the_first_that_is_ready_then_one_that_is_being_loaded() -> None:
    loading = view("n", on_disk("a"), model_status("b", state=ModelState.LOADING), on_disk("c"))
    warm = route(selector="warm")
    assert chosen(warm, SMALL, loading) == ["b", "a", "c"]
    ready = view("m", model_status("c"))
    assert chosen(warm, SMALL, loading, ready) == ["c", "b", "a"]
    lost = msgspec.structs.replace(ready, reachable=False)
    assert chosen(warm, SMALL, loading, lost) == ["b", "a", "c"]
    assert chosen(warm, SMALL, everything()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("in_flight", "models"),
    [
        ((0, 0, 0), ["a", "b", "c"]),
        ((2, 0, 0), ["b", "c", "a"]),
        ((1, 9, 0), ["a", "c", "b"]),
        ((2, 2, 5), ["a", "b", "c"]),
    ],
)
def test_spillover_chooses_the_first_with_room(
    in_flight: tuple[int, ...], models: list[str]
) -> None:
    spill = route(selector="spillover", spill_at=2)
    assert chosen(spill, TargetQuery(10, in_flight=in_flight), everything()) == models


def test_a_session_stays_with_the_target_that_answered_it_last() -> None:
    ready = view("n", *(model_status(name) for name in "abc"))
    with_b = TargetQuery(10, last=B.key, in_flight=(0, 9, 0))
    for selector in ("warm", "spillover"):
        choice = order(route(selector=selector, spill_at=2), with_b, Moment(NOW_S, (ready,)))
        assert [target.model for target in choice.targets] == ["b", "a", "c"]
        assert "b is the one that served its session" in choice.why
    assert chosen(route(), with_b, ready) == ["a", "b", "c"]
    assert chosen(route(A, C, selector="warm"), with_b, ready) == ["a", "c"]
    assert (
        chosen(route(Target("b", "n"), C, selector="warm"), TargetQuery(10, last=C.key), ready)[0]
        == "c"
    )


def test_a_session_leaves_a_target_that_cannot_serve_it() -> None:
    warm, with_b = route(A, B, selector="warm"), TargetQuery(10, last=B.key)
    ready = view("n", model_status("a"), model_status("b"))
    away = msgspec.structs.replace(ready, reachable=False)
    assert chosen(warm, with_b, away, view("m", model_status("a"))) == ["a"]
    failing = msgspec.structs.replace(with_b, failing=frozenset({("n", "b")}))
    assert chosen(warm, failing, ready) == ["a", "b"]
    stalled = msgspec.structs.replace(ready, stalled=frozenset({"b"}))
    assert chosen(warm, with_b, stalled) == ["a", "b"]
    assert chosen(warm, failing, ready, view("m", model_status("b"))) == ["b", "a"]


def test_a_session_waits_for_no_load_where_the_alias_is_for_what_is_loaded() -> None:
    with_b = TargetQuery(10, last=B.key, in_flight=(0, 0))
    unloaded = view("n", model_status("a"), on_disk("b"))
    assert chosen(route(A, B, selector="warm"), with_b, unloaded) == ["a", "b"]
    assert chosen(route(A, B, selector="spillover"), with_b, unloaded) == ["b", "a"]
    loading = view("n", model_status("a"), model_status("b", state=ModelState.LOADING))
    assert chosen(route(A, B, selector="warm"), with_b, loading) == ["b", "a"]


def test_a_session_stays_at_no_paid_server_once_another_target_has_room() -> None:
    paid = Target("cloud", is_paid=True)
    fleet = (
        view("n", model_status("a")),
        view("p", model_status("cloud"), prices=Prices(3.0, 15.0)),
    )
    spill = route(A, paid, selector="spillover", spill_at=2)
    query = TargetQuery(10, may_use_paid=True, last=paid.key, in_flight=(1, 0))
    assert chosen(spill, query, *fleet) == ["a", "cloud"]
    full = msgspec.structs.replace(query, in_flight=(2, 0))
    assert chosen(spill, full, *fleet) == ["cloud", "a"]
    with_a = msgspec.structs.replace(full, last=A.key)
    assert chosen(spill, with_a, *fleet) == ["a", "cloud"]


@pytest.mark.parametrize("selector", ["first", "warm", "spillover"])
def test_a_target_whose_nodes_all_fail_now_is_the_last_resort(selector: str) -> None:
    failing = TargetQuery(10, in_flight=(0, 9, 9), failing=frozenset({("n", "a")}))
    choice = order(route(selector=selector), failing, Moment(NOW_S, (everything(),)))
    assert [target.model for target in choice.targets] == ["b", "c", "a"]
    assert choice.why.endswith("(passed over: a: requests fail on its nodes).")
    assert (
        chosen(route(selector=selector), failing, everything(), view("m", on_disk("a")))[0] == "a"
    )
    all_fail = TargetQuery(
        10, in_flight=(0, 0, 0), failing=frozenset(("n", name) for name in "abc")
    )
    assert chosen(route(selector=selector), all_fail, everything()) == ["a", "b", "c"]


def test_a_paid_target_is_for_keys_with_a_budget() -> None:
    paid = Target("cloud", is_paid=True)
    server = view("p", model_status("cloud"), prices=Prices(3.0, 15.0))
    fleet = (view("n", on_disk("a")), server)
    assert chosen(route(A, paid), SMALL, *fleet) == ["a"]
    assert chosen(route(A, paid), TargetQuery(10, may_use_paid=True), *fleet) == ["a", "cloud"]
    assert chosen(route(paid, A), SMALL, *fleet) == ["a"]


def test_a_model_that_a_paid_server_has_too_is_not_there_for_a_free_target() -> None:
    server = view("p", model_status("a"), prices=Prices(3.0, 15.0))
    assert chosen(route(A, B), SMALL, server, view("n", on_disk("b"))) == ["b"]
    named = Target("a", "p", is_paid=True)
    assert chosen(
        route(named, B), TargetQuery(10, may_use_paid=True), server, view("n", on_disk("b"))
    ) == [
        "a",
        "b",
    ]


def test_the_reason_names_what_was_passed_over() -> None:
    fleet = view("n", on_disk("b"), on_disk("c"))
    why = order(route(), SMALL, Moment(NOW_S, (fleet,))).why
    assert why == (
        "Of the targets of the alias auto, b is the first that can serve it (passed over: a: no "
        "node has it)."
    )


@pytest.mark.parametrize(
    ("error", "first", "spillover"),
    [
        (ContextTooLong(), True, True),
        (NoNodeReady(), True, True),
        (NodeFailed(), True, True),
        (QueueFull(), False, True),
        (DeadlineExceeded(), False, False),
        (BadRequest(), False, False),
        (ShuttingDown(), False, False),
        (RouterError(), False, False),
    ],
)
def test_only_what_is_no_fault_of_the_request_leads_to_the_next_target(
    error: RouterError, first: bool, spillover: bool
) -> None:
    assert falls_back(error, route()) is first
    assert falls_back(error, route(selector="spillover")) is spillover
