"""What settings and routers want of a model's residency."""

from pathlib import Path

from node.engines.residency_policy import WishList
from node.engines.slot import Wishes
from node.protocol.lifecycle import POLICIES_LAPSE_S, ModelPolicy, Policies
from node.settings import Settings


def wish_list(**fields: object) -> WishList:
    return WishList(Settings(home=Path("/nowhere"), **fields))  # type: ignore[arg-type]


def test_a_model_may_be_idle_for_an_hour_where_nothing_is_said() -> None:
    assert wish_list().of("m") == Wishes(pinned=False, keep_alive_s=3600.0)


def test_a_models_own_keep_alive_goes_before_the_one_for_all() -> None:
    wishes = wish_list(keep_alives=(("m", None), ("", 60.0)))
    assert wishes.of("m").keep_alive_s is None
    assert wishes.of("n").keep_alive_s == 60.0


def test_a_routers_keep_alive_goes_before_the_settings() -> None:
    wishes = wish_list(keep_alives=(("m", None),))
    wishes.set(Policies("r", {"m": ModelPolicy(keep_alive_s=5.0)}))
    assert wishes.of("m").keep_alive_s == 5.0
    wishes.set(Policies("r", {"m": ModelPolicy(pinned=True)}))
    assert wishes.of("m") == Wishes(pinned=True, keep_alive_s=None)


def test_of_several_routers_the_one_that_keeps_the_model_longer_has_its_way() -> None:
    wishes = wish_list()
    wishes.set(Policies("a", {"m": ModelPolicy(pinned=True, keep_alive_s=60.0)}))
    wishes.set(Policies("b", {"m": ModelPolicy(keep_alive_s=120.0)}))
    assert wishes.of("m") == Wishes(pinned=True, keep_alive_s=120.0)
    wishes.set(Policies("b", {"m": ModelPolicy(keep_alive_s=0.0)}))
    assert wishes.of("m") == Wishes(pinned=True, keep_alive_s=None)


def test_what_a_router_asks_replaces_what_it_asked_before() -> None:
    wishes = wish_list()
    wishes.set(Policies("a", {"m": ModelPolicy(pinned=True)}))
    wishes.set(Policies("a", {}))
    assert wishes.of("m") == Wishes(pinned=False, keep_alive_s=3600.0)


def test_a_pin_of_the_settings_stays_whatever_routers_say() -> None:
    wishes = wish_list(pins=("m",))
    wishes.set(Policies("a", {"m": ModelPolicy()}))
    assert wishes.of("m").pinned and not wishes.of("n").pinned
    assert wishes.pins == {"m"}


def test_while_a_router_has_the_node_rest_no_pin_holds() -> None:
    wishes = wish_list(pins=("m",))
    wishes.set(Policies("a", {"n": ModelPolicy(pinned=True)}))
    wishes.set(Policies("b", {"n": ModelPolicy(keep_alive_s=5.0)}, rests=True))
    assert wishes.rests and wishes.pins == frozenset()
    assert not wishes.of("m").pinned
    assert wishes.of("n") == Wishes(pinned=False, keep_alive_s=5.0)
    wishes.set(Policies("b", {}))
    assert wishes.pins == {"m"} and wishes.of("m").pinned and wishes.of("n").pinned


def test_what_a_router_asks_lapses_unless_it_says_so_again() -> None:
    wishes = wish_list()
    asked = {
        each: Policies(each, {"m": ModelPolicy(keep_alive_s=at)})
        for each, at in (("a", 5.0), ("b", 9.0))
    }
    for policies in asked.values():
        wishes.set(policies)
    assert wishes.lapse(1000.0) == ()
    wishes.set(asked["a"])
    assert wishes.lapse(1000.0 + POLICIES_LAPSE_S - 1.0) == ()
    assert wishes.of("m").keep_alive_s == 9.0
    assert wishes.lapse(1000.0 + POLICIES_LAPSE_S) == ("b",)
    assert wishes.of("m").keep_alive_s == 5.0


def test_a_router_that_vanishes_leaves_no_maintenance_behind() -> None:
    wishes = wish_list(pins=("m",))
    wishes.set(Policies("a", {}, rests=True))
    assert wishes.lapse(0.0) == () and wishes.pins == frozenset()
    assert wishes.lapse(POLICIES_LAPSE_S) == ("a",) and wishes.pins == {"m"}
