"""Formats by name, and the order in which they are tried."""

import pytest

from node.parsing.format import ModelFamily
from node.parsing.registry import are_compatible, in_order, override, reasoning_name, tool_call_name
from node.parsing.selection import Formats

THINKS = Formats("think", "hermes")
CHANNELS = Formats("harmony", "harmony")


@pytest.mark.parametrize(
    ("detected", "reasoning", "tool_calls", "expected"),
    [
        (THINKS, "", "", THINKS),
        (THINKS, "", "glm", Formats("think", "glm")),
        (THINKS, "none", "", Formats("none", "hermes")),
        # A format of outputs as a whole decides both.
        (THINKS, "harmony", "", CHANNELS),
        (THINKS, "", "harmony", CHANNELS),
        (CHANNELS, "", "kimi_k3", Formats("kimi_k3", "kimi_k3")),
        (CHANNELS, "", "none", Formats("harmony", "none")),
        (THINKS, "harmony", "none", Formats("harmony", "none")),
        # And has no other beside it.
        (CHANNELS, "", "hermes", Formats("none", "hermes")),
        (CHANNELS, "think", "", Formats("think", "none")),
        (CHANNELS, "think", "hermes", THINKS),
    ],
)
def test_what_is_set_overrides_what_the_template_determines(
    detected: Formats, reasoning: str, tool_calls: str, expected: Formats
) -> None:
    assert override(detected, reasoning, tool_calls) == expected
    assert are_compatible(*expected)


@pytest.mark.parametrize(
    ("name", "reasoning", "tool_calls"),
    [
        ("ERNIE-4-5", "ernie45", "ernie45"),
        ("ernie", "ernie45", "ernie45"),
        ("ling", "ling3", "ling3"),
        ("olmo", "olmo3", "olmo3"),
        ("step", "think", "qwen3_coder"),
    ],
)
def test_a_family_has_one_name_for_both(name: str, reasoning: str, tool_calls: str) -> None:
    assert (reasoning_name(name), tool_call_name(name)) == (reasoning, tool_calls)


@pytest.mark.parametrize(("name", "known"), [("gigachat", "gigachat3"), ("reka", "reka_edge")])
def test_calls_have_the_names_of_families_too(name: str, known: str) -> None:
    assert tool_call_name(name) == known


@pytest.mark.parametrize("find", [reasoning_name, tool_call_name])
def test_a_name_that_is_not_known_is_an_error(find: object) -> None:
    assert callable(find)
    with pytest.raises(KeyError):
        find("no such")


def test_families_are_tried_by_name_but_for_those_that_yield_to_others() -> None:
    families = {
        "a": ModelFamily(yields_to=("c",)),
        "b": ModelFamily(),
        "c": ModelFamily(),
        "hermes": ModelFamily(),
    }
    named = {id(family): name for name, family in families.items()}
    assert [named[id(each)] for each in in_order(families)] == ["hermes", "b", "c", "a"]


@pytest.mark.parametrize(
    ("families", "reason"),
    [
        (
            {"a": ModelFamily(yields_to=("b",)), "b": ModelFamily(yields_to=("a",))},
            "yield to each other",
        ),
        ({"a": ModelFamily(yields_to=("z",))}, "what there is not"),
    ],
)
def test_families_that_cannot_be_ordered_are_reported(
    families: dict[str, ModelFamily], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        in_order(families)
