"""A changed program must still render everything that the author's does."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from node.prompt.template.rewrite_check import Tools, keeps_words
from node.prompt.template.stable_history import EMPTY_REASONING

Turns = Sequence[dict[str, Any]]


def spelled(turns: Turns, tools: Tools, _variables: Mapping[str, Any]) -> str:
    return f"{tools} {turns}"


def without(role: str) -> Any:
    def render(turns: Turns, tools: Tools, variables: Mapping[str, Any]) -> str:
        return spelled([turn for turn in turns if turn["role"] != role], tools, variables)

    return render


def test_the_same_text_keeps_all() -> None:
    assert keeps_words(spelled, spelled)


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_a_message_that_is_gone_is_lost_unless_the_author_leaves_it_out_too(role: str) -> None:
    assert not keeps_words(spelled, without(role))
    assert keeps_words(without(role), spelled)
    assert keeps_words(without(role), without(role))


def test_the_second_of_two_calls_may_not_be_lost() -> None:
    def first_only(turns: Turns, tools: Tools, variables: Mapping[str, Any]) -> str:
        cut = [{**turn, "tool_calls": turn.get("tool_calls", [])[:1]} for turn in turns]
        return spelled(cut, tools, variables)

    assert not keeps_words(spelled, first_only)


def test_tools_may_not_be_lost() -> None:
    def bare(turns: Turns, _tools: Tools, variables: Mapping[str, Any]) -> str:
        return spelled(turns, None, variables)

    assert not keeps_words(spelled, bare)


def test_what_only_the_changed_program_refuses_is_lost() -> None:
    def refuses(_turns: Turns, _tools: Tools, _variables: Mapping[str, Any]) -> None:
        return None

    assert not keeps_words(spelled, refuses)
    assert keeps_words(refuses, refuses)


def test_both_values_of_the_variable_are_tried() -> None:
    def only_open(turns: Turns, tools: Tools, variables: Mapping[str, Any]) -> str | None:
        return None if variables[EMPTY_REASONING] else spelled(turns, tools, variables)

    assert not keeps_words(spelled, only_open)


def test_arguments_are_given_as_text_where_the_author_wants_that() -> None:
    def wants_text(turns: Turns, tools: Tools, variables: Mapping[str, Any]) -> str | None:
        calls = [call for turn in turns for call in turn.get("tool_calls", ())]
        if not all(isinstance(call["function"]["arguments"], str) for call in calls):
            return None
        return spelled(turns, tools, variables)

    def loses_calls(turns: Turns, tools: Tools, variables: Mapping[str, Any]) -> str | None:
        return wants_text([{**turn, "tool_calls": ()} for turn in turns], tools, variables)

    assert keeps_words(wants_text, wants_text)
    assert not keeps_words(wants_text, loses_calls)
