"""Tests the settings of a model's residency, by the agent's settings and by routers."""

from math import inf
from pathlib import Path

from node.engines.residency_policy import Residency, ResidencyPolicy
from node.protocol.lifecycle import POLICIES_LAPSE_S, ModelPolicy, Policies
from node.settings import Settings


def residency_policy(**fields: object) -> ResidencyPolicy:
    return ResidencyPolicy(Settings(home=Path("/nowhere"), **fields))  # type: ignore[arg-type]


def test_a_model_may_be_idle_for_an_hour_where_nothing_is_set() -> None:
    assert residency_policy().of("m") == Residency(pinned=False, keep_alive_s=3600.0)


def test_a_models_own_keep_alive_overrides_the_one_for_all() -> None:
    residency = residency_policy(keep_alives=(("m", None), ("", 60.0)))
    assert residency.of("m").keep_alive_s is None
    assert residency.of("n").keep_alive_s == 60.0


def test_settings_that_change_replace_the_former_ones_and_not_those_of_routers() -> None:
    residency = residency_policy(keep_alives=(("m", 5.0),), pins=("m",))
    residency.set(Policies("r", {"n": ModelPolicy(keep_alive_s=7.0)}))
    residency.set_own(Settings(Path(), keep_alives=(("", 60.0),), pins=("n",)))
    assert residency.pins == {"n"}
    assert residency.of("m") == Residency(pinned=False, keep_alive_s=60.0)
    assert residency.of("n").keep_alive_s == 7.0


def test_a_routers_keep_alive_overrides_the_settings() -> None:
    residency = residency_policy(keep_alives=(("m", None),))
    residency.set(Policies("r", {"m": ModelPolicy(keep_alive_s=5.0)}))
    assert residency.of("m").keep_alive_s == 5.0
    residency.set(Policies("r", {"m": ModelPolicy(pinned=True)}))
    assert residency.of("m") == Residency(pinned=True, keep_alive_s=None)


def test_of_several_routers_the_one_that_keeps_the_model_longer_has_its_way() -> None:
    residency = residency_policy()
    residency.set(Policies("a", {"m": ModelPolicy(pinned=True, keep_alive_s=60.0)}))
    residency.set(Policies("b", {"m": ModelPolicy(keep_alive_s=120.0)}))
    assert residency.of("m") == Residency(pinned=True, keep_alive_s=120.0)
    residency.set(Policies("b", {"m": ModelPolicy(keep_alive_s=0.0)}))
    assert residency.of("m") == Residency(pinned=True, keep_alive_s=None)


def test_the_policies_of_a_router_replace_its_earlier_ones() -> None:
    residency = residency_policy()
    residency.set(Policies("a", {"m": ModelPolicy(pinned=True)}))
    residency.set(Policies("a", {}))
    assert residency.of("m") == Residency(pinned=False, keep_alive_s=3600.0)


def test_a_pin_of_the_settings_stays_whatever_routers_send() -> None:
    residency = residency_policy(pins=("m",))
    residency.set(Policies("a", {"m": ModelPolicy()}))
    assert residency.of("m").pinned and not residency.of("n").pinned
    assert residency.pins == {"m"}


def test_while_a_router_has_the_node_rest_no_pin_applies() -> None:
    residency = residency_policy(pins=("m",))
    residency.set(Policies("a", {"n": ModelPolicy(pinned=True)}))
    residency.set(Policies("b", {"n": ModelPolicy(keep_alive_s=5.0)}, in_maintenance=True))
    assert residency.in_maintenance and residency.pins == frozenset()
    assert not residency.of("m").pinned
    assert residency.of("n") == Residency(pinned=False, keep_alive_s=5.0)
    residency.set(Policies("b", {}))
    assert residency.pins == {"m"} and residency.of("m").pinned and residency.of("n").pinned


def test_the_policies_of_a_router_lapse_unless_it_sends_them_again() -> None:
    residency = residency_policy()
    sent = {
        each: Policies(each, {"m": ModelPolicy(keep_alive_s=at)})
        for each, at in (("a", 5.0), ("b", 9.0))
    }
    for policies in sent.values():
        residency.set(policies)
    assert residency.lapse(1000.0) == ()
    residency.set(sent["a"])
    assert residency.lapse(1000.0 + POLICIES_LAPSE_S - 1.0) == ()
    assert residency.of("m").keep_alive_s == 9.0
    assert residency.lapse(1000.0 + POLICIES_LAPSE_S) == ("b",)
    assert residency.of("m").keep_alive_s == 5.0


def test_a_router_that_vanishes_leaves_no_maintenance_behind() -> None:
    residency = residency_policy(pins=("m",))
    residency.set(Policies("a", {}, in_maintenance=True))
    assert residency.lapse(0.0) == () and residency.pins == frozenset()
    assert residency.lapse(POLICIES_LAPSE_S) == ("a",) and residency.pins == {"m"}


def test_what_a_client_wants_counts_unless_a_router_or_a_pin_says_otherwise() -> None:
    residency = residency_policy(pins=("p",))
    for name in ("m", "p"):
        residency.keep(name, 7.0)
    assert residency.of("m") == Residency(pinned=False, keep_alive_s=7.0)
    assert residency.of("p").pinned
    residency.keep("m", inf)
    assert residency.of("m").keep_alive_s is None
    residency.set(Policies("r", {"m": ModelPolicy(keep_alive_s=5.0)}))
    assert residency.of("m").keep_alive_s == 5.0
