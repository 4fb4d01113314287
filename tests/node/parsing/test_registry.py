import pytest

from node.parsing.registry import go_together, override, reasoning_name, tool_call_name
from node.parsing.selection import Formats

THINKS = Formats("think", "hermes")
CHANNELS = Formats("harmony", "harmony")


@pytest.mark.parametrize(
    ("told", "reasoning", "tool_calls", "expected"),
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
def test_what_is_given_stands_against_what_the_template_tells(
    told: Formats, reasoning: str, tool_calls: str, expected: Formats
) -> None:
    assert override(told, reasoning, tool_calls) == expected
    assert go_together(*expected)


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
