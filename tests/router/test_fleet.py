from __future__ import annotations

import pytest

from registry.records import AliasRecord, AliasTarget, ResidencyRecord
from router.errors import UnknownModel
from router.fleet import NAME_CHARS, Fleet
from tests.fakes import FakeClock
from tests.router.conftest import model_status, node_record, node_status

ALIAS = AliasRecord("fast", (AliasTarget("org/small"),), 1.0)


def row(model: str, node_id: str = "id-a") -> ResidencyRecord:
    return ResidencyRecord(node_id, model, "ready", 1, 0.0)


def fleet_with(*names: str) -> Fleet:
    fleet = Fleet([ALIAS], map(row, names))
    fleet.add(node_record("http://a"))
    return fleet


def test_a_node_is_away_until_its_first_word() -> None:
    fleet = Fleet(clock=FakeClock(5.0))
    fleet.add(node_record("http://a"))
    (view,) = fleet.snapshot
    assert (view.name, view.reachable, view.status, view.heard_s) == ("a", False, None, 0.0)
    assert view.error


def test_a_word_makes_it_reachable_and_its_models_known() -> None:
    fleet = Fleet(clock=FakeClock(5.0))
    fleet.add(node_record("http://a"))
    status = node_status(model_status("org/small"))
    fleet.heard("id-a", status)
    view = fleet.node("id-a")
    assert view is not None
    assert (view.reachable, view.error, view.status, view.heard_s) == (True, None, status, 5.0)
    assert fleet.known("org/small")


def test_a_lost_node_keeps_its_models_so_that_callers_get_503_and_not_404() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.heard("id-a", node_status(model_status("m")))
    fleet.lost("id-a", "It is gone.")
    (view,) = fleet.snapshot
    assert (view.reachable, view.error) == (False, "It is gone.")
    assert view.status is not None
    assert fleet.resolve("m") == "m"


def test_a_lost_node_s_new_reason_replaces_the_old_one() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.lost("id-a", "One.")
    before = fleet.snapshot
    fleet.lost("id-a", "One.")
    assert fleet.snapshot is before
    fleet.lost("id-a", "Two.")
    assert fleet.snapshot[0].error == "Two."


def test_words_about_unknown_nodes_are_passed_over() -> None:
    fleet = Fleet()
    fleet.heard("id-x", node_status(model_status("m")))
    fleet.lost("id-x", "Gone.")
    fleet.remove("id-x")
    assert fleet.snapshot == ()
    assert not fleet.known("m")


def test_a_snapshot_never_changes() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    before = fleet.snapshot
    fleet.heard("id-a", node_status())
    fleet.add(node_record("http://b", "b"))
    assert [view.reachable for view in before] == [False]
    fleet.remove("id-a")
    assert [view.name for view in fleet.snapshot] == ["b"]


def test_nodes_are_found_by_name() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    assert fleet.by_name("a") is fleet.node("id-a")
    assert fleet.by_name("b") is None


def test_an_alias_means_its_model() -> None:
    fleet = fleet_with("org/small")
    assert fleet.resolve("fast") == "org/small"
    assert fleet.names() == {"fast", "org/small"}
    assert fleet.aliases == {"fast": "org/small"}
    fleet.remove_alias("fast")
    fleet.remove_alias("fast")
    assert fleet.names() == {"org/small"}


def test_an_alias_of_a_model_that_nobody_has_is_unknown() -> None:
    fleet = Fleet([ALIAS])
    assert fleet.names() == set()
    with pytest.raises(UnknownModel, match="'fast'"):
        fleet.resolve("fast")


def test_an_unknown_name_is_answered_with_near_names() -> None:
    fleet = fleet_with("org/small", "qwen3-8b", "qwen3-14b")
    fleet.set_alias("qwen", "qwen3-8b")
    with pytest.raises(UnknownModel, match=r"Did you mean qwen3-\d+b, qwen3-\d+b") as raised:
        fleet.resolve("qwen3-1b")
    assert raised.value.param == "model"
    with pytest.raises(UnknownModel, match=r"'zzzzzz'\.$"):
        fleet.resolve("zzzzzz")


def test_the_models_of_a_removed_node_go_unless_another_has_them() -> None:
    fleet = fleet_with("old")
    fleet.add(node_record("http://b", "b"))
    fleet.heard("id-a", node_status(model_status("one"), model_status("both")))
    fleet.heard("id-b", node_status(model_status("both")))
    assert fleet.names() == {"one", "both"}
    fleet.remove("id-a")
    assert fleet.names() == {"both"}
    fleet.add(node_record("http://a"))
    assert fleet.names() == {"both"}


def test_a_model_that_its_node_does_not_name_any_more_goes() -> None:
    fleet = fleet_with()
    fleet.heard("id-a", node_status(model_status("one"), model_status("two")))
    fleet.heard("id-a", node_status(model_status("two")))
    assert fleet.names() == {"two"}


def test_the_models_of_a_node_not_heard_since_the_start_are_known() -> None:
    fleet = fleet_with("org/small")
    assert fleet.resolve("fast") == "org/small"
    fleet.lost("id-a", "It sleeps.")
    assert fleet.known("org/small")
    fleet.heard("id-a", node_status(model_status("new")))
    assert fleet.names() == {"new"}


def test_rows_of_nodes_that_are_not_registered_are_no_models() -> None:
    fleet = Fleet([ALIAS], [row("org/small", "id-gone")])
    assert fleet.names() == set()


def test_of_a_long_unknown_name_only_the_beginning_is_compared_and_repeated() -> None:
    fleet = fleet_with(*(f"qwen3-{size}b" for size in range(50)))
    with pytest.raises(UnknownModel) as raised:
        fleet.resolve("x" * 10_000_000)
    assert raised.value.message == f"No node of the fleet has the model {'x' * NAME_CHARS!r}."
    long_name = "y" * (NAME_CHARS + 1)
    fleet.heard("id-a", node_status(model_status(long_name)))
    assert fleet.resolve(long_name) == long_name
