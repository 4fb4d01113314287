from __future__ import annotations

from dataclasses import replace

from registry.records import ResidencyRecord
from router.fleet.fleet import Fleet
from router.prices import Prices
from tests.fakes import FakeClock
from tests.router.conftest import model_status, node_record, node_status


def row(model: str, node_id: str = "id-a") -> ResidencyRecord:
    return ResidencyRecord(node_id, model, "ready", 1, 0.0)


def fleet_with(*names: str) -> Fleet:
    fleet = Fleet(map(row, names))
    fleet.add(node_record("http://a"))
    return fleet


def test_a_node_is_away_until_its_first_word() -> None:
    fleet = Fleet(clock=FakeClock(5.0))
    fleet.add(node_record("http://a"))
    (view,) = fleet.snapshot
    assert (view.name, view.reachable, view.status, view.status_at_s) == ("a", False, None, 0.0)
    assert view.error


def test_a_status_makes_it_reachable_and_its_models_known() -> None:
    fleet = Fleet(clock=FakeClock(5.0))
    fleet.add(node_record("http://a"))
    status = node_status(model_status("org/small"))
    fleet.on_status("id-a", status)
    view = fleet.node("id-a")
    assert view is not None
    assert (view.reachable, view.error, view.status, view.status_at_s) == (True, None, status, 5.0)
    assert "org/small" in fleet.models


def test_a_lost_node_keeps_its_models_so_that_callers_get_503_and_not_404() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.on_status("id-a", node_status(model_status("m")))
    fleet.lost("id-a", "It is gone.")
    (view,) = fleet.snapshot
    assert (view.reachable, view.error) == (False, "It is gone.")
    assert view.status is not None
    assert "m" in fleet.models


def test_a_lost_node_s_new_reason_replaces_the_old_one() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.lost("id-a", "One.")
    before = fleet.snapshot
    fleet.lost("id-a", "One.")
    assert fleet.snapshot is before
    fleet.lost("id-a", "Two.")
    assert fleet.snapshot[0].error == "Two."


def test_a_node_is_silent_since_it_first_sent_nothing() -> None:
    clock = FakeClock(10.0)
    fleet = Fleet(clock=clock)
    fleet.add(node_record("http://a"))
    for reason in ("One.", "Two."):
        fleet.lost("id-a", reason, silent=True)
        clock.advance(1.0)
        assert fleet.snapshot[0].silent_since_s == 10.0
    fleet.lost("id-a", "It talks nonsense.")
    assert fleet.snapshot[0].silent_since_s is None
    fleet.lost("id-a", "Two.", silent=True)
    assert fleet.snapshot[0].silent_since_s == 12.0


def test_words_about_unknown_nodes_are_passed_over() -> None:
    fleet = Fleet()
    fleet.on_status("id-x", node_status(model_status("m")))
    fleet.lost("id-x", "Gone.")
    fleet.remove("id-x")
    assert fleet.snapshot == ()
    assert "m" not in fleet.models


def test_a_snapshot_never_changes() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    before = fleet.snapshot
    fleet.on_status("id-a", node_status())
    fleet.add(node_record("http://b", "b"))
    assert [view.reachable for view in before] == [False]
    fleet.remove("id-a")
    assert [view.name for view in fleet.snapshot] == ["b"]


def test_nodes_are_found_by_name() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    assert fleet.by_name("a") is fleet.node("id-a")
    assert fleet.by_name("b") is None


def test_the_models_of_a_removed_node_go_unless_another_has_them() -> None:
    fleet = fleet_with("old")
    fleet.add(node_record("http://b", "b"))
    fleet.on_status("id-a", node_status(model_status("one"), model_status("both")))
    fleet.on_status("id-b", node_status(model_status("both")))
    assert fleet.models == {"one", "both"}
    fleet.remove("id-a")
    assert fleet.models == {"both"}
    fleet.add(node_record("http://a"))
    assert fleet.models == {"both"}


def test_a_model_that_its_node_does_not_name_any_more_goes() -> None:
    fleet = fleet_with()
    fleet.on_status("id-a", node_status(model_status("one"), model_status("two")))
    fleet.on_status("id-a", node_status(model_status("two")))
    assert fleet.models == {"two"}


def test_the_models_of_a_node_that_has_not_reported_since_the_start_are_known() -> None:
    fleet = fleet_with("org/small")
    assert "org/small" in fleet.models
    fleet.lost("id-a", "It sleeps.")
    assert "org/small" in fleet.models
    fleet.on_status("id-a", node_status(model_status("new")))
    assert fleet.models == {"new"}


def test_rows_of_nodes_that_are_not_registered_are_no_models() -> None:
    fleet = Fleet([row("org/small", "id-gone")])
    assert fleet.models == frozenset()


def test_models_of_paid_servers_are_apart_from_those_that_may_be_named() -> None:
    fleet = fleet_with("both")
    paid = replace(node_record("http://b", "b"), prices={"input": 3, "output": 15})
    fleet.add(paid)
    fleet.on_status("id-b", node_status(model_status("both"), model_status("large")))
    assert (fleet.models, fleet.paid_models) == (frozenset(("both",)), frozenset(("large",)))
    view = fleet.node("id-b")
    assert view is not None and view.is_paid and view.prices == Prices(3, 15)


def test_a_stalled_model_notifies_listeners_once() -> None:
    fleet = fleet_with()
    fleet.on_status("id-a", node_status(model_status("m")))
    notified: list[None] = []
    fleet.listen(lambda: notified.append(None))
    for models in (frozenset("m"), frozenset("m"), frozenset[str]()):
        fleet.set_stalled("id-a", models)
        view = fleet.node("id-a")
        assert view is not None and view.stalled == models
    assert len(notified) == 2
    fleet.set_stalled("id-gone", frozenset("m"))
    assert fleet.node("id-gone") is None
