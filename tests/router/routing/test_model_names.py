"""Which name means which models."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from node.protocol.messages import BrokenModel
from router.errors import ModelBroken, UnknownModel
from router.fleet.fleet import Fleet
from router.routing.model_names import NAME_CHARS, Names, fits, may_use
from tests.router.conftest import alias, model_status, node_record, node_status

PRICES = {"input": 3.0, "output": 15.0}


def names_with(*models: str) -> Names:
    """Returns the names of a fleet whose node has these models."""
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.on_status("id-a", node_status(*map(model_status, models)))
    return Names(fleet, [alias("fast", "org/small")])


def with_paid(*models: str, free: tuple[str, ...] = ("m",)) -> Names:
    """The same, and a paid server with these."""
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    fleet.on_status("id-a", node_status(*map(model_status, free)))
    fleet.add(replace(node_record("http://b", "cloud"), prices=PRICES))
    fleet.on_status("id-cloud", node_status(*map(model_status, models)))
    return Names(fleet)


def test_an_alias_means_its_model() -> None:
    names = names_with("org/small")
    assert names.resolve("fast") == "org/small"
    assert names.listed() == {"fast", "org/small"}
    names.remove("fast")
    names.remove("fast")
    assert names.listed() == {"org/small"}


def test_an_alias_of_a_model_that_nobody_has_is_unknown() -> None:
    names = Names(Fleet(), [alias("fast", "org/small")])
    assert names.listed() == set()
    with pytest.raises(UnknownModel, match="'fast'"):
        names.resolve("fast")


def test_a_model_that_is_broken_on_every_node_is_reported_as_such() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.add(node_record(f"http://{name}", name))
        status = node_status(model_status("other"))
        broken = (BrokenModel("m", "It lacks a file."),)
        fleet.on_status(f"id-{name}", msgspec.structs.replace(status, broken=broken))
    names = Names(fleet, [alias("fast", "m")])
    for requested in ("m", "fast"):
        with pytest.raises(ModelBroken) as refused:
            names.resolve(requested)
        assert refused.value.message == (
            "'m' cannot be served on a: It lacks a file. on b: It lacks a file."
        )
    assert names.listed() == {"other"}
    fleet.on_status("id-a", node_status(model_status("m")))
    assert names.resolve("fast") == "m"


def test_an_alias_means_the_first_of_its_models_that_some_node_has() -> None:
    names = names_with("small")
    names.put(alias("auto", "large", "small"))
    assert names.resolve("auto") == "small"
    assert [target.is_known for target in names.route("auto").targets] == [False, True]
    assert "auto" in names.listed()


def test_an_alias_may_bear_its_first_model_s_own_name() -> None:
    names = names_with("large", "small")
    names.put(alias("large", "large", "small"))
    assert [target.model for target in names.route("large").targets] == ["large", "small"]
    assert [target.model for target in names.route("small").targets] == ["small"]


def test_a_pattern_means_every_name_that_fits_it_and_is_not_listed() -> None:
    names = names_with("large", "small")
    names.put(alias("claude-*", "large"))
    names.put(alias("claude-*haiku*", "small"))
    names.put(alias("*", "small"))
    assert names.resolve("claude-opus-4") == "large"
    assert names.resolve("claude-haiku-4-5") == "small"
    assert names.resolve("gpt-5") == "small"
    assert names.listed() == {"large", "small"}


def test_a_model_and_an_alias_go_before_a_pattern() -> None:
    names = names_with("claude-large", "small", "org/small")
    names.put(alias("*", "small"))
    names.put(alias("claude-*", "small"))
    assert names.resolve("claude-large") == "claude-large"
    assert names.resolve("fast") == "org/small"


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("claude-*", "claude-", True),
        ("claude-*", "claude", False),
        ("*-mini", "gpt-mini", True),
        ("*-mini", "gpt-mini-2", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("aba*aba", "aba", False),
        ("aba*aba", "abaaba", True),
        ("a*bb*b", "abb", False),
        ("*", "", True),
        ("gpt-[45]*", "gpt-4", False),
    ],
)
def test_a_star_is_any_text(pattern: str, name: str, does: bool) -> None:
    assert fits(pattern, name) is does


def test_an_unknown_name_is_answered_with_near_names() -> None:
    names = names_with("org/small", "qwen3-8b", "qwen3-14b")
    names.put(alias("qwen", "qwen3-8b"))
    with pytest.raises(UnknownModel, match=r"Did you mean qwen3-\d+b, qwen3-\d+b") as raised:
        names.resolve("qwen3-1b")
    assert raised.value.param == "model"
    with pytest.raises(UnknownModel, match=r"'zzzzzz'\.$"):
        names.resolve("zzzzzz")


def test_of_a_long_unknown_name_only_the_beginning_is_compared_and_repeated() -> None:
    names = names_with(*(f"qwen3-{size}b" for size in range(50)), "y" * (NAME_CHARS + 1))
    names.put(alias("x*", "qwen3-1b"))
    with pytest.raises(UnknownModel) as raised:
        names.resolve("x" * 10_000_000)
    assert raised.value.message == f"No node of the fleet has the model {'x' * NAME_CHARS!r}."
    long_name = "y" * (NAME_CHARS + 1)
    assert names.resolve(long_name) == long_name


def test_a_paid_server_s_model_is_reached_by_an_alias_only() -> None:
    names = with_paid("large")
    names.put(alias("auto", "m", "large"))
    assert [target.is_paid for target in names.route("auto").targets] == [False, True]
    assert names.listed() == {"m", "auto"}
    with pytest.raises(UnknownModel, match="Only a paid server"):
        names.route("large")


def test_a_model_that_others_have_too_is_paid_for_only_where_its_server_is_named() -> None:
    names = with_paid("m")
    names.put(alias("auto", "m", "m@cloud"))
    free, paid = names.route("auto").targets
    assert (free.model, free.node_id, free.is_paid) == ("m", "", False)
    assert (paid.model, paid.node_id, paid.is_paid) == ("m", "id-cloud", True)
    assert not names.route("m").targets[0].is_paid


def test_a_model_name_with_an_at_sign_is_no_node_s() -> None:
    names = with_paid("large", free=("m@cloud",))
    (target,) = names.route("m@cloud").targets
    assert (target.model, target.node_id) == ("m@cloud", "")
    names.put(alias("odd", "m@nowhere"))
    with pytest.raises(UnknownModel):
        names.route("odd")


def test_a_name_may_have_the_tag_of_ollama_s_lists() -> None:
    names = names_with("org/small", "llama3:8b", "gemma:latest")
    for name, meant in (
        ("org/small:latest", "org/small"),
        ("fast:latest", "fast"),
        ("llama3:8b", "llama3:8b"),
        ("gemma", "gemma:latest"),
        ("other:latest", "other:latest"),
    ):
        assert names.untagged(name) == meant


def test_a_caller_with_patterns_knows_only_what_they_match() -> None:
    names = names_with("org/small", "org/large")
    allowed = ("fast", "*large")
    assert names.listed(allowed) == {"fast", "org/large"}
    assert names.route("fast", allowed).targets[0].model == "org/small"
    assert names.route("org/large", allowed).targets[0].model == "org/large"
    for name in ("org/small", "nothing-large", "org/smal"):
        with pytest.raises(UnknownModel) as unknown:
            names.route(name, allowed)
        message = unknown.value.message
        assert message.startswith(f"There is no model '{name}' for this API key")
        assert "org/small" not in message.replace(f"'{name}'", "")


def test_a_name_without_a_star_is_no_pattern() -> None:
    assert may_use("a[b]?", ("a[b]?",)) and not may_use("ab", ("a[b]?",))
    assert not may_use("qwen3", ("qwen",)) and may_use("qwen3", ("qwen*",))


QWEN = "mlx-community/Qwen3-4B-4bit"


def test_a_short_name_means_the_only_model_or_alias_that_it_fits() -> None:
    names = names_with(QWEN, "org/small")
    assert names.resolve("qwen3-4b") == QWEN
    assert names.resolve("small") == "org/small"
    assert names.route("FAST").alias == "fast"
    assert names.listed() == {QWEN, "org/small", "fast"}, "lists have whole names only"


def test_a_whole_name_an_alias_and_a_pattern_go_before_a_short_name() -> None:
    names = names_with(QWEN, "qwen3-4b-8bit")
    names.put(alias("qwen3-4b", "qwen3-4b-8bit"))
    assert names.resolve("qwen3-4b") == "qwen3-4b-8bit"
    names.remove("qwen3-4b")
    names.put(alias("qwen*", "qwen3-4b-8bit"))
    assert names.resolve("qwen3-4b") == "qwen3-4b-8bit"


def test_an_alias_of_a_model_that_is_gone_is_short_for_nothing() -> None:
    names = names_with("gone-4bit")
    names.put(alias("gone", "nothing"))
    with pytest.raises(UnknownModel, match="'gone'"):
        names.resolve("gone")


def test_a_short_name_of_several_is_an_error_that_lists_them() -> None:
    names = names_with(QWEN, "mlx-community/Qwen3-4B-8bit")
    with pytest.raises(UnknownModel) as refused:
        names.resolve("qwen3-4b")
    assert refused.value.message == (
        f"The name 'qwen3-4b' fits several models: {QWEN}, mlx-community/Qwen3-4B-8bit. Give more "
        "of the name."
    )
    assert refused.value.param == "model"


def test_short_names_follow_the_fleet() -> None:
    fleet = Fleet()
    fleet.add(node_record("http://a"))
    names = Names(fleet)
    fleet.on_status("id-a", node_status(model_status(QWEN)))
    assert names.resolve("qwen3-4b") == QWEN
    fleet.on_status("id-a", node_status(model_status("org/other")))
    with pytest.raises(UnknownModel):
        names.resolve("qwen3-4b")
    for number in range(20):
        fleet.on_status("id-a", node_status(model_status(f"org/model{number}-4bit")))
        assert names.resolve(f"model{number}") == f"org/model{number}-4bit"
    assert len(names._short) <= 8


def test_patterns_of_a_key_are_about_the_whole_name_that_is_meant() -> None:
    names = names_with(QWEN, "mlx-community/Qwen3-4B-8bit", "org/small")
    assert names.route("qwen3-4b", (QWEN,)).targets[0].model == QWEN, "it knows no other"
    assert names.route("small", ("org/*",)).targets[0].model == "org/small"
    for name in ("qwen3-4b", "small"):
        with pytest.raises(UnknownModel, match="for this API key"):
            names.route(name, (name, "qwen*", "sm*"))


def test_a_model_of_a_paid_server_has_no_short_name() -> None:
    names = with_paid("cloud/large-4bit")
    with pytest.raises(UnknownModel, match="No node of the fleet has the model 'large'"):
        names.route("large")
