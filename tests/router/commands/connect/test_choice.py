import pytest

from router.commands.client import CommandFailed
from router.commands.connect.choice import Offer, choose, client_named

SMALL, LARGE = Offer("small", 4096), Offer("large", 32768)


def test_a_client_is_found_by_its_name_and_a_near_one_is_suggested() -> None:
    assert client_named("Codex").title == "Codex"
    with pytest.raises(CommandFailed, match="did you mean claude-code"):
        client_named("claude")
    with pytest.raises(CommandFailed, match="Known: aider, claude-code"):
        client_named("zzz")


def test_the_only_model_is_taken() -> None:
    assert choose(client_named("codex"), None, [LARGE], []) == LARGE


def test_an_alias_with_the_name_of_the_client_is_taken() -> None:
    codex = Offer("codex", 100)
    assert choose(client_named("codex"), None, [SMALL, codex, LARGE], []) == codex


def test_claude_code_needs_no_model_if_its_own_names_are_aliases() -> None:
    client = client_named("claude-code")
    assert choose(client, None, [SMALL, LARGE], ["x", "claude-*"]) == Offer("", None)
    assert choose(client, "small", [SMALL, LARGE], ["claude-*"]) == SMALL
    with pytest.raises(CommandFailed):
        choose(client, None, [SMALL, LARGE], ["claude-opus*"])


def test_of_several_models_one_has_to_be_named() -> None:
    with pytest.raises(CommandFailed, match=r"--model NAME.*alias set aider NAME.*large, small"):
        choose(client_named("aider"), None, [SMALL, LARGE], [])
    many = [Offer(f"m{number:02}", None) for number in range(20)]
    with pytest.raises(CommandFailed, match="m11 and 8 more"):
        choose(client_named("aider"), None, many, [])


def test_a_model_that_the_fleet_lacks_is_named_with_near_ones() -> None:
    assert choose(client_named("aider"), "small", [SMALL, LARGE], []) == SMALL
    with pytest.raises(CommandFailed, match="'smal'; did you mean small"):
        choose(client_named("aider"), "smal", [SMALL, LARGE], [])
    with pytest.raises(CommandFailed, match="there are: large, small"):
        choose(client_named("aider"), "xyz", [SMALL, LARGE], [])
    with pytest.raises(CommandFailed, match="router models pull"):
        choose(client_named("aider"), None, [], [])
